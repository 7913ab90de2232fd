//! Whether a peer lives.

use std::time::{Duration, Instant};

use crate::{
    error::{Error, Result},
    identity::Incarnation,
    segment::{Segment, SegmentManager},
};

/// What a probe of a segment's owner has found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// What is with the owner.
    pub liveness: Liveness,
    /// How long it took to find out: for one that lives, the round trip, and on the first contact
    /// the time to connect.
    pub took: Duration,
}

/// What is with a segment's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// It lives, in the life in which the segment is known.
    Alive,
    /// Another life answers in its place. What was known of the segment's memory is void.
    Restarted(Incarnation),
    /// Nobody answers, for this reason. It may live all the same.
    Unreachable(String),
}

impl Probe {
    /// The owner lives, in the life in which the segment is known.
    pub fn is_alive(&self) -> bool {
        self.liveness == Liveness::Alive
    }
}

/// Asks the owner of `segment`, unless that is `me`.
pub(super) async fn probe(
    segments: &SegmentManager,
    me: Incarnation,
    segment: &Segment,
    budget: Duration,
) -> Result<Probe> {
    let start = Instant::now();
    let known = segment.incarnation();
    if segment.provider().is_some() {
        let name = segment.name();
        let what = format!("nobody can be probed behind {name}: it is no process");
        return Err(Error::Invalid(what));
    }
    let liveness = if known == me {
        Liveness::Alive
    } else {
        let asked = segments.probe(segment);
        match tokio::time::timeout(budget, asked).await {
            Ok(Ok(raw)) => match Incarnation::from_u64(raw) {
                Some(life) if life == known => Liveness::Alive,
                Some(other) => Liveness::Restarted(other),
                None => Liveness::Unreachable("it answers without an incarnation".to_owned()),
            },
            Ok(Err(why)) => Liveness::Unreachable(why.to_string()),
            Err(_) => {
                // It may be back under another connection.
                segments.forget_connection(segment);
                Liveness::Unreachable(format!("no answer within {budget:?}"))
            }
        }
    };
    Ok(Probe {
        liveness,
        took: start.elapsed(),
    })
}
