//! What a target refuses has no effect, says why, and costs the lane nothing.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use common::*;
use mooncake_tent::{
    Applied, Generation, Permission, Reason, RegistrationId, RemoteRange, Request, Retry,
    transport::Op,
};

#[tokio::test(flavor = "multi_thread")]
async fn law_04_each_refusal_says_why_and_touches_nothing() {
    let (owner, engine) = (engine().await, engine_with(one_lane()).await);
    let writable = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let readable = buffer(&owner, 4096, Permission::PeersRead).await;
    let private = buffer(&owner, 4096, Permission::Local).await;
    let local = buffer(&engine, 2 << 20, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    for offered in [&writable, &readable, &private] {
        offered.memory().write_at(0, &pattern(1, 4096));
    }
    local.memory().write_at(0, &pattern(2, 2 << 20));
    let of = |registration, generation, offset| RemoteRange::Registered {
        registration,
        generation: Some(generation),
        offset,
    };
    let now = writable.generation();
    let next = Generation(now.0 + 1);
    let unknown = RegistrationId(writable.id().0 ^ 0xffff);
    let cases = [
        (false, place(&writable, 4000), 97, Reason::OutOfBounds),
        (true, place(&writable, 4000), 97, Reason::OutOfBounds),
        (true, place(&writable, 4096), 1, Reason::OutOfBounds),
        (true, place(&writable, 0), 2 << 20, Reason::OutOfBounds),
        (true, place(&writable, u64::MAX - 5), 5, Reason::OutOfBounds),
        (
            true,
            place(&writable, u64::MAX),
            2 << 20,
            Reason::OutOfBounds,
        ),
        (true, place(&readable, 0), 4096, Reason::Permission),
        (true, place(&private, 0), 10, Reason::Permission),
        (false, place(&private, 0), 10, Reason::Permission),
        (true, of(writable.id(), next, 0), 9, Reason::StaleGeneration),
        (
            false,
            of(writable.id(), next, 0),
            9,
            Reason::StaleGeneration,
        ),
        (
            true,
            of(unknown, now, 0),
            70_000,
            Reason::UnknownRegistration,
        ),
        (false, of(unknown, now, 0), 9, Reason::UnknownRegistration),
    ];
    for pipelined in [false, true] {
        for (is_write, at, length, reason) in &cases {
            let bad = match is_write {
                true => Request::write(local.slice(0..*length).unwrap(), &segment, *at),
                false => Request::read(local.slice(0..*length).unwrap(), &segment, *at),
            };
            // Good ones before and after it, in one pipeline.
            let good = |at: u64| {
                let from = local.slice(at..at + 8).unwrap();
                Request::write(from, &segment, place(&writable, at))
            };
            let (requests, bad_one) = match pipelined {
                true => (vec![good(0), good(8), bad, good(16), good(24)], 2),
                false => (vec![bad], 0),
            };
            let batch = submit(&engine, requests);
            match is_write {
                true => assert!(batch.wait(BUDGET)),
                false => terminal(&batch).await,
            }
            for i in (0..batch.len()).filter(|i| *i != bad_one) {
                assert!(batch.outcome(i).unwrap().is_completed(), "{reason:?}: {i}");
            }
            let error = error(batch.outcome(bad_one));
            assert_eq!(&error.reason, reason);
            let retry = match reason {
                Reason::OutOfBounds | Reason::Permission => Retry::Never,
                _ => Retry::AfterRefresh,
            };
            assert_eq!(error.retry, retry, "{reason:?}");
            assert_eq!(error.applied, Applied::Nothing, "{reason:?}");
            assert!(error.quiescent && batch.is_quiescent(), "{reason:?}");
            let touched = if pipelined { 32 } else { 0 };
            let there = bytes(&writable, 0, 4096);
            assert_same(&there[..touched], &pattern(2, touched), "good writes");
            assert_same(&there[touched..], &pattern(1, 4096)[touched..], "the rest");
            for untouched in [&readable, &private] {
                assert_same(&bytes(untouched, 0, 4096), &pattern(1, 4096), "untouched");
            }
            let here = bytes(&local, 0, 2 << 20);
            assert_same(&here, &pattern(2, 2 << 20), "local memory");
        }
    }
    assert_eq!(engine.tasks_in_use(), 0);
    let works = Request::read(local.slice(0..4096).unwrap(), &segment, place(&readable, 0));
    assert!(once(&engine, works).await.is_completed());
    assert_same(&bytes(&local, 0, 4096), &pattern(1, 4096), "afterwards");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_refused_in_part_says_how_much_was_applied() {
    let (owner, engine) = (engine().await, engine().await);
    let writable = buffer(&owner, 5 << 20, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 6 << 20, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    // The first slices lie within the buffer, the last does not.
    let request = Request::write(local.all().unwrap(), &segment, place(&writable, 0));
    let batch = submit(&engine, vec![request]);
    terminal(&batch).await;
    let error = error(batch.outcome(0));
    assert_eq!(error.reason, Reason::OutOfBounds);
    assert_eq!(error.applied, Applied::UpTo(5 << 20));
    assert!(error.quiescent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_reaches_too_far_does_not_fail_those_beside_it() {
    const BLOCK: u64 = 8;
    let (owner, engine) = (engine().await, engine().await);
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 64, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    for op in [Op::Write, Op::Read, Op::Write] {
        local.memory().write_at(0, &pattern(1, 64));
        remote.memory().write_at(0, &pattern(2, 4096));
        let request = |i: u64| {
            let slice = local.slice(i * BLOCK..(i + 1) * BLOCK).unwrap();
            let at = place(&remote, 4096 - 2 * BLOCK + i * BLOCK);
            Request::scattered(op, [slice].into_iter().collect(), &segment, at)
        };
        let batch = submit(&engine, (0..4).map(request).collect());
        terminal(&batch).await;
        for i in 0..4 {
            let outcome = batch.outcome(i).unwrap();
            assert_eq!(outcome.is_completed(), i < 2, "{op} {i}: {outcome:?}");
            if i >= 2 {
                let error = error(Some(outcome));
                assert_eq!(error.reason, Reason::OutOfBounds);
                assert_eq!(error.applied, Applied::Nothing);
            }
        }
        let there = bytes(&remote, 4096 - 2 * BLOCK, 16);
        assert_same(&bytes(&local, 0, 16), &there, "what fits");
        assert_same(&bytes(&local, 16, 48), &pattern(1, 64)[16..], "the rest");
    }
    assert_eq!(engine.tasks_in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_long_batch_each_task_ends_with_what_became_of_it() {
    const TASKS: u64 = 150;
    const BLOCK: u64 = 24;
    let (owner, engine) = (engine().await, engine().await);
    let len = (TASKS * BLOCK) as usize;
    let remote = buffer(&owner, len, Permission::PeersRead).await;
    let local = buffer(&engine, len, Permission::Local).await;
    remote.memory().write_at(0, &pattern(1, len));
    let segment = open(&engine, &owner).await;
    // Some are not even posted, some the owner refuses, and never at the same places of a portion.
    let fails = |i: u64| (i % 7 == 3).then_some(Reason::UnknownRegistration);
    let refused = |i: u64| (i % 11 == 5).then_some(Reason::Permission);
    let request = |i: u64| {
        let slice = local.slice(i * BLOCK..(i + 1) * BLOCK).unwrap();
        let at = address(&remote, i * BLOCK);
        match (fails(i), refused(i)) {
            (Some(_), _) => Request::read(slice, &segment, RemoteRange::Address(1)),
            (None, Some(_)) => Request::write(slice, &segment, at),
            (None, None) => Request::read(slice, &segment, at),
        }
    };
    let batch = submit(&engine, (0..TASKS).map(request).collect());
    terminal(&batch).await;
    let mut wanted = pattern(1, len);
    for i in 0..TASKS {
        let end = batch.outcome(i as usize).unwrap();
        let reason = end.error().map(|error| error.reason.clone());
        let failed = fails(i).or_else(|| refused(i));
        assert_eq!(reason, failed, "task {i}");
        if failed.is_some() {
            wanted[(i * BLOCK) as usize..][..BLOCK as usize].fill(0);
        }
    }
    assert_same(&bytes(&local, 0, len), &wanted, "what was read");
    drop(batch);
    assert_eq!(engine.tasks_in_use(), 0);
}
