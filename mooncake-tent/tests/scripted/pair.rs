//! An engine with two links that are scripted, and a peer that has them, too.

use mooncake_tent::{
    Batch, Buffer, Error, Permission, Request, Segment, TentEngine, TentEngineBuilder,
    TransferEngine,
};

use super::Scripted;
use crate::common::*;

pub(crate) struct Pair {
    pub(crate) links: [Scripted; 2],
    pub(crate) engine: TentEngine,
    /// Each is so long as was asked for.
    pub(crate) local: Buffer,
    pub(crate) remote: Buffer,
    pub(crate) segment: Segment,
    pub(crate) owner: TentEngine,
}

impl Pair {
    /// Links `a` and `b`, which complete every task.
    pub(crate) async fn plain(builder: TentEngineBuilder, length: u64) -> Self {
        Self::new([Scripted::new("a"), Scripted::new("b")], builder, length).await
    }

    /// These links, added to `builder`.
    pub(crate) async fn new(links: [Scripted; 2], builder: TentEngineBuilder, length: u64) -> Self {
        let owner = TentEngine::builder().transport(Scripted::new("a"));
        let owner = owner.transport(Scripted::new("b")).build().await.unwrap();
        let [a, b] = links.clone();
        let engine = builder.transport(a).transport(b).build().await.unwrap();
        Self {
            links,
            local: buffer(&engine, length as usize, Permission::Local).await,
            remote: buffer(&owner, length as usize, Permission::PeersReadWrite).await,
            segment: open(&engine, &owner).await,
            engine,
            owner,
        }
    }

    pub(crate) fn read(&self, length: u64) -> Request {
        let local = self.local.slice(0..length).unwrap();
        Request::read(local, &self.segment, place(&self.remote, 0))
    }

    /// By its length one knows it again.
    pub(crate) fn write(&self, length: u64) -> Request {
        let local = self.local.slice(0..length).unwrap();
        Request::write(local, &self.segment, place(&self.remote, 0))
    }

    /// Lengths of what came to the first link.
    pub(crate) fn came(&self) -> Vec<u64> {
        let came = self.links[0].came();
        came.iter().map(|spec| spec.length).collect()
    }

    pub(crate) fn try_submit(&self, requests: Vec<Request>) -> Result<Batch, Error> {
        let mut batch = self.engine.allocate_batch(requests.len());
        self.engine.submit_transfer(&mut batch, requests)?;
        Ok(batch)
    }

    /// Ends what the first link holds, one after the other, until so many have come.
    pub(crate) async fn serve(&self, first: usize, all: usize) {
        for number in first..all {
            eventually("the next one comes", || self.came().len() > number).await;
            self.links[0].complete(number);
        }
    }

    pub(crate) async fn is_empty(&self) {
        eventually("everything is given back", || {
            let gauges = self.engine.gauges();
            gauges.waiting_requests == 0 && gauges.tasks_in_flight == 0
        })
        .await;
        assert_eq!(self.local.leases(), 0);
    }
}
