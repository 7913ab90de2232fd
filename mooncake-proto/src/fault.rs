//! A failure in the words that all of Mooncake shares, and its way through gRPC.

use std::{fmt, time::Duration};

use prost::{Message, bytes::Bytes};
use tonic::{Code, Status};

use crate::status::{self, ErrorCode, ErrorDetail};

/// What a retry needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same request again, at once.
    Here,
    /// After the descriptor or session that it relied on was fetched anew.
    AfterRefresh,
    /// On another replica, link or peer.
    Elsewhere,
    /// After this long.
    Later(Duration),
    /// Not at all: it cannot succeed.
    Never,
}

/// What a failed request has already done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Applied {
    /// Nothing.
    Nothing,
    /// The first so many bytes.
    UpTo(u64),
    /// Nobody knows.
    Unknown,
}

/// Why an operation failed: what, where, and what a retry needs.
///
/// ```
/// use mooncake_proto::{Fault, Retry, status::ErrorCode};
///
/// let fault = Fault::new(ErrorCode::NoSpace, Retry::Never, "no segment has 5 MiB free");
/// let back = Fault::from(tonic::Status::from(fault.clone()));
/// assert_eq!(back, fault);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// What failed.
    pub code: ErrorCode,
    /// What a retry needs.
    pub retry: Retry,
    /// What has been done all the same.
    pub applied: Applied,
    /// No byte of it can move any more.
    pub quiescent: bool,
    /// The key it is about; empty: none.
    pub key: Bytes,
    /// The peer it is about; empty: none.
    pub peer: String,
    /// Where in the operation it failed; empty: not said.
    pub stage: String,
    /// For people.
    pub message: String,
}

impl Fault {
    /// A failure that has done nothing and is quiet.
    pub fn new(code: ErrorCode, retry: Retry, message: impl Into<String>) -> Self {
        Self {
            code,
            retry,
            applied: Applied::Nothing,
            quiescent: true,
            key: Bytes::new(),
            peer: String::new(),
            stage: String::new(),
            message: message.into(),
        }
    }

    /// Names the key it is about.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = key.into();
        self
    }

    /// Names the peer it is about.
    #[must_use]
    pub fn with_peer(mut self, peer: impl Into<String>) -> Self {
        self.peer = peer.into();
        self
    }

    /// Names the stage in which it failed.
    #[must_use]
    pub fn with_stage(mut self, stage: impl Into<String>) -> Self {
        self.stage = stage.into();
        self
    }

    /// Says what was done all the same, and whether bytes may still move.
    #[must_use]
    pub fn with_effect(mut self, applied: Applied, quiescent: bool) -> Self {
        self.applied = applied;
        self.quiescent = quiescent;
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.key.is_empty() {
            write!(f, " (key {})", self.key.escape_ascii())?;
        }
        if !self.peer.is_empty() {
            write!(f, " (peer {})", self.peer)?;
        }
        if !self.stage.is_empty() {
            write!(f, " (in {})", self.stage)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for ErrorDetail {
    fn from(fault: Fault) -> Self {
        let (retry, retry_after_us) = match fault.retry {
            Retry::Here => (status::Retry::Here, 0),
            Retry::AfterRefresh => (status::Retry::AfterRefresh, 0),
            Retry::Elsewhere => (status::Retry::Elsewhere, 0),
            Retry::Later(after) => (
                status::Retry::Later,
                u64::try_from(after.as_micros()).unwrap_or(u64::MAX),
            ),
            Retry::Never => (status::Retry::Never, 0),
        };
        let (applied, applied_bytes) = match fault.applied {
            Applied::Nothing => (status::Applied::Nothing, 0),
            Applied::UpTo(bytes) => (status::Applied::UpTo, bytes),
            Applied::Unknown => (status::Applied::Unknown, 0),
        };
        Self {
            code: fault.code.into(),
            retry: retry.into(),
            retry_after_us,
            applied: applied.into(),
            applied_bytes,
            quiescent: fault.quiescent,
            key: fault.key,
            peer: fault.peer,
            stage: fault.stage,
            message: fault.message,
        }
    }
}

/// As results hold it.
impl From<Fault> for Box<ErrorDetail> {
    fn from(fault: Fault) -> Self {
        Self::new(fault.into())
    }
}

/// As results hold it.
impl From<Box<ErrorDetail>> for Fault {
    fn from(detail: Box<ErrorDetail>) -> Self {
        (*detail).into()
    }
}

impl From<ErrorDetail> for Fault {
    fn from(detail: ErrorDetail) -> Self {
        let retry = match detail.retry() {
            status::Retry::Here => Retry::Here,
            status::Retry::AfterRefresh => Retry::AfterRefresh,
            status::Retry::Elsewhere => Retry::Elsewhere,
            status::Retry::Later => Retry::Later(Duration::from_micros(detail.retry_after_us)),
            status::Retry::Never | status::Retry::Unspecified => Retry::Never,
        };
        let applied = match detail.applied() {
            status::Applied::Nothing => Applied::Nothing,
            status::Applied::UpTo => Applied::UpTo(detail.applied_bytes),
            status::Applied::Unknown | status::Applied::Unspecified => Applied::Unknown,
        };
        // A code that we do not know is still a failure.
        let code = match ErrorCode::try_from(detail.code) {
            Ok(ErrorCode::Ok) | Err(_) => ErrorCode::Internal,
            Ok(code) => code,
        };
        Self {
            code,
            retry,
            applied,
            quiescent: detail.quiescent,
            key: detail.key,
            peer: detail.peer,
            stage: detail.stage,
            message: detail.message,
        }
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        let code = match fault.code {
            ErrorCode::ObjectNotFound | ErrorCode::SegmentNotFound | ErrorCode::ClientNotFound => {
                Code::NotFound
            }
            ErrorCode::ObjectAlreadyExists | ErrorCode::SegmentAlreadyExists => Code::AlreadyExists,
            ErrorCode::InvalidKey | ErrorCode::InvalidParams => Code::InvalidArgument,
            ErrorCode::IllegalClient => Code::PermissionDenied,
            ErrorCode::NoSpace | ErrorCode::Busy => Code::ResourceExhausted,
            ErrorCode::NotSupported => Code::Unimplemented,
            ErrorCode::RpcFailed => Code::Unavailable,
            ErrorCode::RpcTimeout => Code::DeadlineExceeded,
            ErrorCode::Internal => Code::Internal,
            _ => Code::FailedPrecondition,
        };
        let message = fault.message.clone();
        let detail = ErrorDetail::from(fault).encode_to_vec();
        Self::with_details(code, message, detail.into())
    }
}

impl From<Status> for Fault {
    /// The detail that the peer attached, or what the bare status allows to say.
    fn from(status: Status) -> Self {
        if !status.details().is_empty()
            && let Ok(detail) = ErrorDetail::decode(status.details())
        {
            return detail.into();
        }
        let (code, retry) = match status.code() {
            Code::DeadlineExceeded => (ErrorCode::RpcTimeout, Retry::Here),
            Code::InvalidArgument => (ErrorCode::InvalidParams, Retry::Never),
            Code::Unimplemented => (ErrorCode::NotSupported, Retry::Never),
            _ => (ErrorCode::RpcFailed, Retry::Here),
        };
        // Whether the peer acted before the call was lost is not to be known.
        Self::new(code, retry, status.message()).with_effect(Applied::Unknown, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_survives_its_way_through_a_status() {
        let retries = [
            Retry::Here,
            Retry::AfterRefresh,
            Retry::Elsewhere,
            Retry::Later(Duration::from_micros(1_500)),
            Retry::Never,
        ];
        let effects = [
            (Applied::Nothing, true),
            (Applied::UpTo(7), false),
            (Applied::Unknown, false),
        ];
        for retry in retries {
            for (applied, quiescent) in effects {
                let fault = Fault::new(ErrorCode::PutInProgress, retry, "another writer")
                    .with_key(&b"k\0ey"[..])
                    .with_peer("127.0.0.1:1")
                    .with_stage("put_start")
                    .with_effect(applied, quiescent);
                assert_eq!(Fault::from(Status::from(fault.clone())), fault);
            }
        }
    }

    #[test]
    fn an_unknown_code_stays_a_failure_and_a_bare_status_claims_nothing() {
        let detail = ErrorDetail {
            code: -77_777,
            ..ErrorDetail::default()
        };
        let fault = Fault::from(detail);
        assert_eq!(fault.code, ErrorCode::Internal);
        assert_eq!((fault.applied, fault.quiescent), (Applied::Unknown, false));

        let fault = Fault::from(Status::unavailable("gone"));
        assert_eq!(fault.code, ErrorCode::RpcFailed);
        assert_eq!((fault.applied, fault.quiescent), (Applied::Unknown, false));
    }
}
