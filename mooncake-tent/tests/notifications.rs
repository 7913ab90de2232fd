//! Notifications: once, in order, into one queue, for one life of the receiver.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    io::Read,
    net::{SocketAddr, TcpListener},
    sync::mpsc,
    time::Duration,
};

use common::*;
use mooncake_tent::{
    Applied, Error, InProcess, Liveness, Notification, Permission, ReceivedNotification, Request,
    Segment, TentEngine, TransferEngine,
};

/// For what must not come.
const A_WHILE: Duration = Duration::from_millis(200);

async fn bare() -> TentEngine {
    TentEngine::builder().build().await.unwrap()
}

fn numbered(n: usize) -> Notification {
    Notification::new("number", n.to_string())
}

async fn send(engine: &TentEngine, segment: &Segment, n: usize) {
    let sent = engine.send_notification(segment, numbered(n), BUDGET);
    sent.await.unwrap();
}

fn numbers(received: &[ReceivedNotification]) -> Vec<usize> {
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().parse().unwrap();
    received
        .iter()
        .map(|received| number(&received.notification.message))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_one_queue_whatever_links_the_two_sides_share() {
    let receiver = engine().await;
    let links = InProcess::new();
    let near = TentEngine::builder().in_process(links).build();
    for sender in [engine().await, bare().await, near.await.unwrap()] {
        let segment = open(&sender, &receiver).await;
        send(&sender, &segment, 1).await;
        let received = receiver.receive_notifications();
        let [only] = &received[..] else {
            panic!("{received:?}");
        };
        assert_eq!(only.sender, sender.incarnation());
        assert_eq!(only.segment, sender.segment_name());
        assert_eq!(only.notification, numbered(1));
    }
    // An engine may talk to itself.
    let own = open(&receiver, &receiver).await;
    send(&receiver, &own, 2).await;
    let received = receiver.next_notification().await;
    assert_eq!(received.sender, receiver.incarnation());
    assert_eq!(receiver.gauges().notifications, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn those_of_one_sender_come_in_order_and_all_of_them() {
    let (sender, receiver) = (bare().await, bare().await);
    let segment = open(&sender, &receiver).await;
    let sends = (0..300).map(move |n| {
        let (sender, segment) = (sender.clone(), segment.clone());
        async move { send(&sender, &segment, n).await }
    });
    // One task: they begin to be awaited in this order, and wait for each other.
    let sent = tokio::spawn(async move {
        let mut sends: Vec<_> = sends.map(Box::pin).collect();
        std::future::poll_fn(|context| {
            sends.retain_mut(|send| send.as_mut().poll(context).is_pending());
            match sends.is_empty() {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
    });
    let mut received = Vec::new();
    while received.len() < 300 {
        received.push(receiver.next_notification().await);
    }
    sent.await.unwrap();
    assert_eq!(numbers(&received), (0..300).collect::<Vec<_>>());
    assert!(receiver.receive_notifications().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn law_11_a_full_queue_makes_senders_wait_and_then_says_so() {
    let receiver = TentEngine::builder().notification_room(2).build();
    let (sender, receiver) = (bare().await, receiver.await.unwrap());
    let segment = open(&sender, &receiver).await;
    let own = open(&receiver, &receiver).await;
    for n in 0..2 {
        send(&sender, &segment, n).await;
    }
    for (engine, segment) in [(&sender, &segment), (&receiver, &own)] {
        // On a busy machine the time may end while an answer is on its way.
        for tries_left in (0..20).rev() {
            let error = engine.send_notification(segment, numbered(9), A_WHILE);
            let error = error.await.unwrap_err();
            let Error::NotDelivered { applied, .. } = &error else {
                panic!("{error}");
            };
            if *applied == Applied::Unknown && tries_left > 0 {
                continue;
            }
            assert_eq!(*applied, Applied::Nothing);
            assert!(error.to_string().contains("full of 2"), "{error}");
            break;
        }
    }
    assert!(receiver.notification_counts().busy > 0);
    // One that waits gets the first place.
    let waiting = tokio::spawn(async move { send(&sender, &segment, 2).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut received = receiver.receive_notifications();
    waiting.await.unwrap();
    received.extend(receiver.receive_notifications());
    assert_eq!(numbers(&received), [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_long_is_refused_before_it_is_sent() {
    let (sender, receiver) = (bare().await, bare().await);
    let segment = open(&sender, &receiver).await;
    for (name, message) in [
        (Notification::LONGEST_NAME + 1, 0),
        (0, Notification::LONGEST_MESSAGE + 1),
    ] {
        let long = Notification::new("n".repeat(name), vec![0; message]);
        let sent = sender.send_notification(&segment, long, BUDGET).await;
        assert!(matches!(sent, Err(Error::Invalid(_))), "{sent:?}");
    }
    let longest = Notification::new(
        "n".repeat(Notification::LONGEST_NAME),
        vec![0; Notification::LONGEST_MESSAGE],
    );
    let sent = sender.send_notification(&segment, longest.clone(), BUDGET);
    sent.await.unwrap();
    let received = receiver.next_notification().await;
    assert_eq!(received.notification, longest);
}

/// An engine whose control service is reached through a relay, under these rules.
#[cfg(feature = "conformance")]
async fn behind_a_relay(
    plan: impl Fn(u64) -> mooncake_tent::conformance::Rules + Clone + Send + Sync + 'static,
) -> (TentEngine, mooncake_tent::conformance::Relay) {
    loop {
        let target = free_address();
        let any = "127.0.0.1:0".parse().unwrap();
        let relay = mooncake_tent::conformance::Relay::start(any, target, plan.clone()).unwrap();
        let builder = TentEngine::builder()
            .listen(target)
            .advertise(relay.address().to_string());
        if let Ok(engine) = builder.build().await {
            return (engine, relay);
        }
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[cfg(feature = "conformance")]
#[tokio::test(flavor = "multi_thread")]
async fn over_a_network_that_cuts_everywhere_each_arrives_once_and_in_order() {
    use mooncake_tent::conformance::{Cut, Rules};
    // Connections end after some bytes of either direction: before, within and after a request, and
    // before, within and after its answer.
    let (receiver, relay) = behind_a_relay(|number| {
        let mut rules = Rules::default();
        let bytes = Some(150 + 31 * (number % 23));
        match number % 2 {
            0 => rules.down.cut_after = bytes,
            _ => rules.up.cut_after = bytes.map(|bytes| 3 * bytes),
        }
        rules.up.cut = [Cut::Close, Cut::Reset][(number / 2 % 2) as usize];
        rules.down.cut = rules.up.cut;
        rules
    })
    .await;
    let sender = bare().await;
    let segment = loop {
        // This is cut, too.
        let name = receiver.segment_name();
        if let Ok(segment) = sender.open_segment(name, BUDGET).await {
            break segment;
        }
    };
    for n in 0..200 {
        send(&sender, &segment, n).await;
    }
    let received = receiver.receive_notifications();
    assert_eq!(numbers(&received), (0..200).collect::<Vec<_>>());
    assert!(relay.counts().cuts > 10, "{:?}", relay.counts());
    let repeated = receiver.notification_counts().repeated;
    assert!(repeated > 0, "no answer was lost: the test shows little");
}

#[tokio::test(flavor = "multi_thread")]
async fn law_07_a_successor_gets_nothing_that_was_meant_for_its_predecessor() {
    let sender = bare().await;
    let address = free_address();
    let at = |address| TentEngine::builder().listen(address).build();
    let first = at(address).await.unwrap();
    let segment = open(&sender, &first).await;
    send(&sender, &segment, 1).await;
    let probe = sender.probe(&segment, BUDGET).await.unwrap();
    assert!(probe.is_alive(), "{probe:?}");
    let life = first.incarnation();
    first.shutdown(BUDGET).await.unwrap();
    drop(first);

    // While nobody is there, nobody answers.
    let error = sender.send_notification(&segment, numbered(2), A_WHILE);
    let error = error.await.unwrap_err();
    assert!(matches!(error, Error::NotDelivered { .. }), "{error}");
    let probe = sender.probe(&segment, BUDGET).await.unwrap();
    assert!(
        matches!(probe.liveness, Liveness::Unreachable(_)),
        "{probe:?}"
    );

    let second = at(address).await.unwrap();
    let probe = sender.probe(&segment, BUDGET).await.unwrap();
    let successor = Liveness::Restarted(second.incarnation());
    assert_eq!(probe.liveness, successor);
    let error = sender.send_notification(&segment, numbered(3), BUDGET);
    match error.await.unwrap_err() {
        Error::Restarted { known, .. } => assert_eq!(known, life),
        other => panic!("{other}"),
    }
    assert!(second.receive_notifications().is_empty());
    // The caller knows now whom it talks to.
    assert_eq!(segment.incarnation(), second.incarnation());
    send(&sender, &segment, 4).await;
    assert_eq!(numbers(&second.receive_notifications()), [4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_accepts_and_says_nothing_is_unreachable_after_the_budget() {
    let (sender, receiver) = (bare().await, bare().await);
    let own = open(&sender, &sender).await;
    let probe = sender.probe(&own, BUDGET).await.unwrap();
    assert!(probe.is_alive() && probe.took < BUDGET);
    let real = open(&sender, &receiver).await;
    assert!(sender.probe(&real, BUDGET).await.unwrap().is_alive());
    let name = receiver.segment_name().to_owned();
    receiver.shutdown(BUDGET).await.unwrap();
    drop(receiver);
    let mut mute = TcpListener::bind(&name);
    while mute.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        mute = TcpListener::bind(&name);
    }
    let probe = sender.probe(&real, A_WHILE).await.unwrap();
    assert!(
        matches!(probe.liveness, Liveness::Unreachable(_)),
        "{probe:?}"
    );
    assert!(probe.took < BUDGET);
    let error = sender.send_notification(&real, numbered(1), A_WHILE).await;
    assert!(
        matches!(error, Err(Error::NotDelivered { .. })),
        "{error:?}"
    );
}

const LEN: usize = 3 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn who_is_notified_of_a_submission_finds_its_bytes_and_each_target_is_told_once() {
    let sender = engine().await;
    let (first, second) = (engine().await, engine().await);
    let remotes = [
        buffer(&first, LEN, Permission::PeersReadWrite).await,
        buffer(&second, LEN, Permission::PeersReadWrite).await,
    ];
    let local = buffer(&sender, LEN, Permission::Local).await;
    let segments = [open(&sender, &first).await, open(&sender, &second).await];
    for round in 0..20 {
        local.memory().write_at(0, &pattern(round, LEN));
        let write = |at: usize| {
            let all = local.all().unwrap();
            Request::write(all, &segments[at], address(&remotes[at], 0))
        };
        let mut batch = sender.allocate_batch(3);
        let requests = vec![write(0), write(1), write(0)];
        let notification = numbered(round as usize);
        let announcement = sender
            .submit_transfer_and_notify(&mut batch, requests, notification)
            .unwrap();
        if round % 3 == 0 {
            // Nobody looks at the batch any more.
            drop(batch);
        }
        for (target, remote) in [&first, &second].iter().zip(&remotes) {
            let received = target.next_notification().await;
            assert_eq!(numbers(&[received]), [round as usize]);
            assert_same(&bytes(remote, 0, LEN), &pattern(round, LEN), "told");
        }
        match round % 3 {
            1 => drop(announcement),
            _ => {
                let deliveries = announcement.deliveries().await;
                assert_eq!(deliveries.len(), 2);
                assert!(deliveries.iter().all(|it| it.result.is_ok()));
            }
        }
    }
    for target in [&first, &second] {
        assert!(target.receive_notifications().is_empty(), "told once");
    }
    eventually("all is given back", || sender.tasks_in_use() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_notified_of_a_submission_of_which_a_task_failed() {
    let (sender, target) = (engine().await, engine().await);
    let remote = buffer(&target, 100, Permission::PeersReadWrite).await;
    let local = buffer(&sender, 100, Permission::Local).await;
    let segment = open(&sender, &target).await;
    let write = |at| {
        let ten = local.slice(0..10).unwrap();
        Request::write(ten, &segment, place(&remote, at))
    };
    let mut batch = sender.allocate_batch(9);
    let announce = |batch: &mut _, requests, n| {
        let announced = sender.submit_transfer_and_notify(batch, requests, numbered(n));
        announced.unwrap()
    };
    let failing = announce(&mut batch, vec![write(0), write(95), write(10)], 1);
    let error = failing.delivered().await.unwrap_err();
    match &error {
        Error::NotDelivered { applied, .. } => assert_eq!(*applied, Applied::Nothing),
        other => panic!("{other}"),
    }
    // Another submission of the same batch is another matter.
    let good = announce(&mut batch, vec![write(0)], 2);
    good.delivered().await.unwrap();
    terminal(&batch).await;
    assert_eq!(batch.len(), 4);
    assert_eq!(numbers(&target.receive_notifications()), [2]);
    // What is refused at once adds nothing.
    let too_long = Notification::new("n".repeat(300), "");
    let refused = sender.submit_transfer_and_notify(&mut batch, vec![write(0)], too_long);
    assert!(matches!(refused, Err(Error::Invalid(_))));
    assert_eq!(batch.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_is_announced_while_others_of_its_batch_are_under_way() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = engine_at(listener.local_addr().unwrap()).await;
    let (begun, has_begun) = mpsc::channel();
    fake_target(listener, mute.incarnation(), move |_, mut socket| {
        if socket.read_exact(&mut [0]).is_ok() {
            _ = begun.send(());
            swallow(socket);
        }
    });
    let (sender, target) = (engine().await, engine().await);
    let remote = buffer(&target, 10, Permission::PeersReadWrite).await;
    let never = buffer(&mute, 10, Permission::PeersReadWrite).await;
    let local = buffer(&sender, 10, Permission::Local).await;
    let (segment, void) = (open(&sender, &target).await, open(&sender, &mute).await);
    let mut batch = sender.allocate_batch(2);
    let hangs = Request::write(local.all().unwrap(), &void, place(&never, 0));
    let hangs = sender.submit_transfer_and_notify(&mut batch, vec![hangs], numbered(1));
    let hangs = hangs.unwrap();
    let works = Request::write(local.all().unwrap(), &segment, place(&remote, 0));
    let works = sender.submit_transfer_and_notify(&mut batch, vec![works], numbered(2));
    works.unwrap().delivered().await.unwrap();
    assert!(!batch.is_terminal());
    assert_eq!(numbers(&target.receive_notifications()), [2]);
    // What was not sent could be taken back.
    tokio::task::block_in_place(|| has_begun.recv_timeout(BUDGET).unwrap());
    // The engine's end is the end of what waits for it.
    sender
        .shutdown(Duration::from_millis(300))
        .await
        .unwrap_err();
    assert!(hangs.delivered().await.is_err());
    assert!(mute.receive_notifications().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_that_are_sent_at_once_all_arrive() {
    const MANY: usize = 5_000;
    let (sender, receiver) = (bare().await, bare().await);
    let segment = open(&sender, &receiver).await;
    let sends = (0..MANY).map(|n| {
        let (sender, segment) = (sender.clone(), segment.clone());
        tokio::spawn(async move { send(&sender, &segment, n).await })
    });
    let sends: Vec<_> = sends.collect();
    let mut heard = Vec::new();
    while heard.len() < MANY {
        let next = tokio::time::timeout(BUDGET, receiver.next_notification());
        heard.push(next.await.unwrap());
    }
    for sent in sends {
        sent.await.unwrap();
    }
    let mut heard = numbers(&heard);
    heard.sort_unstable();
    assert!(heard.into_iter().eq(0..MANY));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_wait_loses_no_notification() {
    let (sender, receiver) = (bare().await, bare().await);
    let segment = open(&sender, &receiver).await;
    for n in 0..20 {
        let waiting = {
            let receiver = receiver.clone();
            tokio::spawn(async move { receiver.next_notification().await })
        };
        let lost = tokio::time::timeout(Duration::from_micros(50), receiver.next_notification());
        let lost = lost.await;
        send(&sender, &segment, n).await;
        let received = match lost {
            Ok(received) => received,
            Err(_) => waiting.await.unwrap(),
        };
        assert_eq!(numbers(&[received]), [n]);
    }
}
