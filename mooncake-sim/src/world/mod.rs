//! The one clock, and all who live by it.
//!
//! | Room | What is in it |
//! |---|---|
//! | [`queue`] | what is to come, and who must be awake for it |
//! | [`network`] | streams: late, double, deaf and broken ones |
//! | [`sessions`] | processes that talk to the master, their timers |
//! | [`service`] | the master's end of the streams |
//! | [`mounting`] | nodes that offer their memory |
//! | [`operations`] | the kinds of operations: a new one begins here |
//! | [`outcomes`] | how they ended for their callers |
//! | [`leaving`] | clients that say goodbye |
//! | [`clients`] | what cores want done |
//! | [`transfers`] | reads and writes, frame by frame |
//! | [`reads`] | where replicas lie, and which reads may fail |
//! | [`faults`] | crashes, pauses and cuts |
//! | [`judge`] | what is said, held against what is |

mod clients;
mod faults;
mod judge;
mod leaving;
mod mounting;
mod network;
mod operations;
mod outcomes;
mod queue;
mod reads;
mod service;
mod sessions;
mod transfers;

use std::collections::BTreeMap;

use rand::{SeedableRng, rngs::StdRng};

use self::{queue::Next, reads::Places, transfers::Transfer};
use crate::{
    Micros, Plan, Report, Violation, client::Client, master::Master, name::Name, node::Node,
    oracle::Oracle, plan::Party,
};

pub(crate) use self::{
    operations::{What, draw_budget},
    sessions::Peer,
};

const MS: Micros = 1_000;
const TICK: Micros = 50 * MS;
/// By now all operations have ended and all faults are over.
const QUIET: Micros = 6_500 * MS;
/// By now all that was held back for readers and writers has come back.
const AUDIT: Micros = 9_000 * MS;
/// By now the last reads have ended.
const SWEEP: Micros = 9_300 * MS;
/// By now the store is empty.
const REFILL: Micros = 9_500 * MS;
/// By now it is full.
const FULL: Micros = 10_000 * MS;
/// By now it is empty again.
const END: Micros = 10_200 * MS;

/// Runs a plan to its end.
///
/// # Errors
///
/// The first broken promise.
pub fn run(plan: &Plan) -> Result<Report, Violation> {
    let mut world = World::new(plan);
    while world.violation.is_none() && world.step() {}
    match world.violation {
        Some(violation) => Err(violation),
        None => Ok(world.report),
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    rng: StdRng,
    pub(crate) now: Micros,
    queue: BTreeMap<(Micros, u64), Next>,
    sequence: u64,
    pub(crate) master: Master,
    epoch: u64,
    pub(crate) clients: Vec<Client>,
    pub(crate) nodes: Vec<Node>,
    transfers: BTreeMap<u64, Transfer>,
    next_wire: u64,
    next_stream: u64,
    next_identity: u64,
    pub(crate) oracle: Oracle,
    places: Places,
    /// Puts that were told to wait for space: when, and by whom.
    refused: BTreeMap<(Party, Name), Micros>,
    pub(crate) report: Report,
    pub(crate) violation: Option<Violation>,
}
impl World {
    fn new(plan: &Plan) -> Self {
        let epoch = 1_000_000;
        let mut world = Self {
            plan: plan.clone(),
            rng: StdRng::seed_from_u64(plan.seed ^ 0x5eed),
            now: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            master: Master::new(epoch, 0, &plan.settings, plan.ping, plan.plant),
            epoch,
            clients: Vec::new(),
            nodes: Vec::new(),
            transfers: BTreeMap::new(),
            next_wire: 0,
            next_stream: 0,
            next_identity: 0,
            oracle: Oracle::new(plan.settings.lease_ttl.as_micros() as Micros, plan.keeps),
            places: Places::default(),
            refused: BTreeMap::new(),
            report: Report::default(),
            violation: None,
        };
        for node in 0..plan.nodes {
            let peer = world.process(0);
            let name = format!("node-{node}");
            world.nodes.push(Node::new(name, peer, plan.node_cells));
            world.settle(Party::Node(node));
        }
        for client in 0..plan.clients {
            let tenant = client % plan.tenants;
            let peer = world.process(tenant);
            let one = Client::new(tenant, peer, plan);
            world.clients.push(one);
            if plan.lenders.contains(&client) {
                let identity = world.clients[client].peer.session.identity;
                let home = Node::of_client(client, identity, plan.node_cells);
                world.nodes.push(home);
            }
            world.settle(Party::Client(client));
        }
        for (at, asked) in plan.asked.iter().enumerate() {
            world.at(asked.at, Next::Ask(at));
        }
        for (at, fault) in plan.faults.iter().enumerate() {
            world.at(fault.at, Next::Strike(at));
        }
        world.at(TICK, Next::MasterTick);
        world.at(QUIET, Next::Calm);
        world.at(AUDIT, Next::Audit);
        world.at(SWEEP, Next::Sweep);
        world.at(REFILL, Next::Refill);
        world.at(FULL, Next::Sweep);
        world.at(END, Next::Judge);
        world
    }

    pub(crate) fn broken(&mut self, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(Violation {
                at: self.now,
                what: what.into(),
            });
        }
    }

    pub(super) fn hold(&mut self, promise: Result<(), String>) {
        if let Err(what) = promise {
            self.broken(what);
        }
    }

    /// `false`: the run is over.
    fn step(&mut self) -> bool {
        let Some(((at, sequence), next)) = self.queue.pop_first() else {
            return false;
        };
        self.now = at;
        if let Some(party) = self.addressee(&next) {
            let awake = self.awake_at(party);
            if awake > at {
                self.queue.insert((awake, sequence), next);
                return true;
            }
        }
        self.report.steps += 1;
        match next {
            Next::Again {
                wire,
                version,
                reading,
            } => self.read_again(wire, version, &reading),
            Next::Ask(at) => self.ask(at),
            Next::Audit => self.audit(),
            Next::Broken { party, stream } => {
                let now = self.now;
                let peer = self.peer(party);
                if peer.up {
                    peer.session.cut(now, stream);
                    self.settle(party);
                }
            }
            Next::Calm => self.calm(),
            Next::Cell { wire, index } => self.cell(wire, index),
            Next::Data { wire, index, mark } => self.data(wire, index, mark),
            Next::Down {
                party,
                stream,
                events,
            } => self.hear(party, stream, events),
            Next::Expire(wire) => self.expire(wire),
            Next::Fence(wire) => self.fence(wire),
            Next::Judge => {
                self.count_master();
                self.judge_the_end();
                return false;
            }
            Next::Leave { client, life, back } => {
                if self.clients[client].peer.session.identity == life {
                    self.leave(client, back);
                }
            }
            Next::LosePatience { client, life } => self.lose_patience(client, life),
            Next::Lost(stream) => self.master.lost(self.now, stream),
            Next::MasterTick => {
                if self.master.up {
                    if let Some(what) = self.master.pass(self.now) {
                        self.broken(what);
                    }
                    self.spread_news();
                }
                self.at(self.now + TICK, Next::MasterTick);
            }
            Next::Quiet(wire) => self.quiet(wire),
            Next::Refill => self.refill(),
            Next::Report { wire, result } => self.ended(wire, result),
            Next::Restart(party) => self.restart(party),
            Next::Sweep => self.sweep(),
            Next::Strike(at) => self.strike(at),
            Next::Timer { party, at } => self.timer(party, at),
            Next::Unmute(party) => {
                let stream = self.peer(party).session.stream;
                self.at(self.now, Next::Broken { party, stream });
            }
            Next::Up {
                party,
                stream,
                frame,
            } => self.up(party, stream, frame),
        }
        true
    }
}
