//! Asks the control services of other engines.

use std::time::Duration;

use mooncake_proto::{
    Applied, Fault, Retry,
    status::ErrorCode,
    tent::{GetSegmentRequest, GetSegmentResponse, control_client},
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
