//! Asks the control services of other engines.

use std::time::Duration;

use mooncake_proto::{
    Applied, Fault, Retry,
    status::ErrorCode,
    tent::{
        GetSegmentRequest, GetSegmentResponse, NotifyRequest, NotifyResponse, ProbeRequest,
        StageRequest, StageResponse, control_client,
    },
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::segment::SegmentDescriptor;

/// The largest answer: the descriptor of about a million buffers.
const LARGEST: usize = 64 << 20;
/// How often an owner whose changes we wait for is asked whether it is there, and how long it may take
/// to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Calls under way on one connection; the others wait. A server takes no more than some hundred at a
/// time, and ends a connection on which too many come in vain.
const CALLS: usize = 100;

/// Connections to control services, by address.
#[derive(Debug, Default)]
pub(crate) struct ControlClient {
    channels: Mutex<FxHashMap<String, Channel>>,
}

impl ControlClient {
    /// What the owner at `place` says of the segment `name` to whom `known` is known.
    pub(crate) async fn segment(
        &self,
        place: &str,
        name: &str,
        known: Option<&SegmentDescriptor>,
    ) -> Result<GetSegmentResponse, Fault> {
        let mut client = self.client(place).await?;
        let answer = client.get_segment(request(name, known)).await;
        let answer = answer.map_err(|status| self.failed(place, status))?;
        Ok(answer.into_inner())
    }

    /// What changes in a segment after what is known of it.
    pub(crate) async fn watch(
        &self,
        place: &str,
        name: &str,
        known: &SegmentDescriptor,
    ) -> Result<Streaming<GetSegmentResponse>, Fault> {
        let mut client = self.client(place).await?;
        let answer = client.watch_segment(request(name, Some(known))).await;
        let answer = answer.map_err(|status| self.failed(place, status))?;
        Ok(answer.into_inner())
    }

    fn failed(&self, place: &str, status: Status) -> Fault {
        // The owner may be back under another connection.
        self.forget(place);
        Fault::from(status).with_peer(place)
    }

    async fn client(&self, place: &str) -> Result<control_client::ControlClient<Channel>, Fault> {
        let channel = self.channel(place).await?;
        let client = control_client::ControlClient::new(channel);
        Ok(client.max_decoding_message_size(LARGEST))
    }

    /// Asks the owner of the segment `name` to take a notification.
    pub(crate) async fn notify(
        &self,
        name: &str,
        request: NotifyRequest,
    ) -> Result<NotifyResponse, Unanswered> {
        let channel = self.channel(name).await;
        let channel = channel.map_err(|fault| Unanswered::NotSent(fault.to_string()))?;
        let answer = control_client::ControlClient::new(channel)
            .notify(request)
            .await;
        answer.map(tonic::Response::into_inner).map_err(|status| {
            self.forget(name);
            Unanswered::from_status(name, &status)
        })
    }

    /// Asks the owner of the segment `name` for a step of a transfer that goes through its stage.
    pub(crate) async fn stage(
        &self,
        name: &str,
        request: StageRequest,
    ) -> Result<StageResponse, Unanswered> {
        let channel = self.channel(name).await;
        let channel = channel.map_err(|fault| Unanswered::NotSent(fault.to_string()))?;
        let answer = control_client::ControlClient::new(channel)
            .stage(request)
            .await;
        answer.map(tonic::Response::into_inner).map_err(|status| {
            self.forget(name);
            Unanswered::from_status(name, &status)
        })
    }

    /// Which life of the owner of the segment `name` answers now, raw. An old connection counts for
    /// nothing: who does not answer on it is asked on a new one.
    pub(crate) async fn probe(&self, name: &str) -> Result<u64, Unanswered> {
        let mut known = self.channels.lock().contains_key(name);
        loop {
            let channel = self.channel(name).await;
            let channel = channel.map_err(|fault| Unanswered::NotSent(fault.to_string()))?;
            let answer = control_client::ControlClient::new(channel)
                .probe(ProbeRequest {})
                .await;
            match answer {
                Ok(answer) => return Ok(answer.into_inner().incarnation),
                Err(status) => {
                    self.forget(name);
                    if !std::mem::take(&mut known) {
                        return Err(Unanswered::from_status(name, &status));
                    }
                }
            }
        }
    }

    /// Connects anew next time: the connection may lead nowhere any more.
    pub(crate) fn forget(&self, place: &str) {
        self.channels.lock().remove(place);
    }

    async fn channel(&self, place: &str) -> Result<Channel, Fault> {
        if let Some(channel) = self.channels.lock().get(place) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{place}"))
            .map_err(|_| unreachable(place, "that is no address"))?
            .concurrency_limit(CALLS)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| unreachable(place, &cause(&error)))?;
        self.channels
            .lock()
            .insert(place.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The request was not sent.
    NotSent(String),
    /// Whether it arrived is not known.
    Lost(String),
    /// There never will be one.
    Never(String),
}

impl Unanswered {
    fn from_status(name: &str, status: &Status) -> Self {
        let why = cause(status);
        match status.code() {
            tonic::Code::Unimplemented => {
                Self::Never(format!("{name} speaks an older version: {why}"))
            }
            _ => Self::Lost(why),
        }
    }
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::NotSent(why) | Self::Lost(why) | Self::Never(why)) = self;
        f.write_str(why)
    }
}

fn request(name: &str, known: Option<&SegmentDescriptor>) -> GetSegmentRequest {
    GetSegmentRequest {
        name: name.to_owned(),
        incarnation: known.map_or(0, |known| known.incarnation().get()),
        version: known.map_or(0, SegmentDescriptor::version),
    }
}

fn unreachable(place: &str, message: &str) -> Fault {
    Fault::new(ErrorCode::RpcFailed, Retry::Elsewhere, message)
        .with_effect(Applied::Nothing, true)
        .with_peer(place)
        .with_stage("connect")
}

/// The innermost cause, which says more than "transport error".
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
