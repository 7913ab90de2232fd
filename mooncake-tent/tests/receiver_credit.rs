//! A receiver says what each of its peers may have under way, and all of them together no more than
//! it takes.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Applied, Buffer, Permission, Request, TcpConfig, TcpTransport, TentEngine, TransferEngine,
    transport::LinkGauges,
};

fn tcp(engine: &TentEngine) -> LinkGauges {
    let links = engine.gauges().links;
    links.iter().find(|(link, _)| *link == "tcp").unwrap().1
}

/// One that takes so much in all, for so many lanes.
async fn receiver(bytes: u64, requests: u64, lanes: usize) -> TentEngine {
    let mut config = TcpConfig::default();
    config.credit_bytes = bytes;
    config.credit_requests = requests;
    config.lanes_accepted = lanes;
    engine_with(config).await
}

/// One that only reaches out.
async fn sender(mut config: TcpConfig) -> TentEngine {
    config.listen = None;
    config.threads = 1;
    let builder = TentEngine::builder().without_control();
    let link = TcpTransport::new(config);
    builder.transport(link).build().await.unwrap()
}

/// The most that `engine` had of anything while `work` ran.
async fn most<T>(engine: &TentEngine, work: impl Future<Output = T>) -> (LinkGauges, T) {
    let over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (over, engine) = (Arc::clone(&over), engine.clone());
        thread::spawn(move || {
            let mut most = LinkGauges::default();
            loop {
                let last = over.load(Ordering::Relaxed);
                let now = tcp(&engine);
                let more = |most: &mut u64, now: u64| *most = now.max(*most);
                more(&mut most.peer_bytes_in_flight, now.peer_bytes_in_flight);
                more(&mut most.peer_credit_bytes, now.peer_credit_bytes);
                more(&mut most.peer_credit_requests, now.peer_credit_requests);
                if last {
                    return most;
                }
                thread::sleep(Duration::from_micros(200));
            }
        })
    };
    let done = work.await;
    over.store(true, Ordering::Relaxed);
    let most = tokio::task::spawn_blocking(|| watcher.join().unwrap());
    (most.await.unwrap(), done)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_senders_have_no_more_under_way_than_their_receiver_takes_and_none_starves() {
    const SENDERS: usize = 64;
    const BLOCK: usize = 24 << 10;
    const BLOCKS: usize = 24;
    const BYTES: u64 = 8 << 20;
    const REQUESTS: u64 = 1024;
    let owner = receiver(BYTES, REQUESTS, 2 * SENDERS).await;
    let len = SENDERS * BLOCKS * BLOCK;
    let remote = Arc::new(buffer(&owner, len, Permission::PeersReadWrite).await);
    let segment = Arc::new(open(&engine().await, &owner).await);
    let (most, ()) = most(&owner, async {
        let mut senders = tokio::task::JoinSet::new();
        for number in 0..SENDERS {
            let (remote, segment) = (Arc::clone(&remote), Arc::clone(&segment));
            senders.spawn(async move {
                let engine = sender(TcpConfig::default()).await;
                let part = BLOCKS * BLOCK;
                let local = buffer(&engine, part, Permission::Local).await;
                let wanted = pattern(number as u64 + 1, part);
                local.memory().write_at(0, &wanted);
                for reads in [false, true] {
                    if reads {
                        local.memory().write_at(0, &vec![0; part]);
                    }
                    let requests = (0..BLOCKS).map(|block| {
                        let at = (block * BLOCK) as u64;
                        let slice = local.slice(at..at + BLOCK as u64).unwrap();
                        let there = place(&remote, (number * part) as u64 + at);
                        match reads {
                            true => Request::read(slice, &segment, there),
                            false => Request::write(slice, &segment, there),
                        }
                    });
                    let batch = submit(&engine, requests.collect());
                    terminal(&batch).await;
                    for block in 0..BLOCKS {
                        let outcome = batch.outcome(block).unwrap();
                        assert!(outcome.is_completed(), "{number}, {block}: {outcome:?}");
                    }
                }
                assert_same(&bytes(&local, 0, part), &wanted, "what was written is read");
                engine
            });
        }
        let mut engines = Vec::new();
        while let Some(engine) = senders.join_next().await {
            engines.push(engine.unwrap());
        }
        // All of them stay connected until the last has ended.
        tokio::task::spawn_blocking(move || drop(engines))
            .await
            .unwrap();
    })
    .await;
    for number in 0..SENDERS {
        let part = BLOCKS * BLOCK;
        let found = bytes(&remote, (number * part) as u64, part);
        assert_same(&found, &pattern(number as u64 + 1, part), "at the receiver");
    }
    assert!(most.peer_credit_bytes <= BYTES, "{most:?}");
    assert!(most.peer_credit_requests <= REQUESTS, "{most:?}");
    assert!(most.peer_bytes_in_flight <= BYTES, "{most:?}");
    let parts = 2 * SENDERS as u64 * (BYTES / 2 / (2 * SENDERS as u64));
    assert!(most.peer_credit_bytes >= parts, "all were there: {most:?}");
    eventually("who leaves gives back what it had", || {
        let now = tcp(&owner);
        (now.peer_credit_bytes, now.peer_credit_requests) == (0, 0)
    })
    .await;
}

/// A lane made by hand that reads 8 bytes at a time and keeps the books of its credit.
struct Raw {
    socket: std::net::TcpStream,
    asked: u64,
    /// Bytes and requests.
    granted: [u64; 2],
}

impl Raw {
    fn open(
        owner: &TentEngine,
        segment: &mooncake_tent::Segment,
        initiator: u64,
        most: u64,
    ) -> Self {
        let mut socket = raw_socket(segment);
        let mut hello = hello(VERSION, initiator, owner.incarnation(), 1);
        hello[32..36].fill(0xff);
        hello[40..48].copy_from_slice(&most.to_le_bytes());
        socket.write_all(&hello).unwrap();
        let mut welcome = [0; 48];
        socket.read_exact(&mut welcome).unwrap();
        assert_eq!(welcome[6..8], [0, 0], "accepted");
        Self {
            socket,
            asked: 0,
            granted: numbers(&welcome[32..]),
        }
    }

    fn read(&mut self, remote: &Buffer) {
        let read = request(1, self.asked, remote, 0, 8);
        self.socket.write_all(&read).unwrap();
        let mut found = [0; ANSWER + 8];
        self.socket.read_exact(&mut found).unwrap();
        assert_eq!(said(&found), said(&answer(0, 1, self.asked, 8)));
        self.asked += 1;
        let granted = numbers(&found[24..]);
        assert!(granted[0] >= self.granted[0] && granted[1] >= self.granted[1]);
        self.granted = granted;
    }

    /// What it may have under way.
    fn room(&self) -> [u64; 2] {
        [
            self.granted[0] - 8 * self.asked,
            self.granted[1] - self.asked,
        ]
    }
}

fn numbers(bytes: &[u8]) -> [u64; 2] {
    [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_greedy_sender_leaves_a_modest_one_its_part_and_then_as_much_as_it_has_itself() {
    let owner = receiver(1 << 20, 1 << 10, 4).await;
    let remote = buffer(&owner, 8, Permission::PeersRead).await;
    let segment = open(&engine().await, &owner).await;
    let (part, loans) = ([128 << 10, 128], [512 << 10, 512]);
    let mut greedy = Raw::open(&owner, &segment, 1, u64::MAX);
    assert_eq!(greedy.room(), part);
    (0..100).for_each(|_| greedy.read(&remote));
    // Of what is lent it has half, and the other half is for who comes next.
    for (what, room) in greedy.room().into_iter().enumerate() {
        let fair = part[what] + loans[what] / 2;
        assert!(room.abs_diff(fair) <= fair / 4, "{what}: {room} of {fair}");
    }
    let mut modest = Raw::open(&owner, &segment, 2, u64::MAX);
    assert_eq!(modest.room(), part, "at once");
    modest.read(&remote);
    assert!(modest.room()[0] > part[0], "with its first answer");
    // What was granted is not taken back. It shrinks as the greedy one uses it.
    let before = greedy.room();
    let large = request(1, 0, &remote, 0, before[0]);
    for _ in 0..40 {
        greedy.socket.write_all(&large).unwrap();
        let mut refused = [0; ANSWER];
        greedy.socket.read_exact(&mut refused).unwrap();
        assert_eq!(refused[0], 1, "out of bounds");
        modest.read(&remote);
        greedy.granted = numbers(&refused[24..]);
    }
    let held = tcp(&owner).peer_credit_bytes;
    let (of_modest, of_greedy) = (modest.room()[0], held - modest.room()[0]);
    assert!(
        of_modest * 2 > of_greedy && of_greedy * 2 > of_modest,
        "{of_modest} and {of_greedy}"
    );
    assert!(held <= 1 << 20);
    drop(greedy);
    eventually("its credit is free", || {
        modest.room()[0] >= tcp(&owner).peer_credit_bytes
    })
    .await;
    (0..20).for_each(|_| modest.read(&remote));
    assert!(modest.room()[0] > of_modest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_modest_sender_gets_through_beside_one_that_never_stops() {
    let owner = receiver(4 << 20, 1 << 10, 8).await;
    let remote = Arc::new(buffer(&owner, 4 << 20, Permission::PeersReadWrite).await);
    remote.memory().write_at(0, &pattern(1, 4096));
    let segment = Arc::new(open(&engine().await, &owner).await);
    let over = Arc::new(AtomicBool::new(false));
    let greedy = {
        let (remote, segment) = (Arc::clone(&remote), Arc::clone(&segment));
        let over = Arc::clone(&over);
        tokio::spawn(async move {
            let engine = sender(TcpConfig::default()).await;
            let local = buffer(&engine, 2 << 20, Permission::Local).await;
            let mut rounds = 0;
            while !over.load(Ordering::Relaxed) {
                let write = || {
                    let all = local.all().unwrap();
                    Request::write(all, &segment, place(&remote, 2 << 20))
                };
                let batch = submit(&engine, (0..32).map(|_| write()).collect());
                terminal(&batch).await;
                assert!((0..32).all(|i| batch.outcome(i).unwrap().is_completed()));
                rounds += 1;
            }
            rounds
        })
    };
    let engine = sender(TcpConfig::default()).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    for _ in 0..200 {
        local.memory().write_at(0, &[0; 4096]);
        let all = local.all().unwrap();
        let outcome = once(&engine, Request::read(all, &segment, place(&remote, 0))).await;
        assert!(outcome.is_completed(), "{outcome:?}");
        assert_same(&bytes(&local, 0, 4096), &pattern(1, 4096), "the modest one");
    }
    over.store(true, Ordering::Relaxed);
    assert!(greedy.await.unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn law_04_who_sends_beyond_its_credit_loses_its_lane_and_nobody_else_does() {
    let owner = receiver(1 << 20, 32, 4).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let segment = open(&engine().await, &owner).await;
    let mut honest = Raw::open(&owner, &segment, 1, 1 << 20);
    honest.read(&remote);
    for lane in 0..10 {
        let mut liar = Raw::open(&owner, &segment, 2 + lane, 0);
        assert_eq!(liar.granted[1], 4);
        let writes = (0..40).flat_map(|tag| {
            let mut write = request(2, tag, &remote, 8 * (tag + 1), 8);
            write.extend([0xff; 8]);
            write
        });
        liar.socket.write_all(&writes.collect::<Vec<_>>()).unwrap();
        let mut answers = Vec::new();
        let _reset = liar.socket.read_to_end(&mut answers);
        assert!(answers.len() < 40 * ANSWER, "it was served");
    }
    honest.read(&remote);
    // What it was not granted was not applied.
    assert_same(&bytes(&remote, 8 * 40, 8), &[0; 8], "the last write");
    let part = 128 << 10;
    eventually("the liars hold nothing", || {
        let held = tcp(&owner).peer_credit_bytes;
        held >= part && held == honest.room()[0]
    })
    .await;
    // Nor can anybody give back what it never had.
    let mut generous = Raw::open(&owner, &segment, 99, 1 << 20);
    let mut back = vec![4, 0, 0, 0, 0, 0, 0, 0];
    for number in [0_u64, 0, 1, 1, 0] {
        back.extend(number.to_le_bytes());
    }
    generous.socket.write_all(&back).unwrap();
    assert_eq!(generous.socket.read(&mut [0]).unwrap_or(0), 0);
    honest.read(&remote);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_credit_requests_wait_untouched_and_can_be_cancelled_or_end_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let target = owner.incarnation();
    let (answer_it, wait) = mpsc::channel::<()>();
    let (say, said) = mpsc::channel();
    thread::spawn(move || {
        let mut socket = listener.accept().unwrap().0;
        socket.read_exact(&mut [0; 48]).unwrap();
        let mut welcome = hello_answer(0, target);
        welcome[32..40].copy_from_slice(&1000_u64.to_le_bytes());
        welcome[40..48].copy_from_slice(&9_u64.to_le_bytes());
        socket.write_all(&welcome).unwrap();
        let mut request = [0; 48];
        for tag in [0, 3] {
            // Of 600 bytes each there is credit for one only, and for that wholly.
            socket.read_exact(&mut request).unwrap();
            socket.read_exact(&mut [0; 600]).unwrap();
            socket.set_nonblocking(true).unwrap();
            thread::sleep(Duration::from_millis(20));
            let more = socket.read(&mut [0]).is_ok();
            say.send((request[8], more)).unwrap();
            wait.recv().unwrap();
            socket.set_nonblocking(false).unwrap();
            let mut applied = answer(0, 2, tag, 0);
            applied[24..32].copy_from_slice(&1600_u64.to_le_bytes());
            socket.write_all(&applied).unwrap();
        }
        swallow(socket);
    });
    let engine = engine_with(one_lane()).await;
    let local = buffer(&engine, 600, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let write = || Request::write(local.all().unwrap(), &segment, place(&remote, 0));
    let hasty = write().deadline(Instant::now() + Duration::from_millis(300));
    let batches: Vec<_> = [write(), write(), hasty, write()]
        .into_iter()
        .map(|write| submit(&engine, vec![write]))
        .collect();
    let next = |said: &mpsc::Receiver<_>| said.recv_timeout(BUDGET).unwrap();
    assert_eq!(next(&said), (0, false));
    eventually("it waits", || tcp(&engine).waiting_for_credit == 1).await;
    batches[1].cancel_all();
    for (batch, what) in [(1, "cancelled"), (2, "too late")] {
        quiescent(&batches[batch]).await;
        let outcome = batches[batch].outcome(0).unwrap();
        let error = outcome.error().unwrap();
        assert_eq!(error.applied, Applied::Nothing, "{what}: {outcome:?}");
    }
    assert!(batches[3].outcome(0).is_none());
    answer_it.send(()).unwrap();
    terminal(&batches[0]).await;
    assert_eq!(next(&said), (3, false));
    eventually("nothing waits", || tcp(&engine).waiting_for_credit == 0).await;
    answer_it.send(()).unwrap();
    terminal(&batches[3]).await;
    assert!(batches[3].outcome(0).unwrap().is_completed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_larger_than_all_credit_goes_alone() {
    const LEN: usize = 3 << 20;
    let owner = receiver(32 << 10, 2, 4).await;
    let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let segment = open(&engine().await, &owner).await;
    let engine = sender(one_lane()).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    for seed in 1..=3 {
        let wanted = pattern(seed, LEN);
        local.memory().write_at(0, &wanted);
        let all = || local.all().unwrap();
        // What tells is not cut.
        let tells = Request::write(all(), &segment, place(&remote, 0)).op_id(seed);
        let small = Request::write(local.slice(0..9).unwrap(), &segment, place(&remote, 0));
        let (most, batch) = most(&owner, async {
            let batch = submit(&engine, vec![tells.clone(), small, tells]);
            terminal(&batch).await;
            batch
        })
        .await;
        assert!((0..3).all(|i| batch.outcome(i).unwrap().is_completed()));
        assert!(most.peer_credit_bytes <= 32 << 10, "{most:?}");
        assert_same(&bytes(&remote, 0, LEN), &wanted, "written");
        local.memory().write_at(0, &vec![0; LEN]);
        let outcome = once(&engine, Request::read(all(), &segment, place(&remote, 0))).await;
        assert!(outcome.is_completed(), "{outcome:?}");
        assert_same(&bytes(&local, 0, LEN), &wanted, "read");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_been_idle_gives_back_what_it_borrowed_and_gets_it_again() {
    const LEN: usize = 8 << 20;
    let owner = receiver(64 << 20, 1 << 10, 16).await;
    let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let segment = open(&engine().await, &owner).await;
    let engine = sender(TcpConfig::default()).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    let part = 2 << 20;
    for seed in 1..=3 {
        let wanted = pattern(seed, LEN);
        local.memory().write_at(0, &wanted);
        let start = Instant::now();
        loop {
            let write = Request::write(local.all().unwrap(), &segment, place(&remote, 0));
            let (most, outcome) = most(&owner, once(&engine, write)).await;
            assert!(outcome.is_completed(), "{outcome:?}");
            assert!(most.peer_credit_bytes <= 64 << 20, "{most:?}");
            // Whoever watches may sleep through one.
            if most.peer_credit_bytes > 2 * part {
                break;
            }
            assert!(start.elapsed() < BUDGET, "nothing is borrowed: {most:?}");
        }
        assert_same(&bytes(&remote, 0, LEN), &wanted, "written");
        eventually("it gives back", || {
            tcp(&owner).peer_credit_bytes == 2 * part
        })
        .await;
    }
    assert_eq!(tcp(&owner).connections, 2, "its lanes are the same");
}
