//! Which links carry a request.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::Guard;
use parking_lot::Mutex;

use super::{Request, tent::Shared};
use crate::{
    error::{Error, Result},
    identity::RegistrationId,
    lane::Lane,
    memory::LocalSlice,
    platform::after,
    qos::Qos,
    segment::{Held, Known, Route, RouteKey, Segment, SegmentDescriptor, Way},
    selector::{
        Excluded, Exclusion, Health, LinkFacts, Pass, RankKey, Ranking, RequestFacts, SegmentKind,
        memory_kind,
    },
    transport::{Capabilities, Op, Terms},
};

/// Requests that ask for nothing are ranked as if they were so long, where no length is known.
const TYPICAL: u64 = 1 << 20;

/// How long a choice among several links holds, since what is measured may change it.
const CHOICE_HOLDS: Duration = Duration::from_millis(250);

/// A link on trial may have been mended after so long.
const TRIAL_HOLDS: Duration = Duration::from_millis(20);

/// What was known of a segment before anything of it was looked up for a request; serves those that
/// follow and name the same one.
pub(super) struct Outlook {
    pub(super) segment: Segment,
    /// A fence that comes later counts.
    pub(super) fences: u64,
    pub(super) known: Guard<Arc<Known>>,
}

/// The last way that was found.
pub(super) struct LastWay<'a> {
    /// For what, if it serves others, too.
    wanted: Option<Wanted>,
    found: Found<'a>,
    /// Other links could carry it, too.
    pub(super) others: bool,
}

enum Found<'a> {
    /// In the segment's books, as most are.
    Known(&'a Way),
    New(Way),
}

impl LastWay<'_> {
    pub(super) fn way(&self) -> &Way {
        match &self.found {
            Found::Known(way) => way,
            Found::New(way) => way,
        }
    }
}

/// What of a request the choice of its link depends on.
pub(super) struct Wanted {
    op: Op,
    registration: Option<RegistrationId>,
    /// A bit for each link that carries all that is written from.
    local: u64,
    /// The target is told something.
    receipt: bool,
    /// The local memory is plain memory of the host.
    plain: bool,
    ask: Ask,
}

/// What a request asks of its way.
enum Ask {
    /// The same as all others of this key.
    Common(RankKey),
    /// So many bytes, and something by name.
    Special(Box<(u64, Qos)>),
}

/// A request, as far as its way depends on it.
#[derive(Clone, Copy)]
pub(super) struct Errand<'a> {
    pub(super) op: Op,
    pub(super) length: u64,
    pub(super) local: &'a [LocalSlice],
    pub(super) registration: Option<RegistrationId>,
    /// The target is told something.
    pub(super) receipt: bool,
    pub(super) qos: &'a Qos,
}

impl<'a> Errand<'a> {
    pub(super) fn of(
        request: &'a Request,
        length: u64,
        registration: Option<RegistrationId>,
    ) -> Self {
        Self {
            op: request.op,
            length,
            local: &request.local,
            registration,
            receipt: !request.receipt.is_none(),
            qos: &request.qos,
        }
    }

    /// The kind of the memory here.
    fn kind(&self) -> &'a str {
        let first = self.local.first();
        first.map_or("cpu", |slice| memory_kind(slice.buffer().location()))
    }
}

/// Kinds of memory by number, which routes are kept by.
#[derive(Debug, Default)]
pub(super) struct Kinds(Mutex<Vec<Box<str>>>);

impl Kinds {
    /// Peers may name what they like.
    const MOST: usize = 64;

    /// Its number, 0 for plain memory; `None`: there are too many.
    fn number(&self, kind: &str) -> Option<u16> {
        if kind == memory_kind("*") {
            return Some(0);
        }
        let mut kinds = self.0.lock();
        let known = kinds.iter().position(|known| **known == *kind);
        if known.is_none() && kinds.len() < Self::MOST {
            kinds.push(kind.into());
        }
        let place = known.or_else(|| kinds.len().checked_sub(1))?;
        (*kinds[place] == *kind).then_some(place as u16 + 1)
    }
}

impl Outlook {
    pub(super) fn of(segment: &Segment) -> Self {
        Self {
            segment: segment.clone(),
            fences: segment.fences().count(),
            known: segment.known(),
        }
    }
}

impl Shared {
    /// Makes `last` the best way for a request; with a pass, that is the one that tries whether the link
    /// works again.
    pub(super) fn best<'a>(
        &self,
        errand: &Errand<'_>,
        outlook: &'a Outlook,
        last: &mut Option<LastWay<'a>>,
        now: Instant,
    ) -> Result<Option<Pass>> {
        let serves = last.as_ref().and_then(|last| last.wanted.as_ref());
        match serves.is_some_and(|wanted| self.is_alike(errand, wanted)) {
            true => Ok(None),
            false => self.find_best(errand, outlook, last, now),
        }
    }

    /// What was found for `wanted` serves this one, too, as can be seen at a glance.
    fn is_alike(&self, errand: &Errand<'_>, wanted: &Wanted) -> bool {
        let asks = match &wanted.ask {
            Ask::Common(rank) => {
                let free = || self.selector.free_key(errand.op, errand.length);
                errand.qos.is_nameless() && !errand.receipt && free() == Some(*rank)
            }
            Ask::Special(special) => {
                let (length, qos) = &**special;
                *length == errand.length && qos.is_alike(errand.qos)
            }
        };
        let plain = |slice: &LocalSlice| slice.buffer().is_plain();
        asks && wanted.plain
            && wanted.op == errand.op
            && wanted.registration == errand.registration
            && wanted.receipt == errand.receipt
            && errand.local.iter().all(plain)
            && wanted.local == held_by_all(errand.op, errand.local)
    }

    /// Finds the best way, for this errand and those that follow.
    fn find_best<'a>(
        &self,
        errand: &Errand<'_>,
        outlook: &'a Outlook,
        last: &mut Option<LastWay<'a>>,
        now: Instant,
    ) -> Result<Option<Pass>> {
        let Outlook { segment, known, .. } = outlook;
        let wanted = self.wanted(errand, segment, known)?;
        if let Some(key) = self.key(&wanted, errand, known)
            && let Some(route) = known.routes.usual(&key, now)
            && let Some(way) = route.ways.first()
        {
            *last = Some(LastWay {
                wanted: Some(wanted),
                found: Found::Known(way),
                others: route.ways.len() > 1,
            });
            return Ok(None);
        }
        let pass = loop {
            *last = None;
            let mut trial = false;
            self.route(&wanted, errand, segment, known, now, &mut |route| {
                let Some(way) = route.ways.first().cloned() else {
                    return;
                };
                trial = way.lane.is_troubled() && !route.desperate;
                *last = Some(LastWay {
                    wanted: None,
                    found: Found::New(way),
                    others: route.ways.len() > 1,
                });
            });
            let Some(last) = last else {
                return Err(self.no_route(errand, segment));
            };
            if !trial {
                // Those that follow a trial do not try as well.
                last.wanted = Some(wanted);
                break None;
            }
            // Another request may be faster.
            let pass = last.way().lane.admit_probe();
            if pass.is_some() {
                break pass;
            }
        };
        Ok(pass)
    }

    /// What the choice of a link for `errand` depends on.
    #[inline]
    pub(super) fn wanted(
        &self,
        errand: &Errand<'_>,
        segment: &Segment,
        known: &Known,
    ) -> Result<Wanted> {
        let plain = errand.local.iter().all(|slice| slice.buffer().is_plain());
        if !plain {
            let kind = errand.kind();
            let other = |slice: &LocalSlice| memory_kind(slice.buffer().location()) != kind;
            if errand.local.iter().any(other) {
                return Err(Error::Invalid(
                    "the local pieces lie in memory of different kinds: each kind wants a \
                     request of its own"
                        .to_owned(),
                ));
            }
        }
        let free = match errand.qos.is_nameless() && !errand.receipt {
            true => self.selector.free_key(errand.op, errand.length),
            false => None,
        };
        let key = free.or_else(|| self.selector.key(&self.facts(errand, segment, known)));
        let ask = key.map_or_else(
            || Ask::Special(Box::new((errand.length, errand.qos.clone()))),
            Ask::Common,
        );
        Ok(Wanted {
            op: errand.op,
            registration: errand.registration,
            local: held_by_all(errand.op, errand.local),
            receipt: errand.receipt,
            plain,
            ask,
        })
    }

    /// Names of all links, by place.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.links.iter().map(|link| link.name())
    }

    /// What the selector is told of a request.
    fn facts<'a>(
        &self,
        errand: &Errand<'a>,
        segment: &Segment,
        known: &'a Known,
    ) -> RequestFacts<'a> {
        let machine = &self.parts.machine;
        let qos = errand.qos;
        RequestFacts {
            segment: match segment.provider() {
                Some(_) => SegmentKind::File,
                None => SegmentKind::Memory,
            },
            same_machine: !machine.is_empty() && known.descriptor.machine() == machine,
            local: errand.kind(),
            remote: remote_kind(errand.registration, &known.descriptor),
            priority: qos.priority(),
            intent: qos.intent(),
            tenant: qos.tenant(),
            policy: qos.policy(),
            hint: qos.hint(),
            devices: qos.devices(),
            pool: qos.pool(),
            receipt: errand.receipt,
            ..RequestFacts::new(errand.op, errand.length)
        }
    }

    #[inline]
    fn held(&self, local: u64, errand: &Errand<'_>, known: &Known) -> Held {
        let mut held = Held::any(errand.op);
        held.local = local;
        if let Some(registration) = errand.registration {
            held.remote = known.descriptor.links_of(registration, || self.names());
        }
        held
    }

    /// Gives `take` the links that can carry `errand`.
    pub(super) fn route(
        &self,
        wanted: &Wanted,
        errand: &Errand<'_>,
        segment: &Segment,
        known: &Known,
        now: Instant,
        take: &mut dyn FnMut(&Route),
    ) {
        let key = self.key(wanted, errand, known);
        if key.is_some_and(|key| known.routes.find(&key, now, take)) {
            return;
        }
        let facts = self.facts(errand, segment, known);
        let held = self.held(wanted.local, errand, known);
        let route = self.choose(&facts, held, segment, &known.descriptor);
        if let Some(key) = key
            && route.holds(now)
        {
            known.routes.keep(key, &route);
        }
        take(&route);
    }

    /// What routes are kept by; `None`: this one is not kept.
    #[inline]
    fn key(&self, wanted: &Wanted, errand: &Errand<'_>, known: &Known) -> Option<RouteKey> {
        match &wanted.ask {
            Ask::Common(rank) => {
                let kind = |kind| self.kinds.number(kind);
                let here = if wanted.plain {
                    Some(0)
                } else {
                    kind(errand.kind())
                };
                let there = match known.is_plain(errand.registration) {
                    true => Some(0),
                    false => kind(remote_kind(errand.registration, &known.descriptor)),
                };
                Some(RouteKey {
                    held: self.held(wanted.local, errand, known),
                    kinds: (here?, there?),
                    rank: *rank,
                })
            }
            Ask::Special(_) => None,
        }
    }

    fn choose(
        &self,
        facts: &RequestFacts<'_>,
        held: Held,
        segment: &Segment,
        descriptor: &SegmentDescriptor,
    ) -> Route {
        let Ranked {
            ranking,
            lanes,
            desperate,
        } = self.rank(facts, held, segment, descriptor);
        tracing::debug!(op = %facts.op, segment = segment.name(), %ranking, "links were chosen");
        let barred = ranking.excluded.iter().filter_map(|link| match link.why {
            Exclusion::Open { left, .. } => Some(left.min(TRIAL_HOLDS)),
            _ => None,
        });
        // They may come at any time.
        let awaited = || {
            ranking
                .excluded
                .iter()
                .any(|link| matches!(link.why, Exclusion::Absent { .. }))
        };
        let awaited = (awaited() && !self.parts.links.retried().is_empty()).then_some(CHOICE_HOLDS);
        let several = (ranking.ranked.len() > 1).then_some(CHOICE_HOLDS);
        let holds = barred.chain(several).chain(awaited).min();
        let terms = |devices: &Option<_>| {
            let terms = Terms {
                devices: devices.clone(),
                pool: ranking.pool.clone(),
                service_level: ranking.service_level,
                traffic_class: ranking.traffic_class,
            };
            (terms != Terms::default()).then(|| Arc::new(terms))
        };
        let ways = ranking.ranked.iter().map(|link| Way {
            link: link.index as u8,
            lane: Arc::clone(&lanes[link.index]),
            meter: lanes[link.index].meter(),
            terms: terms(&link.devices),
            estimate: link.estimate,
        });
        Route {
            ways: ways.collect(),
            until: holds.map(after),
            desperate,
        }
    }

    fn rank(
        &self,
        facts: &RequestFacts<'_>,
        held: Held,
        segment: &Segment,
        descriptor: &SegmentDescriptor,
    ) -> Ranked {
        let peer = descriptor.peer();
        let links = &self.parts.links;
        let lanes = self.lanes.to(peer.id(), segment, links.len());
        let absent: Vec<_> = (0..links.len()).map(|place| links.absence(place)).collect();
        let circuits: Vec<_> = lanes.iter().map(|lane| lane.circuit()).collect();
        let rates: Vec<_> = lanes.iter().map(|lane| lane.rates(facts.op)).collect();
        let mut judged: Vec<_> = links
            .iter()
            .enumerate()
            .map(|(place, link)| match &absent[place] {
                // Nothing is asked of one that is not installed.
                Some(absent) => LinkFacts {
                    absent: Some(&absent.why),
                    ..LinkFacts::new(absent.name, Capabilities::read_write())
                },
                None => LinkFacts {
                    joins: link.joins(),
                    devices: link.devices(),
                    reaches: link.reaches(peer),
                    accepts: held.by(place, link.capabilities()),
                    same_machine_only: link.capabilities().same_host,
                    bandwidth: link.estimated_bandwidth(),
                    rates: Some(&rates[place]),
                    health: {
                        let (circuit, now) = &circuits[place];
                        circuit.health(*now)
                    },
                    ..LinkFacts::new(link.name(), link.capabilities())
                },
            })
            .collect();
        let mut ranking = self.selector.rank(facts, &judged);
        let failed = |link: &Excluded| matches!(link.why, Exclusion::Open { .. });
        let desperate = ranking.ranked.is_empty() && ranking.excluded.iter().any(failed);
        if desperate {
            // Where all have failed, trying is better than not.
            for link in &mut judged {
                link.health = Health::Closed;
            }
            ranking = self.selector.rank(facts, &judged);
        }
        drop(judged);
        Ranked {
            ranking,
            lanes,
            desperate,
        }
    }

    /// What would become of a request, whatever buffers it names.
    pub(super) fn explain(&self, op: Op, length: u64, qos: &Qos, segment: &Segment) -> Ranking {
        let mut qos = qos.clone();
        if let Some(gate) = &self.gate {
            gate.0.bind(&mut qos);
        }
        let errand = Errand {
            op,
            length,
            local: &[],
            registration: None,
            receipt: false,
            qos: &qos,
        };
        let known = segment.known();
        let facts = self.facts(&errand, segment, &known);
        self.rank(&facts, Held::any(op), segment, &known.descriptor)
            .ranking
    }

    /// The link that would read from `segment`.
    pub(super) fn usual_link(&self, segment: &Segment) -> Result<usize> {
        let ranking = self.explain(Op::Read, TYPICAL, &Qos::new(), segment);
        let first = ranking.ranked.first();
        let link = first.map(|link| link.index);
        link.ok_or_else(|| no_route(Op::Read, segment, &ranking))
    }

    fn no_route(&self, errand: &Errand<'_>, segment: &Segment) -> Error {
        no_route(errand.op, segment, &self.why(errand, segment))
    }

    /// Which links could carry a request, and why, as it is at this moment.
    pub(super) fn why(&self, errand: &Errand<'_>, segment: &Segment) -> Ranking {
        let known = segment.known();
        let facts = self.facts(errand, segment, &known);
        let local = held_by_all(errand.op, errand.local);
        let held = self.held(local, errand, &known);
        self.rank(&facts, held, segment, &known.descriptor).ranking
    }
}

struct Ranked {
    ranking: Ranking,
    lanes: Vec<Arc<Lane>>,
    /// Nothing that it ranks works, as far as is known.
    desperate: bool,
}

fn no_route(op: Op, segment: &Segment, ranking: &Ranking) -> Error {
    Error::NoRoute {
        op: match op {
            Op::Read => "read",
            Op::Write => "write",
        },
        segment: segment.name().to_owned(),
        reasons: ranking.to_string(),
    }
}

/// The kind of the memory there, as far as is known.
fn remote_kind(registration: Option<RegistrationId>, descriptor: &SegmentDescriptor) -> &str {
    let buffer = registration.and_then(|id| descriptor.buffer(id));
    memory_kind(buffer.map_or("*", |buffer| &buffer.location))
}

/// A bit for each link that carries all of what is written from; of reads, all.
fn held_by_all(op: Op, local: &[LocalSlice]) -> u64 {
    match op {
        Op::Read => u64::MAX,
        Op::Write => {
            let held = local.iter().map(|slice| slice.buffer().links());
            held.fold(u64::MAX, |all, held| all & held)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_memory_that_peers_make_up_do_not_pile_up() {
        let kinds = Kinds::default();
        assert_eq!(kinds.number("cpu"), Some(0));
        assert_eq!(kinds.number("cuda"), Some(1));
        for made_up in 0..1000 {
            kinds.number(&format!("kind {made_up}"));
        }
        assert_eq!(kinds.number("kind 999"), None);
        assert_eq!(kinds.number("cuda"), Some(1));
        assert_eq!(kinds.0.lock().len(), Kinds::MOST);
    }
}
