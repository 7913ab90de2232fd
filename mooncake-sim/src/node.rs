//! A node: memory of marked cells, a registration with a generation, and a process: one of its own, or
//! that of a client.

use mooncake_proto::master::{MountSegmentRequest, Segment};
use mooncake_store::core::{MasterRequest, SegmentId, SegmentInfo};

use crate::{CELL, oracle::Mark, world::Peer};

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) process: Process,
    /// The process lives.
    pub(crate) up: bool,
    identity: u64,
    pub(crate) name: String,
    pub(crate) generation: u32,
    pub(crate) cells: Vec<Option<Mark>>,
    pub(crate) mount: Mount,
}

/// Whose memory it is.
#[derive(Debug)]
pub(crate) enum Process {
    /// Of this client.
    Client(usize),
    Own(Box<Peer>),
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
        let identity = peer.session.identity;
        Self::of(name, Process::Own(Box::new(peer)), identity, cells)
    }

    /// The memory of a client with this identity.
    pub(crate) fn of_client(at: usize, identity: u64, cells: usize) -> Self {
        Self::of(format!("home-{at}"), Process::Client(at), identity, cells)
    }

    fn of(name: String, process: Process, identity: u64, cells: usize) -> Self {
        Self {
            process,
            up: true,
            identity,
            name,
            generation: 1,
            cells: vec![None; cells],
            mount: Mount::Never,
        }
    }

    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// The client whose memory it is, if it is one's.
    pub(crate) fn client(&self) -> Option<usize> {
        match self.process {
            Process::Client(at) => Some(at),
            Process::Own(_) => None,
        }
    }

    /// The request names this process and this life of its registration.
    pub(crate) fn is(&self, owner: u64, generation: u32) -> bool {
        self.up && (self.identity(), self.generation) == (owner, generation)
    }

    /// What it offers, in its present life.
    pub(crate) fn segment(&self) -> SegmentInfo {
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.identity().to_be_bytes());
        SegmentInfo {
            id: SegmentId(id),
            name: self.name.clone(),
            owner_incarnation: self.identity(),
            registration: 1,
            generation: self.generation,
            length: self.cells.len() as u64 * CELL,
        }
    }

    pub(crate) fn mount_request(&self) -> MasterRequest {
        let segment = self.segment();
        MasterRequest::MountSegment(MountSegmentRequest {
            segment: Some(Segment {
                id: segment.id.0.to_vec().into(),
                name: segment.name,
                owner_incarnation: segment.owner_incarnation,
                registration: segment.registration,
                generation: segment.generation,
                length: segment.length,
                owner: self.name.clone(),
            }),
        })
    }
}
