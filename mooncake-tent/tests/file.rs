//! File segments: what is read and written, how they are opened, and how they end.
#![cfg(all(feature = "file", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{fs, path::Path};

use common::*;
use mooncake_tent::{
    Error, Permission, Qos, Reason, RemoteRange, Request, Retry, Segment, TcpTransport, TentEngine,
    TransferEngine,
    file::{FileConfig, FileEngine, FileSegment, FileTransport},
    transport::{LinkGauges, Op, Outcome},
};
use proptest::prelude::*;

fn with(engine: FileEngine) -> FileTransport {
    let mut config = FileConfig::default();
    config.engine = engine;
    FileTransport::new(config)
}

async fn engine_over(link: &FileTransport) -> TentEngine {
    let builder = TentEngine::builder().without_control();
    builder.transport(link.clone()).build().await.unwrap()
}

async fn open(engine: &TentEngine, file: &FileSegment) -> Result<Segment, Error> {
    engine.open_segment(&file.name(), BUDGET).await
}

fn gauges(engine: &TentEngine) -> LinkGauges {
    let links = engine.gauges().links;
    links.iter().find(|(link, _)| *link == "file").unwrap().1
}

/// Whether this process has a file open, or a ring of its own does.
fn has_open(path: &Path) -> bool {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(Result::ok).any(|fd| {
        let info = Path::new("/proc/self/fdinfo").join(fd.file_name());
        let of_ring = fs::read_to_string(info).unwrap_or_default();
        fs::read_link(fd.path()).is_ok_and(|target| target == path)
            || of_ring.contains(path.to_str().unwrap())
    })
}

/// The flags with which it is open, once for each descriptor.
fn flags(path: &Path) -> Vec<u32> {
    let path = path.canonicalize().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(|fd| {
        let fd = fd.ok()?;
        (fs::read_link(fd.path()).ok()? == path).then_some(())?;
        let info = fs::read_to_string(Path::new("/proc/self/fdinfo").join(fd.file_name())).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        u32::from_str_radix(flags.trim(), 8).ok()
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_link_says_which_engine_it_has_and_why() {
    let link = with(FileEngine::Best);
    assert_eq!(link.engine(), None);
    let _engine = engine_over(&link).await;
    match link.engine().unwrap() {
        (FileEngine::Uring, why) => assert!(why.contains("io_uring"), "{why}"),
        (FileEngine::Portable, why) => {
            assert!(why.contains("refused"), "{why}");
            if let Some(log) = std::env::var_os("MOONCAKE_SKIP_LOG") {
                use std::io::Write;
                let mut log = fs::File::options().append(true).open(log).unwrap();
                writeln!(log, "skipped: files on rings: {why}").unwrap();
            }
        }
        other => panic!("{other:?}"),
    }
    let link = with(FileEngine::Portable);
    let _engine = engine_over(&link).await;
    let (engine, why) = link.engine().unwrap();
    assert_eq!(engine, FileEngine::Portable);
    assert!(why.contains("asked for"), "{why}");
}

/// Writes and reads back at odd places, with the margins left alone.
async fn at_odd_places(engine: FileEngine, direct: bool, places: &[(u64, u64, u64)]) {
    const LEN: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd");
    let link = with(engine);
    let engine = engine_over(&link).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    let mut file = FileSegment::new(&path).create(LEN as u64);
    if direct {
        file = file.direct();
    }
    let segment = open(&engine, &file).await.unwrap();
    let mut wanted = pattern(1, LEN);
    fs::write(&path, &wanted).unwrap();
    for (round, (at, from, len)) in places.iter().copied().enumerate() {
        let there = at as usize..(at + len) as usize;
        let here = pattern(round as u64 + 2, LEN);
        local.memory().write_at(0, &here);
        let part = || local.slice(from..from + len).unwrap();
        let range = RemoteRange::Address(at);
        let read = Request::read(part(), &segment, range);
        let outcome = once(&engine, read).await;
        assert_eq!(outcome, Outcome::Completed { bytes: len });
        let mut found = here.clone();
        found[from as usize..(from + len) as usize].copy_from_slice(&wanted[there.clone()]);
        assert_same(&bytes(&local, 0, LEN), &found, "read");

        local.memory().write_at(0, &here);
        let write = Request::write(part(), &segment, range);
        let outcome = once(&engine, write).await;
        assert_eq!(outcome, Outcome::Completed { bytes: len });
        wanted[there].copy_from_slice(&here[from as usize..(from + len) as usize]);
        assert_same(&fs::read(&path).unwrap(), &wanted, "written");
    }
    engine.shutdown(BUDGET).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn bytes_at_odd_places_arrive_and_no_others_change(
        places in proptest::collection::vec((0..60_000u64, 0..60_000u64, 1..40_000u64), 1..6),
        aligned in proptest::collection::vec((0..10u64, 0..10u64, 1..9u64), 1..4),
        portable: bool,
        direct: bool,
    ) {
        let aligned = aligned.iter().map(|(at, from, len)| (at * 4096, from * 4096, len * 4096));
        let places: Vec<_> = places.iter().copied().chain(aligned).collect();
        let engine = if portable { FileEngine::Portable } else { FileEngine::Best };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(at_odd_places(engine, direct, &places));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_part_goes_the_best_way_that_its_place_allows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ways");
    fs::write(&path, pattern(1, 3 * 4096 + 100)).unwrap();
    let link = with(FileEngine::Best);
    let engine = engine_over(&link).await;
    let local = buffer(&engine, 1 << 16, Permission::Local).await;
    let segment = open(&engine, &FileSegment::new(&path).direct())
        .await
        .unwrap();
    if flags(&path).len() < 2 {
        return; // Its file system has no direct way.
    }
    let before = link.counts();
    let read = async |from, at, len| {
        let part = local.slice(from..from + len).unwrap();
        let read = Request::read(part, &segment, RemoteRange::Address(at));
        assert!(once(&engine, read).await.is_completed());
        let counts = link.counts();
        [counts.cached, counts.direct, counts.staged]
    };
    assert_eq!(read(0, 4096, 8192).await, [0, 1, 0]);
    assert_eq!(read(1, 4096, 8192).await, [0, 1, 1]);
    assert_eq!(read(4000, 4000, 8388).await, [2, 2, 1], "its head and tail");
    assert_eq!(read(5, 4000, 20).await, [3, 2, 1]);
    assert_eq!(
        read(0, 3 * 4096, 100).await,
        [4, 2, 1],
        "the end of the file"
    );
    if matches!(link.engine(), Some((FileEngine::Uring, _))) {
        let pinned = link.counts().registered - before.registered;
        assert_eq!(pinned, 6, "all but the staged one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_made_with_the_size_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made here\n%?");
    let link = with(FileEngine::Best);
    let engine = engine_over(&link).await;
    let file = FileSegment::new(&path);
    let missing = open(&engine, &file).await.unwrap_err();
    assert!(missing.to_string().contains("made here"), "{missing}");

    let segment = open(&engine, &file.clone().create(10_007)).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), vec![0; 10_007]);
    let descriptor = segment.descriptor();
    assert_eq!(descriptor.buffer_count(), 1);
    let all = descriptor.buffers().next().unwrap();
    assert_eq!((all.address, all.length), (0, 10_007));
    assert_eq!(all.permission, Permission::PeersReadWrite);
    assert_eq!(&*all.links, ["file"]);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing else"
    );

    // One that is there stays as it is.
    fs::write(&path, pattern(3, 10_007)).unwrap();
    open(&engine, &file.clone().create(10_007)).await.unwrap();
    assert_same(&fs::read(&path).unwrap(), &pattern(3, 10_007), "kept");
    let other = open(&engine, &file.create(7)).await.unwrap_err();
    assert!(other.to_string().contains("10007 bytes, not 7"), "{other}");
}

#[tokio::test(flavor = "multi_thread")]
async fn law_14_who_asks_for_durable_writes_gets_them_from_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("durable");
    let engine = engine_over(&with(FileEngine::Best)).await;
    let file = FileSegment::new(&path).create(4096).direct();
    let segment = open(&engine, &file).await.unwrap();
    let dsync = libc::O_DSYNC as u32;
    assert!(flags(&path).iter().all(|flags| flags & dsync == 0));
    engine.close_segment(&segment);
    let segment = open(&engine, &file.sync()).await.unwrap();
    let flags = flags(&path);
    assert!(!flags.is_empty() && flags.iter().all(|flags| flags & dsync == dsync));
    let local = buffer(&engine, 4096, Permission::Local).await;
    local.memory().write_at(0, &pattern(9, 4096));
    let write = Request::write(local.all().unwrap(), &segment, RemoteRange::Address(0));
    assert!(once(&engine, write).await.is_completed());
    assert_same(&fs::read(&path).unwrap(), &pattern(9, 4096), "written");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_with_bytes_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine_over(&with(FileEngine::Best)).await;
    let refused = async |path: &Path, write: bool| {
        let file = FileSegment::new(path);
        let file = if write { file.writable() } else { file };
        let error = open(&engine, &file).await.unwrap_err();
        assert_eq!(error.retry(), Retry::Never);
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        text
    };
    let text = refused(folder.path(), false).await;
    assert!(text.contains("no regular file"), "{text}");
    refused(folder.path(), true).await;
    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    assert!(refused(&empty, false).await.contains("is empty"));
    // Nobody is at the other end of this pipe, and nobody waits for that.
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    refused(&pipe, false).await;
    refused(&pipe, true).await;
    refused(Path::new("/dev/null"), true).await;
    for name in ["file://relative", "file:///a?unknown", "file:///a%"] {
        let error = engine.open_segment(name, BUDGET).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    assert_eq!(gauges(&engine), LinkGauges::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_file_link_reaches_a_file_and_it_reaches_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine");
    fs::write(&path, pattern(1, 100)).unwrap();
    let both = async || {
        let builder = TentEngine::builder().transport(TcpTransport::default());
        builder
            .transport(FileTransport::default())
            .build()
            .await
            .unwrap()
    };
    let (engine, other) = (both().await, both().await);
    let file = open(&engine, &FileSegment::new(&path).writable())
        .await
        .unwrap();
    let peer = common::open(&engine, &other).await;
    let links = |engine: &TentEngine, segment: &Segment| -> Vec<String> {
        let ranked = engine.explain(Op::Read, 1, &Qos::new(), segment).ranked;
        ranked.into_iter().map(|link| link.name).collect()
    };
    assert_eq!(links(&engine, &file), ["file"]);
    assert_eq!(links(&engine, &peer), ["tcp"]);
    // Nobody else's link reaches it, not even that of an engine in the same process.
    assert_eq!(links(&other, &file), [""; 0]);
    let local = buffer(&other, 100, Permission::Local).await;
    let mut batch = other.allocate_batch(1);
    let read = Request::read(local.all().unwrap(), &file, RemoteRange::Address(0));
    let refused = other.submit_transfer(&mut batch, vec![read]).unwrap_err();
    assert!(matches!(refused, Error::NoRoute { .. }), "{refused}");
    // What a process offers does not speak of the files that it has open.
    let offered = common::open(&other, &engine).await.descriptor();
    assert_eq!(offered.buffer_count(), 0);
    // Nor can another engine close it, whatever links it has.
    let bare = TentEngine::builder().build().await.unwrap();
    bare.close_segment(&file);
    other.close_segment(&file);
    assert_eq!(links(&engine, &file), ["file"]);
    engine.close_segment(&file);
    assert_eq!(links(&engine, &file), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_the_link_opens_no_files() {
    let engine = TentEngine::builder()
        .without_control()
        .build()
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("there");
    fs::write(&path, "there").unwrap();
    let name = FileSegment::new(&path).name();
    let budget = std::time::Duration::from_secs(1);
    let error = engine.open_segment(&name, budget).await.unwrap_err();
    assert!(error.to_string().contains(&name), "{error}");
}

type Change = fn(&Path);

#[tokio::test(flavor = "multi_thread")]
async fn law_05_a_file_that_changed_behind_our_back_gives_errors_and_no_bytes() {
    for engine in [FileEngine::Best, FileEngine::Portable] {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine_over(&with(engine)).await;
        let local = buffer(&engine, 10_000, Permission::Local).await;
        let changes: [(&str, Change); 5] = [
            ("was replaced", |path| {
                let new = path.with_extension("new");
                fs::write(&new, vec![7; 10_000]).unwrap();
                fs::rename(new, path).unwrap();
            }),
            ("was truncated from 10000 to 9999", |path| {
                let file = fs::File::options().write(true).open(path).unwrap();
                file.set_len(9_999).unwrap();
            }),
            ("has vanished", |path| fs::remove_file(path).unwrap()),
            ("was replaced", |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            }),
            ("has vanished", |path| {
                fs::rename(
                    path.parent().unwrap(),
                    path.parent().unwrap().with_extension("moved"),
                )
                .unwrap();
            }),
        ];
        for (number, (what, change)) in changes.into_iter().enumerate() {
            let inner = folder.path().join(number.to_string());
            fs::create_dir(&inner).unwrap();
            let path = inner.join("file");
            fs::write(&path, pattern(1, 10_000)).unwrap();
            let segment = open(&engine, &FileSegment::new(&path)).await.unwrap();
            let read = || Request::read(local.all().unwrap(), &segment, RemoteRange::Address(0));
            assert!(once(&engine, read()).await.is_completed());
            local.memory().write_at(0, &[3; 10_000]);
            change(&path);
            let error = error(Some(once(&engine, read()).await));
            assert!(matches!(error.reason, Reason::File(_)), "{error}");
            assert_eq!(error.retry, Retry::AfterRefresh, "{error}");
            assert_eq!(error.peer, Some(segment.incarnation()));
            let text = error.to_string();
            assert!(
                text.contains(what) && text.contains("file"),
                "{what}: {text}"
            );
            assert_same(&bytes(&local, 0, 10_000), &[3; 10_000], "no byte is read");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_07_another_opening_is_another_segment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("twice");
    fs::write(&path, pattern(1, 100)).unwrap();
    let engine = engine_over(&with(FileEngine::Best)).await;
    let local = buffer(&engine, 100, Permission::Local).await;
    let file = FileSegment::new(&path);
    let (one, other) = (
        open(&engine, &file).await.unwrap(),
        open(&engine, &file).await.unwrap(),
    );
    assert_ne!(one.incarnation(), other.incarnation());
    let registration = |segment: &Segment| {
        let descriptor = segment.descriptor();
        descriptor.buffers().next().unwrap().registration
    };
    let read = |segment: &Segment, registration| {
        let place = RemoteRange::Registered {
            registration,
            generation: None,
            offset: 0,
        };
        Request::read(local.all().unwrap(), segment, place)
    };
    assert!(
        once(&engine, read(&one, registration(&one)))
            .await
            .is_completed()
    );
    let error = error(Some(once(&engine, read(&one, registration(&other))).await));
    assert_eq!(error.reason, Reason::UnknownRegistration);
    // One is closed, which the other does not notice.
    engine.close_segment(&one);
    let closed = once(&engine, read(&one, registration(&one))).await;
    assert!(
        closed.error().unwrap().to_string().contains("closed"),
        "{closed:?}"
    );
    assert!(
        once(&engine, read(&other, registration(&other)))
            .await
            .is_completed()
    );
    assert_eq!(gauges(&engine).files, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn law_13_a_file_is_closed_with_its_segment_and_memory_is_let_go() {
    const LEN: usize = 8 << 20;
    for engine in [FileEngine::Best, FileEngine::Portable] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("closed");
        fs::write(&path, pattern(1, LEN)).unwrap();
        let link = with(engine);
        let engine = engine_over(&link).await;
        let file = FileSegment::new(&path).direct();
        let local = buffer(&engine, LEN, Permission::Local).await;
        let dropped = buffer(&engine, 4096, Permission::Local).await;
        let reads = |segment: &Segment| {
            let reads = (0..32).map(|i| {
                let part = local.slice(i * 4096..(i + 1) * 4096).unwrap();
                Request::read(part, segment, RemoteRange::Address(i * 8192))
            });
            submit(&engine, reads.collect())
        };
        for by_call in [true, false] {
            let segment = open(&engine, &file).await.unwrap();
            assert!(has_open(&path));
            assert_eq!(gauges(&engine).files, 1);
            let batch = reads(&segment);
            match by_call {
                true => engine.close_segment(&segment),
                false => drop(segment),
            }
            terminal(&batch).await;
            for i in 0..batch.len() {
                assert!(
                    batch.outcome(i).unwrap().is_completed(),
                    "what was begun goes on"
                );
            }
            eventually("the file is closed", || !has_open(&path)).await;
            assert_eq!(gauges(&engine).files, 0);
        }
        if matches!(link.engine(), Some((FileEngine::Uring, _))) {
            let rings = FileConfig::default().rings as u64;
            assert_eq!(gauges(&engine).pinned_buffers, 2 * rings);
            drop(dropped);
            assert_eq!(gauges(&engine).pinned_buffers, rings);
        } else {
            drop(dropped);
        }
        engine.unregister_memory(local, BUDGET).await.unwrap();
        assert_eq!(gauges(&engine), LinkGauges::default());
        engine.shutdown(BUDGET).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_thread_began_that_has_ended_is_done_all_the_same() {
    const LEN: usize = 16 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("threads");
    fs::write(&path, pattern(1, LEN)).unwrap();
    let engine = engine_over(&with(FileEngine::Best)).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    for direct in [false, true] {
        let file = FileSegment::new(&path);
        let file = if direct { file.direct() } else { file };
        let segment = open(&engine, &file).await.unwrap();
        for _ in 0..10 {
            local.memory().write_at(0, &[0; LEN]);
            let (engine, segment) = (engine.clone(), segment.clone());
            let reads: Vec<_> = (0..64)
                .map(|i| {
                    let (at, len) = (i * LEN as u64 / 64, LEN as u64 / 64);
                    let part = local.slice(at..at + len).unwrap();
                    Request::read(part, &segment, RemoteRange::Address(at))
                })
                .collect();
            let batch = std::thread::spawn(move || submit(&engine, reads))
                .join()
                .unwrap();
            terminal(&batch).await;
            for i in 0..batch.len() {
                let outcome = batch.outcome(i).unwrap();
                assert!(outcome.is_completed(), "{outcome:?}");
            }
            assert_same(&bytes(&local, 0, LEN), &pattern(1, LEN), "read");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_cannot_be_pinned_is_read_into_all_the_same() {
    const HUGE: usize = (1 << 30) + 4096;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge");
    fs::write(&path, pattern(1, 10_000)).unwrap();
    let link = with(FileEngine::Best);
    let engine = engine_over(&link).await;
    // It takes no memory before it is touched.
    let local = buffer(&engine, HUGE, Permission::Local).await;
    if matches!(link.engine(), Some((FileEngine::Uring, _))) {
        assert_eq!(
            link.counts().unregistered,
            FileConfig::default().rings as u64
        );
        assert_eq!(gauges(&engine).pinned_buffers, 0);
    }
    let segment = open(&engine, &FileSegment::new(&path).direct())
        .await
        .unwrap();
    let part = local.slice(HUGE as u64 - 10_000..HUGE as u64).unwrap();
    let read = Request::read(part, &segment, RemoteRange::Address(0));
    assert!(once(&engine, read).await.is_completed());
    let found = bytes(&local, HUGE as u64 - 10_000, 10_000);
    assert_same(&found, &pattern(1, 10_000), "read");
    assert_eq!(link.counts().registered, 0);
}
