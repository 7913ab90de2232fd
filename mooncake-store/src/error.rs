//! What callers of the store see when something fails.

use std::{sync::Arc, time::Duration};

use mooncake_proto::{Fault, Retry, status::ErrorCode};

/// Why the store could not do what it was asked.
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No session with the master at `address` came up; `reason` is what the last step said.
    #[error("no session with the master at {address} after {after:?}: {reason}")]
    Connect {
        address: String,
        after: Duration,
        reason: String,
    },
    /// The transfer engine failed.
    #[error(transparent)]
    Engine(Arc<mooncake_tent::Error>),
    /// The directory of a storage cannot be used.
    #[error("the storage in {path} cannot be used: {reason}")]
    Storage { path: String, reason: String },
    /// An operation failed, or its part for one key.
    #[error(transparent)]
    Operation(Box<Fault>),
}

impl StoreError {
    /// What a retry needs.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Connect { .. } => Retry::Here,
            Self::Engine(error) => error.retry(),
            Self::Storage { .. } => Retry::Never,
            Self::Operation(fault) => fault.retry,
        }
    }

    /// No byte of the failed operation can move any more.
    #[must_use]
    pub fn quiescent(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Storage { .. } => true,
            Self::Engine(_) => false,
            Self::Operation(fault) => fault.quiescent,
        }
    }

    /// What failed, as the number that other languages see.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Connect { .. } => ErrorCode::RpcFailed,
            Self::Engine(_) => ErrorCode::Internal,
            Self::Storage { .. } => ErrorCode::FileOpenFailed,
            Self::Operation(fault) => fault.code,
        }
    }
}

impl From<mooncake_tent::Error> for StoreError {
    fn from(error: mooncake_tent::Error) -> Self {
        Self::Engine(Arc::new(error))
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        Self::Operation(Box::new(fault))
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Operation(fault) => *fault,
            StoreError::Engine(ref engine) => {
                Self::new(error.code(), error.retry(), engine.to_string()).with_stage("engine")
            }
            StoreError::Storage { .. } => {
                Self::new(error.code(), error.retry(), error.to_string()).with_stage("storage")
            }
            StoreError::Connect { ref address, .. } => {
                Self::new(error.code(), error.retry(), error.to_string())
                    .with_peer(address.clone())
                    .with_stage("connect")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_what_its_fault_says_about_retries_and_quiet() {
        let fault = Fault::new(ErrorCode::TransferFailed, Retry::Elsewhere, "lane cut")
            .with_key(&b"k"[..])
            .with_effect(mooncake_proto::Applied::Unknown, false);
        let error = StoreError::from(fault.clone());
        assert_eq!(error.retry(), Retry::Elsewhere);
        assert_eq!(error.code(), ErrorCode::TransferFailed);
        assert!(!error.quiescent());
        assert_eq!(Fault::from(error), fault);
    }

    #[test]
    fn a_failed_connect_names_the_address() {
        let error = StoreError::Connect {
            address: "10.0.0.1:50051".into(),
            after: Duration::from_millis(3),
            reason: "refused".into(),
        };
        assert!(error.to_string().contains("10.0.0.1:50051"));
        assert_eq!(Fault::from(error).peer, "10.0.0.1:50051");
    }
}
