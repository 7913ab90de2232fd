//! Programs in C, built against the header and the library as their authors would.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Where the library was built.
fn library() -> PathBuf {
    let test = env::current_exe().expect("a test is a file");
    test.parent().expect("it is in a folder").to_owned()
}

/// Builds a program in `folder`; `None`: there is no C compiler.
fn build(folder: &Path, source: &Path) -> Option<PathBuf> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        skip("no C compiler");
        return None;
    }
    let (header, library) = (concat!(env!("CARGO_MANIFEST_DIR"), "/include"), library());
    let program = folder.join("program");
    let built = Command::new(compiler)
        .args([
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-I",
            header,
        ])
        .arg(source)
        .arg(library.join("libtent.so"))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("the compiler runs");
    assert!(built.status.success(), "{}", text(&built.stderr));
    Some(program)
}

fn run(program: &Path) -> Output {
    let ran = Command::new(program)
        .env("LD_LIBRARY_PATH", library())
        .output();
    ran.expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Counted by `./test`.
fn skip(why: &str) {
    eprintln!("skipped: {why}");
    if let Some(log) = env::var_os("MOONCAKE_SKIP_LOG") {
        let line = format!("mooncake-tent-c programs: {why}\n");
        let open = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log);
        let written = open.and_then(|mut log| std::io::Write::write_all(&mut log, line.as_bytes()));
        written.expect("what is skipped is counted");
    }
}

#[test]
fn the_example_moves_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/copy.c");
    let Some(program) = build(folder.path(), &source) else {
        return;
    };
    let ran = run(&program);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(text(&ran.stdout).contains("every byte of it right"));
}

#[test]
fn structures_lie_as_the_header_has_them_and_what_is_wrong_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/refusals.c");
    let Some(program) = build(folder.path(), &source) else {
        return;
    };
    let ran = run(&program);
    assert!(
        ran.status.success(),
        "{}{}",
        text(&ran.stdout),
        text(&ran.stderr)
    );
    assert_eq!(text(&ran.stdout), tent::layout());
}
