//! The client against a master that behaves badly on demand.

use std::{sync::atomic::Ordering, time::Duration};

use mooncake_proto::{
    Applied,
    master::{ExistRequest, PutEndRequest, ReleaseRequest},
    status::ErrorCode,
};
use tokio::{net::TcpListener, time::Instant};

use super::{
    fake::{Fake, Mood},
    *,
};
use crate::{
    core::{MasterAnswer, MasterRequest},
    time::{Clock, Time},
};

const BUDGET: Duration = Duration::from_secs(5);

async fn connect(address: &str) -> MasterClient {
    let hello = Hello {
        client_incarnation: 7,
        tenant: String::new(),
        name: "test".into(),
    };
    MasterClient::connect(address, hello, ConnectOptions::default())
        .await
        .unwrap()
}

fn exist() -> MasterRequest {
    MasterRequest::Exist(ExistRequest {
        keys: vec!["k".into()],
        ..ExistRequest::default()
    })
}

fn put_end() -> MasterRequest {
    MasterRequest::PutEnd(PutEndRequest::default())
}

fn soon() -> Time {
    Clock.now() + Duration::from_secs(20)
}

#[tokio::test]
async fn ten_thousand_operations_are_in_flight_at_once_and_answers_may_come_in_any_order() {
    let (fake, address) = Fake::serve(&[(Mood::Reversed(10_000), false)]).await;
    let client = connect(&address).await;
    let calls: Vec<_> = (0..10_000).map(|_| client.call(exist(), soon())).collect();
    for call in calls {
        assert!(matches!(call.await, Ok(MasterAnswer::Exist(_))));
    }
    let numbers = fake.seen.lock().numbers[0].clone();
    assert!(numbers.is_sorted() && numbers.len() == 10_000);
    let most = fake.seen.lock().most_in_frame;
    assert!(
        (100..=256).contains(&most),
        "frames carry up to {most} operations"
    );
    // All answers are here: the next frame says so.
    fake.until(|seen| seen.acknowledged_below > 10_000).await;
}

#[tokio::test]
async fn after_a_cut_a_master_that_remembers_gets_the_same_numbers_once_again() {
    let (fake, address) = Fake::serve(&[(Mood::CutAfter(50), false), (Mood::Kind, true)]).await;
    let client = connect(&address).await;
    let mut events = client.subscribe();
    let calls: Vec<_> = (0..50)
        .map(|index| client.call(if index % 2 == 0 { exist() } else { put_end() }, soon()))
        .collect();
    for call in calls {
        assert!(call.await.is_ok());
    }
    let seen = fake.seen.lock().numbers.clone();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0], seen[1]);
    assert_eq!(events.next().await, Some(SessionEvent::Lost));
    let connected = SessionEvent::Connected {
        epoch: 2,
        resumed: true,
    };
    assert_eq!(events.next().await, Some(connected));
    assert!(client.session().connected && client.session().epoch == 2);
}

#[tokio::test]
async fn after_a_restart_mutations_have_an_unknown_outcome_and_reads_are_asked_again() {
    let (fake, address) = Fake::serve(&[(Mood::CutAfter(3), false), (Mood::Kind, false)]).await;
    let client = connect(&address).await;
    let (read, write) = (client.call(exist(), soon()), client.call(put_end(), soon()));
    let release = client.call(MasterRequest::Release(ReleaseRequest::default()), Time(0));
    assert_eq!(
        release.await.unwrap_err().code,
        ErrorCode::RpcTimeout,
        "never sent"
    );
    fake.until(|seen| seen.numbers[0].len() == 2).await;
    let last = client.call(exist(), soon());
    let fault = write.await.unwrap_err();
    assert_eq!(fault.code, ErrorCode::UnknownOutcome);
    assert_eq!((fault.applied, fault.peer), (Applied::Unknown, address));
    assert!(read.await.is_ok() && last.await.is_ok());
    let seen = fake.seen.lock();
    assert_eq!(seen.numbers[0], [1, 2, 3]);
    assert_eq!(
        seen.numbers[1].len(),
        2,
        "both reads, under numbers of their own"
    );
    assert!(seen.numbers[1].iter().all(|number| *number > 3));
}

#[tokio::test]
async fn a_fence_is_told_and_a_new_session_is_sought() {
    let (_fake, address) = Fake::serve(&[(Mood::Kind, false), (Mood::Kind, false)]).await;
    connect(&address).await.close(BUDGET).await;

    let (_fake, address) = Fake::serve(&[(Mood::Fences, false), (Mood::Kind, false)]).await;
    let client = connect(&address).await;
    let mut events = client.subscribe();
    assert_eq!(
        events.next().await,
        Some(SessionEvent::Fenced("expired".into()))
    );
    assert_eq!(events.next().await, Some(SessionEvent::Lost));
    assert!(client.call(exist(), soon()).await.is_ok());
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_and_names_the_master_that_was_silent() {
    let (fake, address) = Fake::serve(&[(Mood::Silent, false)]).await;
    let client = connect(&address).await;
    let begun = Instant::now();
    let long = client.call(exist(), soon());
    // By now the client sleeps until the later deadline.
    fake.until(|seen| seen.numbers[0].len() == 1).await;
    let fault = client
        .call(exist(), Clock.now() + Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!((Duration::from_millis(50)..Duration::from_secs(5)).contains(&begun.elapsed()));
    assert_eq!(fault.code, ErrorCode::RpcTimeout);
    assert!(fault.to_string().contains(&address), "{fault}");
    client.close(BUDGET).await;
    let fault = long.await.unwrap_err();
    assert!(fault.message.contains("closed"), "{fault}");
    assert!(client.call(exist(), soon()).await.is_err());
    assert_eq!(client.subscribe().next().await, None);
}

#[tokio::test]
async fn nothing_that_listens_is_reported_at_once_and_a_mute_listener_within_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute = listener.local_addr().unwrap().to_string();
    let free = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    for address in [free, mute, "no such host:1".to_owned()] {
        let begun = Instant::now();
        let hello = Hello {
            client_incarnation: 7,
            tenant: String::new(),
            name: String::new(),
        };
        let error = MasterClient::connect(&address, hello, ConnectOptions::default()).await;
        let error = error.unwrap_err().to_string();
        assert!(begun.elapsed() < Duration::from_secs(2), "{error}");
        assert!(error.contains(&address), "{error}");
    }
}

#[tokio::test]
async fn a_panic_in_a_callback_leaves_nobody_waiting() {
    let (_fake, address) = Fake::serve(&[(Mood::Reversed(2), false)]).await;
    let client = connect(&address).await;
    let waiting = client.call(exist(), soon());
    client.submit(exist(), soon(), |_| panic!("of this test"));
    assert!(waiting.await.is_err());
    assert!(client.call(exist(), soon()).await.is_err());
}

#[tokio::test]
async fn one_operation_too_many_is_busy() {
    let (_fake, address) = Fake::serve(&[(Mood::Silent, false)]).await;
    let hello = Hello {
        client_incarnation: 7,
        tenant: String::new(),
        name: String::new(),
    };
    let options = ConnectOptions {
        max_in_flight: 2,
        ..ConnectOptions::default()
    };
    let client = MasterClient::connect(&address, hello, options)
        .await
        .unwrap();
    let _waiting = [client.call(exist(), soon()), client.call(exist(), soon())];
    let fault = client.call(exist(), soon()).await.unwrap_err();
    assert_eq!(fault.code, ErrorCode::Busy);
}

#[tokio::test]
async fn the_client_pings_and_acknowledges_without_being_asked() {
    let (fake, address) = Fake::serve(&[(Mood::Kind, false)]).await;
    let client = connect(&address).await;
    assert!(client.call(exist(), soon()).await.is_ok());
    // Number 1 was the call; only pings can move the mark beyond 3.
    fake.until(|seen| seen.acknowledged_below > 3).await;
    assert_eq!(fake.streams.load(Ordering::Relaxed), 1);
    assert_eq!(fake.seen.lock().numbers[0], [1]);
}

#[tokio::test]
async fn a_stream_on_which_pings_have_no_answer_is_replaced() {
    let (fake, address) = Fake::serve(&[(Mood::Mute, false), (Mood::Kind, true)]).await;
    let client = connect(&address).await;
    assert!(client.call(put_end(), soon()).await.is_ok());
    assert_eq!(fake.seen.lock().numbers, [[1], [1]]);
}

#[tokio::test]
async fn a_master_that_does_not_know_us_is_told_hello_again() {
    let (_fake, address) = Fake::serve(&[(Mood::Forgetful, false), (Mood::Kind, false)]).await;
    let client = connect(&address).await;
    let mut events = client.subscribe();
    assert!(matches!(events.next().await, Some(SessionEvent::Fenced(_))));
    assert_eq!(events.next().await, Some(SessionEvent::Lost));
    let connected = SessionEvent::Connected {
        epoch: 2,
        resumed: false,
    };
    assert_eq!(events.next().await, Some(connected));
}

#[tokio::test]
async fn dropping_the_last_client_ends_the_stream() {
    let (fake, address) = Fake::serve(&[(Mood::Kind, false)]).await;
    let client = connect(&address).await;
    let other = client.clone();
    drop(client);
    let call = other.call(exist(), soon());
    assert!(call.await.is_ok());
    drop(other);
    fake.until(|seen| seen.ended == 1).await;
}
