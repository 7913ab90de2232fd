//! Clients: what they are asked for, and what their cores want done.

use mooncake_proto::master::ReleaseResponse;
use mooncake_store::{
    Time,
    core::{Action, Event as CoreEvent, MasterAnswer, MasterRequest},
};

use super::{
    MS, QUIET, World,
    operations::{Begun, What},
};
use crate::{Micros, client::Running, plan::Party, session::Tag};

impl World {
    pub(super) fn ask(&mut self, at: usize) {
        let asked = self.plan.asked[at].clone();
        let client = &self.clients[asked.client];
        if client.peer.up && client.leaving.is_none() {
            self.start(asked.client, asked.what, asked.budget, None);
        }
    }

    /// `must`: which items are there, in a world that is calm.
    pub(super) fn start(&mut self, at: usize, what: What, budget: Micros, must: Option<Vec<bool>>) {
        self.begin(at, what, budget, must);
        self.settle(Party::Client(at));
    }

    pub(super) fn begin(&mut self, at: usize, what: What, budget: Micros, must: Option<Vec<bool>>) {
        let now = self.now;
        let deadline = now + budget;
        let client = &mut self.clients[at];
        let Begun {
            names,
            versions,
            operation,
        } = what.clone().begin(client.tenant, &mut self.oracle);
        let op = client.core.start(Time(now), operation, Time(deadline));
        let running = Running {
            what,
            began: now,
            deadline,
            buffers: vec![Vec::new(); names.len()],
            arrived: vec![0; names.len()],
            tried: vec![Vec::new(); names.len()],
            names,
            versions,
            must,
        };
        client.running.insert(op, running);
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
                if self.plan.keeper == Some(at)
                    && now < QUIET
                    && let MasterRequest::Release(_) = request
                {
                    let answer = MasterAnswer::Release(ReleaseResponse::default());
                    self.tell(at, CoreEvent::MasterAnswered { call, answer });
                    return;
                }
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
                let judged = self.judge_outcome(at, &running, &outcome);
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
