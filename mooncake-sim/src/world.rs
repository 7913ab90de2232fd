//! The one clock, the queue of what is to come, the network, and who is told what.

use std::{collections::BTreeMap, ops::AddAssign};

use bytes::Bytes;
use mooncake_proto::{
    Applied, Retry,
    master::{self, ClientFrame, Fenced, event},
};
use mooncake_store::{
    Time,
    core::{
        Action, Event as CoreEvent, GetItem, Location, OpId, Operation, PutItem, PutOptions,
        TransferFault, TransferId,
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    CELL, Micros, Plan, Plant, Violation,
    client::{Client, Running, Transfer},
    master::Master,
    node::{Mount, Node},
    oracle::{Mark, Oracle},
    plan::{FaultKind, KEYS, Party, What, bytes_of},
    session::{Session, Tag},
};

const MS: Micros = 1_000;
const TICK: Micros = 50 * MS;
const MOUNT_BUDGET: Micros = 500 * MS;
const MOUNT_PAUSE: Micros = 10 * MS;
/// By now all operations have ended and all faults are over.
const QUIET: Micros = 6_500 * MS;
/// By now the store is empty, and all that is held back has come back.
const END: Micros = 10_500 * MS;

/// How a run went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations that ended.
    pub finished: usize,
    /// Keys that were put.
    pub puts: usize,
    /// Keys that were read.
    pub gets: usize,
    /// Steps of the world.
    pub steps: usize,
    /// Objects that made room for others.
    pub evicted: usize,
    /// Puts that were taken over, or that nobody ended.
    pub abandoned_puts: usize,
    /// Clients and nodes that the master gave up.
    pub expired_clients: usize,
    /// Streams that the master took up again.
    pub resumed: usize,
    /// Frames that came after their budget.
    pub late_frames: usize,
    /// Transfers that named a dead life.
    pub stale: usize,
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.finished += other.finished;
        self.puts += other.puts;
        self.gets += other.gets;
        self.steps += other.steps;
        self.evicted += other.evicted;
        self.abandoned_puts += other.abandoned_puts;
        self.expired_clients += other.expired_clients;
        self.resumed += other.resumed;
        self.late_frames += other.late_frames;
        self.stale += other.stale;
    }
}

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

/// What clients and nodes have in common: a process that talks to the master.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) session: Session,
    pub(crate) up: bool,
    pub(crate) paused_until: Micros,
    pub(crate) muted_until: Micros,
    /// The next timer that is set.
    armed: Micros,
    /// Frames to the master keep their order.
    last_frame: Micros,
}

impl Peer {
    fn new(session: Session) -> Self {
        Self {
            session,
            up: true,
            paused_until: 0,
            muted_until: 0,
            armed: Micros::MAX,
            last_frame: 0,
        }
    }
}

#[derive(Clone, Debug)]
enum Next {
    Ask(usize),
    /// The client hears that its stream is broken.
    Broken {
        party: Party,
        stream: u64,
    },
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
    MasterTick,
    Quiet(u64),
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

    fn process(&mut self) -> Peer {
        self.next_identity += 1;
        let session = Session::new(self.next_identity, self.plan.ping, self.now);
        Peer::new(session)
    }

    pub(crate) fn broken(&mut self, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(Violation {
                at: self.now,
                what: what.into(),
            });
        }
    }

    fn hold(&mut self, promise: Result<(), String>) {
        if let Err(what) = promise {
            self.broken(what);
        }
    }

    fn at(&mut self, at: Micros, next: Next) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), next);
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn delay(&mut self) -> Micros {
        if self.chance(self.plan.weather.late) {
            self.rng.random_range(2 * MS..30 * MS)
        } else {
            self.rng.random_range(50..1_500)
        }
    }

    fn peer(&mut self, party: Party) -> &mut Peer {
        match party {
            Party::Client(at) => &mut self.clients[at].peer,
            Party::Node(at) => &mut self.nodes[at].peer,
            Party::Master => unreachable!("the master has no session"),
        }
    }

    /// Who must be awake for it.
    fn addressee(&self, next: &Next) -> Option<Party> {
        let of = |wire: &u64| self.transfers.get(wire);
        match next {
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
            Next::MasterTick | Next::Up { .. } => Some(Party::Master),
            Next::Judge | Next::Restart(_) | Next::Sweep | Next::Strike(_) | Next::Unmute(_) => {
                None
            }
        }
    }

    fn awake_at(&self, party: Party) -> Micros {
        match party {
            Party::Client(at) => self.clients[at].peer.paused_until,
            Party::Node(at) => self.nodes[at].peer.paused_until,
            Party::Master => self.master.paused_until,
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

    // Sessions.

    fn timer(&mut self, party: Party, at: Micros) {
        let mut stream = self.next_stream;
        let now = self.now;
        let peer = self.peer(party);
        if !peer.up || peer.armed != at {
            return;
        }
        peer.armed = Micros::MAX;
        peer.session.tick(now, &mut stream);
        self.next_stream = stream;
        match party {
            Party::Client(at) => self.clients[at].core.handle(Time(now), CoreEvent::Tick),
            Party::Node(at) => {
                if let Mount::Due(due) = self.nodes[at].mount
                    && due <= now
                {
                    self.mount_anew(at);
                }
            }
            Party::Master => {}
        }
        self.settle(party);
    }

    /// Does all that follows from what a party has just heard.
    fn settle(&mut self, party: Party) {
        loop {
            if let Some(resumed) = self.peer(party).session.greeted()
                && let Party::Node(at) = party
            {
                self.greeted(at, resumed);
            }
            if let Some((tag, result)) = self.peer(party).session.ended() {
                match (tag, party) {
                    (Tag::Call(call), Party::Client(at)) => {
                        let event = match result {
                            Ok(answer) => CoreEvent::MasterAnswered { call, answer },
                            Err(fault) => CoreEvent::MasterFailed { call, fault },
                        };
                        self.tell(at, event);
                    }
                    (Tag::Mount, Party::Node(at)) => self.mounted(at, result.map(drop)),
                    _ => {}
                }
                continue;
            }
            if let Party::Client(at) = party
                && let Some(action) = self.clients[at].core.poll()
            {
                self.act(at, action);
                continue;
            }
            break;
        }
        while let Some(frame) = self.peer(party).session.next_frame() {
            self.send(party, frame);
        }
        self.arm(party);
    }

    fn arm(&mut self, party: Party) {
        let mut next = self.peer(party).session.next();
        match party {
            Party::Client(at) => {
                let own = self.clients[at].core.next_deadline();
                next = next.min(own.map_or(Micros::MAX, |own| own.0));
            }
            Party::Node(at) => {
                if let Mount::Due(due) = self.nodes[at].mount {
                    next = next.min(due);
                }
            }
            Party::Master => {}
        }
        let next = next.max(self.now + 1);
        let peer = self.peer(party);
        if next < peer.armed {
            peer.armed = next;
            self.at(next, Next::Timer { party, at: next });
        }
    }

    fn send(&mut self, party: Party, frame: ClientFrame) {
        let (now, delay) = (self.now, self.delay());
        let twice = self.chance(self.plan.weather.twice);
        let peer = self.peer(party);
        if peer.muted_until > now {
            return;
        }
        let at = (now + delay).max(peer.last_frame + 1);
        peer.last_frame = at;
        let stream = peer.session.stream;
        if twice && frame.hello.is_none() {
            let again = at + self.delay();
            let frame = frame.clone();
            self.at(
                again,
                Next::Up {
                    party,
                    stream,
                    frame,
                },
            );
        }
        self.at(
            at,
            Next::Up {
                party,
                stream,
                frame,
            },
        );
    }

    fn down(&mut self, party: Party, stream: u64, event: event::Event) {
        if self.peer(party).muted_until > self.now {
            return;
        }
        let twice = self.chance(self.plan.weather.twice);
        let events = vec![master::Event { event: Some(event) }];
        for _ in 0..=u32::from(twice) {
            let at = self.now + self.delay();
            let events = events.clone();
            self.at(
                at,
                Next::Down {
                    party,
                    stream,
                    events,
                },
            );
        }
    }

    fn up(&mut self, party: Party, stream: u64, frame: ClientFrame) {
        let now = self.now;
        let known = self.master.up && (frame.hello.is_some() || self.master.knows(stream));
        if !known {
            let at = now + self.delay();
            self.at(at, Next::Broken { party, stream });
            return;
        }
        if let Some(hello) = frame.hello {
            let (answer, older) = self.master.greet(now, party, stream, hello);
            self.report.resumed += usize::from(answer.resumed);
            if let Some(older) = older {
                let reason = "a newer stream took over".to_owned();
                self.down(party, older, event::Event::Fenced(Fenced { reason }));
            }
            self.down(party, stream, event::Event::Hello(answer));
            return;
        }
        self.master
            .acknowledge(now, stream, frame.acknowledged_below);
        for operation in frame.operations {
            let draw = self.rng.random();
            let performed = self.master.perform(now, stream, operation, draw);
            if let Some(what) = performed.violation.clone() {
                self.broken(what);
            }
            if performed.anew {
                self.judge_answer(&performed);
            }
            self.down(party, stream, event::Event::Answer(performed.answer));
        }
    }

    // Nodes.

    fn greeted(&mut self, at: usize, resumed: bool) {
        match &mut self.nodes[at].mount {
            Mount::Never => self.mount(at),
            _ if resumed => {}
            Mount::Asked { again } => *again = true,
            Mount::Due(_) | Mount::Done => self.mount_anew(at),
        }
    }

    fn mount_anew(&mut self, at: usize) {
        self.nodes[at].generation += 1;
        self.mount(at);
    }

    fn mount(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        node.mount = Mount::Asked { again: false };
        let (request, deadline) = (node.mount_request(), Time(now + MOUNT_BUDGET));
        node.peer.session.submit(now, Tag::Mount, request, deadline);
    }

    fn mounted(&mut self, at: usize, result: Result<(), mooncake_proto::Fault>) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let again = node.mount == Mount::Asked { again: true };
        node.mount = match result {
            Ok(()) if !again => Mount::Done,
            Err(fault) if fault.retry == Retry::Never => {
                let name = node.name.clone();
                self.broken(format!("{name} is refused for good: {fault:?}"));
                return;
            }
            _ => Mount::Due(now + MOUNT_PAUSE),
        };
    }

    // Clients.

    fn ask(&mut self, at: usize) {
        let asked = self.plan.asked[at].clone();
        if !self.clients[asked.client].peer.up {
            return;
        }
        let mut versions = Vec::new();
        let (keys, operation) = match asked.what {
            What::Exist(keys) => {
                let named = keys.iter().map(|key| name(*key)).collect();
                (keys, Operation::Exist { keys: named })
            }
            What::Get(keys) => {
                let item = |key: &usize| GetItem {
                    key: name(*key),
                    capacity: None,
                };
                let items = keys.iter().map(item).collect();
                (keys, Operation::Get { items })
            }
            What::Put(sized, replicas) => {
                let mut items = Vec::new();
                for &(key, cells) in &sized {
                    versions.push(self.oracle.version(key, cells));
                    items.push(PutItem {
                        key: name(key),
                        length: bytes_of(cells),
                    });
                }
                let options = PutOptions {
                    replicas,
                    ..PutOptions::default()
                };
                let keys = sized.into_iter().map(|(key, _)| key).collect();
                (keys, Operation::Put { items, options })
            }
            What::Remove(keys) => {
                let named = keys.iter().map(|key| name(*key)).collect();
                (keys, Operation::Remove { keys: named })
            }
        };
        self.start(asked.client, keys, versions, operation, asked.budget);
    }

    /// Removes all keys there are, wherever they came from.
    fn sweep(&mut self) {
        let keys: Vec<usize> = (0..KEYS).collect();
        let named = keys.iter().map(|key| name(*key)).collect();
        let operation = Operation::Remove { keys: named };
        self.start(0, keys, Vec::new(), operation, 150 * MS);
    }

    fn start(
        &mut self,
        at: usize,
        keys: Vec<usize>,
        versions: Vec<usize>,
        operation: Operation,
        budget: Micros,
    ) {
        let now = self.now;
        let deadline = now + budget;
        let client = &mut self.clients[at];
        let op = client.core.start(Time(now), operation, Time(deadline));
        let running = Running {
            began: now,
            deadline,
            buffers: vec![Vec::new(); keys.len()],
            keys,
            versions,
        };
        client.running.insert(op, running);
        self.settle(Party::Client(at));
    }

    fn tell(&mut self, at: usize, event: CoreEvent) {
        let twice = !matches!(event, CoreEvent::MasterAnswered { .. })
            && self.chance(self.plan.weather.twice);
        let core = &mut self.clients[at].core;
        if twice {
            core.handle(Time(self.now), event.clone());
        }
        core.handle(Time(self.now), event);
    }

    fn act(&mut self, at: usize, action: Action) {
        match action {
            Action::CallMaster {
                call,
                request,
                deadline,
            } => {
                let now = self.now;
                let session = &mut self.clients[at].peer.session;
                session.submit(now, Tag::Call(call), request, deadline);
            }
            Action::Finish { op, outcome } => {
                let Some(running) = self.clients[at].running.remove(&op) else {
                    self.broken(format!("law 2: {op:?} of client {at} ended twice"));
                    return;
                };
                let resumed = self.clients[at].peer.paused_until;
                if self.now > running.deadline.max(resumed) + MS {
                    let deadline = running.deadline;
                    self.broken(format!(
                        "law 9: {op:?} ended late, its deadline was {deadline}"
                    ));
                }
                self.report.finished += 1;
                let judged = self.judge_outcome(&running, &outcome);
                self.hold(judged);
            }
            Action::Read {
                transfer,
                op,
                item,
                location,
                deadline,
            } => self.transfer(at, (transfer, op, item), &location, deadline, false),
            Action::Write {
                transfer,
                op,
                item,
                location,
                deadline,
            } => self.transfer(at, (transfer, op, item), &location, deadline, true),
            // A link may ignore it, and these do.
            _ => {}
        }
    }

    // Transfers.

    fn transfer(
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
        let weather = self.plan.weather;
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
            segment: location.segment.clone(),
            first: usize::try_from(location.offset / CELL).unwrap_or(usize::MAX),
            cells,
            bytes: location.length,
            budget: deadline.since(Time(self.now)).as_micros() as Micros,
            until: 0,
            gap: self.rng.random_range(50..=most),
            silent_from,
            sender_ends: Micros::MAX,
            closed: false,
            reported: false,
            quiet: false,
        };
        let gap = transfer.gap;
        self.transfers.insert(wire, transfer);
        let mut begins = self.now + self.delay();
        if self.chance(weather.stuck) {
            begins += self.rng.random_range(0..400 * MS);
        }
        self.at(begins, Next::Cell { wire, index: 0 });
        self.at(deadline.0, Next::Expire(wire));
        if self.chance(weather.broken) {
            let after = self.rng.random_range(0..=gap * cells as Micros + 2 * MS);
            let result = Err(failed(Retry::Here, false, "the connection broke"));
            self.at(self.now + after, Next::Report { wire, result });
        }
        if write && self.plan.plant == Plant::PublishEarly {
            let result = Ok(location.length);
            self.at(self.now, Next::Report { wire, result });
        }
    }

    fn cell(&mut self, wire: u64, index: usize) {
        let Some(transfer) = self.transfers.get_mut(&wire) else {
            return;
        };
        if transfer.closed || index >= transfer.silent_from || self.now > transfer.sender_ends {
            return;
        }
        let node = &mut self.nodes[transfer.node];
        let trusts = self.plan.plant == Plant::StaleAccepted && node.peer.up;
        if !trusts
            && !node.is(
                transfer.segment.owner_incarnation,
                transfer.segment.generation,
            )
        {
            transfer.closed = true;
            self.report.stale += usize::from(node.peer.up);
            let fault = if node.peer.up {
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
        if transfer.writes.is_some() && self.now > transfer.until {
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
    fn is_alive(&self, wire: u64) -> bool {
        self.transfers.get(&wire).is_some_and(|transfer| {
            let peer = &self.clients[transfer.client].peer;
            peer.up && peer.session.identity == transfer.life
        })
    }

    fn data(&mut self, wire: u64, index: usize, mark: Option<Mark>) {
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

    fn ended(&mut self, wire: u64, result: Result<u64, TransferFault>) {
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
        let loud = result.as_ref().is_err_and(|fault| !fault.quiescent);
        if loud {
            let fence = self.now + self.delay();
            self.at(fence, Next::Fence(wire));
        } else {
            transfer.quiet = true;
        }
        let transfer = id;
        self.tell(at, CoreEvent::TransferEnded { transfer, result });
        self.settle(Party::Client(at));
    }

    fn fence(&mut self, wire: u64) {
        let lost = self.chance(self.plan.weather.broken);
        let Some(transfer) = self.transfers.get_mut(&wire) else {
            return;
        };
        let node = &self.nodes[transfer.node];
        let same = node.peer.up && node.identity() == transfer.segment.owner_incarnation;
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

    fn quiet(&mut self, wire: u64) {
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

    // Faults.

    fn strike(&mut self, at: usize) {
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

    /// Of a life of the master that ends.
    fn count_master(&mut self) {
        let counters = self.master.counters();
        self.report.evicted += counters.evicted_objects as usize;
        self.report.abandoned_puts += counters.abandoned_puts as usize;
        self.report.expired_clients += counters.expired_clients as usize;
    }

    fn parties(&self) -> Vec<Party> {
        let clients = (0..self.clients.len()).map(Party::Client);
        clients
            .chain((0..self.nodes.len()).map(Party::Node))
            .collect()
    }

    fn break_stream(&mut self, party: Party) {
        let stream = self.peer(party).session.stream;
        let at = self.now + self.delay();
        self.at(at, Next::Broken { party, stream });
    }

    fn crash(&mut self, party: Party, until: Micros) {
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

    fn restart(&mut self, party: Party) {
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

fn failed(retry: Retry, quiescent: bool, message: &str) -> TransferFault {
    TransferFault {
        retry,
        applied: Applied::Unknown,
        quiescent,
        peer: String::new(),
        message: message.to_owned(),
    }
}
