//! Crashes, pauses and cuts.

use super::{MS, Next, World};
use crate::{
    Micros, Plan,
    client::Client,
    master::Master,
    node::Node,
    plan::{FaultKind, Party, Weather},
};

impl World {
    pub(super) fn strike(&mut self, at: usize) {
        let fault = self.plan.faults[at].clone();
        let (now, until, party) = (self.now, self.now + fault.lasts, fault.party);
        match fault.kind {
            FaultKind::Crash => self.crash(party, until),
            FaultKind::Cut => {
                for party in self.streams_of(party) {
                    self.report.cuts += 1;
                    self.break_stream(party);
                }
            }
            FaultKind::Leave => {
                if let Party::Client(at) = party {
                    if self.chance(50) {
                        self.leave(at, until);
                    } else {
                        self.clients[at].leaves_writing = Some(until);
                    }
                }
            }
            FaultKind::Mute => {
                for party in self.streams_of(party) {
                    self.report.mutes += 1;
                    self.peer(party).muted_until = until;
                    self.at(until, Next::Unmute(party));
                }
            }
            FaultKind::Pause => {
                // Longer sleeps are put together from none.
                if self.awake_at(party) + 1_000 * MS < now || self.awake_at(party) == 0 {
                    self.report.pauses += 1;
                    match party {
                        Party::Master => self.master.paused_until = until,
                        _ => self.peer(party).paused_until = until,
                    }
                }
            }
        }
    }

    /// The network becomes a good one, and nobody leaves any more.
    pub(super) fn calm(&mut self) {
        self.plan.weather = Weather::default();
        for client in &mut self.clients {
            client.leaves_writing = None;
        }
    }

    /// Whose streams suffer when the party's do.
    fn streams_of(&self, party: Party) -> Vec<Party> {
        match party {
            Party::Master => self.parties(),
            _ => vec![party],
        }
    }

    pub(super) fn crash(&mut self, party: Party, until: Micros) {
        match party {
            Party::Client(at) => {
                if !self.clients[at].peer.up {
                    return;
                }
                self.report.client_crashes += 1;
                self.end_process(at);
            }
            Party::Node(at) => {
                if !self.nodes[at].up {
                    return;
                }
                self.nodes[at].up = false;
                self.peer(party).up = false;
                self.report.node_crashes += 1;
            }
            Party::Master => {
                if !self.master.up {
                    return;
                }
                self.count_master();
                self.report.master_crashes += 1;
                for (stream, party) in self.master.crash() {
                    if self.chance(70) {
                        let at = self.now + self.delay();
                        self.at(at, Next::Broken { party, stream });
                    }
                }
            }
        }
        if party != Party::Master {
            let stream = self.peer(party).session.stream;
            self.tell_master(stream);
        }
        self.at(until, Next::Restart(party));
    }

    pub(super) fn end_process(&mut self, at: usize) {
        if let Some(home) = self.node_of(Party::Client(at)) {
            self.nodes[home].up = false;
        }
        let client = &mut self.clients[at];
        client.peer.up = false;
        client.running.clear();
        let life = client.peer.session.identity;
        // What the process has handed on may be there in full, and arrive when it pleases.
        let sent = self.chance(50);
        for transfer in self.transfers.values_mut() {
            if transfer.life == life && !sent {
                transfer.sender_ends = self.now + 3 * MS;
            }
        }
    }

    pub(super) fn restart(&mut self, party: Party) {
        match party {
            Party::Client(at) => {
                let tenant = self.clients[at].tenant;
                let peer = self.process(tenant);
                let identity = peer.session.identity;
                self.clients[at] = Client::new(tenant, peer, &self.plan);
                if let Some(home) = self.node_of(party) {
                    self.nodes[home] = Node::of_client(at, identity, self.plan.node_cells);
                }
            }
            Party::Node(at) => {
                let (peer, name) = (self.process(0), self.nodes[at].name.clone());
                self.nodes[at] = Node::new(name, peer, self.plan.node_cells);
            }
            Party::Master => {
                self.epoch += 1;
                let Plan {
                    settings,
                    ping,
                    plant,
                    ..
                } = &self.plan;
                self.master = Master::new(self.epoch, self.now, settings, *ping, *plant);
                return;
            }
        }
        self.settle(party);
    }
}
