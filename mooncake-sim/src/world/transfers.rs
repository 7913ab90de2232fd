//! Reads and writes on their way, frame by frame.

use std::sync::Arc;

use mooncake_proto::{Applied, Retry};
use mooncake_store::{
    Time,
    core::{Event as CoreEvent, Location, OpId, SegmentInfo, TransferFault, TransferId},
};
use rand::RngExt;

use super::{MS, Next, World};
use crate::{CELL, Micros, Plant, oracle::Mark, plan::Party};

/// A read or write on its way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) client: usize,
    /// The client's process.
    pub(crate) life: u64,
    pub(crate) id: TransferId,
    pub(crate) op: OpId,
    pub(crate) item: usize,
    /// The version that is written; `None`: it reads.
    pub(crate) writes: Option<usize>,
    pub(crate) node: usize,
    /// A copy within the client's process. No deadline and no fence stops one that writes.
    pub(crate) within: bool,
    pub(crate) segment: Arc<SegmentInfo>,
    pub(crate) first: usize,
    pub(crate) cells: usize,
    pub(crate) bytes: u64,
    /// What the first frame says.
    pub(crate) budget: Micros,
    /// With it ends the client's patience, and before the lease of a read does.
    pub(crate) deadline: Micros,
    /// By the node's clock, once the first frame is there.
    pub(crate) until: Micros,
    /// Between two frames, at most.
    pub(crate) gap: Micros,
    /// From this frame on nothing gets through.
    pub(crate) silent_from: usize,
    /// The process that sends has crashed at.
    pub(crate) sender_ends: Micros,
    /// No byte of it moves any more.
    pub(crate) closed: bool,
    pub(crate) reported: bool,
    /// The node did not know the life that it names.
    pub(crate) refused: bool,
    pub(crate) quiet: bool,
}

impl World {
    pub(super) fn transfer(
        &mut self,
        at: usize,
        (id, op, item): (TransferId, OpId, usize),
        location: &Location,
        deadline: Time,
        write: bool,
    ) {
        let known = self
            .nodes
            .iter()
            .position(|node| node.name == location.segment.name);
        let Some(node) = known else {
            self.broken(format!("the master names {:?}", location.segment));
            return;
        };
        let within = self.nodes[node].client() == Some(at);
        let mut weather = self.plan.weather;
        if within {
            (weather.silent, weather.broken) = (0, 0);
        }
        let cells = usize::try_from(location.length.div_ceil(CELL)).unwrap_or(usize::MAX);
        let slow = self.chance(weather.slow);
        let most = if slow { 150 * MS } else { 2 * MS };
        let silent = self.chance(weather.silent);
        let silent_from = if silent {
            self.rng.random_range(0..=cells)
        } else {
            usize::MAX
        };
        let client = &mut self.clients[at];
        let mut writes = None;
        if let Some(running) = client.running.get_mut(&op) {
            running.tried[item].push(self.next_wire + 1);
            if write {
                writes = Some(running.versions[item]);
            } else {
                running.buffers[item].resize(cells, None);
            }
        } else {
            self.broken(format!("law 2: {op:?} goes on after its end"));
            return;
        }
        self.next_wire += 1;
        let wire = self.next_wire;
        let transfer = Transfer {
            client: at,
            life: client.peer.session.identity,
            id,
            op,
            item,
            writes,
            node,
            within,
            segment: location.segment.clone(),
            first: usize::try_from(location.offset / CELL).unwrap_or(usize::MAX),
            cells,
            bytes: location.length,
            budget: deadline.since(Time(self.now)).as_micros() as Micros,
            deadline: deadline.0,
            until: 0,
            gap: self.rng.random_range(50..=most),
            silent_from,
            sender_ends: Micros::MAX,
            closed: false,
            reported: false,
            refused: false,
            quiet: false,
        };
        let (gap, life) = (transfer.gap, transfer.life);
        self.transfers.insert(wire, transfer);
        let way = self.delay() + self.jam();
        let begins = if within { self.now } else { self.now + way };
        self.at(begins, Next::Cell { wire, index: 0 });
        self.at(deadline.0, Next::Expire(wire));
        if self.chance(weather.broken) {
            let after = self.rng.random_range(0..=gap * cells as Micros + 2 * MS);
            let result = Err(failed(Retry::Here, false, "the connection broke"));
            self.at(self.now + after, Next::Report { wire, result });
        }
        if write && let Some(back) = self.clients[at].leaves_writing.take() {
            let soon = self.now + self.delay();
            let client = at;
            self.at(soon, Next::Leave { client, life, back });
        }
        let trusted = match self.plan.plant {
            Plant::PublishEarly => true,
            Plant::OwnWritesTrusted => within,
            _ => false,
        };
        if write && trusted {
            let result = Ok(location.length);
            self.at(self.now, Next::Report { wire, result });
        }
    }

    pub(super) fn cell(&mut self, wire: u64, index: usize) {
        let Some(transfer) = self.transfers.get_mut(&wire) else {
            return;
        };
        if transfer.closed || index >= transfer.silent_from || self.now > transfer.sender_ends {
            return;
        }
        let node = &mut self.nodes[transfer.node];
        let trusts = self.plan.plant == Plant::StaleAccepted && node.up;
        if !trusts
            && !node.is(
                transfer.segment.owner_incarnation,
                transfer.segment.generation,
            )
        {
            transfer.closed = true;
            transfer.refused = true;
            self.report.stale += usize::from(node.up);
            let fault = if node.up {
                failed(Retry::AfterRefresh, true, "stale")
            } else {
                failed(Retry::Elsewhere, true, "nobody is there")
            };
            let at = self.now + self.delay();
            let result = Err(fault);
            self.at(at, Next::Report { wire, result });
            return;
        }
        if index == 0 {
            transfer.until = self.now + transfer.budget;
        }
        if transfer.writes.is_some() && !transfer.within && self.now > transfer.until {
            transfer.closed = true;
            self.report.late_frames += 1;
            let at = self.now + self.delay();
            let result = Err(failed(Retry::Here, true, "the budget of the frame is over"));
            self.at(at, Next::Report { wire, result });
            return;
        }
        let Some(place) = node.cells.get_mut(transfer.first + index) else {
            let what = format!("law 4: cell {index} of {transfer:?} is out of bounds");
            self.broken(what);
            return;
        };
        let last = index + 1 == transfer.cells;
        let (bytes, gap, client) = (transfer.bytes, transfer.gap, transfer.client);
        let write = transfer.writes.is_some();
        if let Some(version) = transfer.writes {
            *place = Some(Mark { version, index });
            if last {
                transfer.closed = true;
                let at = self.now + self.delay();
                self.at(
                    at,
                    Next::Report {
                        wire,
                        result: Ok(bytes),
                    },
                );
            }
        } else {
            let mark = *place;
            let at = self.now + gap.min(1_000);
            self.at(at, Next::Data { wire, index, mark });
            if last {
                self.at(
                    at,
                    Next::Report {
                        wire,
                        result: Ok(bytes),
                    },
                );
            }
        }
        if !last {
            let mut at = self.now + self.rng.random_range(gap / 2..=gap).max(1);
            if write {
                at = at.max(self.clients[client].peer.paused_until);
            }
            let index = index + 1;
            self.at(at, Next::Cell { wire, index });
        }
    }

    /// The client's process of a transfer, if it lives.
    pub(super) fn is_alive(&self, wire: u64) -> bool {
        self.transfers.get(&wire).is_some_and(|transfer| {
            let peer = &self.clients[transfer.client].peer;
            peer.up && peer.session.identity == transfer.life
        })
    }

    /// A transfer of the process of which bytes may still move.
    pub(super) fn moving(&self, life: u64) -> Option<&Transfer> {
        let mut transfers = self.transfers.values();
        transfers.find(|transfer| transfer.life == life && !transfer.quiet && !transfer.closed)
    }

    pub(super) fn data(&mut self, wire: u64, index: usize, mark: Option<Mark>) {
        if !self.is_alive(wire) {
            return;
        }
        let transfer = &self.transfers[&wire];
        if transfer.quiet {
            return;
        }
        let running = self.clients[transfer.client].running.get_mut(&transfer.op);
        if let Some(running) = running
            && let Some(cell) = running.buffers[transfer.item].get_mut(index)
        {
            *cell = mark;
        }
    }

    /// The client's patience with a transfer is over.
    pub(super) fn expire(&mut self, wire: u64) {
        if self.is_alive(wire) {
            let transfer = &self.transfers[&wire];
            let running = self.clients[transfer.client].running.get(&transfer.op);
            let before = running.is_some_and(|running| self.now < running.deadline);
            let reads = transfer.writes.is_none();
            self.report.leases_over += usize::from(reads && before && !transfer.reported);
        }
        let fault = failed(Retry::Here, false, "the deadline has passed");
        self.ended(wire, Err(fault));
    }

    pub(super) fn ended(&mut self, wire: u64, mut result: Result<u64, TransferFault>) {
        if !self.is_alive(wire) {
            return;
        }
        let Some(transfer) = self.transfers.get_mut(&wire) else {
            return;
        };
        if transfer.reported {
            return;
        }
        transfer.reported = true;
        let (at, id) = (transfer.client, transfer.id);
        if let Some(running) = self.clients[at].running.get_mut(&transfer.op) {
            running.arrived[transfer.item] = self.now;
        }
        if let Err(fault) = &mut result
            && self.plan.plant == Plant::OtherReplicasForgotten
        {
            fault.retry = Retry::Never;
        }
        let loud = result.as_ref().is_err_and(|fault| !fault.quiescent);
        if loud {
            let fence = self.now + self.delay() + self.jam();
            self.at(fence, Next::Fence(wire));
        } else {
            transfer.quiet = true;
        }
        let transfer = id;
        self.tell(at, CoreEvent::TransferEnded { transfer, result });
        self.settle(Party::Client(at));
    }

    pub(super) fn fence(&mut self, wire: u64) {
        let lost = self.chance(self.plan.weather.broken);
        let Some(transfer) = self.transfers.get_mut(&wire) else {
            return;
        };
        let node = &self.nodes[transfer.node];
        let writes = transfer.writes.is_some();
        if transfer.within && writes && !transfer.closed && node.up {
            let at = self.now + transfer.gap;
            self.at(at, Next::Fence(wire));
            return;
        }
        let same = node.up && node.identity() == transfer.segment.owner_incarnation;
        // A process that is gone moves no bytes.
        transfer.closed = true;
        let at = self.now + self.delay();
        let next = if lost && same {
            Next::Fence(wire)
        } else {
            Next::Quiet(wire)
        };
        self.at(at, next);
    }

    pub(super) fn quiet(&mut self, wire: u64) {
        if !self.is_alive(wire) {
            return;
        }
        let Some(transfer) = self.transfers.get_mut(&wire) else {
            return;
        };
        transfer.quiet = true;
        let (at, transfer) = (transfer.client, transfer.id);
        self.tell(at, CoreEvent::Quiet { transfer });
        self.settle(Party::Client(at));
    }
}

fn failed(retry: Retry, quiescent: bool, message: &str) -> TransferFault {
    TransferFault {
        retry,
        applied: Applied::Unknown,
        quiescent,
        peer: String::new(),
        message: message.to_owned(),
    }
}
