//! Asks the control services of other engines.

use mooncake_proto::{
    Applied, Fault, Retry,
    status::ErrorCode,
    tent::{
        GetSegmentRequest, NotifyRequest, NotifyResponse, ProbeRequest, SegmentDescriptor,
        control_client,
    },
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tonic::transport::{Channel, Endpoint};

/// Connections to control services, by address. In peer-to-peer naming a segment's name is the
/// address of its owner's control service.
#[derive(Debug, Default)]
pub(crate) struct ControlClient {
    channels: Mutex<FxHashMap<String, Channel>>,
}

impl ControlClient {
    /// The descriptor of the segment `name`.
    pub(crate) async fn segment(&self, name: &str) -> Result<SegmentDescriptor, Fault> {
        let channel = self.channel(name).await?;
        let request = GetSegmentRequest {
            name: name.to_owned(),
        };
        let answer = control_client::ControlClient::new(channel)
            .get_segment(request)
            .await;
        let answer = answer.map_err(|status| {
            // The owner may be back under another connection.
            self.forget(name);
            Fault::from(status).with_peer(name)
        })?;
        answer
            .into_inner()
            .segment
            .ok_or_else(|| unreachable(name, "it answers without a segment"))
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
    pub(crate) fn forget(&self, name: &str) {
        self.channels.lock().remove(name);
    }

    async fn channel(&self, name: &str) -> Result<Channel, Fault> {
        if let Some(channel) = self.channels.lock().get(name) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{name}"))
            .map_err(|_| unreachable(name, "its name is no address"))?;
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| unreachable(name, &cause(&error)))?;
        self.channels
            .lock()
            .insert(name.to_owned(), channel.clone());
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
    fn from_status(name: &str, status: &tonic::Status) -> Self {
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

fn unreachable(name: &str, message: &str) -> Fault {
    Fault::new(ErrorCode::RpcFailed, Retry::Elsewhere, message)
        .with_effect(Applied::Nothing, true)
        .with_peer(name)
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
