//! The one clock, and all who live by it.
//!
//! | Room | What is in it |
//! |---|---|
//! | [`queue`] | what is to come, and who must be awake for it |
//! | [`network`] | streams: late, double, deaf and broken ones |
//! | [`sessions`] | processes that talk to the master, their timers |
//! | [`service`] | the master's end of the streams |
//! | [`mounting`] | nodes that offer their memory |
//! | [`clients`] | operations, and what the cores want done |
//! | [`transfers`] | reads and writes, frame by frame |
//! | [`faults`] | crashes, pauses and cuts |
//! | [`judge`] | what is said, held against what is |

mod clients;
mod faults;
mod judge;
mod mounting;
mod network;
mod queue;
mod service;
mod sessions;
mod transfers;

use std::collections::BTreeMap;

use bytes::Bytes;
use mooncake_proto::Retry;
use rand::{SeedableRng, rngs::StdRng};

use self::{
    queue::Next,
    transfers::{Transfer, failed},
};
use crate::{
    Micros, Plan, Report, Violation, client::Client, master::Master, node::Node, oracle::Oracle,
    plan::Party,
};

pub(crate) use self::sessions::Peer;

const MS: Micros = 1_000;
const TICK: Micros = 50 * MS;
/// By now all operations have ended and all faults are over.
const QUIET: Micros = 6_500 * MS;
/// By now the store is empty, and all that is held back has come back.
const END: Micros = 10_500 * MS;

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
            oracle: Oracle::default(),
            report: Report::default(),
            violation: None,
        };
        for node in 0..plan.nodes {
            let peer = world.process();
            let name = format!("node-{node}");
            world.nodes.push(Node::new(name, peer, plan.node_cells));
            world.settle(Party::Node(node));
        }
        for client in 0..plan.clients {
            let peer = world.process();
            let one = Client::new(peer, plan.settings.put_deadline);
            world.clients.push(one);
            world.settle(Party::Client(client));
        }
        for (at, asked) in plan.asked.iter().enumerate() {
            world.at(asked.at, Next::Ask(at));
        }
        for (at, fault) in plan.faults.iter().enumerate() {
            world.at(fault.at, Next::Strike(at));
        }
        world.at(TICK, Next::MasterTick);
        world.at(QUIET, Next::Sweep);
        world.at(QUIET + 200 * MS, Next::Sweep);
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
            Next::Ask(at) => self.ask(at),
            Next::Broken { party, stream } => {
                let now = self.now;
                let peer = self.peer(party);
                if peer.up {
                    peer.session.cut(now, stream);
                    self.settle(party);
                }
            }
            Next::Cell { wire, index } => self.cell(wire, index),
            Next::Data { wire, index, mark } => self.data(wire, index, mark),
            Next::Down {
                party,
                stream,
                events,
            } => {
                let now = self.now;
                let peer = self.peer(party);
                if peer.up {
                    peer.session.receive(now, stream, events);
                    self.settle(party);
                }
            }
            Next::Expire(wire) => {
                let fault = failed(Retry::Here, false, "the deadline has passed");
                self.ended(wire, Err(fault));
            }
            Next::Fence(wire) => self.fence(wire),
            Next::Judge => {
                self.count_master();
                self.judge_the_end();
                return false;
            }
            Next::MasterTick => {
                if self.master.up {
                    self.master.tick(self.now);
                }
                self.at(self.now + TICK, Next::MasterTick);
            }
            Next::Quiet(wire) => self.quiet(wire),
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

pub(crate) fn name(key: usize) -> Bytes {
    Bytes::from(format!("key-{key}"))
}

pub(crate) fn number(name: &[u8]) -> usize {
    let digits = name.strip_prefix(b"key-").unwrap_or_default();
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .expect("only our names are used")
}
