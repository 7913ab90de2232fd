//! How transfers of files end that do not complete: cancelled, too late, or with their engine.
#![cfg(all(feature = "file", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    fs,
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Batch, Buffer, Permission, RemoteRange, Request, Segment, TentEngine, TransferEngine,
    file::{FileConfig, FileEngine, FileSegment, FileTransport},
    transport::{LinkGauges, Outcome},
};

/// So much that no disk has read it before somebody cancels.
const LEN: usize = 32 << 20;
const PARTS: u64 = 32;

struct Ground {
    engine: TentEngine,
    local: Buffer,
    segment: Segment,
    _folder: tempfile::TempDir,
}

async fn ground(engine: FileEngine, direct: bool) -> Ground {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    fs::write(&path, pattern(1, LEN)).unwrap();
    // What is to be read directly must be on the disk.
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let mut config = FileConfig::default();
    config.engine = engine;
    config.depth = 4;
    let link = FileTransport::new(config);
    let builder = TentEngine::builder().without_control().transport(link);
    let engine = builder.build().await.unwrap();
    let local = buffer(&engine, LEN, Permission::Local).await;
    let file = FileSegment::new(&path);
    let file = if direct { file.direct() } else { file };
    let segment = engine.open_segment(&file.name(), BUDGET).await.unwrap();
    Ground {
        engine,
        local,
        segment,
        _folder: folder,
    }
}

impl Ground {
    fn reads(&self, deadline: Option<Instant>) -> Batch {
        let each = LEN as u64 / PARTS;
        let reads = (0..PARTS).map(|i| {
            let part = self.local.slice(i * each..(i + 1) * each).unwrap();
            let read = Request::read(part, &self.segment, RemoteRange::Address(i * each));
            match deadline {
                Some(deadline) => read.deadline(deadline),
                None => read,
            }
        });
        submit(&self.engine, reads.collect())
    }

    /// Nothing of what was asked for before moves any more, and all of it is given back.
    async fn is_quiet(&self) {
        self.local.memory().write_at(0, &vec![9; LEN]);
        let one = Request::read(
            self.local.slice(0..100_000).unwrap(),
            &self.segment,
            RemoteRange::Address(0),
        );
        assert!(once(&self.engine, one).await.is_completed());
        let rest = bytes(&self.local, 100_000, LEN - 100_000);
        assert!(rest.iter().all(|byte| *byte == 9), "law 3: it landed later");
        let gauges = self.engine.gauges();
        assert_eq!((gauges.tasks_in_flight, gauges.leases), (0, 0));
        assert_eq!((gauges.bytes_in_flight, gauges.quarantined_bytes), (0, 0));
    }

    async fn close(self) {
        let Self {
            engine,
            local,
            segment,
            _folder,
        } = self;
        engine.close_segment(&segment);
        engine.unregister_memory(local, BUDGET).await.unwrap();
        engine.shutdown(BUDGET).await.unwrap();
        let gauges = engine.gauges();
        assert!(
            gauges
                .links
                .iter()
                .all(|(_, link)| *link == LinkGauges::default())
        );
        assert_eq!(gauges.registrations, 0);
    }
}

const WAYS: [(FileEngine, bool); 4] = [
    (FileEngine::Best, false),
    (FileEngine::Best, true),
    (FileEngine::Portable, false),
    (FileEngine::Portable, true),
];

#[tokio::test(flavor = "multi_thread")]
async fn law_03_cancelled_reads_are_given_back_and_leave_memory_alone() {
    for (engine, direct) in WAYS {
        let ground = ground(engine, direct).await;
        for blocking in [false, true] {
            let batch = ground.reads(None);
            batch.cancel_all();
            match blocking {
                true => assert!(batch.wait(BUDGET)),
                false => terminal(&batch).await,
            }
            quiescent(&batch).await;
            let ends: Vec<_> = (0..batch.len())
                .map(|i| batch.outcome(i).unwrap())
                .collect();
            let cancelled = ends.iter().filter(|end| end.is_cancelled()).count();
            let completed = ends.iter().filter(|end| end.is_completed()).count();
            assert_eq!(cancelled + completed, PARTS as usize, "{ends:?}");
            drop(batch);
            ground.is_quiet().await;
        }
        ground.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_09_what_is_too_late_times_out_quietly() {
    for (engine, direct) in WAYS {
        let ground = ground(engine, direct).await;
        for micros in [0, 300, 3_000] {
            let deadline = Instant::now() + Duration::from_micros(micros);
            let batch = ground.reads(Some(deadline));
            assert!(batch.wait(BUDGET));
            quiescent(&batch).await;
            for i in 0..batch.len() {
                let outcome = batch.outcome(i).unwrap();
                assert!(
                    outcome.is_timed_out() || outcome.is_completed(),
                    "{outcome:?}"
                );
                assert!(outcome.is_timed_out() || micros > 0, "{outcome:?}");
            }
            drop(batch);
            ground.is_quiet().await;
        }
        ground.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_after_a_fence_nothing_lands() {
    for (engine, direct) in WAYS {
        let ground = ground(engine, direct).await;
        let batch = ground.reads(None);
        ground.engine.fence(&ground.segment, BUDGET).await.unwrap();
        assert!(batch.is_quiescent());
        for i in 0..batch.len() {
            match batch.outcome(i).unwrap() {
                Outcome::Completed { .. } => {}
                Outcome::Failed(error) => assert!(error.to_string().contains("fenced"), "{error}"),
                other => panic!("nobody asked for {other:?}"),
            }
        }
        drop(batch);
        ground.is_quiet().await;
        ground.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_an_engine_that_goes_ends_what_is_under_way() {
    for (engine, direct) in WAYS {
        for by_call in [true, false] {
            let ground = ground(engine, direct).await;
            let batch = ground.reads(None);
            let held = books(&ground.local);
            let Ground {
                engine,
                local,
                segment,
                _folder,
            } = ground;
            if by_call {
                engine.shutdown(BUDGET).await.unwrap();
            }
            drop((engine, segment));
            terminal(&batch).await;
            quiescent(&batch).await;
            local.memory().write_at(0, &vec![9; LEN]);
            for i in 0..batch.len() {
                match batch.outcome(i).unwrap() {
                    Outcome::Completed { .. } => {}
                    Outcome::Failed(error) => {
                        assert!(error.to_string().contains("shutting down"), "{error}");
                    }
                    other => panic!("nobody asked for {other:?}"),
                }
            }
            drop(batch);
            assert_eq!(held.leases(), 0);
            let all = bytes(&local, 0, LEN);
            assert!(all.iter().all(|byte| *byte == 9), "law 3: it landed later");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_02_many_callers_of_one_ring_all_hear_of_their_ends() {
    let ground = ground(FileEngine::Best, true).await;
    let (engine, local, segment) = (&ground.engine, &ground.local, &ground.segment);
    std::thread::scope(|scope| {
        for caller in 0..6_u64 {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = { runtime }.enable_all().build().unwrap();
                for round in 0..60 {
                    let at = (caller * 60 + round) * 4096;
                    let part = local.slice(at..at + 8192).unwrap();
                    let read = Request::read(part, segment, RemoteRange::Address(at));
                    let batch = submit(engine, vec![read]);
                    match caller % 2 {
                        0 => assert!(batch.wait(BUDGET)),
                        _ => runtime.block_on(terminal(&batch)),
                    }
                    assert!(batch.outcome(0).unwrap().is_completed());
                }
            });
        }
    });
    let all = 6 * 60 * 4096;
    assert_same(&bytes(local, 0, all), &pattern(1, all), "read");
    ground.close().await;
}
