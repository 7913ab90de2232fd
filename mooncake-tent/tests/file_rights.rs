//! Files where the kernel allows little: other users' files, no rings, no memory to pin.
#![cfg(all(feature = "file", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, thread};

use common::*;
use mooncake_tent::{
    Error, Permission, RemoteRange, Request, Segment, TentEngine, TransferEngine,
    file::{FileConfig, FileEngine, FileSegment, FileTransport},
};
use rustix::{
    process::{Gid, Resource, Uid, geteuid, getrlimit},
    thread::{set_no_new_privs, set_thread_gid, set_thread_uid},
};

const LEN: usize = 100_000;

/// Runs `work` on a thread that first gives something up, with a runtime whose threads inherit that.
fn apart<T: Send + 'static>(
    give_up: impl FnOnce() + Send + 'static,
    work: impl AsyncFnOnce() -> T + Send + 'static,
) -> T {
    let work = move || {
        give_up();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(work())
    };
    thread::spawn(work).join().unwrap()
}

/// Only this thread, and those that it starts, are somebody else from now on.
fn become_nobody() {
    if geteuid().is_root() {
        set_thread_gid(Gid::from_raw(65_534)).unwrap();
        set_thread_uid(Uid::from_raw(65_534)).unwrap();
    }
}

/// A file that everybody may read and only its owner may write, in a folder that everybody finds.
fn file(mode: u32) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("theirs");
    fs::write(&path, pattern(1, LEN)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    (folder, path)
}

async fn engine_over(link: &FileTransport) -> TentEngine {
    let builder = TentEngine::builder().without_control();
    builder.transport(link.clone()).build().await.unwrap()
}

async fn open(engine: &TentEngine, file: &FileSegment) -> Result<Segment, Error> {
    engine.open_segment(&file.name(), BUDGET).await
}

async fn reads_it_all(engine: &TentEngine, segment: &Segment, len: usize) {
    let local = buffer(engine, len.max(LEN), Permission::Local).await;
    let part = local.slice(0..LEN as u64).unwrap();
    let read = Request::read(part, segment, RemoteRange::Address(0));
    assert!(once(engine, read).await.is_completed());
    assert_same(&bytes(&local, 0, LEN), &pattern(1, LEN), "read");
}

#[test]
fn what_the_user_may_not_do_with_a_file_the_link_may_not() {
    let (_folder, path) = file(0o444);
    let (_secret_folder, secret) = file(0o000);
    let other = geteuid().is_root();
    apart(become_nobody, async move || {
        let engine = engine_over(&FileTransport::default()).await;
        let mut denied = vec![
            FileSegment::new(&path).writable(),
            FileSegment::new(&secret),
        ];
        // Whoever runs this may make files in a folder of his own.
        if other {
            denied.push(FileSegment::new(path.with_file_name("new")).create(10));
        }
        for file in denied {
            let denied = open(&engine, &file).await.unwrap_err().to_string();
            assert!(denied.contains("ermission denied"), "{denied}");
            assert!(denied.contains(file.path().to_str().unwrap()), "{denied}");
        }
        let segment = open(&engine, &FileSegment::new(&path)).await.unwrap();
        reads_it_all(&engine, &segment, LEN).await;
    });
}

#[test]
fn memory_beyond_the_users_limit_is_not_pinned_and_serves_all_the_same() {
    const LARGE: usize = 64 << 20;
    let (_folder, path) = file(0o444);
    apart(become_nobody, async move || {
        let link = FileTransport::default();
        let engine = engine_over(&link).await;
        let segment = open(&engine, &FileSegment::new(&path).direct())
            .await
            .unwrap();
        reads_it_all(&engine, &segment, LARGE).await;
        let limit = getrlimit(Resource::Memlock).current;
        let limited = limit.is_some_and(|limit| limit < LARGE as u64);
        if limited && matches!(link.engine(), Some((FileEngine::Uring, _))) {
            assert_eq!(
                link.counts().unregistered,
                FileConfig::default().rings as u64
            );
            assert_eq!(link.counts().registered, 0);
        }
    });
}

/// As containers do: `io_uring_setup` is not permitted.
fn give_up_rings() {
    set_no_new_privs(true).unwrap();
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut steps = [
        // The number of the call is the first word.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program and its steps live until the call has returned.
    let done = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn where_rings_are_forbidden_plain_calls_do_the_same_and_the_link_says_why() {
    let (_folder, path) = file(0o644);
    apart(give_up_rings, async move || {
        let link = FileTransport::default();
        let engine = engine_over(&link).await;
        let (chosen, why) = link.engine().unwrap();
        assert_eq!(chosen, FileEngine::Portable);
        assert!(why.contains("not permitted"), "{why}");
        let segment = open(&engine, &FileSegment::new(&path)).await.unwrap();
        reads_it_all(&engine, &segment, LEN).await;

        let mut config = FileConfig::default();
        config.engine = FileEngine::Uring;
        let link = FileTransport::new(config);
        let builder = TentEngine::builder().without_control().transport(link);
        let refused = builder.build().await.unwrap_err().to_string();
        assert!(
            refused.contains("io_uring") && refused.contains("not permitted"),
            "{refused}"
        );
    });
}
