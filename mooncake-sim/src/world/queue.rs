//! What is to come, by time, and who must be awake for it.

use mooncake_proto::master::{self, ClientFrame};
use mooncake_store::core::TransferFault;

use super::World;
use crate::{
    Micros,
    oracle::{Mark, Reading},
    plan::Party,
};

#[derive(Clone, Debug)]
pub(super) enum Next {
    Ask(usize),
    /// Counts what is left, and reads it.
    Audit,
    /// A client reads again what its lease still keeps.
    Again {
        wire: u64,
        version: usize,
        reading: Reading,
    },
    /// The client hears that its stream is broken.
    Broken {
        party: Party,
        stream: u64,
    },
    /// The network becomes a good one.
    Calm,
    /// A frame of a transfer is at the node.
    Cell {
        wire: u64,
        index: usize,
    },
    /// A frame of a read is at the client.
    Data {
        wire: u64,
        index: usize,
        mark: Option<Mark>,
    },
    Down {
        party: Party,
        stream: u64,
        events: Vec<master::Event>,
    },
    /// The client gives a transfer up.
    Expire(u64),
    /// The client asks the node to let nothing more of a transfer land.
    Fence(u64),
    Judge,
    /// A client leaves, and starts anew at `back`.
    Leave {
        client: usize,
        life: u64,
        back: Micros,
    },
    /// A client that leaves waits no longer.
    LosePatience {
        client: usize,
        life: u64,
    },
    /// The master hears that a stream is broken.
    Lost(u64),
    MasterTick,
    Quiet(u64),
    /// Fills a segment with one object.
    Refill,
    Report {
        wire: u64,
        result: Result<u64, TransferFault>,
    },
    Restart(Party),
    /// Removes what is left.
    Sweep,
    Strike(usize),
    Timer {
        party: Party,
        at: Micros,
    },
    Unmute(Party),
    Up {
        party: Party,
        stream: u64,
        frame: ClientFrame,
    },
}

impl World {
    pub(super) fn at(&mut self, at: Micros, next: Next) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), next);
    }

    /// Who must be awake for it.
    pub(super) fn addressee(&self, next: &Next) -> Option<Party> {
        let of = |wire: &u64| self.transfers.get(wire);
        match next {
            Next::Leave { client, .. } | Next::LosePatience { client, .. } => {
                Some(Party::Client(*client))
            }
            Next::Ask(at) => Some(Party::Client(self.plan.asked[*at].client)),
            Next::Broken { party, .. } | Next::Down { party, .. } | Next::Timer { party, .. } => {
                Some(*party)
            }
            Next::Cell { wire, .. } | Next::Fence(wire) => {
                of(wire).map(|transfer| Party::Node(transfer.node))
            }
            Next::Data { wire, .. }
            | Next::Expire(wire)
            | Next::Quiet(wire)
            | Next::Report { wire, .. } => of(wire).map(|transfer| Party::Client(transfer.client)),
            Next::Lost(_) | Next::MasterTick | Next::Up { .. } => Some(Party::Master),
            Next::Again { .. }
            | Next::Audit
            | Next::Calm
            | Next::Judge
            | Next::Refill
            | Next::Restart(_)
            | Next::Sweep
            | Next::Strike(_)
            | Next::Unmute(_) => None,
        }
    }
}
