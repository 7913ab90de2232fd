//! What a caller asks for.

use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use crate::{
    memory::LocalSlice,
    segment::{RemoteRange, Segment},
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
        }
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

    /// In bytes.
    pub fn length(&self) -> u64 {
        self.local.iter().map(LocalSlice::len).sum()
    }
}
