//! Processes that talk to the master: their sessions, timers and pauses.

use mooncake_proto::master::{self, InvalidatedObject, event};
use mooncake_store::{Time, core::Event as CoreEvent};

use super::{Next, World};
use crate::{
    Micros, Plant,
    name::{Name, tenant_name},
    node::{Mount, Process},
    plan::Party,
    session::{Session, Tag},
};

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
    pub(super) last_frame: Micros,
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

impl World {
    pub(super) fn process(&mut self, tenant: usize) -> Peer {
        self.next_identity += 1;
        let tenant = tenant_name(tenant);
        let session = Session::new(self.next_identity, tenant, self.plan.ping, self.now);
        Peer::new(session)
    }

    pub(super) fn peer(&mut self, party: Party) -> &mut Peer {
        match party {
            Party::Client(at) => &mut self.clients[at].peer,
            Party::Node(at) => match &mut self.nodes[at].process {
                Process::Client(client) => &mut self.clients[*client].peer,
                Process::Own(peer) => peer,
            },
            Party::Master => unreachable!("the master has no session"),
        }
    }

    /// Of all that the party asks for; nodes ask for nothing that depends on it.
    pub(super) fn tenant(&self, party: Party) -> usize {
        match party {
            Party::Client(at) => self.clients[at].tenant,
            Party::Master | Party::Node(_) => 0,
        }
    }

    /// The node of the party's process, if it lends memory.
    pub(super) fn node_of(&self, party: Party) -> Option<usize> {
        match party {
            Party::Client(at) => self.nodes.iter().position(|node| node.client() == Some(at)),
            Party::Node(at) => Some(at),
            Party::Master => None,
        }
    }

    /// Events of a stream are there.
    pub(super) fn hear(&mut self, party: Party, stream: u64, events: Vec<master::Event>) {
        let peer = self.peer(party);
        if !peer.up {
            return;
        }
        let current = peer.session.stream == stream;
        // What the master says of objects comes after the answers before it, as on the stream.
        let mut before = Vec::new();
        for event in events {
            let Party::Client(at) = party else {
                before.push(event);
                continue;
            };
            match event.event {
                Some(event::Event::Reclaim(_)) if current => {
                    self.receive(party, stream, std::mem::take(&mut before));
                    self.report.reclaims += 1;
                    self.tell(at, CoreEvent::Reclaim);
                }
                Some(event::Event::Invalidate(gone)) if current => {
                    self.receive(party, stream, std::mem::take(&mut before));
                    self.told(at, gone.objects);
                }
                _ => before.push(event),
            }
        }
        self.receive(party, stream, before);
    }

    fn receive(&mut self, party: Party, stream: u64, events: Vec<master::Event>) {
        let now = self.now;
        let fenced = self.peer(party).session.receive(now, stream, events);
        self.report.fenced += usize::from(fenced);
        self.settle(party);
    }

    fn told(&mut self, at: usize, gone: Vec<InvalidatedObject>) {
        let now = self.now;
        let client = &self.clients[at];
        let (tenant, reader) = (client.tenant, client.peer.session.identity);
        let life = |object: &InvalidatedObject| object.incarnation.unwrap_or_default().into();
        for object in &gone {
            let name = Name::of(tenant, &object.key);
            self.oracle.told(now, reader, name, life(object));
            self.report.invalidations += 1;
        }
        if self.plan.plant != Plant::NewsIgnored {
            let objects = gone.iter().map(|object| (object.key.clone(), life(object)));
            let objects = objects.collect();
            self.tell(at, CoreEvent::Invalidated { objects });
        }
        self.settle(Party::Client(at));
    }

    pub(super) fn parties(&self) -> Vec<Party> {
        let clients = (0..self.clients.len()).map(Party::Client);
        clients
            .chain((0..self.plan.nodes).map(Party::Node))
            .collect()
    }

    pub(super) fn awake_at(&self, party: Party) -> Micros {
        match party {
            Party::Client(at) => self.clients[at].peer.paused_until,
            Party::Node(at) => match &self.nodes[at].process {
                Process::Client(client) => self.clients[*client].peer.paused_until,
                Process::Own(peer) => peer.paused_until,
            },
            Party::Master => self.master.paused_until,
        }
    }

    pub(super) fn timer(&mut self, party: Party, at: Micros) {
        let mut stream = self.next_stream;
        let now = self.now;
        let peer = self.peer(party);
        if !peer.up || peer.armed != at {
            return;
        }
        peer.armed = Micros::MAX;
        peer.session.tick(now, &mut stream);
        self.next_stream = stream;
        if let Party::Client(at) = party {
            self.clients[at].core.handle(Time(now), CoreEvent::Tick);
        }
        if let Some(at) = self.node_of(party)
            && let Mount::Due(due) = self.nodes[at].mount
            && due <= now
        {
            self.mount_anew(at);
        }
        self.settle(party);
    }

    /// Does all that follows from what a party has just heard.
    pub(super) fn settle(&mut self, party: Party) {
        loop {
            if self.peer(party).session.broken()
                && let Party::Client(at) = party
            {
                self.tell(at, CoreEvent::Lost);
            }
            if let Some(resumed) = self.peer(party).session.greeted()
                && let Some(at) = self.node_of(party)
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
                    (Tag::Goodbye, Party::Client(at)) => {
                        self.gone(at);
                        return;
                    }
                    (Tag::Mount, _) => {
                        if let Some(at) = self.node_of(party) {
                            self.mounted(at, result.map(drop));
                        }
                    }
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
        if let Party::Client(at) = party {
            self.take_leave(at);
        }
        while let Some(frame) = self.peer(party).session.next_frame() {
            self.send(party, frame);
        }
        self.arm(party);
    }

    pub(super) fn arm(&mut self, party: Party) {
        let mut next = self.peer(party).session.next();
        if let Party::Client(at) = party {
            let own = self.clients[at].core.next_deadline();
            next = next.min(own.map_or(Micros::MAX, |own| own.0));
        }
        if let Some(at) = self.node_of(party)
            && let Mount::Due(due) = self.nodes[at].mount
        {
            next = next.min(due);
        }
        let next = next.max(self.now + 1);
        let peer = self.peer(party);
        if next < peer.armed {
            peer.armed = next;
            self.at(next, Next::Timer { party, at: next });
        }
    }
}
