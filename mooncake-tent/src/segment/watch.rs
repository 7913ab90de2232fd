//! Follows the owner of an open segment, who tells what changes in it.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use mooncake_proto::tent::GetSegmentResponse;
use tokio::task::JoinHandle;

use super::{Segment, SegmentDescriptor, SegmentManager};
use crate::error::Result;

/// How soon an owner that told nothing more is asked again, and how late at most.
const AGAIN: Duration = Duration::from_millis(50);
const AT_MOST: Duration = Duration::from_secs(5);
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(2);

/// The task that follows one owner; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Follower(JoinHandle<()>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Follower {
    pub(super) fn follow(manager: &Arc<SegmentManager>, segment: Segment) -> Self {
        let follows = follow(Arc::downgrade(manager), segment);
        Self(manager.runtime().spawn(follows))
    }
}

async fn follow(manager: Weak<SegmentManager>, segment: Segment) {
    let mut pause = AGAIN;
    loop {
        if listen(&manager, &segment).await {
            pause = AGAIN;
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(AT_MOST);
        // It may be back as another incarnation, somewhere else.
        let Some(manager) = manager.upgrade() else {
            return;
        };
        let seen = segment.descriptor();
        if let Err(error) = manager.refresh(&segment, &seen, ANSWER).await {
            tracing::debug!(segment = segment.name(), %error, "a segment's owner is not there");
        }
    }
}

/// Takes what its owner tells until that ends; `true`: there was something.
async fn listen(manager: &Weak<SegmentManager>, segment: &Segment) -> bool {
    let begun = async {
        let manager = manager.upgrade()?;
        manager.watch(segment).await.ok()
    };
    let Ok(Some(mut changes)) = tokio::time::timeout(ANSWER, begun).await else {
        return false;
    };
    let mut told = false;
    while let Ok(Some(answer)) = changes.message().await {
        if let Err(what) = take(segment, answer).await {
            tracing::debug!(segment = segment.name(), what, "a change does not fit");
            break;
        }
        told = true;
    }
    told
}

/// Learns what the owner tells. Another incarnation is not learned in this way: a stream that is late
/// must not bring the former one back.
async fn take(segment: &Segment, answer: GetSegmentResponse) -> Result<(), String> {
    let _only = segment.refreshing().await;
    let known = segment.descriptor();
    let GetSegmentResponse {
        segment: whole,
        delta,
    } = answer;
    let next = match (whole, delta) {
        (Some(whole), _) => SegmentDescriptor::from_wire(whole)?,
        (None, Some(delta)) => {
            let same = delta.incarnation == known.incarnation().get();
            if same && delta.version <= known.version() {
                // A refresh was faster.
                return Ok(());
            }
            known.with_delta(delta)?
        }
        (None, None) => return Ok(()),
    };
    if next.incarnation() != known.incarnation() {
        return Err("it is another incarnation".to_owned());
    }
    if next.version() > known.version() {
        segment.learn(next);
    }
    Ok(())
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..1.0))
}
