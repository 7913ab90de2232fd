//! What a caller asks for.

use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use crate::{
    memory::LocalSlice,
    qos::{DeviceSet, Hint, Intent, Priority, Qos},
    segment::{RemoteRange, Segment},
    trace::Trace,
    transport::{Op, Receipt},
};

/// A read or write between local memory and an open segment.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) op: Op,
    pub(crate) local: SmallVec<[LocalSlice; 1]>,
    pub(crate) segment: Segment,
    pub(crate) remote: RemoteRange,
    pub(crate) deadline: Option<Instant>,
    pub(crate) receipt: Receipt,
    pub(crate) qos: Qos,
    pub(crate) trace: Option<Trace>,
}

impl Request {
    /// Reads from `remote` of `segment` into `local`.
    pub fn read(local: LocalSlice, segment: &Segment, remote: RemoteRange) -> Self {
        Self::scattered(Op::Read, smallvec![local], segment, remote)
    }

    /// Writes `local` to `remote` of `segment`.
    pub fn write(local: LocalSlice, segment: &Segment, remote: RemoteRange) -> Self {
        Self::scattered(Op::Write, smallvec![local], segment, remote)
    }

    /// As [`read`](Self::read) or [`write`](Self::write), with local memory in several pieces that
    /// follow each other in the segment.
    pub fn scattered(
        op: Op,
        local: SmallVec<[LocalSlice; 1]>,
        segment: &Segment,
        remote: RemoteRange,
    ) -> Self {
        Self {
            op,
            local,
            segment: segment.clone(),
            remote,
            deadline: None,
            receipt: Receipt::default(),
            qos: Qos::new(),
            trace: None,
        }
    }

    /// Has `trace` collect what becomes of it, once it is submitted. A submission that is refused leaves
    /// what was decided until then.
    #[must_use]
    pub fn trace(mut self, trace: &Trace) -> Self {
        self.trace = Some(trace.clone());
        self
    }

    /// When the caller stops being interested. Without it the engine's own patience counts.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Has the target's engine learn of this write under a number of the caller's choice, once all of its
    /// bytes are applied: see [`TransferEngine::arrival`](crate::TransferEngine::arrival). Only for
    /// writes, and over links that [can](crate::transport::Capabilities::receipts); such a write is not
    /// cut into parts.
    #[must_use]
    pub fn op_id(mut self, op_id: u64) -> Self {
        self.receipt.op_id = Some(op_id);
        self
    }

    /// Has the target compare the bytes at their place with those that were sent, by CRC32C, and the
    /// write fail if they differ. With an [`op_id`](Self::op_id) the target learns the checksum. Only for
    /// writes, and over links that [can](crate::transport::Capabilities::receipts).
    #[must_use]
    pub fn checksum(mut self) -> Self {
        self.receipt.checksum = true;
        self
    }

    /// Everything that it asks of its way, at once: requests of one kind share one.
    #[must_use]
    pub fn qos(mut self, qos: &Qos) -> Self {
        self.qos = qos.clone();
        self
    }

    /// How urgent it is.
    #[must_use]
    pub fn priority(self, priority: Priority) -> Self {
        self.asking(|qos| qos.with_priority(priority))
    }

    /// What it is for.
    #[must_use]
    pub fn intent(self, intent: Intent) -> Self {
        self.asking(|qos| qos.with_intent(intent))
    }

    /// The link that should carry it.
    #[must_use]
    pub fn hint(self, hint: Hint) -> Self {
        self.asking(|qos| qos.with_hint(hint))
    }

    /// The devices that may carry it. A link that cannot keep to them is not used.
    #[must_use]
    pub fn devices(self, devices: DeviceSet) -> Self {
        self.asking(|qos| qos.with_devices(devices))
    }

    /// The policy that counts for it, whatever that policy's filters say.
    #[must_use]
    pub fn policy(self, name: impl Into<Box<str>>) -> Self {
        self.asking(|qos| qos.with_policy(name))
    }

    /// The pool of connections that it goes through, where a link has pools.
    #[must_use]
    pub fn pool(self, name: impl Into<Box<str>>) -> Self {
        self.asking(|qos| qos.with_pool(name))
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(self, name: impl Into<Box<str>>) -> Self {
        self.asking(|qos| qos.with_tenant(name))
    }

    /// What it asks of its way.
    pub fn asked(&self) -> &Qos {
        &self.qos
    }

    fn asking(mut self, ask: impl FnOnce(Qos) -> Qos) -> Self {
        self.qos = ask(std::mem::take(&mut self.qos));
        self
    }

    /// In bytes.
    pub fn length(&self) -> u64 {
        self.local.iter().map(LocalSlice::len).sum()
    }
}
