//! The notification that follows a submission.

use tokio::sync::oneshot;

use crate::{
    error::{Applied, Error, Result},
    segment::Segment,
};

/// What becomes of the notification of a submission. It is sent whether or not anybody waits here.
#[derive(Debug)]
#[must_use = "it says whether the targets have been told"]
pub struct Announcement {
    pub(super) targets: Vec<Segment>,
    pub(super) told: oneshot::Receiver<Vec<Delivery>>,
}

/// What became of it at one target.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The target.
    pub segment: Segment,
    /// It is in the target's queue, or why it is not, as far as is known.
    pub result: Result<()>,
}

impl Announcement {
    /// Ends when each target has been told, or is not going to be. One delivery for each process that
    /// the submission named, in the order in which it did.
    pub async fn deliveries(self) -> Vec<Delivery> {
        let Self { targets, told } = self;
        let stopped = |segment: Segment| Delivery {
            result: Err(Error::NotDelivered {
                segment: segment.name().to_owned(),
                message: "the engine has ended".to_owned(),
                applied: Applied::Unknown,
            }),
            segment,
        };
        match told.await {
            Ok(deliveries) => deliveries,
            Err(_) => targets.into_iter().map(stopped).collect(),
        }
    }

    /// As [`deliveries`](Self::deliveries), but with the first failure.
    ///
    /// # Errors
    ///
    /// A task of the submission did not complete, and nobody was told; or a target could not be told.
    pub async fn delivered(self) -> Result<()> {
        let deliveries = self.deliveries().await;
        deliveries
            .into_iter()
            .try_for_each(|delivery| delivery.result)
    }
}
