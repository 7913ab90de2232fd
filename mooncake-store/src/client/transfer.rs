//! The core's transfers on the engine.

use std::time::Instant;

use mooncake_tent::{
    Generation, LocalSlice, RegistrationId, RemoteRange, Request, Segment,
    transport::{Op, Outcome},
};
use smallvec::SmallVec;

use crate::{
    Applied, Retry,
    core::{Location, OpId, TransferFault, TransferId},
    time::{Clock, Time},
};

/// A read or write that the core asked for.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) id: TransferId,
    pub(super) op: OpId,
    pub(super) item: usize,
    pub(super) direction: Op,
    pub(super) location: Location,
    pub(super) deadline: Time,
}

impl Transfer {
    pub(super) fn request(&self, local: SmallVec<[LocalSlice; 1]>, segment: &Segment) -> Request {
        let remote = RemoteRange::Registered {
            registration: RegistrationId(self.location.segment.registration),
            generation: Some(Generation(self.location.segment.generation)),
            offset: self.location.offset,
        };
        let request = Request::scattered(self.direction, local, segment, remote);
        if self.deadline == Time::NEVER {
            return request;
        }
        request.deadline(Instant::now() + self.deadline.since(Clock.now()))
    }
}

/// The first `length` bytes of scattered memory; `None` if there are fewer.
pub(super) fn front(local: &[LocalSlice], length: u64) -> Option<SmallVec<[LocalSlice; 1]>> {
    let mut front = SmallVec::new();
    let mut left = length;
    for slice in local {
        if left == 0 {
            break;
        }
        let here = slice.len().min(left);
        front.push(slice.part(0..here));
        left -= here;
    }
    (left == 0).then_some(front)
}

/// How a task ended, in the core's words.
pub(super) fn result(
    outcome: Option<Outcome>,
    quiescent: bool,
    peer: &str,
) -> Result<u64, TransferFault> {
    let fault = |retry, applied, message: String| TransferFault {
        retry,
        applied,
        quiescent,
        peer: peer.to_owned(),
        message,
    };
    match outcome {
        Some(Outcome::Completed { bytes }) => Ok(bytes),
        Some(Outcome::Failed(error)) => {
            Err(fault(error.retry, error.applied, error.reason.to_string()))
        }
        Some(Outcome::Cancelled(error) | Outcome::TimedOut(error)) => {
            Err(fault(error.retry, error.applied, error.to_string()))
        }
        None => {
            let message = "the transfer has not ended".to_owned();
            Err(fault(Retry::Here, Applied::Unknown, message))
        }
    }
}

/// A transfer that could not even be posted.
pub(super) fn unposted(retry: Retry, peer: &str, message: String) -> TransferFault {
    TransferFault {
        retry,
        applied: Applied::Nothing,
        quiescent: true,
        peer: peer.to_owned(),
        message,
    }
}
