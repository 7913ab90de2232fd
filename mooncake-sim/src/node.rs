//! A node: memory of marked cells, a registration with a generation, and a session.

use mooncake_proto::master::{MountSegmentRequest, Segment};
use mooncake_store::core::MasterRequest;

use crate::{CELL, oracle::Mark, world::Peer};

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) peer: Peer,
    pub(crate) name: String,
    pub(crate) generation: u32,
    pub(crate) cells: Vec<Option<Mark>>,
    pub(crate) mount: Mount,
}

/// Where mounting stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mount {
    /// The process has just started.
    Never,
    /// The master was asked; `again`: it forgot us meanwhile.
    Asked {
        again: bool,
    },
    /// To be tried at this time.
    Due(u64),
    Done,
}

impl Node {
    pub(crate) fn new(name: String, peer: Peer, cells: usize) -> Self {
        Self {
            peer,
            name,
            generation: 1,
            cells: vec![None; cells],
            mount: Mount::Never,
        }
    }

    pub(crate) fn identity(&self) -> u64 {
        self.peer.session.identity
    }

    /// The request names this process and this life of its registration.
    pub(crate) fn is(&self, owner: u64, generation: u32) -> bool {
        self.peer.up && (self.identity(), self.generation) == (owner, generation)
    }

    pub(crate) fn mount_request(&self) -> MasterRequest {
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.identity().to_be_bytes());
        MasterRequest::MountSegment(MountSegmentRequest {
            segment: Some(Segment {
                id: id.to_vec().into(),
                name: self.name.clone(),
                owner_incarnation: self.identity(),
                registration: 1,
                generation: self.generation,
                length: self.cells.len() as u64 * CELL,
                owner: self.name.clone(),
            }),
        })
    }
}
