//! The master: its real state machine, behind the same conversions as the service has.

use std::{collections::BTreeMap, time::Duration};

use mooncake_master::{
    Time,
    state::{Caller, ClientId, Command, Counters, Operation, Settings, State},
    wire::{Terms, operation, refusal, reply},
};
use mooncake_proto::{
    master::{self, DescribeRequest, answer::Answer as Reply, operation::Operation as Request},
    status::ErrorCode,
};
use mooncake_store::core::MasterAnswer;

use crate::{Micros, Plant, plan::Party};

#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) state: State,
    terms: Terms,
    plant: Plant,
    started: Micros,
    pub(crate) up: bool,
    pub(crate) paused_until: Micros,
    /// Streams that may speak, and whose they are.
    streams: BTreeMap<u64, (ClientId, Party)>,
    /// The first answer to each mutation.
    answers: BTreeMap<(ClientId, u64), Reply>,
    /// Numbers for operations that are performed again.
    fresh: u64,
    /// Leases and puts that a quarantine would respect.
    leases: Vec<(ClientId, u64)>,
}

/// An operation that was answered.
pub(crate) struct Performed {
    pub(crate) request: Request,
    pub(crate) answer: master::Answer,
    /// Now, and not before.
    pub(crate) anew: bool,
    pub(crate) violation: Option<String>,
}

impl Master {
    pub(crate) fn new(
        epoch: u64,
        now: Micros,
        settings: &Settings,
        ping: Micros,
        plant: Plant,
    ) -> Self {
        let mut own = settings.clone();
        match plant {
            Plant::LeaseUnchecked => own.lease_ttl = Duration::ZERO,
            Plant::NoHold | Plant::NoQuarantine => {
                own.write_frame_budget = Duration::ZERO;
                own.hold_margin = Duration::ZERO;
            }
            _ => {}
        }
        Self {
            state: State::new(epoch, own),
            terms: Terms {
                epoch,
                ping_interval: Duration::from_micros(ping),
                client_ttl: settings.client_ttl,
                lease_ttl: settings.lease_ttl,
                put_deadline: settings.put_deadline,
            },
            plant,
            started: now,
            up: true,
            paused_until: 0,
            streams: BTreeMap::new(),
            answers: BTreeMap::new(),
            fresh: 1 << 40,
            leases: Vec::new(),
        }
    }

    fn time(&self, now: Micros) -> Time {
        Time(now - self.started)
    }

    pub(crate) fn tick(&mut self, now: Micros) {
        self.state.apply(self.time(now), &Command::Tick);
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.counters()
    }

    /// All streams end with the process.
    pub(crate) fn crash(&mut self) -> Vec<(u64, Party)> {
        self.up = false;
        let open = std::mem::take(&mut self.streams);
        open.into_iter()
            .map(|(stream, (_, party))| (stream, party))
            .collect()
    }

    pub(crate) fn knows(&self, stream: u64) -> bool {
        self.streams.contains_key(&stream)
    }

    /// The answer, and the older stream of the same client that it ends.
    pub(crate) fn greet(
        &mut self,
        now: Micros,
        party: Party,
        stream: u64,
        hello: master::Hello,
    ) -> (master::HelloAnswer, Option<u64>) {
        let client = ClientId(hello.client_incarnation);
        let command = Command::Hello {
            client,
            tenant: hello.tenant,
            name: hello.name,
        };
        let applied = self.state.apply(self.time(now), &command);
        let mooncake_master::state::Answer::Hello { resumed } = applied.answer else {
            unreachable!("hello makes sense: {:?}", applied.answer)
        };
        if !resumed {
            self.answers.retain(|(of, _), _| *of != client);
        }
        let mut older = self.streams.iter();
        let older = older.find_map(|(number, (of, _))| (*of == client).then_some(*number));
        if let Some(older) = older {
            self.streams.remove(&older);
        }
        self.streams.insert(stream, (client, party));
        (self.terms.hello(resumed), older)
    }

    pub(crate) fn acknowledge(&mut self, now: Micros, stream: u64, number: u64) {
        let Some((client, _)) = self.streams.get(&stream) else {
            return;
        };
        let client = *client;
        let command = Command::AcknowledgeBelow { client, number };
        self.state.apply(self.time(now), &command);
    }

    /// Performs an operation of a stream that [`knows`](Self::knows) it.
    pub(crate) fn perform(
        &mut self,
        now: Micros,
        stream: u64,
        asked: master::Operation,
        draw: u64,
    ) -> Performed {
        let (client, _) = self.streams[&stream];
        let number = asked.number;
        let request = asked.operation.expect("clients ask for something");
        let mutates = !matches!(
            request,
            Request::Describe(_)
                | Request::Exist(_)
                | Request::Lookup(_)
                | Request::ListObjects(_)
                | Request::ListSegments(_)
                | Request::Ping(_)
                | Request::Release(_)
        );
        let mut at_state = number;
        if self.plant == Plant::NumberIgnored && mutates {
            self.fresh += 1;
            at_state = self.fresh;
        }
        let reply = match operation(Some(request.clone()), || draw) {
            Ok(operation) => {
                if self.plant == Plant::NoQuarantine && matches!(operation, Operation::Remove(_)) {
                    self.free_leases(now);
                }
                let number = at_state;
                let caller = Caller::Session { client, number };
                let command = Command::Perform { caller, operation };
                let answer = self.state.apply(self.time(now), &command).answer;
                let Command::Perform { operation, .. } = &command else {
                    unreachable!("it was built above")
                };
                reply(&self.terms, operation, answer)
            }
            Err(failure) => refusal(failure),
        };
        if let Reply::Lookup(looked) = &reply {
            self.leases.push((client, looked.lease));
        }
        let (mut anew, mut violation) = (true, None);
        if mutates && !about_session(&reply) {
            match self.answers.get(&(client, number)) {
                Some(first) => {
                    anew = false;
                    violation = (*first != reply).then(|| {
                        format!(
                            "operation {number} of client {client} was answered {first:?}, and when \
                             it was sent again {reply:?}"
                        )
                    });
                }
                None => {
                    self.answers.insert((client, number), reply.clone());
                }
            }
        }
        let answer = master::Answer {
            number,
            answer: Some(reply),
        };
        Performed {
            request,
            answer,
            anew,
            violation,
        }
    }

    fn free_leases(&mut self, now: Micros) {
        let time = self.time(now);
        for (client, lease) in std::mem::take(&mut self.leases) {
            let command = Command::Perform {
                caller: Caller::Unary {
                    client,
                    tenant: String::new(),
                },
                operation: Operation::Release(vec![lease]),
            };
            self.state.apply(time, &command);
        }
    }

    /// What a bystander sees.
    pub(crate) fn describe(
        &mut self,
        now: Micros,
        keys: Vec<bytes::Bytes>,
    ) -> master::DescribeResponse {
        let request = Request::Describe(DescribeRequest {
            keys,
            ..DescribeRequest::default()
        });
        match self.bystander(now, request) {
            Reply::Describe(described) => described,
            other => unreachable!("describe is answered by {other:?}"),
        }
    }

    pub(crate) fn segments(&mut self, now: Micros) -> Vec<master::Segment> {
        let request = Request::ListSegments(master::ListSegmentsRequest::default());
        match self.bystander(now, request) {
            Reply::ListSegments(list) => list
                .segments
                .into_iter()
                .filter_map(|usage| usage.segment)
                .collect(),
            other => unreachable!("a list is answered by {other:?}"),
        }
    }

    fn bystander(&mut self, now: Micros, request: Request) -> Reply {
        let operation = operation(Some(request), || 0).expect("it makes sense");
        let caller = Caller::Unary {
            client: ClientId::NOBODY,
            tenant: String::new(),
        };
        let command = Command::Perform { caller, operation };
        let answer = self.state.apply(self.time(now), &command).answer;
        let Command::Perform { operation, .. } = &command else {
            unreachable!("it was built above")
        };
        reply(&self.terms, operation, answer)
    }
}

/// Says nothing about what the operation did.
fn about_session(reply: &MasterAnswer) -> bool {
    matches!(reply, Reply::Error(detail)
        if matches!(detail.code(), ErrorCode::Fenced | ErrorCode::Stale | ErrorCode::Busy))
}
