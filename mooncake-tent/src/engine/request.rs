//! What a caller asks for.

use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use crate::{
    memory::LocalSlice,
    segment::{RemoteRange, Segment},
    transport::Op,
};

/// A read or write between local memory and an open segment.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) op: Op,
    pub(crate) local: SmallVec<[LocalSlice; 1]>,
    pub(crate) segment: Segment,
    pub(crate) remote: RemoteRange,
    pub(crate) deadline: Option<Instant>,
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
        }
    }

    /// When the caller stops being interested. Without it the engine's own patience counts.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// In bytes.
    pub fn length(&self) -> u64 {
        self.local.iter().map(LocalSlice::len).sum()
    }
}
