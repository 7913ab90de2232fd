//! How the commands that use a store reach it, and what they say when it refuses.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use bytes::Bytes;
use mooncake_store::core::{MasterAnswer, MasterRequest};
use mooncake_store::{ClientOptions, Clock, ErrorCode, Fault, Key, RealClient, StoreError};

use super::block_on;
use crate::config::ClientSettings;
use crate::output::{Failure, bytes, key};

/// How long the end may take once the result is there.
const CLOSE_BUDGET: Duration = Duration::from_millis(500);

/// A store that is connected to.
#[derive(Debug)]
pub(crate) struct Store {
    /// The client to use.
    pub(crate) client: RealClient,
    settings: ClientSettings,
}

impl Store {
    /// Connects, does `work`, and ends the session.
    pub(crate) fn with<T>(
        settings: ClientSettings,
        work: impl AsyncFnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        block_on(async {
            let store = Self::connect(settings).await?;
            let done = work(&store).await;
            if let Err(error) = store.client.close(CLOSE_BUDGET).await {
                tracing::debug!(%error, "transfers were still under way at the end");
            }
            done
        })
    }

    /// Connects within the connect deadline.
    pub(crate) async fn connect(settings: ClientSettings) -> Result<Self, Failure> {
        let mut options = ClientOptions::default();
        options.tenant.clone_from(&settings.tenant);
        options.operation_deadline = settings.operation_deadline;
        options.connect_deadline = settings.connect_deadline;
        let connected = RealClient::connect(settings.master.as_str(), options).await;
        let client = connected.map_err(|error| match &error {
            StoreError::Connect { reason, .. } => unreachable(settings.master.as_str(), reason),
            other => Failure::new("the client cannot start").because(other),
        })?;
        Ok(Self { client, settings })
    }

    /// Asks the master itself.
    pub(crate) async fn ask(&self, request: MasterRequest) -> Result<MasterAnswer, Failure> {
        let deadline = Clock.now() + self.settings.operation_deadline;
        let answer = self.client.master().call(request, deadline).await;
        answer.map_err(|fault| {
            let what = format!("the master at {} does not answer", self.settings.master);
            self.refused(what, &fault)
        })
    }

    /// The failure of a master that answers something else than it was asked.
    pub(crate) fn nonsense(&self) -> Failure {
        let master = &self.settings.master;
        Failure::new(format!(
            "the answer of the master at {master} makes no sense"
        ))
        .remedy("the same version of mooncake on both sides")
    }

    /// The failure of something that the store refused.
    pub(crate) fn refused(&self, what: impl Into<String>, fault: &Fault) -> Failure {
        let remedy = match fault.code {
            ErrorCode::Busy => Some("again in a moment".to_owned()),
            ErrorCode::NoSpace => {
                Some("`mooncake rm` what is not needed, or start another node".to_owned())
            }
            ErrorCode::PutInProgress => Some("again when the other writer is done".to_owned()),
            ErrorCode::RpcTimeout => Some(format!(
                "more time than --operation-deadline {}",
                crate::config::duration_text(self.settings.operation_deadline)
            )),
            ErrorCode::TransferFailed => Some(
                "again in a moment: a node that died is forgotten after the master's client_ttl"
                    .to_owned(),
            ),
            ErrorCode::UnknownOutcome => {
                Some("`mooncake stat` tells whether it was done".to_owned())
            }
            _ => None,
        };
        // What failed names the key, and many messages name the peer.
        let mut reason = fault.message.clone();
        if !reason.contains(&fault.peer) {
            reason = format!("{reason} (peer {})", fault.peer);
        }
        let failure = Failure::new(what).cause(reason);
        match remedy {
            Some(remedy) => failure.remedy(remedy),
            None => failure,
        }
    }
}

/// The failure of a master that does not answer.
pub(crate) fn unreachable(address: &str, reason: &str) -> Failure {
    // Each layer says what the one below it said, often in the same words.
    let mut words: Vec<_> = reason.split(": ").collect();
    words.dedup();
    Failure::new(format!("the master at {address} does not answer"))
        .cause(words.join(": "))
        .remedy("`mooncake master` to start one, or --master HOST:PORT of one that runs")
}

/// Reads a key from the command line.
pub(crate) fn parse_key(text: &OsStr) -> Result<Bytes, Failure> {
    let key = Bytes::copy_from_slice(text.as_bytes());
    let most = crate::output::count(Key::MAX_LEN as u64);
    match Key::check(&key) {
        Ok(()) => Ok(key),
        Err(_) if key.is_empty() => {
            Err(Failure::new("the key is empty").remedy(format!("a key has 1 to {most} bytes")))
        }
        Err(_) => Err(Failure::new(format!(
            "the key {}… has {} bytes",
            start(&key),
            crate::output::count(key.len() as u64)
        ))
        .remedy(format!("a key has 1 to {most} bytes"))),
    }
}

/// Enough of a long key to tell which it is.
fn start(long: &[u8]) -> String {
    key(long).chars().take(32).collect()
}

/// The failure of a value that no segment can hold.
pub(crate) fn too_large(what: &str, limit: u64) -> Failure {
    Failure::new(format!(
        "{what}, but the largest segment has {} ({limit} bytes)",
        bytes(limit)
    ))
    .remedy("a node with a larger --segment-size, or several smaller values")
}
