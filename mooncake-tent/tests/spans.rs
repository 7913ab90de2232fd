//! Each submission has a span that says what was asked and which link was chosen, and why.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use common::*;
use mooncake_tent::{Permission, Request, TransferEngine};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::with_default,
};

type Kept = (&'static Metadata<'static>, BTreeMap<&'static str, String>);

/// Keeps the fields of spans up to a level.
#[derive(Clone)]
struct Log(Arc<Mutex<Vec<Kept>>>, Level);

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.1 && metadata.target().starts_with("mooncake_tent")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut spans = self.0.lock().unwrap();
        let mut fields = BTreeMap::new();
        span.record(&mut Fields(&mut fields));
        spans.push((span.metadata(), fields));
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut spans = self.0.lock().unwrap();
        values.record(&mut Fields(&mut spans[span.into_u64() as usize - 1].1));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_has_a_span_with_what_was_asked_and_which_link_was_chosen_and_why() {
    let (engine, owner) = (engine().await, engine().await);
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let read = || Request::read(local.slice(0..100).unwrap(), &segment, place(&remote, 0));
    for (level, told) in [(Level::INFO, false), (Level::DEBUG, true)] {
        let log = Log(Arc::default(), level);
        let batch = with_default(log.clone(), || {
            submit(&engine, vec![read(), read(), read()])
        });
        terminal(&batch).await;
        let spans = log.0.lock().unwrap();
        let mut submissions = spans.iter().filter(|(it, _)| it.name() == "submission");
        let Some((_, fields)) = submissions.next() else {
            assert!(!told, "{spans:?}");
            continue;
        };
        assert!(told && submissions.next().is_none(), "{spans:?}");
        for (field, value) in [
            ("segment", owner.segment_name()),
            ("op", "read"),
            ("tasks", "3"),
            ("bytes", "300"),
            ("link", "tcp"),
        ] {
            assert_eq!(fields[field], value, "{field}: {fields:?}");
        }
        assert!(fields["why"].contains("tcp (") && fields["why"].contains("not in-process"));
    }
}
