//! Who goes on its way, and who waits.

use std::{collections::BTreeMap, time::Duration};

use rustc_hash::FxHashMap;

use super::{AdmissionConfig, contract::Bounds, contract::Limits};
use crate::{Time, qos::Intent};

/// Lets requests through by windows and contracts. `T` names those that wait.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    most: Limits,
    most_waiting: usize,
    aging: Duration,
    /// On their way, in all and by account.
    flying: Load,
    accounts: FxHashMap<Account, Load>,
    /// How many wait, by account.
    queued: FxHashMap<Account, usize>,
    next: u64,
    waiting: FxHashMap<u64, Waiting<T>>,
    /// In the order in which they go.
    order: BTreeMap<Rank, ()>,
    /// When each counts as more urgent.
    aging_at: BTreeMap<(Time, u64), ()>,
    /// When each is too late.
    late_at: BTreeMap<(Time, u64), ()>,
    closed: bool,
}

/// Whose limits a request counts against: those of a tenant, or of one intent of it.
type Account = (Box<str>, Option<Intent>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    bytes: u64,
    requests: u64,
}

/// The step of urgency, 0 for those that have waited long; then the deadline; then who came first.
type Rank = (u8, Time, u64);

#[derive(Debug)]
struct Waiting<T> {
    rank: Rank,
    deadline: Time,
    aging_at: Time,
    charge: Charge,
    limits: [Limits; 2],
    /// Not there before its task is.
    token: Option<T>,
}

/// A request at the gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) bytes: u64,
    pub(crate) deadline: Time,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) intent: Intent,
    pub(crate) bounds: Bounds,
}

/// What a request that goes counts as, until [`Gate::release`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "what is charged is released"]
pub(crate) struct Charge {
    bytes: u64,
    accounts: Vec<Account>,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// It goes.
    Goes(Charge),
    /// It waits, under this number.
    Waits(u64),
}

/// Why a request may not even wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// So many wait already.
    Full(usize),
    /// Its contract lets it not wait.
    MayNotWait,
    /// The engine is being shut down.
    Stopped,
}

/// What may go.
enum Fit {
    Fits,
    /// Its own tenant has too much on its way.
    Account,
    /// There is too much on its way.
    Window,
}

impl<T> Gate<T> {
    pub(crate) fn new(config: &AdmissionConfig) -> Self {
        Self {
            most: Limits {
                bytes: config.most_bytes,
                requests: config
                    .most_requests
                    .map(|most| u64::try_from(most.max(1)).unwrap_or(u64::MAX)),
            },
            most_waiting: config.most_waiting,
            aging: config.aging.max(Duration::from_micros(1)),
            flying: Load::default(),
            accounts: FxHashMap::default(),
            queued: FxHashMap::default(),
            next: 0,
            waiting: FxHashMap::default(),
            order: BTreeMap::new(),
            aging_at: BTreeMap::new(),
            late_at: BTreeMap::new(),
            closed: false,
        }
    }

    /// So many bytes of a request of this kind may go at once, if there is a limit.
    pub(crate) fn most_bytes(&self, bounds: &Bounds) -> Option<u64> {
        let limits = bounds.limits.iter().chain([&self.most]);
        limits.filter_map(|limits| limits.bytes).min()
    }

    /// The next part of a request that came before, whose contract and room to wait were looked at
    /// then.
    pub(crate) fn come_back(&mut self, now: Time, entry: &Entry<'_>) -> Result<Offer, Refusal> {
        self.enter(now, entry, true)
    }

    /// A request comes. One that waits is not [next](Self::next) before it is [named](Self::name).
    pub(crate) fn offer(&mut self, now: Time, entry: &Entry<'_>) -> Result<Offer, Refusal> {
        self.enter(now, entry, false)
    }

    fn enter(&mut self, now: Time, entry: &Entry<'_>, again: bool) -> Result<Offer, Refusal> {
        if self.closed {
            return Err(Refusal::Stopped);
        }
        let Bounds { limits, delay, .. } = entry.bounds;
        let charge = self.charge(entry);
        // Whoever waits for the window has come before; whoever waits for its tenant is in the way of
        // that tenant alone.
        let queued = |account| self.queued.contains_key(account);
        let overtakes = charge.accounts.iter().any(queued) || self.waits_for_window();
        if !overtakes && matches!(self.fit(&charge, &limits), Fit::Fits) {
            self.take(&charge);
            return Ok(Offer::Goes(charge));
        }
        if !delay && !again {
            return Err(Refusal::MayNotWait);
        }
        if self.waiting.len() >= self.most_waiting && !again {
            return Err(Refusal::Full(self.most_waiting));
        }
        let number = self.next;
        self.next += 1;
        let rank = (entry.bounds.priority.level() + 1, entry.deadline, number);
        let aging_at = now + self.aging;
        self.order.insert(rank, ());
        self.aging_at.insert((aging_at, number), ());
        self.late_at.insert((entry.deadline, number), ());
        let waiting = Waiting {
            rank,
            deadline: entry.deadline,
            aging_at,
            charge,
            limits,
            token: None,
        };
        for account in &waiting.charge.accounts {
            *self.queued.entry(account.clone()).or_default() += 1;
        }
        self.waiting.insert(number, waiting);
        Ok(Offer::Waits(number))
    }

    /// Whom a number stands for.
    pub(crate) fn name(&mut self, number: u64, token: T) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            waiting.token = Some(token);
        }
    }

    /// The next that goes now, if one does.
    pub(crate) fn next(&mut self, now: Time) -> Option<(T, Charge)> {
        self.age(now);
        let mut found = None;
        let mut blocked: Vec<&Account> = Vec::new();
        for (_, _, number) in self.order.keys() {
            let waiting = &self.waiting[number];
            if waiting.token.is_none() {
                continue;
            }
            let accounts = &waiting.charge.accounts;
            if accounts.iter().any(|account| blocked.contains(&account)) {
                continue;
            }
            match self.fit(&waiting.charge, &waiting.limits) {
                Fit::Fits => {
                    found = Some(*number);
                    break;
                }
                Fit::Account => blocked.extend(accounts),
                // Nobody overtakes it, or a large one would wait for ever.
                Fit::Window => break,
            }
        }
        let waiting = self.remove(found?)?;
        self.take(&waiting.charge);
        Some((waiting.token?, waiting.charge))
    }

    /// One that is too late by now.
    pub(crate) fn late(&mut self, now: Time) -> Option<T> {
        let mut late = self.late_at.range(..(now, 0));
        let waiting = &self.waiting;
        let is_named = |number: &u64| waiting[number].token.is_some();
        let number = late.find_map(|((_, number), ())| is_named(number).then_some(*number))?;
        self.remove(number)?.token
    }

    /// Whoever had this number waits no more. `None`: it did not.
    pub(crate) fn leave(&mut self, number: u64) -> Option<T> {
        self.remove(number)?.token
    }

    /// One of those that wait, whichever; and nobody comes any more.
    pub(crate) fn close(&mut self) -> Option<T> {
        self.closed = true;
        let named =
            |(number, waiting): (&u64, &Waiting<T>)| waiting.token.is_some().then_some(*number);
        let number = self.waiting.iter().find_map(named)?;
        self.remove(number)?.token
    }

    /// It is on its way no more.
    pub(crate) fn release(&mut self, charge: &Charge) {
        self.flying.less(charge.bytes);
        for account in &charge.accounts {
            if let Some(load) = self.accounts.get_mut(account) {
                load.less(charge.bytes);
                if *load == Load::default() {
                    self.accounts.remove(account);
                }
            }
        }
    }

    /// When [`next`](Self::next) or [`late`](Self::late) may say something new without a release.
    pub(crate) fn next_event(&self) -> Option<Time> {
        let late = self.late_at.keys().next();
        late.map(|(at, _)| *at)
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Nothing waits and nothing is on its way.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let books = self.accounts.is_empty() && self.flying == Load::default();
        books
            && self.waiting.is_empty()
            && self.queued.is_empty()
            && self.order.is_empty()
            && self.late_at.is_empty()
    }

    fn charge(&self, entry: &Entry<'_>) -> Charge {
        let name = || Box::from(entry.tenant.unwrap_or_default());
        let [all, special] = entry.bounds.limits;
        let mut accounts = Vec::new();
        if all.is_any() {
            accounts.push((name(), None));
        }
        if special.is_any() {
            accounts.push((name(), Some(entry.intent)));
        }
        Charge {
            bytes: entry.bytes,
            accounts,
        }
    }

    fn fit(&self, charge: &Charge, limits: &[Limits; 2]) -> Fit {
        for account in &charge.accounts {
            let limits = &limits[usize::from(account.1.is_some())];
            let load = self.accounts.get(account).copied().unwrap_or_default();
            if !load.fits(charge.bytes, limits) {
                return Fit::Account;
            }
        }
        match self.flying.fits(charge.bytes, &self.most) {
            true => Fit::Fits,
            false => Fit::Window,
        }
    }

    fn waits_for_window(&self) -> bool {
        self.order.keys().any(|(_, _, number)| {
            let waiting = &self.waiting[number];
            !matches!(self.fit(&waiting.charge, &waiting.limits), Fit::Account)
        })
    }

    fn take(&mut self, charge: &Charge) {
        self.flying.more(charge.bytes);
        for account in &charge.accounts {
            let load = self.accounts.entry(account.clone()).or_default();
            load.more(charge.bytes);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&number)?;
        self.order.remove(&waiting.rank);
        self.aging_at.remove(&(waiting.aging_at, number));
        self.late_at.remove(&(waiting.deadline, number));
        for account in &waiting.charge.accounts {
            if let Some(count) = self.queued.get_mut(account) {
                *count -= 1;
                if *count == 0 {
                    self.queued.remove(account);
                }
            }
        }
        Some(waiting)
    }

    /// Whoever has waited for long enough takes a step.
    fn age(&mut self, now: Time) {
        while let Some((&(at, number), ())) = self.aging_at.first_key_value() {
            if at > now {
                return;
            }
            self.aging_at.remove(&(at, number));
            let Some(waiting) = self.waiting.get_mut(&number) else {
                continue;
            };
            self.order.remove(&waiting.rank);
            let (step, deadline, _) = waiting.rank;
            waiting.rank = match step.saturating_sub(1) {
                // Among those that have waited long, the first goes first.
                0 => (0, Time::ZERO, number),
                step => (step, deadline, number),
            };
            self.order.insert(waiting.rank, ());
            if waiting.rank.0 > 0 {
                waiting.aging_at = at + self.aging;
                self.aging_at.insert((waiting.aging_at, number), ());
            }
        }
    }
}

impl Load {
    /// So many bytes may come to it. What is larger than the limit comes alone.
    fn fits(self, bytes: u64, limits: &Limits) -> bool {
        let requests = limits.requests.is_none_or(|most| self.requests < most);
        let sum = self.bytes.saturating_add(bytes);
        let alone = self.requests == 0;
        requests && (alone || limits.bytes.is_none_or(|most| sum <= most))
    }

    fn more(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.requests += 1;
    }

    fn less(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.requests -= 1;
    }
}

#[cfg(test)]
mod tests;
