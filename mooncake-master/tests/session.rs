//! The pipelined session over a real connection: order, resumption, fencing, the master's end.

mod wire;

use std::time::{Duration, Instant};

use mooncake_proto::{
    Fault,
    master::{
        ClientFrame, DescribeRequest, ExistRequest, KeyIncarnation, LookupRequest, Operation,
        PutEndRequest, PutItem, PutStartRequest, ReleaseRequest, RemoveItem, RemoveRequest,
        answer::Answer as Reply, describe_result, event, operation::Operation as Request,
        put_start_result,
    },
    status::ErrorCode,
};
use wire::{Session, client, master, mount};

fn key(n: u64) -> bytes::Bytes {
    format!("key-{n}").into_bytes().into()
}

fn start(n: u64) -> Request {
    Request::PutStart(PutStartRequest {
        items: vec![PutItem {
            key: key(n),
            length: 1000,
        }],
        ..Default::default()
    })
}

fn exist(n: u64) -> Request {
    Request::Exist(ExistRequest {
        keys: vec![key(n)],
        ..Default::default()
    })
}

fn end(n: u64, reply: &Reply) -> Request {
    let Reply::PutStart(started) = reply else {
        panic!("PutStart was answered {reply:?}");
    };
    let Some(put_start_result::Result::Object(object)) = &started.results[0].result else {
        panic!("PutStart failed: {started:?}");
    };
    let incarnation = object.incarnation;
    let item = KeyIncarnation {
        key: key(n),
        incarnation,
    };
    Request::PutEnd(PutEndRequest {
        items: vec![item],
        ..Default::default()
    })
}

#[tokio::test]
async fn ten_thousand_operations_in_flight_are_answered_in_order() {
    let master = master().await;
    let mut client = client(&master).await;
    let mut session = Session::open(&mut client, 1).await;
    assert!(!session.hello.resumed);
    assert_eq!(session.hello.epoch, master.epoch());
    session.ask(1, mount(1, 64 << 20)).await;

    let frames = session.frames.clone();
    let sending = tokio::spawn(async move {
        for first in (2..10_002).step_by(50) {
            let operations = (first..first + 50).map(|number| Operation {
                number,
                operation: Some(if number % 2 == 0 {
                    start(number)
                } else {
                    exist(number)
                }),
            });
            let frame = ClientFrame {
                operations: operations.collect(),
                acknowledged_below: first.saturating_sub(5_000),
                ..Default::default()
            };
            frames.send(frame).await.unwrap();
        }
    });
    let answers = session.answers(10_000).await;
    sending.await.unwrap();
    assert!(answers.iter().map(|a| a.number).eq(2..10_002));
    for answer in &answers {
        match answer.answer.as_ref().unwrap() {
            Reply::PutStart(started) => assert!(matches!(
                started.results[0].result,
                Some(put_start_result::Result::Object(_))
            )),
            Reply::Exist(exist) => assert!(!exist.results[0].exists),
            other => panic!("{other:?}"),
        }
    }
    master.shutdown().await;
}

#[tokio::test]
async fn a_lost_stream_is_resumed_and_unanswered_operations_are_asked_again() {
    let master = master().await;
    let mut client = client(&master).await;
    let mut session = Session::open(&mut client, 1).await;
    session.ask(1, mount(1, 1 << 20)).await;
    let started = session.ask(2, start(0)).await;
    session.send(vec![(3, end(0, &started))]).await;
    drop(session);

    let mut session = Session::open(&mut client, 1).await;
    assert!(session.hello.resumed);
    assert_eq!(
        session.ask(2, start(0)).await,
        started,
        "the first answer again"
    );
    let ended = session.ask(3, end(0, &started)).await;
    assert!(
        matches!(&ended, Reply::PutEnd(r) if r.results[0].error.is_none()),
        "{ended:?}"
    );
    let exist = session.ask(4, exist(0)).await;
    assert!(
        matches!(&exist, Reply::Exist(r) if r.results[0].exists),
        "{exist:?}"
    );
}

#[tokio::test]
async fn a_newer_stream_of_a_client_fences_the_older_one() {
    let master = master().await;
    let mut client = client(&master).await;
    let mut older = Session::open(&mut client, 1).await;
    let mut newer = Session::open(&mut client, 1).await;
    let events = older.events().await.unwrap().unwrap();
    assert!(
        matches!(events[0].event, Some(event::Event::Fenced(_))),
        "{events:?}"
    );
    assert_eq!(older.events().await.unwrap(), None);
    newer.ask(1, exist(0)).await;
}

#[tokio::test]
async fn law_03_nothing_is_applied_for_a_stream_that_was_replaced() {
    let master = master().await;
    let mut client = client(&master).await;
    let mut newer = Session::open(&mut client, 1).await;
    newer.ask(1, mount(1, 1 << 20)).await;
    for number in 0..100 {
        let older = newer;
        // Frames that are on their way while the client comes back.
        older.send(vec![(2 + number, start(number))]).await;
        newer = Session::open(&mut client, 1).await;
        let frame = ClientFrame {
            operations: vec![Operation {
                number: 1_000 + number,
                operation: Some(start(number)),
            }],
            ..ClientFrame::default()
        };
        // It may have ended already.
        let _ = older.frames.send(frame).await;
    }
    let describe = Request::Describe(DescribeRequest {
        keys: (0..100).map(key).collect(),
        ..Default::default()
    });
    let Reply::Describe(described) = newer.ask(5_000, describe).await else {
        panic!("it was asked for");
    };
    for (number, result) in described.results.into_iter().enumerate() {
        if let Some(describe_result::Result::Description(description)) = result.result {
            // Only the frame that came before the newer stream can have begun it.
            let incarnation = description.object.unwrap().incarnation;
            let again = newer.ask(2 + number as u64, start(number as u64)).await;
            let Reply::PutStart(again) = again else {
                panic!("it was asked for");
            };
            let Some(put_start_result::Result::Object(object)) = &again.results[0].result else {
                panic!("key {number} was begun for a stream that was replaced");
            };
            assert_eq!(object.incarnation, incarnation);
        }
    }
}

#[tokio::test]
async fn a_remove_that_waits_for_readers_is_answered_on_the_next_stream() {
    let master = master().await;
    let mut client = client(&master).await;
    let mut remover = Session::open(&mut client, 1).await;
    let mut reader = Session::open(&mut client, 2).await;
    remover.ask(1, mount(1, 1 << 20)).await;
    let started = remover.ask(2, start(0)).await;
    remover.ask(3, end(0, &started)).await;
    let lookup = Request::Lookup(LookupRequest {
        keys: vec![key(0)],
        ..Default::default()
    });
    let Reply::Lookup(found) = reader.ask(1, lookup).await else {
        panic!("it was asked for");
    };
    let remove = Request::Remove(RemoveRequest {
        items: vec![RemoveItem {
            key: key(0),
            incarnation: None,
        }],
        barrier: true,
        ..Default::default()
    });
    remover.send(vec![(4, remove.clone())]).await;
    let gone = remover.ask(5, exist(0)).await;
    assert!(matches!(&gone, Reply::Exist(r) if !r.results[0].exists));
    drop(remover);
    let mut remover = Session::open(&mut client, 1).await;
    assert!(remover.hello.resumed);
    remover.send(vec![(4, remove)]).await;
    remover.ask(6, exist(0)).await;
    let release = Request::Release(ReleaseRequest {
        leases: vec![found.lease],
    });
    reader.ask(2, release).await;
    let answer = remover.answers(1).await.remove(0);
    assert_eq!(answer.number, 4);
    assert!(
        matches!(&answer.answer, Some(Reply::Remove(r)) if r.results[0].error.is_none()),
        "{answer:?}"
    );
}

#[tokio::test]
async fn leaseholders_hear_of_a_remove() {
    let master = master().await;
    let mut client = client(&master).await;
    let mut writer = Session::open(&mut client, 1).await;
    let mut reader = Session::open(&mut client, 2).await;
    writer.ask(1, mount(1, 1 << 20)).await;
    let started = writer.ask(2, start(0)).await;
    writer.ask(3, end(0, &started)).await;
    let lookup = Request::Lookup(LookupRequest {
        keys: vec![key(0)],
        ..Default::default()
    });
    reader.ask(1, lookup).await;
    let remove = Request::Remove(RemoveRequest {
        items: vec![RemoveItem {
            key: key(0),
            incarnation: None,
        }],
        ..Default::default()
    });
    writer.ask(4, remove).await;
    let events = reader.events().await.unwrap().unwrap();
    let Some(event::Event::Invalidate(gone)) = &events[0].event else {
        panic!("an invalidation was expected, not {events:?}");
    };
    assert_eq!(gone.objects[0].key, key(0));
}

#[tokio::test]
async fn the_masters_end_is_told_and_does_not_wait_for_open_streams() {
    let master = master().await;
    let mut client = client(&master).await;
    let mut session = Session::open(&mut client, 1).await;
    let began = Instant::now();
    master.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(3));
    let events = session.events().await.unwrap().unwrap();
    let Some(event::Event::Fenced(fenced)) = &events[0].event else {
        panic!("a fence was expected, not {events:?}");
    };
    assert_eq!(fenced.reason, "the master is stopping");
    assert_eq!(session.events().await.unwrap(), None);
}

#[tokio::test]
async fn law_04_malformed_input_ends_at_most_the_stream() {
    let master = master().await;
    let mut client = client(&master).await;
    let (frames, outbound) = tokio::sync::mpsc::channel(1);
    frames.send(ClientFrame::default()).await.unwrap();
    let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
    let mut inbound = client.session(outbound).await.unwrap().into_inner();
    let fault = Fault::from(inbound.message().await.unwrap_err());
    assert_eq!(fault.code, ErrorCode::InvalidParams);

    let mut session = Session::open(&mut client, 1).await;
    let nothing = Operation {
        number: 1,
        operation: None,
    };
    let frame = ClientFrame {
        operations: vec![nothing],
        ..Default::default()
    };
    session.frames.send(frame).await.unwrap();
    let answer = session.answers(1).await.remove(0);
    assert!(matches!(answer.answer, Some(Reply::Error(_))), "{answer:?}");
    let empty = Request::Exist(ExistRequest {
        keys: vec![bytes::Bytes::new(), key(0)],
        ..Default::default()
    });
    let Reply::Exist(exist) = session.ask(2, empty).await else {
        panic!("the other keys are answered");
    };
    let error = exist.results[0].error.clone().unwrap();
    assert_eq!(error.code(), ErrorCode::InvalidKey);
    assert!(exist.results[1].error.is_none());
}
