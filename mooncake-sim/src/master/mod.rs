//! The master: its real state machine, behind the same conversions as the service has.

mod mistakes;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mooncake_master::{
    Time,
    state::{Answer, Caller, ClientId, Command, Counters, DEFAULT_TENANT, Effect, Settings, State},
    wire::{Terms, operation, refusal, reply},
};
use mooncake_proto::{
    master::{
        self, DescribeRequest, Invalidate, InvalidatedObject, answer::Answer as Reply,
        operation::Operation as Request,
    },
    status::ErrorCode,
};
use mooncake_store::core::MasterAnswer;

use crate::{Micros, Plant, name::tenant_name, plan::Party, readers::Readers};

#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) state: State,
    terms: Terms,
    plant: Plant,
    started: Micros,
    pub(crate) up: bool,
    pub(crate) paused_until: Micros,
    /// Streams that may speak, and whose they are.
    streams: BTreeMap<u64, Stream>,
    /// The first answer to each mutation.
    answers: BTreeMap<(ClientId, u64), Reply>,
    /// Numbers for operations that are performed again.
    fresh: u64,
    readers: Readers,
    /// For readers, on their streams.
    news: Vec<(Party, u64, Invalidate)>,
}

#[derive(Clone, Debug)]
struct Stream {
    client: ClientId,
    party: Party,
    tenant: Arc<str>,
}

/// An operation that was answered.
pub(crate) struct Performed {
    pub(crate) request: Request,
    pub(crate) answer: master::Answer,
    /// Now, and not before.
    pub(crate) anew: bool,
    /// Before it was performed.
    pub(crate) before: Counters,
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
            Plant::LeasesForever => own.lease_ttl = Duration::from_secs(3_600),
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
            readers: Readers::default(),
            news: Vec::new(),
        }
    }

    fn time(&self, now: Micros) -> Time {
        Time(now - self.started)
    }

    pub(crate) fn tick(&mut self, now: Micros) {
        self.apply(now, &Command::Tick);
    }

    fn apply(&mut self, now: Micros, command: &Command) -> Answer {
        let applied = self.state.apply(self.time(now), command);
        self.spread(&applied.effects);
        applied.answer
    }

    /// Tells those who may be reading what is gone, as the service does.
    fn spread(&mut self, effects: &[Effect]) {
        if self.plant == Plant::ReadersUntold {
            return;
        }
        for effect in effects {
            let Effect::Invalidate {
                tenant,
                key,
                incarnation,
                leased: true,
            } = effect
            else {
                continue;
            };
            self.readers.told(tenant, key, *incarnation);
            let gone = InvalidatedObject {
                key: key.0.clone(),
                incarnation: Some(master::ObjectIncarnation {
                    epoch: incarnation.epoch,
                    sequence: incarnation.sequence,
                }),
            };
            for (number, stream) in &self.streams {
                if stream.tenant == *tenant {
                    let objects = vec![gone.clone()];
                    self.news
                        .push((stream.party, *number, Invalidate { objects }));
                }
            }
        }
    }

    /// What readers must be told by now.
    pub(crate) fn news(&mut self) -> Vec<(Party, u64, Invalidate)> {
        std::mem::take(&mut self.news)
    }

    /// Under which name the master keeps the tenant's objects.
    fn tenant(&self, asked: String) -> Arc<str> {
        if asked.is_empty() || self.plant == Plant::TenantIgnored {
            return DEFAULT_TENANT.into();
        }
        asked.into()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.counters()
    }

    /// All streams end with the process.
    pub(crate) fn crash(&mut self) -> Vec<(u64, Party)> {
        self.up = false;
        let open = std::mem::take(&mut self.streams);
        open.into_iter()
            .map(|(number, stream)| (number, stream.party))
            .collect()
    }

    pub(crate) fn knows(&self, stream: u64) -> bool {
        self.streams.contains_key(&stream)
    }

    /// A stream has ended without another in its place.
    pub(crate) fn lost(&mut self, now: Micros, stream: u64) {
        if let Some(Stream { client, .. }) = self.streams.remove(&stream) {
            self.apply(now, &Command::Lost { client });
        }
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
        let tenant = self.tenant(hello.tenant);
        let command = Command::Hello {
            client,
            tenant: tenant.to_string(),
            name: hello.name,
        };
        let answer = self.apply(now, &command);
        let Answer::Hello { resumed } = answer else {
            unreachable!("hello makes sense: {answer:?}")
        };
        if !resumed {
            self.answers.retain(|(of, _), _| *of != client);
        }
        let mut older = self.streams.iter();
        let older = older.find_map(|(number, of)| (of.client == client).then_some(*number));
        if let Some(older) = older {
            self.streams.remove(&older);
        }
        let opened = Stream {
            client,
            party,
            tenant,
        };
        self.streams.insert(stream, opened);
        (self.terms.hello(resumed), older)
    }

    pub(crate) fn acknowledge(&mut self, now: Micros, stream: u64, number: u64) {
        let Some(Stream { client, .. }) = self.streams.get(&stream) else {
            return;
        };
        let client = *client;
        let command = Command::AcknowledgeBelow { client, number };
        self.apply(now, &command);
    }

    /// Performs an operation of a stream that [`knows`](Self::knows) it.
    pub(crate) fn perform(
        &mut self,
        now: Micros,
        stream: u64,
        asked: master::Operation,
        draw: u64,
    ) -> Performed {
        let Stream { client, tenant, .. } = self.streams[&stream].clone();
        let before = self.counters();
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
            Ok(mut operation) => {
                self.mislead(now, &tenant, &mut operation);
                let number = at_state;
                let caller = Caller::Session { client, number };
                let command = Command::Perform { caller, operation };
                let answer = self.apply(now, &command);
                let Command::Perform { operation, .. } = &command else {
                    unreachable!("it was built above")
                };
                reply(&self.terms, operation, answer)
            }
            Err(failure) => refusal(failure),
        };
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
        if anew {
            let reader = (client, tenant);
            violation = violation.or_else(|| self.watch_readers(now, reader, &request, &reply));
        }
        let answer = master::Answer {
            number,
            answer: Some(reply),
        };
        Performed {
            request,
            answer,
            anew,
            before,
            violation,
        }
    }

    /// Who removes a key must know that all its readers are told, or will be when they are back.
    fn watch_readers(
        &mut self,
        now: Micros,
        (client, tenant): (ClientId, Arc<str>),
        request: &Request,
        reply: &Reply,
    ) -> Option<String> {
        match (request, reply) {
            (Request::Lookup(asked), Reply::Lookup(answer)) => {
                let until = now + self.state.settings().lease_ttl.as_micros() as Micros;
                self.readers
                    .granted((client, tenant), &asked.keys, answer, until);
            }
            (Request::Release(asked), _) => self.readers.released(client, &asked.leases),
            (Request::Remove(asked), Reply::Remove(answer)) => {
                for (item, result) in asked.items.iter().zip(&answer.results) {
                    if result.error.is_some() {
                        continue;
                    }
                    let untold = self.readers.untold(now, &tenant, &item.key);
                    let open = |of: &ClientId| self.streams.values().any(|s| s.client == *of);
                    if let Some(reader) = untold.into_iter().find(open) {
                        return Some(format!(
                            "law 6: {:?} is removed, and client {reader}, which may be reading it, \
                             is not told",
                            item.key
                        ));
                    }
                }
            }
            _ => {}
        }
        None
    }

    /// What a bystander sees.
    pub(crate) fn describe(
        &mut self,
        now: Micros,
        tenant: usize,
        keys: Vec<bytes::Bytes>,
    ) -> master::DescribeResponse {
        let request = Request::Describe(DescribeRequest {
            keys,
            ..DescribeRequest::default()
        });
        match self.bystander(now, tenant, request) {
            Reply::Describe(described) => described,
            other => unreachable!("describe is answered by {other:?}"),
        }
    }

    pub(crate) fn segments(&mut self, now: Micros) -> Vec<master::Segment> {
        let request = Request::ListSegments(master::ListSegmentsRequest::default());
        match self.bystander(now, 0, request) {
            Reply::ListSegments(list) => list
                .segments
                .into_iter()
                .filter_map(|usage| usage.segment)
                .collect(),
            other => unreachable!("a list is answered by {other:?}"),
        }
    }

    fn bystander(&mut self, now: Micros, tenant: usize, request: Request) -> Reply {
        let operation = operation(Some(request), || 0).expect("it makes sense");
        let caller = Caller::Unary {
            client: ClientId::NOBODY,
            tenant: self.tenant(tenant_name(tenant)).to_string(),
        };
        let command = Command::Perform { caller, operation };
        let answer = self.apply(now, &command);
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
