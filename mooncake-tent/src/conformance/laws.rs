//! The laws that a link can break, each as a function that panics when it is broken.
//!
//! They wait in both ways, so they need a runtime with more than one thread.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use smallvec::SmallVec;
use tokio::{runtime::Handle, task::spawn_blocking};

use super::fixture::{
    BUDGET, Fixture, Ground, assert_same, bytes, end, eventually, pattern, quiet,
};
use crate::{
    Error, Generation, Notification, Permission, RegistrationId, RemoteRange, Request,
    TransferEngine,
    error::{Applied, Reason, Retry},
    transport::{Op, Outcome},
};

/// Sizes that powers of two hide, and their neighbours.
const SIZES: [usize; 14] = [
    1, 2, 3, 7, 63, 64, 65, 1_023, 4_096, 4_097, 65_537, 262_145, 1_000_003, 4_194_319,
];
/// Bytes around a transfer that it must leave alone.
const MARGIN: usize = 61;

/// Bytes are where they should be when a transfer is completed, and nowhere else.
pub async fn law_01_completed_means_applied(with: &Fixture) {
    let most = SIZES[SIZES.len() - 1];
    let ground = with.ground(most + 2 * MARGIN).await;
    for (round, size) in SIZES.into_iter().enumerate() {
        let blocking = round % 2 == 0;
        one_size(with, &ground, size, round as u64, blocking).await;
    }
    scattered(with, &ground).await;
    mixed(with, &ground).await;
    ground.close(with).await;
}

async fn one_size(with: &Fixture, ground: &Ground, size: usize, round: u64, blocking: bool) {
    let at = MARGIN as u64;
    let all = size + 2 * MARGIN;
    let (sent, old) = (pattern(round, all), pattern(round + 100, all));
    let (near, far) = (ground.here(), ground.there());
    let inside = MARGIN..MARGIN + size;
    let margins = |found: &[u8], wanted: &[u8], what: &str| {
        assert_same(&found[..MARGIN], &wanted[..MARGIN], what);
        assert_same(&found[MARGIN + size..], &wanted[MARGIN + size..], what);
    };
    if with.carries(Op::Write, &ground.segment) {
        near.write_at(0, &sent);
        far.write_at(0, &old);
        let write = || ground.write(at, size as u64);
        let done = with.transfer(write, blocking).await;
        let found = bytes(far, 0, all);
        margins(&found, &old, "law 1: a write left its range");
        if done {
            let what = format!("law 1: a write of {size} bytes");
            assert_same(&found[inside.clone()], &sent[inside.clone()], &what);
        }
    }
    if with.carries(Op::Read, &ground.segment) {
        far.write_at(0, &sent);
        near.write_at(0, &old);
        let done = with
            .transfer(|| ground.read(at, size as u64), blocking)
            .await;
        let found = bytes(near, 0, all);
        margins(&found, &old, "law 1: a read left its range");
        assert_same(&bytes(far, 0, all), &sent, "law 1: a read wrote");
        if done {
            let what = format!("law 1: a read of {size} bytes");
            assert_same(&found[inside.clone()], &sent[inside], &what);
        }
    }
}

/// Local memory in many pieces that are out of order.
async fn scattered(with: &Fixture, ground: &Ground) {
    let pieces = [900_000..900_001, 5..1_000, 400_000..800_003, 1_000..1_064];
    let length: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
    let (near, far) = (ground.here(), ground.there());
    let request = |op| {
        let slices = pieces.clone().map(|piece| ground.local.slice(piece));
        let slices: Result<SmallVec<_>, _> = slices.into_iter().collect();
        let slices = slices.expect("they lie within");
        Request::scattered(op, slices, &ground.segment, ground.remote.place(3))
    };
    let gather = || -> Vec<u8> {
        let pieces = pieces.iter();
        pieces
            .flat_map(|piece| bytes(near, piece.start, (piece.end - piece.start) as usize))
            .collect()
    };
    for (round, op) in [(200, Op::Write), (201, Op::Read)] {
        if !with.carries(op, &ground.segment) {
            continue;
        }
        near.write_at(0, &pattern(round, 1_000_003));
        far.write_at(0, &pattern(round + 50, 1_000_003));
        if with.transfer(|| request(op), op == Op::Read).await {
            let there = bytes(far, 3, length as usize);
            assert_same(&there, &gather(), "law 1: scattered memory");
        }
    }
}

/// Reads and writes of many sizes in one batch.
async fn mixed(with: &Fixture, ground: &Ground) {
    let (near, far) = (ground.here(), ground.there());
    let total = 2_000_000;
    let (here, there) = (pattern(300, total), pattern(301, total));
    near.write_at(0, &here);
    far.write_at(0, &there);
    let mut parts = Vec::new();
    let mut at = 0;
    for round in 0..400_u64 {
        let size = 1 + (round * 37 + 11 * (round % 13)) % 9_001;
        if at + size >= total as u64 {
            break;
        }
        let op = if round % 3 == 0 { Op::Read } else { Op::Write };
        if with.carries(op, &ground.segment) {
            parts.push((op, at, size));
        }
        at += size;
    }
    let requests = parts.iter().map(|(op, at, size)| match op {
        Op::Read => ground.read(*at, *size),
        Op::Write => ground.write(*at, *size),
    });
    let batch = with.submit(requests.collect());
    end(&batch, true).await;
    quiet(&batch).await;
    for (i, (op, at, size)) in parts.iter().enumerate() {
        let outcome = batch.outcome(i).expect("law 2: it has ended");
        assert!(outcome.is_completed() || with.faulty, "law 1: {outcome:?}");
        if !outcome.is_completed() {
            continue;
        }
        let range = *at as usize..(*at + *size) as usize;
        let wanted = if *op == Op::Read { &there } else { &here };
        for (memory, side) in [(near, "here"), (far, "there")] {
            let found = bytes(memory, *at, *size as usize);
            let what = format!("law 1: task {i}, a {op}, {side}");
            assert_same(&found, &wanted[range.clone()], &what);
        }
    }
}

/// Many callers, waiting in every way, see each of their tasks end once and for good.
pub async fn law_02_every_task_ends_once(with: &Fixture) {
    const CALLERS: u64 = 4;
    let rounds = if with.faulty { 25 } else { 150 };
    let ground = Arc::new(with.ground(1 << 20).await);
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let (ground, engine) = (Arc::clone(&ground), with.initiator.clone());
        let (faulty, runtime) = (with.faulty, Handle::current());
        let writes = with.carries(Op::Write, &ground.segment);
        callers.push(spawn_blocking(move || {
            for round in 0..rounds {
                let requests = (0..1 + (round + caller) % 17).map(|i| {
                    let at = (caller << 18) + i * 8_192;
                    let size = 1 + (round * 131 + i * 17) % 8_192;
                    match writes && (round + i) % 2 == 0 {
                        true => ground.write(at, size),
                        false => ground.read(at, size),
                    }
                });
                let requests: Vec<_> = requests.collect();
                let mut batch = engine.allocate_batch(requests.len());
                let submitted = engine.submit_transfer(&mut batch, requests);
                submitted.expect("the batch has room");
                match (round + caller) % 5 {
                    0 | 3 => assert!(batch.wait(BUDGET), "law 2: a task does not end"),
                    1 => {
                        let ended = async { tokio::time::timeout(BUDGET, batch.terminal()).await };
                        let ended = runtime.block_on(ended);
                        assert!(ended.is_ok(), "law 2: a task does not end");
                    }
                    2 => {
                        let start = Instant::now();
                        while !batch.is_terminal() {
                            assert!(start.elapsed() < BUDGET, "law 2: a task does not end");
                            thread::yield_now();
                        }
                    }
                    // Lets go of it.
                    _ => continue,
                }
                assert!(batch.is_terminal(), "law 2: a batch reopened");
                let ends: Vec<_> = (0..batch.len()).map(|i| batch.outcome(i)).collect();
                runtime.block_on(quiet(&batch));
                for (i, end) in ends.iter().enumerate() {
                    let end = end.as_ref().expect("law 2: terminal means all have ended");
                    assert!(end.is_completed() || faulty, "{end:?}");
                    assert_eq!(batch.outcome(i).as_ref(), Some(end), "law 2: ended twice");
                    assert!(batch.is_task_quiescent(i), "law 3: quiet, but not its task");
                }
            }
        }));
    }
    for caller in callers {
        caller.await.expect("law 2 holds for each caller");
    }
    let ground = Arc::into_inner(ground).expect("the callers are gone");
    ground.close(with).await;
}

/// Memory that a transfer may still touch is not given back, and after a fence nothing lands.
pub async fn law_03_quiet_before_reuse(with: &Fixture) {
    const LEN: usize = 4 << 20;
    let ground = with.ground(LEN).await;
    let held = ground.local.slice(0..1).expect("it is open");
    let early = Duration::from_millis(10);
    let renewed = with
        .initiator
        .renew_registration(&ground.local, early)
        .await;
    assert!(
        matches!(renewed, Err(Error::InUse { .. })),
        "law 3: memory was given back under a lease"
    );
    drop(held);
    let renewed = with.initiator.renew_registration(&ground.local, BUDGET);
    renewed.await.expect("law 3: nothing holds it any more");
    if with.carries(Op::Write, &ground.segment) {
        for round in 0..5 {
            fenced(with, &ground, round).await;
        }
    }
    // Given up in the middle: its memory stays until it is quiet.
    let batch = with.submit(vec![ground.read(0, LEN as u64)]);
    drop(batch);
    ground.close(with).await;
}

/// Who cancels gets an early end or the true one, and memory that is left alone once it is quiet.
/// Nobody else's transfer suffers.
pub async fn law_03_a_cancelled_task_ends_and_leaves_memory_alone(with: &Fixture) {
    const PART: u64 = 300_007;
    const PARTS: u64 = 16;
    let len = (PART * PARTS) as usize;
    let ground = with.ground(len).await;
    let (here, there) = (ground.here(), ground.there());
    let peer = ground.segment.incarnation();
    for round in 0..if with.faulty { 3 } else { 8_u64 } {
        let op = match round % 2 == 0 && with.carries(Op::Write, &ground.segment) {
            true => Op::Write,
            false => Op::Read,
        };
        here.write_at(0, &pattern(2 * round, len));
        there.write_at(0, &pattern(2 * round + 1, len));
        let request = |i| match op {
            Op::Read => ground.read(i * PART, PART),
            Op::Write => ground.write(i * PART, PART),
        };
        let batch = with.submit((0..PARTS).map(request).collect());
        let cancelled = |i: u64| round % 4 >= 2 || i.is_multiple_of(2);
        match round % 4 >= 2 {
            true => batch.cancel_all(),
            false => (0..PARTS)
                .filter(|i| cancelled(*i))
                .for_each(|i| batch.cancel(i as usize)),
        }
        batch.cancel(PARTS as usize);
        end(&batch, round % 3 == 0).await;
        quiet(&batch).await;
        let (wanted, place) = match op {
            Op::Read => (pattern(2 * round + 1, len), here),
            Op::Write => (pattern(2 * round, len), there),
        };
        for i in 0..PARTS {
            let outcome = batch.outcome(i as usize).expect("law 2: it has ended");
            match &outcome {
                Outcome::Completed { .. } => {
                    let at = (i * PART) as usize..((i + 1) * PART) as usize;
                    let found = bytes(place, i * PART, PART as usize);
                    assert_same(&found, &wanted[at], "law 1: completed, though cancelled");
                }
                Outcome::Cancelled(error) => {
                    assert!(cancelled(i), "law 3: nobody cancelled task {i}");
                    assert_eq!(error.peer, Some(peer), "law 15: {error}");
                    assert!(error.progress.is_some(), "law 15: {error}");
                }
                other => assert!(with.faulty, "law 3: {other:?}"),
            }
        }
        // A late request to cancel changes nothing.
        let ends: Vec<_> = (0..batch.len()).map(|i| batch.outcome(i)).collect();
        batch.cancel_all();
        let again: Vec<_> = (0..batch.len()).map(|i| batch.outcome(i)).collect();
        assert_eq!(ends, again, "law 2: ended twice");
        drop(batch);
        // The memory is for other things now.
        here.write_at(0, &pattern(round + 70, len));
        there.write_at(0, &pattern(round + 71, len));
        let elsewhere = with.ground(10_007).await;
        for _ in 0..3 {
            with.transfer(|| elsewhere.read(0, 10_007), false).await;
        }
        elsewhere.close(with).await;
        let what = "law 3: it landed after the end of a cancelled task";
        assert_same(&bytes(here, 0, len), &pattern(round + 70, len), what);
        assert_same(&bytes(there, 0, len), &pattern(round + 71, len), what);
    }
    ground.close(with).await;
}

async fn fenced(with: &Fixture, ground: &Ground, round: u64) {
    let len = ground.local.memory().len();
    ground.there().write_at(0, &vec![0; len]);
    ground.local.memory().write_at(0, &pattern(round | 1, len));
    let part = len as u64 / 4;
    let writes = (0..4).map(|i| ground.write(i * part, part)).collect();
    let batch = with.submit(writes);
    if round % 2 == 1 {
        tokio::time::sleep(Duration::from_micros(300 * round)).await;
    }
    let fence = with.initiator.fence(&ground.segment, BUDGET).await;
    fence.expect("law 3: the link proves that nothing lands");
    let after = bytes(ground.there(), 0, len);
    // A task that waits for fresh knowledge of the target is on no link, and ends soon.
    assert!(
        batch.is_quiescent() || with.faulty,
        "law 3: loud after a fence"
    );
    end(&batch, false).await;
    quiet(&batch).await;
    drop(batch);
    ground.local.memory().write_at(0, &pattern(round + 99, len));
    with.renew(&ground.remote).await;
    // Later traffic brings nothing of the old.
    let elsewhere = with.ground(10_007).await;
    for _ in 0..3 {
        with.transfer(|| elsewhere.read(0, 10_007), false).await;
    }
    elsewhere.close(with).await;
    let later = bytes(ground.there(), 0, len);
    assert_same(&later, &after, "law 3: it landed after a fence");
}

/// A range, permission, registration or generation that the target does not offer is refused, and
/// no byte on either side changes.
pub async fn law_04_the_wire_is_never_trusted(with: &Fixture) {
    const LEN: usize = 4_096;
    let ground = with.ground(1 << 20).await;
    let writable = with.offer(LEN, Permission::PeersReadWrite).await;
    let readable = with.offer(LEN, Permission::PeersRead).await;
    let private = with.offer(LEN, Permission::Local).await;
    let offered = [&writable, &readable, &private];
    for remote in offered {
        remote.bytes().write_at(0, &pattern(1, LEN));
    }
    ground.local.memory().write_at(0, &pattern(2, 1 << 20));
    let of = |registration, generation, offset| RemoteRange::Registered {
        registration,
        generation: Some(generation),
        offset,
    };
    let (id, now) = (writable.id(), writable.generation());
    let unknown = RegistrationId(id.0 ^ 0xffff_ffff);
    let cases = [
        (
            Op::Read,
            &writable,
            writable.place(4_000),
            97,
            Reason::OutOfBounds,
        ),
        (
            Op::Write,
            &writable,
            writable.place(4_000),
            97,
            Reason::OutOfBounds,
        ),
        (
            Op::Write,
            &writable,
            writable.place(4_096),
            1,
            Reason::OutOfBounds,
        ),
        (
            Op::Write,
            &writable,
            writable.place(0),
            1 << 20,
            Reason::OutOfBounds,
        ),
        (
            Op::Write,
            &writable,
            writable.place(u64::MAX),
            7,
            Reason::OutOfBounds,
        ),
        (
            Op::Read,
            &writable,
            writable.place(u64::MAX - 6),
            7,
            Reason::OutOfBounds,
        ),
        (
            Op::Write,
            &readable,
            readable.place(0),
            4_096,
            Reason::Permission,
        ),
        (
            Op::Write,
            &private,
            private.place(0),
            10,
            Reason::Permission,
        ),
        (Op::Read, &private, private.place(0), 10, Reason::Permission),
        (
            Op::Write,
            &writable,
            of(id, Generation(now.0 + 1), 0),
            9,
            Reason::StaleGeneration,
        ),
        (
            Op::Read,
            &writable,
            of(id, Generation(now.0 + 1), 0),
            9,
            Reason::StaleGeneration,
        ),
        (
            Op::Write,
            &writable,
            of(unknown, now, 0),
            70_000,
            Reason::UnknownRegistration,
        ),
        (
            Op::Read,
            &writable,
            of(unknown, now, 0),
            9,
            Reason::UnknownRegistration,
        ),
    ];
    for (op, remote, at, length, reason) in cases {
        let segment = with.segment_of(remote).await;
        // A file that is open is open to be read.
        let private = std::ptr::eq(remote, &private) && op == Op::Read;
        if !with.carries(op, &segment) || (private && with.files.is_some()) {
            continue;
        }
        let local = ground.local.slice(0..length).expect("it lies within");
        let request = Request::scattered(op, [local].into_iter().collect(), &segment, at);
        let what = format!("law 4: a {op} of {length} bytes at {at:?}");
        if let Some(error) = with.refusal(request, &what).await {
            assert_eq!(error.reason, reason, "{what}");
            assert_eq!(error.applied, Applied::Nothing, "{what}");
            assert!(error.quiescent, "{what}");
        }
        for remote in offered {
            assert_same(&bytes(remote.bytes(), 0, LEN), &pattern(1, LEN), &what);
        }
        let here = bytes(ground.here(), 0, 1 << 20);
        assert_same(&here, &pattern(2, 1 << 20), &what);
    }
    let segment = with.segment_of(&readable).await;
    if with.carries(Op::Read, &segment) {
        let local = || ground.local.slice(0..4_096).expect("it lies within");
        let allowed = || Request::read(local(), &segment, readable.place(0));
        let done = with.transfer(allowed, false).await;
        assert!(done || with.faulty, "law 4: what is allowed still works");
    }
    ground.close(with).await;
}

/// Who names a generation or registration that is over changes nothing; who names none follows.
pub async fn law_07_dead_generations_change_nothing(with: &Fixture) {
    const LEN: usize = 70_001;
    let ground = with.ground(LEN).await;
    // A file is not registered anew: another opening is another segment.
    if !with.carries(Op::Write, &ground.segment) || with.files.is_some() {
        return ground.close(with).await;
    }
    let old = ground.remote.place(0);
    let write = |at| {
        let all = ground.local.all().expect("it is open");
        Request::write(all, &ground.segment, at)
    };
    for round in 0..4 {
        let now = with.renew(&ground.remote).await;
        ground.there().write_at(0, &pattern(round, LEN));
        ground.local.memory().write_at(0, &pattern(round + 10, LEN));
        let refusal = with.refusal(write(old), "law 7: a dead generation").await;
        if let Some(error) = refusal {
            assert_eq!(error.reason, Reason::StaleGeneration, "law 7");
            assert_eq!(error.retry, Retry::AfterRefresh, "law 7");
        }
        let there = bytes(ground.there(), 0, LEN);
        assert_same(&there, &pattern(round, LEN), "law 7: a dead generation");
        let follows = RemoteRange::Address(ground.remote.address());
        if with.transfer(|| write(follows), false).await {
            let there = bytes(ground.there(), 0, LEN);
            assert_same(&there, &pattern(round + 10, LEN), "law 7: the new one");
        }
        assert_eq!(ground.remote.generation(), now, "law 7");
    }
    // A registration that is gone, whose memory is still ours to look at.
    let gone = with.offer(LEN, Permission::PeersReadWrite).await;
    let (at, memory) = (gone.place(0), gone.books().expect("it is memory"));
    with.withdraw(gone).await;
    let refusal = with.refusal(write(at), "law 7: a dead registration").await;
    if let Some(error) = refusal {
        assert_eq!(error.reason, Reason::UnknownRegistration, "law 7");
    }
    let there = bytes(memory.memory(), 0, LEN);
    assert_same(&there, &vec![0; LEN], "law 7: a dead registration");
    ground.close(with).await;
}

/// Whoever sees a completion sees its bytes, and whoever sees a buffer can use it.
pub async fn law_08_what_is_published_is_true(with: &Fixture) {
    const PART: usize = 3_001;
    const PARTS: usize = 64;
    let ground = with.ground(PART * PARTS).await;
    let (here, there) = (ground.here(), ground.there());
    for round in 0..if with.faulty { 4 } else { 20 } {
        let write = round % 2 == 0 && with.carries(Op::Write, &ground.segment);
        let (from, to) = if write { (here, there) } else { (there, here) };
        from.write_at(0, &pattern(round + 1, PART * PARTS));
        to.write_at(0, &vec![0; PART * PARTS]);
        let wanted = pattern(round + 1, PART * PARTS);
        let request = |i: usize| {
            let (at, len) = ((i * PART) as u64, PART as u64);
            match write {
                true => ground.write(at, len),
                false => ground.read(at, len),
            }
        };
        let batch = with.submit((0..PARTS).map(request).collect());
        let start = Instant::now();
        let mut open: Vec<_> = (0..PARTS).collect();
        while !open.is_empty() {
            assert!(start.elapsed() < BUDGET, "law 2: a task does not end");
            open.retain(|i| {
                let Some(outcome) = batch.outcome(*i) else {
                    return true;
                };
                if outcome.is_completed() {
                    let found = bytes(to, (i * PART) as u64, PART);
                    let what = "law 8: completed before its bytes were there";
                    assert_same(&found, &wanted[i * PART..(i + 1) * PART], what);
                }
                false
            });
            tokio::task::yield_now().await;
        }
        quiet(&batch).await;
    }
    for round in 0..5 {
        let offered = with.offer(PART, Permission::PeersRead).await;
        offered.bytes().write_at(0, &pattern(round, PART));
        let segment = with.segment_of(&offered).await;
        let known = segment.descriptor();
        let known = known.buffer(offered.id()).expect("law 8: it is described");
        assert_eq!(known.generation, offered.generation(), "law 8");
        if with.carries(Op::Read, &segment) {
            let at = RemoteRange::Address(known.address);
            let part = || ground.local.slice(0..PART as u64).expect("it lies within");
            if with
                .transfer(|| Request::read(part(), &segment, at), true)
                .await
            {
                assert_same(&bytes(here, 0, PART), &pattern(round, PART), "law 8");
            }
        }
    }
    ground.close(with).await;
}

/// A target learns once of each write with an op id that was completed, and finds its bytes; and never
/// of one that was refused.
pub async fn law_08_an_arrival_is_told_once_and_after_its_bytes(with: &Fixture) {
    const PART: usize = 70_001;
    const PARTS: usize = 16;
    let ground = with.ground(PART * PARTS).await;
    if !with.carries(Op::Write, &ground.segment) {
        return ground.close(with).await;
    }
    let write = |i: usize| {
        let request = ground.write((i * PART) as u64, PART as u64);
        request.op_id(i as u64)
    };
    let mut batch = with.initiator.allocate_batch(1);
    if let Err(refused) = with.initiator.submit_transfer(&mut batch, vec![write(0)]) {
        // A link that cannot says so before anything is done.
        assert!(
            matches!(refused, Error::NoRoute { .. }),
            "law 15: {refused}"
        );
        let why = refused.to_string();
        assert!(why.contains("cannot tell the target"), "law 15: {why}");
        drop(batch);
        return ground.close(with).await;
    }
    end(&batch, false).await;
    quiet(&batch).await;
    drop(batch);
    with.target.receive_arrivals();
    for round in 0..4 {
        ground.here().write_at(0, &pattern(round, PART * PARTS));
        let request = |i| match round % 2 {
            0 => write(i),
            _ => write(i).checksum(),
        };
        let batch = with.submit((0..PARTS).map(request).collect());
        let mut told = [0; PARTS];
        let start = Instant::now();
        loop {
            let over = batch.is_terminal() && batch.is_quiescent();
            for arrival in with.target.receive_arrivals() {
                let i = usize::try_from(arrival.op_id).expect("it is one of ours");
                assert_eq!(arrival.sender, with.initiator.incarnation(), "law 7");
                assert!(arrival.length == PART as u64 || with.faulty, "{arrival:?}");
                assert_eq!(arrival.checksum.is_some(), round % 2 == 1);
                let length = arrival.length as usize;
                let found = bytes(ground.there(), (i * PART) as u64, length);
                let wanted = pattern(round, PART * PARTS);
                let what = "law 8: the target was told before the bytes were there";
                assert_same(&found, &wanted[i * PART..][..length], what);
                told[i] += 1;
            }
            if over {
                break;
            }
            assert!(start.elapsed() < BUDGET, "law 2: a task does not end");
            tokio::task::yield_now().await;
        }
        for (i, told) in told.into_iter().enumerate() {
            let outcome = batch.outcome(i).expect("law 2: it has ended");
            match outcome.is_completed() {
                // Doubles may write twice.
                true if with.faulty => assert!(told >= 1, "law 8: {i} was completed"),
                true => assert_eq!(told, 1, "law 8: how often {i} was told"),
                false => assert!(with.faulty, "law 1: {outcome:?}"),
            }
        }
    }
    let beyond = ground.remote.place((PART * PARTS) as u64 - 1);
    let two = ground.local.slice(0..2).expect("it lies within");
    let refused = Request::write(two, &ground.segment, beyond).op_id(1);
    with.refused(refused, "a write beyond its buffer").await;
    // What a link has cut short may have fitted.
    let fitted = |arrival: &crate::transport::Arrival| with.faulty && arrival.length < 2;
    let told = with.target.receive_arrivals();
    assert!(
        told.iter().all(fitted),
        "law 8: refused, and told: {told:?}"
    );
    ground.close(with).await;
}

/// The target of a submission is notified once, after all of its bytes; if one task does not complete,
/// it is not.
pub async fn law_08_who_is_notified_finds_the_bytes(with: &Fixture) {
    const PART: usize = 50_003;
    const PARTS: usize = 8;
    if with.files.is_some() {
        // Nobody is there.
        return;
    }
    let ground = with.ground(PART * PARTS).await;
    let op = match with.carries(Op::Write, &ground.segment) {
        true => Op::Write,
        false => Op::Read,
    };
    let mut completed = Vec::new();
    for round in 0..12_u8 {
        let sent = pattern(round.into(), PART * PARTS);
        ground.here().write_at(0, &sent);
        let mut batch = with.initiator.allocate_batch(PARTS);
        let request = |i: usize| match op {
            Op::Write => ground.write((i * PART) as u64, PART as u64),
            Op::Read => ground.read((i * PART) as u64, PART as u64),
        };
        let requests = (0..PARTS).map(request).collect();
        let notification = Notification::new("round", [round]);
        let announcement =
            with.initiator
                .submit_transfer_and_notify(&mut batch, requests, notification);
        let announcement = announcement.expect("the batch has room");
        let delivered = tokio::time::timeout(BUDGET, announcement.delivered()).await;
        let delivered = delivered.expect("law 9: it ends");
        quiet(&batch).await;
        let all = (0..PARTS).all(|i| batch.outcome(i).is_some_and(|end| end.is_completed()));
        assert_eq!(delivered.is_ok(), all, "law 8: {delivered:?}");
        assert!(all || with.faulty, "law 1: it did not complete");
        if !all {
            continue;
        }
        if op == Op::Write {
            let found = bytes(ground.there(), 0, PART * PARTS);
            assert_same(&found, &sent, "law 8: notified");
        }
        completed.push(vec![round]);
    }
    let received = with.target.receive_notifications();
    let received = received.into_iter().map(|it| it.notification.message);
    assert_eq!(received.collect::<Vec<_>>(), completed, "law 8: once each");
    ground.close(with).await;
}

/// Deadlines that are over, short ones, and budgets of waits, fences and openings.
pub async fn law_09_every_wait_has_an_end(with: &Fixture) {
    const LEN: usize = 8 << 20;
    /// What a busy machine may add.
    const SLACK: Duration = Duration::from_secs(5);
    let ground = with.ground(LEN).await;
    ground.local.memory().write_at(0, &pattern(1, LEN));
    ground.there().write_at(0, &pattern(2, LEN));
    let op = |at, len| match with.carries(Op::Write, &ground.segment) {
        true => ground.write(at, len),
        false => ground.read(at, len),
    };
    for length in [1, 4_097, LEN as u64] {
        let late = op(0, length).deadline(Instant::now());
        let outcome = with.refused(late, "law 9: what came too late").await;
        assert!(outcome.is_timed_out() || with.faulty, "{outcome:?}");
    }
    assert_same(
        &bytes(ground.there(), 0, LEN),
        &pattern(2, LEN),
        "law 9: too late",
    );
    assert_same(
        &bytes(ground.local.memory(), 0, LEN),
        &pattern(1, LEN),
        "law 9: too late",
    );

    for micros in [50, 500, 5_000] {
        let budget = Duration::from_micros(micros);
        let start = Instant::now();
        let batch = with.submit(vec![op(0, LEN as u64).deadline(start + budget)]);
        end(&batch, micros == 500).await;
        assert!(
            start.elapsed() < budget + SLACK,
            "law 9: a deadline is not kept"
        );
        quiet(&batch).await;
    }
    let start = Instant::now();
    let batch = with.submit(vec![op(0, LEN as u64)]);
    batch.wait(Duration::ZERO);
    batch.wait(Duration::from_millis(1));
    assert!(start.elapsed() < SLACK, "law 9: a wait outlasts its budget");
    end(&batch, false).await;
    quiet(&batch).await;
    drop(batch);

    let start = Instant::now();
    let fence = with.initiator.fence(&ground.segment, Duration::ZERO).await;
    drop(fence);
    let warm = with
        .initiator
        .warm_up(&ground.segment, Duration::from_millis(1));
    drop(warm.await);
    let nobody = with
        .initiator
        .open_segment("127.0.0.1:1", Duration::from_millis(100));
    assert!(nobody.await.is_err(), "nobody listens there");
    let held = ground.local.slice(0..1).expect("it is open");
    let renewed = with
        .initiator
        .renew_registration(&ground.local, Duration::from_millis(5));
    assert!(renewed.await.is_err(), "law 3: a lease is held");
    drop(held);
    assert!(start.elapsed() < SLACK, "law 9: a budget is not kept");
    ground.close(with).await;
}

/// A batch and a task table that are full answer *busy* and take nothing; long queues are no reason.
pub async fn law_11_what_is_full_answers_busy(with: &Fixture) {
    const MORE_THAN_ALL: usize = (256 << 10) + 1;
    let ground = with.ground(1 << 16).await;
    let mut batch = with.initiator.allocate_batch(2);
    let three = (0..3).map(|i| ground.read(i * 8, 8)).collect();
    let refused = with.initiator.submit_transfer(&mut batch, three);
    let error = refused.expect_err("law 11: three do not fit into a batch of two");
    assert!(matches!(error, Error::Busy { .. }), "law 11: {error}");
    assert!(matches!(error.retry(), Retry::Later(_)), "law 11: {error}");
    assert!(
        batch.is_empty() && batch.is_terminal(),
        "law 11: all or none"
    );
    assert_eq!(with.initiator.tasks_in_use(), 0, "law 11: all or none");

    let mut huge = with.initiator.allocate_batch(MORE_THAN_ALL);
    let one = ground.read(0, 1);
    let requests = vec![one; MORE_THAN_ALL];
    let refused = with.initiator.submit_transfer(&mut huge, requests);
    let error = refused.expect_err("law 11: more than the engine holds");
    assert!(matches!(error, Error::Busy { .. }), "law 11: {error}");
    assert_eq!(with.initiator.tasks_in_use(), 0, "law 11: all or none");
    drop(huge);

    // More than any window, in one go.
    let count = if with.faulty { 1_500 } else { 5_000 };
    let requests = (0..count).map(|i| ground.read(i % 8_000 * 8, 8)).collect();
    let batch = with.submit(requests);
    end(&batch, true).await;
    for i in 0..batch.len() {
        let outcome = batch.outcome(i).expect("law 2: it has ended");
        assert!(outcome.is_completed() || with.faulty, "law 11: {outcome:?}");
    }
    drop(batch);
    ground.close(with).await;
}

/// Whatever way work ends, cells, leases and registrations return.
pub async fn law_13_books_return_to_zero(with: &Fixture) {
    const LEN: usize = 2 << 20;
    let before = with.initiator.tasks_in_use();
    assert_eq!(before, 0, "a fixture is fresh");
    for round in 0..4_u64 {
        let ground = with.ground(LEN).await;
        let past = Instant::now();
        let stale = RemoteRange::Registered {
            registration: ground.remote.id(),
            generation: Some(Generation(ground.remote.generation().0 + 7)),
            offset: 0,
        };
        let all = || ground.local.all().expect("it is open");
        let requests = || {
            vec![
                ground.read(0, LEN as u64),
                ground.read(7, 1_001).deadline(past),
                Request::read(all(), &ground.segment, stale),
                Request::read(all(), &ground.segment, ground.remote.place(1)),
                ground
                    .read(0, LEN as u64)
                    .deadline(past + Duration::from_micros(900)),
                ground.read(99, 1),
            ]
        };
        // Waited for, let go at once, and let go while it runs.
        let waited = with.submit(requests());
        drop(with.submit(requests()));
        let dropped = with.submit(requests());
        end(&waited, round % 2 == 0).await;
        drop(dropped);
        if round % 2 == 1 {
            let fence = with.initiator.fence(&ground.segment, BUDGET).await;
            fence.expect("law 3: the link proves that nothing lands");
        }
        quiet(&waited).await;
        drop(waited);
        eventually("law 13: cells and leases return", || {
            with.initiator.tasks_in_use() == 0 && ground.leases() == 0
        })
        .await;
        let versions = Arc::downgrade(&ground.near);
        ground.close(with).await;
        eventually("law 13: the memory is free", || {
            versions.strong_count() == 0
        })
        .await;
    }
}

/// A failure says what, where and what to do about it.
pub async fn law_15_errors_speak(with: &Fixture) {
    let ground = with.ground(4_096).await;
    let peer = ground.segment.incarnation();
    let read = |at| {
        let all = ground.local.all().expect("it is open");
        Request::read(all, &ground.segment, at)
    };
    let gone = RemoteRange::Registered {
        registration: RegistrationId(0xdead),
        generation: Some(Generation(1)),
        offset: 0,
    };
    for (at, retry) in [
        (ground.remote.place(1), Retry::Never),
        (gone, Retry::AfterRefresh),
    ] {
        match with.refused(read(at), "law 15: a bad request").await {
            Outcome::Failed(error) => {
                let text = error.to_string();
                assert!(text.contains("stage"), "law 15: {text}");
                assert!(!text.contains('\n'), "law 15: {text}");
                if !with.faulty {
                    assert_eq!(error.retry, retry, "law 15: {text}");
                    assert_eq!(error.peer, Some(peer), "law 15: {text}");
                    assert!(text.contains(&peer.to_string()), "law 15: {text}");
                }
            }
            other => assert!(with.faulty, "law 15: {other:?}"),
        }
    }
    let late = read(ground.remote.place(0)).deadline(Instant::now());
    match with.refused(late, "law 15: a late request").await {
        Outcome::TimedOut(error) => {
            let text = error.to_string();
            let progress = error.progress.expect("law 15: how far it came");
            assert_eq!((progress.op, progress.length), (Op::Read, 4_096), "law 15");
            assert_eq!(error.peer, Some(peer), "law 15: {text}");
            for word in ["read", "4096 bytes", "stage", "after", &peer.to_string()] {
                assert!(text.contains(word), "law 15: {word} is not in {text}");
            }
        }
        other => assert!(with.faulty, "law 15: {other:?}"),
    }
    let name = "127.0.0.1:1";
    let nobody = with
        .initiator
        .open_segment(name, Duration::from_millis(200))
        .await;
    let error = nobody.expect_err("nobody listens there");
    assert!(error.to_string().contains(name), "law 15: {error}");
    assert!(matches!(error.retry(), Retry::Later(_)), "law 15: {error}");
    ground.close(with).await;
}
