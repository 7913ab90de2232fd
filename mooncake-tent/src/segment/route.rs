//! The links that were chosen for requests to a segment, so that they need not be chosen each time.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use crate::{
    lane::Lane,
    metrics::MeterId,
    selector::{Pass, RankKey},
    transport::{Capabilities, Op, Terms},
};

/// What the choice of a link depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteKey {
    /// Which links carry both ends.
    pub(crate) held: Held,
    /// The kinds of memory here and there, by number.
    pub(crate) kinds: (u16, u16),
    /// What the request asks.
    pub(crate) rank: RankKey,
}

/// Which links carry the buffers of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) op: Op,
    /// A bit for each link that carries the remote buffer, as far as is known.
    pub(crate) remote: u64,
    /// A bit for each link that carries all local ones that are written from.
    pub(crate) local: u64,
}

impl Held {
    /// Whatever the buffers are.
    pub(crate) fn any(op: Op) -> Self {
        Self {
            op,
            remote: u64::MAX,
            local: u64::MAX,
        }
    }

    /// The link at this place carries the buffers that it must.
    pub(crate) fn by(self, place: usize, link: Capabilities) -> bool {
        let held = |links: u64| links >> place & 1 == 1;
        held(self.remote) && (self.op == Op::Read || !link.sources || held(self.local))
    }
}

/// Links that can carry a request, the best first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Route {
    pub(crate) ways: SmallVec<[Way; 2]>,
    /// It is chosen anew from then on.
    pub(crate) until: Option<Instant>,
    /// None of them works, as far as is known.
    pub(crate) desperate: bool,
}

/// A link that can carry a request, and how.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// Its place among the engine's.
    pub(crate) link: u8,
    pub(crate) lane: Arc<Lane>,
    /// Where what goes there is counted.
    pub(crate) meter: MeterId,
    pub(crate) terms: Option<Arc<Terms>>,
    /// How long a request like that probably takes on it.
    pub(crate) estimate: Option<Duration>,
}

impl Way {
    pub(crate) fn link(&self) -> usize {
        usize::from(self.link)
    }

    /// `None`: it failed lately, and another task tries it already. With a pass, this is the one.
    pub(crate) fn permission(&self, route: &Route) -> Option<Option<Pass>> {
        match self.lane.is_troubled() && !route.desperate {
            true => self.lane.admit_probe().map(Some),
            false => Some(None),
        }
    }
}

impl Route {
    pub(crate) fn holds(&self, now: Instant) -> bool {
        let best = self.ways.first();
        let works = self.desperate || best.is_none_or(|way| !way.lane.is_troubled());
        works && self.until.is_none_or(|until| now < until)
    }
}

/// Routes by what they depend on.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// The first that was chosen for good in each direction: mostly there is no other.
    usual: [OnceLock<(RouteKey, Route)>; 2],
    others: ArcSwap<Others>,
}

/// Few: buffers of one owner are mostly held by the same links.
type Others = SmallVec<[(RouteKey, Route); 1]>;

impl Routes {
    /// The route for `key`, if that is the usual one and holds.
    pub(crate) fn usual(&self, key: &RouteKey, now: Instant) -> Option<&Route> {
        let (known, route) = self.usual[usize::from(key.held.op == Op::Write)].get()?;
        (known == key && route.holds(now)).then_some(route)
    }

    /// Gives `take` the route for `key`, if there is one that holds.
    pub(crate) fn find(&self, key: &RouteKey, now: Instant, take: &mut dyn FnMut(&Route)) -> bool {
        if let Some(route) = self.usual(key, now) {
            take(route);
            return true;
        }
        let others = self.others.load();
        let found = others.iter().find(|(known, _)| known == key);
        let held = found.filter(|(_, route)| route.holds(now));
        held.map(|(_, route)| take(route)).is_some()
    }

    /// Keeps a route.
    pub(crate) fn keep(&self, key: RouteKey, route: &Route) {
        let usual = &self.usual[usize::from(key.held.op == Op::Write)];
        if route.until.is_none() && usual.set((key, route.clone())).is_ok() {
            return;
        }
        self.others.rcu(|others| {
            let mut others = Others::clone(others);
            others.retain(|(known, _)| *known != key);
            others.push((key, route.clone()));
            others
        });
    }
}
