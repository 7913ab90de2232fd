//! How the generated code of `mooncake-proto` comes from its `.proto` files, without `protoc`.
//!
//! `cargo run -p mooncake-proto-codegen` writes it anew; a test compares it with what is kept.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

/// Compiles the protos below `root/proto` into `out`, one file a package.
pub fn generate(root: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(out)?;
    compile(root, out, "status", &["status"], &[])?;
    compile(root, out, "tent", &["tent"], &[])?;
    // The modules that the crate gives to the packages which messages refer to.
    let status = (".mooncake.status.v1", "crate::status");
    let master = (".mooncake.master.v1", "crate::master");
    // Before the package that it refers to, of which it would leave only the services.
    compile(root, out, "store", &["holder"], &[status, master])?;
    compile(root, out, "master", &["master", "storage"], &[status])
}

fn compile(
    root: &Path,
    out: &Path,
    package: &str,
    files: &[&str],
    known: &[(&str, &str)],
) -> Result<(), Box<dyn Error>> {
    let path = |file: &&str| format!("mooncake/{package}/v1/{file}.proto");
    let descriptors = protox::compile(files.iter().map(path), [root.join("proto")])?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    // Few keys fail: the results of the others should not be as large as why they did not.
    config.boxed("error");
    for (proto, rust) in known {
        config.extern_path(*proto, *rust);
    }
    tonic_prost_build::configure()
        .out_dir(out)
        .build_transport(false)
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}

/// The folder of `mooncake-proto`.
pub fn proto_crate() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate lies in that folder")
        .to_path_buf()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn files(folder: &Path) -> BTreeMap<String, String> {
        fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let text = fs::read_to_string(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), text)
            })
            .collect()
    }

    #[test]
    fn the_generated_code_is_what_the_protos_say() {
        let fresh = tempfile::tempdir().unwrap();
        generate(&proto_crate(), fresh.path()).unwrap();
        let (fresh, kept) = (
            files(fresh.path()),
            files(&proto_crate().join("src/generated")),
        );
        assert!(
            fresh == kept,
            "the protos changed: run `cargo run -p mooncake-proto-codegen`"
        );
    }
}
