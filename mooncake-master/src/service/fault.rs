//! Failures of the state machine in the words of the wire.

use std::time::Duration;

use mooncake_proto::{Fault, Retry, status::ErrorCode};

use crate::state::Failure;

/// When space may have come free: leases and holds end by the tick.
const SPACE_RETRY: Duration = Duration::from_millis(100);
/// Somebody must see to the master's disk first.
const LOG_RETRY: Duration = Duration::from_secs(5);
/// Writers seldom need all of their time.
const WRITER_RETRY: Duration = Duration::from_millis(100);

/// What failed, and what a retry needs. Decided here only.
pub(crate) fn fault(failure: Failure) -> Fault {
    let (code, retry) = match failure {
        Failure::AnswersPileUp { .. } | Failure::PromisesPileUp { .. } => {
            (ErrorCode::Busy, Retry::Later(SPACE_RETRY))
        }
        Failure::Fenced => (ErrorCode::Fenced, Retry::AfterRefresh),
        Failure::GrantNotFound { .. } => (ErrorCode::Stale, Retry::AfterRefresh),
        Failure::IllegalClient { .. } => (ErrorCode::IllegalClient, Retry::Never),
        Failure::InvalidKey { .. } => (ErrorCode::InvalidKey, Retry::Never),
        Failure::InvalidParams { .. } | Failure::TooLarge { .. } => {
            (ErrorCode::InvalidParams, Retry::Never)
        }
        Failure::LogBehind { .. } => (ErrorCode::Busy, Retry::Later(SPACE_RETRY)),
        // What became of it is known when the master is back.
        Failure::LogFailed => (ErrorCode::PersistentFailed, Retry::Later(LOG_RETRY)),
        Failure::NoSegment | Failure::NoSpace { .. } => {
            (ErrorCode::NoSpace, Retry::Later(SPACE_RETRY))
        }
        Failure::ObjectExists => (ErrorCode::ObjectAlreadyExists, Retry::Never),
        Failure::ObjectNotFound => (ErrorCode::ObjectNotFound, Retry::Never),
        Failure::OperationForgotten { .. } => (ErrorCode::Stale, Retry::Never),
        Failure::PutInProgress { left } => (
            ErrorCode::PutInProgress,
            Retry::Later(left.min(WRITER_RETRY)),
        ),
        Failure::AdoptionUnderWay { .. } => (ErrorCode::Busy, Retry::Later(SPACE_RETRY)),
        Failure::QuarantineFull { .. } => (ErrorCode::Busy, Retry::Later(SPACE_RETRY)),
        Failure::RemovesPileUp { .. } => (ErrorCode::Busy, Retry::Later(SPACE_RETRY)),
        Failure::Revoked => (ErrorCode::Revoked, Retry::Never),
        Failure::SegmentNotFound => (ErrorCode::SegmentNotFound, Retry::Never),
        Failure::StaleSegment { .. } => (ErrorCode::Stale, Retry::AfterRefresh),
        Failure::StorageNotFound => (ErrorCode::SegmentNotFound, Retry::AfterRefresh),
        Failure::StorageUnknown { .. } => (ErrorCode::UnavailableInCurrentStatus, Retry::Never),
        Failure::TaskNotFound { .. } => (ErrorCode::TaskNotFound, Retry::Never),
        Failure::TooManyTenants { .. } => (ErrorCode::Busy, Retry::Never),
    };
    Fault::new(code, retry, failure.to_string())
}
