//! Clients: what they are asked for, and what their cores want done.

use mooncake_store::{
    Time,
    core::{Action, Event as CoreEvent, GetItem, Operation, PutItem, PutOptions},
};

use super::{MS, World, name};
use crate::{
    Micros,
    client::Running,
    plan::{KEYS, Party, What, bytes_of},
    session::Tag,
};

impl World {
    pub(super) fn ask(&mut self, at: usize) {
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
    pub(super) fn sweep(&mut self) {
        let keys: Vec<usize> = (0..KEYS).collect();
        let named = keys.iter().map(|key| name(*key)).collect();
        let operation = Operation::Remove { keys: named };
        self.start(0, keys, Vec::new(), operation, 150 * MS);
    }

    pub(super) fn start(
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

    pub(super) fn tell(&mut self, at: usize, event: CoreEvent) {
        let twice = !matches!(event, CoreEvent::MasterAnswered { .. })
            && self.chance(self.plan.weather.twice);
        let core = &mut self.clients[at].core;
        if twice {
            core.handle(Time(self.now), event.clone());
        }
        core.handle(Time(self.now), event);
    }

    pub(super) fn act(&mut self, at: usize, action: Action) {
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
}
