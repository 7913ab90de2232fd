//! Crashes, pauses and cuts.

use super::{MS, Next, World};
use crate::{
    Micros, Plan,
    client::Client,
    master::Master,
    node::Node,
    plan::{FaultKind, Party},
};

impl World {
    pub(super) fn strike(&mut self, at: usize) {
        let fault = self.plan.faults[at].clone();
        let (now, until, party) = (self.now, self.now + fault.lasts, fault.party);
        match fault.kind {
            FaultKind::Crash => self.crash(party, until),
            FaultKind::Cut => match party {
                Party::Master => {
                    for party in self.parties() {
                        self.break_stream(party);
                    }
                }
                _ => self.break_stream(party),
            },
            FaultKind::Mute => {
                let muted = match party {
                    Party::Master => self.parties(),
                    _ => vec![party],
                };
                for party in muted {
                    self.peer(party).muted_until = until;
                    self.at(until, Next::Unmute(party));
                }
            }
            FaultKind::Pause => {
                // Longer sleeps are put together from none.
                if self.awake_at(party) + 1_000 * MS < now || self.awake_at(party) == 0 {
                    match party {
                        Party::Master => self.master.paused_until = until,
                        _ => self.peer(party).paused_until = until,
                    }
                }
            }
        }
    }

    pub(super) fn crash(&mut self, party: Party, until: Micros) {
        match party {
            Party::Client(at) => {
                let client = &mut self.clients[at];
                if !client.peer.up {
                    return;
                }
                client.peer.up = false;
                client.running.clear();
                let life = client.peer.session.identity;
                for transfer in self.transfers.values_mut() {
                    if transfer.life == life {
                        transfer.sender_ends = self.now + 3 * MS;
                    }
                }
            }
            Party::Node(at) => {
                if !self.nodes[at].peer.up {
                    return;
                }
                self.nodes[at].peer.up = false;
            }
            Party::Master => {
                if !self.master.up {
                    return;
                }
                self.count_master();
                for (stream, party) in self.master.crash() {
                    if self.chance(70) {
                        let at = self.now + self.delay();
                        self.at(at, Next::Broken { party, stream });
                    }
                }
            }
        }
        self.at(until, Next::Restart(party));
    }

    pub(super) fn restart(&mut self, party: Party) {
        match party {
            Party::Client(at) => {
                let peer = self.process();
                self.clients[at] = Client::new(peer, self.plan.settings.put_deadline);
            }
            Party::Node(at) => {
                let (peer, name) = (self.process(), self.nodes[at].name.clone());
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
