//! The master: its real state machine, behind the same conversions as the service has.

mod deferred;
mod mistakes;
mod perform;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use mooncake_master::{
    Time,
    state::{
        Answer, Caller, ClientId, Command, Counters, DEFAULT_TENANT, Effect, SegmentId, Settings,
        State,
    },
    wire::{Terms, operation, reply},
};
use mooncake_proto::master::{
    self, DescribeRequest, Invalidate, InvalidatedObject, answer::Answer as Reply,
    operation::Operation as Request,
};

use self::{
    deferred::{Kept, Promised},
    watch::Ledger,
};
use crate::{Micros, Plant, name::tenant_name, plan::Party, readers::Readers};

pub(crate) use self::{
    deferred::{Bar, Settled},
    perform::Performed,
};

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
    /// Operations that are answered later.
    promised: BTreeMap<(ClientId, u64), Promised>,
    /// Answers that have come, for clients on their streams.
    settled: Vec<Settled>,
    kept: Vec<Kept>,
    /// Numbers for operations that are performed again.
    fresh: u64,
    /// Of those that said hello.
    tenants: BTreeSet<Arc<str>>,
    ledger: Ledger,
    readers: Readers,
    /// For readers, on their streams.
    news: Vec<(Party, u64, Invalidate)>,
    /// Those who are asked for grants, on their streams.
    reclaims: Vec<(Party, u64)>,
    /// All that were given, for a master that takes them.
    grants: Vec<(ClientId, SegmentId, u64)>,
}

#[derive(Clone, Debug)]
struct Stream {
    client: ClientId,
    party: Party,
    tenant: Arc<str>,
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
            promised: BTreeMap::new(),
            settled: Vec::new(),
            kept: Vec::new(),
            tenants: BTreeSet::new(),
            ledger: Ledger::default(),
            fresh: 1 << 40,
            readers: Readers::default(),
            news: Vec::new(),
            reclaims: Vec::new(),
            grants: Vec::new(),
        }
    }

    fn time(&self, now: Micros) -> Time {
        Time(now - self.started)
    }

    /// As the service does: once more while there is work.
    fn tick(&mut self, now: Micros) {
        while let Answer::Ticked { more: true } = self.apply(now, &Command::Tick) {}
    }

    fn apply(&mut self, now: Micros, command: &Command) -> Answer {
        let applied = self.state.apply(self.time(now), command);
        self.spread(&applied.effects);
        for effect in applied.effects {
            if let Effect::Settled {
                caller: Caller::Session { client, number },
                answer,
                ..
            } = effect
            {
                self.settle(now, (client, number), answer);
            }
        }
        applied.answer
    }

    /// Tells those who may be reading what is gone, as the service does.
    fn spread(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Reclaim { client } = effect {
                let theirs = self.streams.iter().filter(|(_, of)| of.client == *client);
                let theirs = theirs.map(|(number, of)| (of.party, *number));
                self.reclaims.extend(theirs);
            }
        }
        if self.plant == Plant::ReadersUntold {
            return;
        }
        for effect in effects {
            let Effect::Invalidate {
                tenant,
                key,
                incarnation,
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

    /// Whom to ask for grants by now.
    pub(crate) fn reclaims(&mut self) -> Vec<(Party, u64)> {
        std::mem::take(&mut self.reclaims)
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
        self.tenants.insert(tenant.clone());
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

    /// What a bystander sees.
    pub(crate) fn describe(
        &mut self,
        now: Micros,
        tenant: usize,
        keys: Vec<Bytes>,
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
