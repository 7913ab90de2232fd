//! What a target learns of writes that carry an op id, and what checksums catch.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use common::*;
use mooncake_tent::{
    Applied, Buffer, Error, InProcess, Permission, Reason, Request, Retry, Segment, TcpTransport,
    TentEngine, TransferEngine,
    transport::{Arrival, Op, Outcome},
};
use scripted::Scripted;

const LEN: usize = 3 << 20;

struct Ground {
    sender: TentEngine,
    target: TentEngine,
    local: Buffer,
    remote: Buffer,
    segment: Segment,
}

impl Ground {
    async fn new(sender: TentEngine, target: TentEngine, len: usize) -> Self {
        Self {
            local: buffer(&sender, len, Permission::Local).await,
            remote: buffer(&target, len, Permission::PeersReadWrite).await,
            segment: open(&sender, &target).await,
            sender,
            target,
        }
    }

    fn write(&self, at: u64, len: u64) -> Request {
        let local = self.local.slice(at..at + len).unwrap();
        Request::write(local, &self.segment, place(&self.remote, at))
    }

    fn arrival(&self, op_id: u64, length: u64) -> Arrival {
        Arrival::new(self.sender.incarnation(), op_id, length)
    }

    /// As many places as there were are free again.
    async fn seats_are_free(&self, seats: u64) {
        for op_id in 0..seats {
            let outcome = once(&self.sender, self.write(0, 1).op_id(op_id)).await;
            assert!(outcome.is_completed(), "{outcome:?}");
        }
        assert_eq!(self.target.receive_arrivals().len() as u64, seats);
    }
}

async fn over_tcp(len: usize) -> Ground {
    Ground::new(engine().await, engine().await, len).await
}

/// Over each link that there is.
async fn over_all(len: usize) -> Vec<Ground> {
    let mut grounds = vec![over_tcp(len).await, within_process(len).await];
    #[cfg(feature = "host")]
    for link in fetched::links() {
        let (sender, target) = (link().build().await, link().build().await);
        grounds.push(Ground::new(sender.unwrap(), target.unwrap(), len).await);
    }
    grounds
}

async fn within_process(len: usize) -> Ground {
    let link = InProcess::new();
    let build = |link| TentEngine::builder().in_process(link).build();
    let (sender, target) = (build(link.another_end()).await, build(link).await);
    Ground::new(sender.unwrap(), target.unwrap(), len).await
}

async fn with_room(room: usize, len: usize) -> Ground {
    let builder = TentEngine::builder()
        .transport(TcpTransport::default())
        .arrival_room(room);
    let target = builder.build().await.unwrap();
    Ground::new(engine().await, target, len).await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_learns_of_an_arrival_finds_all_bytes_of_it() {
    for ground in over_all(LEN).await {
        for round in 0..20 {
            let bytes_sent = pattern(round, LEN);
            ground.local.memory().write_at(0, &bytes_sent);
            let checked = round % 2 == 0;
            let mut request = ground.write(3, LEN as u64 - 7).op_id(round);
            if checked {
                request = request.checksum();
            }
            let batch = submit(&ground.sender, vec![request]);
            let arrival = match round % 3 {
                0 => ground.target.next_arrival().await,
                _ => {
                    let sender = ground.sender.incarnation();
                    ground.target.arrival(sender, round).await
                }
            };
            let sent = &bytes_sent[3..LEN - 4];
            let found = bytes(&ground.remote, 3, LEN - 7);
            assert_same(&found, sent, "at its arrival");
            let mut wanted = ground.arrival(round, LEN as u64 - 7);
            wanted.checksum = checked.then(|| crc32c::crc32c(sent));
            assert_eq!(arrival, wanted);
            terminal(&batch).await;
            assert!(batch.outcome(0).unwrap().is_completed());
        }
        assert!(ground.target.receive_arrivals().is_empty(), "told once");
        assert_eq!(ground.target.gauges().arrivals, 0);
        // Nobody learns of writes without a number, checked or not.
        for request in [ground.write(0, 10), ground.write(0, 10).checksum()] {
            assert!(once(&ground.sender, request).await.is_completed());
        }
        assert!(ground.target.receive_arrivals().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_are_each_told_once() {
    for ground in over_all(1 << 20).await {
        let write = |op_id: u64| ground.write(op_id * 1000, 1000).op_id(op_id);
        let batch = submit(&ground.sender, (0..1000).map(write).collect());
        terminal(&batch).await;
        let mut op_ids: Vec<_> = ground.target.receive_arrivals();
        op_ids.sort_by_key(|arrival| arrival.op_id);
        let wanted: Vec<_> = (0..1000).map(|op_id| ground.arrival(op_id, 1000)).collect();
        assert_eq!(op_ids, wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_is_told_to_nobody() {
    for ground in over_all(100).await {
        let closed = buffer(&ground.target, 100, Permission::PeersRead).await;
        let to = |at| Request::write(ground.local.slice(0..10).unwrap(), &ground.segment, at);
        for at in [place(&ground.remote, 95), place(&closed, 0)] {
            let outcome = once(&ground.sender, to(at).op_id(1).checksum()).await;
            assert!(!outcome.is_completed());
        }
        assert!(ground.target.receive_arrivals().is_empty());
        // A read arrives nowhere.
        let read = Request::read(
            ground.local.all().unwrap(),
            &ground.segment,
            place(&ground.remote, 0),
        );
        for read in [read.clone().op_id(1), read.checksum()] {
            let mut batch = ground.sender.allocate_batch(1);
            let refused = ground.sender.submit_transfer(&mut batch, vec![read]);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_11_without_room_for_its_arrival_a_write_is_refused_untouched() {
    let ground = with_room(2, 100).await;
    ground.local.memory().write_at(0, &[7; 100]);
    let write = |op_id: u64| ground.write(op_id * 10, 10).op_id(op_id);
    for op_id in 0..2 {
        assert!(once(&ground.sender, write(op_id)).await.is_completed());
    }
    let error = error(Some(once(&ground.sender, write(2)).await));
    assert_eq!(error.reason, Reason::ArrivalsFull);
    assert!(matches!(error.retry, Retry::Later(_)));
    assert_eq!(bytes(&ground.remote, 20, 10), [0; 10]);
    // Others have nothing to do with that.
    assert!(
        once(&ground.sender, ground.write(50, 10))
            .await
            .is_completed()
    );
    assert_eq!(ground.target.receive_arrivals().len(), 2);
    assert!(once(&ground.sender, write(2)).await.is_completed());
    assert_eq!(ground.target.receive_arrivals(), [ground.arrival(2, 10)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_cannot_tell_is_not_asked_to() {
    let deaf = || TentEngine::builder().transport(Scripted::new("deaf"));
    let (sender, target) = (deaf().build().await, deaf().build().await);
    let ground = Ground::new(sender.unwrap(), target.unwrap(), 100).await;
    let mut batch = ground.sender.allocate_batch(2);
    for request in [ground.write(0, 10).op_id(1), ground.write(0, 10).checksum()] {
        let refused = ground.sender.submit_transfer(&mut batch, vec![request]);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("cannot tell the target"), "{refused}");
    }
    let plain = once(&ground.sender, ground.write(0, 10)).await;
    assert!(plain.is_completed());

    // Where there is another one, that one carries it.
    let both = || deaf().transport(TcpTransport::default());
    let (sender, target) = (both().build().await, both().build().await);
    let ground = Ground::new(sender.unwrap(), target.unwrap(), 100).await;
    for _ in 0..2 {
        let plain = once(&ground.sender, ground.write(0, 10)).await;
        assert!(plain.is_completed());
        let told = once(&ground.sender, ground.write(0, 10).op_id(1)).await;
        assert!(told.is_completed());
        assert_eq!(ground.target.receive_arrivals().len(), 1);
    }
}

/// Between processes of one host, where the target fetches what is written.
#[cfg(feature = "host")]
mod fetched {
    use mooncake_tent::{CmaTransport, Memory, RegisterOptions, ShmTransport, TentEngineBuilder};

    use super::*;

    pub(super) fn links() -> [fn() -> TentEngineBuilder; 2] {
        [
            || TentEngine::builder().transport(ShmTransport::default()),
            || TentEngine::builder().transport(CmaTransport::default()),
        ]
    }

    /// A write from pieces of two buffers, the bytes of which it moves.
    async fn scattered(ground: &Ground, pieces: usize) -> (Request, Vec<u8>, Vec<Buffer>) {
        let mut slices = Vec::new();
        let mut all = Vec::new();
        let mut buffers = Vec::new();
        for seed in 0..2 {
            let memory = Memory::allocate(100_000).unwrap();
            memory.write_at(0, &pattern(seed, 100_000));
            let options = RegisterOptions::new(Permission::Local);
            let made = ground.sender.register_memory(memory, options).await;
            buffers.push(made.unwrap());
        }
        for piece in 0..pieces {
            let (at, len) = (piece as u64 * 777, 1_001 + piece as u64);
            let buffer = &buffers[piece % 2];
            slices.push(buffer.slice(at..at + len).unwrap());
            all.extend(bytes(buffer, at, len as usize));
        }
        let to = place(&ground.remote, 5);
        let request = Request::scattered(Op::Write, slices.into(), &ground.segment, to);
        (request, all, buffers)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_write_in_many_pieces_is_told_once_when_all_of_it_is_there() {
        for link in links() {
            let (sender, target) = (link().build().await, link().build().await);
            let ground = Ground::new(sender.unwrap(), target.unwrap(), 1 << 20).await;
            for (op_id, pieces) in [1, 2, 17, 31].into_iter().enumerate() {
                let op_id = op_id as u64;
                let (request, wanted, _buffers) = scattered(&ground, pieces).await;
                let batch = submit(&ground.sender, vec![request.op_id(op_id).checksum()]);
                let arrival = ground.target.next_arrival().await;
                let found = bytes(&ground.remote, 5, wanted.len());
                assert_same(&found, &wanted, "at its arrival");
                let mut told = ground.arrival(op_id, wanted.len() as u64);
                told.checksum = Some(crc32c::crc32c(&wanted));
                assert_eq!(arrival, told);
                terminal(&batch).await;
                let bytes = wanted.len() as u64;
                assert_eq!(batch.outcome(0), Some(Outcome::Completed { bytes }));
                assert_eq!(ground.target.receive_arrivals(), []);
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_in_more_pieces_than_a_link_takes_goes_over_another_or_fails_untouched() {
        for link in links() {
            let (sender, target) = (link().build().await, link().build().await);
            let ground = Ground::new(sender.unwrap(), target.unwrap(), 1 << 20).await;
            let (request, wanted, _buffers) = scattered(&ground, 32).await;
            let failed = error(Some(once(&ground.sender, request.op_id(1)).await));
            assert!(failed.to_string().contains("31 pieces"), "{failed}");
            assert_eq!(failed.applied, Applied::Nothing);
            assert_eq!(bytes(&ground.remote, 0, 2_000), vec![0; 2_000]);

            let both = || link().transport(TcpTransport::default()).build();
            let ground = Ground::new(both().await.unwrap(), both().await.unwrap(), 1 << 20).await;
            let (request, _, _buffers) = scattered(&ground, 32).await;
            let outcome = once(&ground.sender, request.op_id(2)).await;
            assert!(outcome.is_completed(), "{outcome:?}");
            let length = wanted.len() as u64;
            let told = ground.target.receive_arrivals();
            assert_eq!(told, [ground.arrival(2, length)]);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn law_11_without_room_for_its_arrival_nothing_is_fetched() {
        for link in links() {
            let target = link().arrival_room(2).build().await.unwrap();
            let sender = link().build().await.unwrap();
            let ground = Ground::new(sender, target, 100).await;
            ground.local.memory().write_at(0, &[7; 100]);
            let write = |op_id: u64| ground.write(op_id * 10, 10).op_id(op_id);
            for op_id in 0..2 {
                assert!(once(&ground.sender, write(op_id)).await.is_completed());
            }
            let full = error(Some(once(&ground.sender, write(2)).await));
            assert_eq!(full.reason, Reason::ArrivalsFull);
            assert_eq!(full.applied, Applied::Nothing);
            assert_eq!(bytes(&ground.remote, 20, 10), [0; 10]);
            assert_eq!(ground.target.receive_arrivals().len(), 2);
            // Refused ones and those that nobody is told of take no place.
            for _ in 0..5 {
                let beyond = ground.local.slice(0..10).unwrap();
                let beyond = Request::write(beyond, &ground.segment, place(&ground.remote, 95));
                let outcome = once(&ground.sender, beyond.op_id(7)).await;
                assert!(!outcome.is_completed());
                let checked = ground.write(0, 10).checksum();
                assert!(once(&ground.sender, checked).await.is_completed());
            }
            ground.seats_are_free(2).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn bytes_that_change_while_they_are_fetched_are_not_called_complete() {
        for link in links() {
            let (sender, target) = (link().build().await, link().build().await);
            let ground = Ground::new(sender.unwrap(), target.unwrap(), 16 << 20).await;
            let memory = ground.local.memory();
            let mut corrupted = 0;
            for round in 0..200_u64 {
                let len = ground.local.memory().len() as u64;
                let batch = submit(
                    &ground.sender,
                    vec![ground.write(0, len).op_id(round).checksum()],
                );
                // The last byte was counted already, and is fetched last.
                memory.write_at(len - 1, &[round as u8 + 1]);
                terminal(&batch).await;
                let outcome = batch.outcome(0).unwrap();
                let told = ground.target.receive_arrivals().len();
                if outcome.is_completed() {
                    assert_eq!(told, 1);
                    continue;
                }
                assert_eq!(told, 0, "told of what was not sent");
                let failed = error(Some(outcome));
                assert_eq!(failed.reason, Reason::Corrupted);
                assert_eq!(failed.applied, Applied::Unknown);
                corrupted += 1;
                if corrupted == 3 {
                    break;
                }
            }
            assert!(corrupted > 0, "it never changed in time");
            ground.seats_are_free(3).await;
        }
    }
}

#[cfg(feature = "conformance")]
mod relayed {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;
    use mooncake_tent::{
        TcpConfig,
        conformance::{Relay, Rules},
    };
    use parking_lot::Mutex;

    /// The next connection is under these rules, later ones under none.
    type Next = Arc<Mutex<Option<Rules>>>;

    async fn owner() -> (TentEngine, Relay, Next) {
        let next = Next::default();
        let plan = {
            let next = Arc::clone(&next);
            move |_| next.lock().take().unwrap_or_default()
        };
        let (owner, relay) = relayed(TcpConfig::default(), plan).await;
        (owner, relay, next)
    }

    fn alone(checksums: bool) -> TcpConfig {
        let mut config = one_lane();
        config.listen = None;
        config.threads = 1;
        config.checksums = checksums;
        config
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn law_03_a_write_that_was_fenced_in_its_middle_is_told_to_nobody() {
        let (target, relay, next) = owner().await;
        let mut rules = Rules::default();
        rules.up.pause_after = Some(48 + 64 + 1_000_000);
        *next.lock() = Some(rules);
        let sender = engine_with(alone(false)).await;
        let ground = Ground::new(sender, target, LEN).await;
        let batch = submit(&ground.sender, vec![ground.write(0, LEN as u64).op_id(1)]);
        eventually("it is under way", || relay.counts().up_bytes > 900_000).await;
        ground.sender.fence(&ground.segment, BUDGET).await.unwrap();
        relay.resume();
        quiescent(&batch).await;
        assert!(!batch.outcome(0).unwrap().is_completed());
        ground.seats_are_free(1).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_write_that_was_cut_gives_its_place_back() {
        let (target, _relay, next) = owner().await;
        let sender = engine_with(alone(false)).await;
        let ground = Ground::new(sender, target, LEN).await;
        for cut in [48 + 64, 48 + 64 + 1, 48 + 64 + LEN as u64 - 1] {
            ground.sender.fence(&ground.segment, BUDGET).await.unwrap();
            let mut rules = Rules::default();
            rules.up.cut_after = Some(cut);
            *next.lock() = Some(rules);
            let batch = submit(&ground.sender, vec![ground.write(0, LEN as u64).op_id(1)]);
            quiescent(&batch).await;
            assert!(!batch.outcome(0).unwrap().is_completed());
        }
        ground.seats_are_free(3).await;
        assert_eq!(ground.target.gauges().arrivals, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_byte_is_changed_on_the_way_nothing_of_it_is_called_complete() {
        const SMALL: u64 = 40;
        let (target, _relay, next) = owner().await;
        let remote = buffer(&target, 100, Permission::PeersReadWrite).await;
        // Behind the hello: a request with its extension and payload; an answer with its payload.
        let up = (0..64 + SMALL).map(|at| (true, at));
        let down = (0..ANSWER as u64 + SMALL).map(|at| (false, at));
        let told = AtomicU64::new(0);
        for (is_up, at) in up.chain(down) {
            let reads = !is_up && at >= ANSWER as u64;
            let mut rules = Rules::default();
            match is_up {
                true => rules.up.flip = Some(48 + at),
                false => rules.down.flip = Some(48 + at),
            }
            let sender = engine_with(alone(true)).await;
            let local = buffer(&sender, 100, Permission::Local).await;
            let segment = open(&sender, &target).await;
            *next.lock() = Some(rules);
            let slice = local.slice(0..SMALL).unwrap();
            let request = match reads {
                true => Request::read(slice, &segment, place(&remote, 10)),
                false => Request::write(slice, &segment, place(&remote, 10)).op_id(at),
            };
            let outcome = once(&sender, request.clone()).await;
            let what = format!("byte {at} {}", if is_up { "up" } else { "down" });
            assert!(!outcome.is_completed(), "{what}: {outcome:?}");
            let payload = if is_up { at >= 64 } else { reads };
            if payload {
                let error = error(Some(outcome));
                assert_eq!(error.reason, Reason::Corrupted, "{what}");
                assert!(error.quiescent, "{what}");
            }
            let arrivals = target.receive_arrivals();
            // Of a write whose answer was changed the target knows that it is applied.
            assert_eq!(arrivals.len(), usize::from(!is_up && !reads), "{what}");
            told.fetch_add(arrivals.len() as u64, Ordering::Relaxed);
            // The next one is not touched.
            let outcome = once(&sender, request).await;
            assert!(outcome.is_completed(), "{what}: {outcome:?}");
            target.receive_arrivals();
        }
        assert_eq!(told.load(Ordering::Relaxed), ANSWER as u64);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_request_may_be_checked_where_the_others_are_not() {
        for checked in [false, true] {
            let (target, _relay, next) = owner().await;
            let ground = Ground::new(engine_with(alone(false)).await, target, LEN).await;
            let mut rules = Rules::default();
            rules.up.flip = Some(48 + 64 + 1_234);
            *next.lock() = Some(rules);
            let request = ground.write(0, 4_000);
            let request = if checked { request.checksum() } else { request };
            let outcome = once(&ground.sender, request).await;
            // Without it nobody notices, which also shows that the byte was changed.
            assert_eq!(outcome.is_completed(), !checked, "{outcome:?}");
            let found = bytes(&ground.remote, 0, 4_000);
            assert_eq!(found.iter().filter(|byte| **byte != 0).count(), 1);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn checked_transfers_of_all_sizes_move_their_bytes() {
        let mut config = TcpConfig::default();
        config.checksums = true;
        let (sender, target) = (engine_with(config).await, engine().await);
        let ground = Ground::new(sender, target, LEN).await;
        for (round, len) in [1, 7, 4_096, 65_537, 1 << 20, LEN as u64]
            .iter()
            .enumerate()
        {
            ground
                .local
                .memory()
                .write_at(0, &pattern(round as u64, LEN));
            let outcome = once(&ground.sender, ground.write(0, *len)).await;
            assert!(outcome.is_completed(), "{outcome:?}");
            let sent = bytes(&ground.local, 0, *len as usize);
            assert_same(&bytes(&ground.remote, 0, *len as usize), &sent, "written");
            ground.local.memory().write_at(0, &vec![0; LEN]);
            let local = ground.local.slice(0..*len).unwrap();
            let read = Request::read(local, &ground.segment, place(&ground.remote, 0));
            let batch = submit(&ground.sender, vec![read.clone(), read]);
            assert!(batch.wait(BUDGET) && batch.outcome(1).unwrap().is_completed());
            assert_same(&bytes(&ground.local, 0, *len as usize), &sent, "read");
        }
    }
}
