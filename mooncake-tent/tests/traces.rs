//! A request can be followed alone, step by step.
#![cfg(all(feature = "conformance", feature = "tcp", feature = "host"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use std::time::Duration;

use common::*;
use mooncake_tent::{
    Buffer, Permission, Request, Segment, ShmTransport, TcpTransport, TentEngine, Trace,
    TraceEvent,
    admission::AdmissionConfig,
    conformance::{Chaos, Mischief},
};
use scripted::{Act, Scripted};

const LEN: usize = 1 << 16;

async fn both(mischief: Mischief) -> TentEngine {
    let shm = Chaos::new(ShmTransport::default(), mischief);
    let builder = TentEngine::builder().transport(shm);
    let builder = builder.transport(TcpTransport::default());
    builder.build().await.unwrap()
}

async fn ground(engine: &TentEngine, owner: &TentEngine) -> (Buffer, Buffer, Segment) {
    (
        buffer(engine, LEN, Permission::Local).await,
        buffer(owner, LEN, Permission::PeersReadWrite).await,
        open(engine, owner).await,
    )
}

fn names(trace: &Trace) -> Vec<&'static str> {
    let steps = trace.steps();
    assert!(steps.is_sorted_by_key(|step| step.at), "{steps:?}");
    steps.iter().map(|step| step.event.name()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_has_the_steps_of_its_request_and_of_no_other() {
    let (engine, owner) = (engine().await, engine().await);
    let (local, remote, segment) = ground(&engine, &owner).await;
    let trace = Trace::new();
    let read = || Request::read(local.all().unwrap(), &segment, place(&remote, 0));
    let mut requests: Vec<_> = (0..40).map(|_| read()).collect();
    requests[35] = read().trace(&trace);
    let batch = submit(&engine, requests);
    quiescent(&batch).await;
    let steps = ["submitted", "ranked", "posted", "completed", "quiet"];
    assert_eq!(names(&trace), steps);
    let steps = trace.steps();
    let (TraceEvent::Ranked { link, ranking }, posted) = (&steps[1].event, &steps[2].event) else {
        panic!("{steps:?}");
    };
    assert_eq!((*link, posted.link()), ("tcp", Some("tcp")));
    assert!(ranking.to_string().contains("in-process"), "{ranking}");
    // What follows in the same batch part is not told there.
    drop(batch);
    assert!(once(&engine, read()).await.is_completed());
    assert_eq!(trace.steps().len(), steps.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_tells_of_failovers_and_where_the_next_link_went_on() {
    let mut mischief = Mischief::none(3);
    mischief.stop = 1_000;
    let (engine, owner) = (both(mischief).await, both(Mischief::none(1)).await);
    let (local, remote, segment) = ground(&engine, &owner).await;
    let trace = Trace::new();
    let write = Request::write(local.all().unwrap(), &segment, place(&remote, 0));
    let batch = submit(&engine, vec![write.trace(&trace)]);
    quiescent(&batch).await;
    let expected = [
        "submitted",
        "ranked",
        "posted",
        "attempt ended",
        "failed over",
        "posted",
        "completed",
        "quiet",
    ];
    assert_eq!(names(&trace), expected);
    let steps = trace.steps();
    let TraceEvent::FailedOver { from, to, bytes } = steps[4].event else {
        panic!("{steps:?}");
    };
    assert_eq!((from, to), ("shm", "tcp"));
    assert!(bytes > 0 && bytes < LEN as u64, "a part has arrived");
    assert_eq!(steps[5].event.link(), Some("tcp"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_tells_how_long_its_request_waited() {
    let link = Scripted::new("a");
    link.does(|_, _| Act::Hold);
    let mut config = AdmissionConfig::default();
    config.most_requests = Some(1);
    let builder = TentEngine::builder().transport(link.clone());
    let engine = builder.admission(config).build().await.unwrap();
    let owner = TentEngine::builder().transport(Scripted::new("a"));
    let owner = owner.build().await.unwrap();
    let (local, remote, segment) = ground(&engine, &owner).await;
    let trace = Trace::new();
    let read = || Request::read(local.all().unwrap(), &segment, place(&remote, 0));
    let batch = submit(&engine, vec![read(), read().trace(&trace)]);
    assert_eq!(names(&trace), ["submitted", "ranked", "waits"]);
    link.complete(0);
    eventually("the second goes", || link.count() == 2).await;
    link.complete(1);
    quiescent(&batch).await;
    let expected = [
        "submitted",
        "ranked",
        "waits",
        "let go",
        "posted",
        "completed",
        "quiet",
    ];
    assert_eq!(names(&trace), expected);
    let steps = trace.steps();
    let TraceEvent::LetGo { waited } = steps[3].event else {
        panic!("{steps:?}");
    };
    assert!(waited > Duration::ZERO && waited <= steps[3].at);
}
