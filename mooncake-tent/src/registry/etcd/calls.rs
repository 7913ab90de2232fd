//! Calls of etcd's services, on whichever member answers.

use std::{
    fmt::Debug,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use prost::Message;
use tonic::{
    Request, Status,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::messages::{
    KeyValue, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest,
    LeaseRevokeResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use crate::{
    error::{Error, Result},
    registry::trouble,
};

/// How long a member may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(1);
/// How long it may take to answer before the next one is asked.
const ANSWER: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Calls {
    place: String,
    members: Vec<Channel>,
    /// The one to ask. Points past one that is being asked, so that a call that is dropped
    /// half-way is not followed by more of its kind.
    next: AtomicUsize,
}

impl Calls {
    pub(super) fn new(endpoints: Vec<String>) -> Result<Self> {
        let invalid = |text: &str, why: &str| Error::Invalid(format!("etcd at {text:?}: {why}"));
        let mut members = Vec::new();
        for text in &endpoints {
            if !text.starts_with("http://") || text.contains('@') {
                return Err(invalid(text, "it must be http://host:port"));
            }
            let endpoint = Endpoint::from_shared(text.clone())
                .map_err(|error| invalid(text, &error.to_string()))?;
            let endpoint = endpoint.connect_timeout(CONNECT).timeout(ANSWER);
            members.push(endpoint.connect_lazy());
        }
        if members.is_empty() {
            return Err(invalid("", "no member is named"));
        }
        Ok(Self {
            place: endpoints.join(","),
            members,
            next: AtomicUsize::new(0),
        })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) async fn range(&self, name: &str, key: Vec<u8>) -> Result<Option<KeyValue>> {
        let request = RangeRequest { key };
        let answer: RangeResponse = self.unary(name, "/etcdserverpb.KV/Range", request).await?;
        Ok(answer.kvs.into_iter().next())
    }

    /// Whether all comparisons held.
    pub(super) async fn txn(&self, name: &str, request: TxnRequest) -> Result<bool> {
        let answer: TxnResponse = self.unary(name, "/etcdserverpb.KV/Txn", request).await?;
        Ok(answer.succeeded)
    }

    /// A new lease for so many seconds.
    pub(super) async fn grant(&self, name: &str, ttl: i64) -> Result<i64> {
        let request = LeaseGrantRequest { ttl };
        let answer: LeaseGrantResponse = self
            .unary(name, "/etcdserverpb.Lease/LeaseGrant", request)
            .await?;
        match &answer.error[..] {
            "" => Ok(answer.id),
            error => Err(trouble(&self.place, name, error)),
        }
    }

    pub(super) async fn revoke(&self, name: &str, id: i64) -> Result<()> {
        let request = LeaseRequest { id };
        let path = "/etcdserverpb.Lease/LeaseRevoke";
        let _: LeaseRevokeResponse = self.unary(name, path, request).await?;
        Ok(())
    }

    /// `false`: there is no such lease any more.
    pub(super) async fn keep_alive(&self, name: &str, id: i64) -> Result<bool> {
        let call = move |mut grpc: Grpc<Channel>| async move {
            let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
            let codec = ProstCodec::<LeaseRequest, LeaseKeepAliveResponse>::default();
            let asked = Request::new(tokio_stream::once(LeaseRequest { id }));
            ready(&mut grpc).await?;
            let mut answers = grpc.streaming(asked, path, codec).await?.into_inner();
            let answer = answers.message().await?;
            answer.ok_or_else(|| Status::unavailable("it does not answer"))
        };
        let answer = self.on_any(name, call).await?;
        Ok(answer.ttl > 0)
    }

    async fn unary<Q, A>(&self, name: &str, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let call = |mut grpc: Grpc<Channel>| {
            let request = request.clone();
            async move {
                ready(&mut grpc).await?;
                let path = PathAndQuery::from_static(path);
                let codec = ProstCodec::<Q, A>::default();
                let answer = grpc.unary(Request::new(request), path, codec).await;
                Ok(answer?.into_inner())
            }
        };
        self.on_any(name, call).await
    }

    /// All calls may be made twice.
    async fn on_any<T, F>(&self, name: &str, call: impl Fn(Grpc<Channel>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut last = None;
        for _ in &self.members {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let member = &self.members[at % self.members.len()];
            match call(Grpc::new(member.clone())).await {
                Ok(answer) => {
                    self.next.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(status) => last = Some(status),
            }
        }
        let last = last.expect("there is a member");
        Err(trouble(&self.place, name, said(&last)))
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::unavailable(innermost(&error)))
}

fn said(status: &Status) -> String {
    let cause = std::error::Error::source(status).map(innermost);
    match cause {
        Some(cause) => format!("{}: {cause}", status.message()),
        None => status.message().to_owned(),
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
