//! Answers that come later: those of work that is taken in steps, and of removes that wait until
//! nobody can read what they removed.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Answer, Caller, Effect, Failure, Operation, State, tenants::TenantId};

/// More answers are not promised at once: each costs memory until it comes.
pub(crate) const MAX_PROMISES: usize = 65_536;

#[derive(Debug)]
struct Promise {
    caller: Caller,
    operation: Operation,
    answer: Answer,
    /// Bodies that may still be read, and work that is not done.
    open: usize,
}

/// All answers that wait.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    waiting: FxHashMap<u64, Promise>,
    /// Who waits for the last lease on a gone body, by its slot.
    read: FxHashMap<u32, SmallVec<[u64; 1]>>,
    /// Gone bodies with leases, by the hashes of their keys.
    leased: FxHashMap<u64, SmallVec<[u32; 1]>>,
    last: u64,
}

impl Promises {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there may be another one.
    pub(crate) fn admit(&self) -> Result<(), Failure> {
        let held = self.waiting.len();
        if held >= MAX_PROMISES {
            return Err(Failure::PromisesPileUp { held: held as u64 });
        }
        Ok(())
    }

    /// A promise that is open until its beginner [passes](Self::pass) it.
    pub(crate) fn begin(&mut self, caller: &Caller, operation: &Operation, answer: Answer) -> u64 {
        self.last += 1;
        let promise = Promise {
            caller: caller.clone(),
            operation: operation.clone(),
            answer,
            open: 1,
        };
        self.waiting.insert(self.last, promise);
        self.last
    }

    /// It also waits for the leases on this gone body.
    pub(crate) fn wait_for(&mut self, ticket: u64, slot: u32) {
        if let Some(promise) = self.waiting.get_mut(&ticket) {
            promise.open += 1;
            self.read.entry(slot).or_default().push(ticket);
        }
    }

    /// It also waits for something that [`State::settle`] ends.
    pub(crate) fn hold(&mut self, ticket: u64) {
        if let Some(promise) = self.waiting.get_mut(&ticket) {
            promise.open += 1;
        }
    }

    pub(crate) fn set_answer(&mut self, ticket: u64, answer: Answer) {
        if let Some(promise) = self.waiting.get_mut(&ticket) {
            promise.answer = answer;
        }
    }

    /// One thing less to wait for; the promise, once there is nothing.
    fn pass(&mut self, ticket: u64) -> Option<Promise> {
        let promise = self.waiting.get_mut(&ticket)?;
        promise.open -= 1;
        if promise.open > 0 {
            return None;
        }
        self.waiting.remove(&ticket)
    }
}

impl State {
    /// Its beginner has nothing to add: the answer, or the promise of one.
    pub(super) fn close_promise(&mut self, ticket: u64) -> Answer {
        match self.promises.pass(ticket) {
            Some(promise) => promise.answer,
            None => Answer::Later { ticket },
        }
    }

    /// The answer if it has come already, or the promise of one.
    pub(super) fn take_settled(&mut self, ticket: u64) -> Answer {
        let settled =
            |effect: &Effect| matches!(effect, Effect::Settled { ticket: it, .. } if *it == ticket);
        match self.effects.iter().position(settled) {
            Some(at) => match self.effects.remove(at) {
                Effect::Settled { answer, .. } => answer,
                _ => unreachable!("it was found by its kind"),
            },
            None => Answer::Later { ticket },
        }
    }

    /// A body is gone that may still be read.
    pub(super) fn gone_while_read(&mut self, slot: u32) {
        let bodies = &self.objects.bodies;
        let tenant = bodies[slot].tenant();
        let hash = self.objects.hash_of(tenant, bodies.key(slot));
        self.promises.leased.entry(hash).or_default().push(slot);
    }

    /// Bodies of the key that are gone and may still be read.
    pub(super) fn still_read(&self, tenant: TenantId, key: &[u8]) -> impl Iterator<Item = u32> {
        let leased = &self.promises.leased;
        let slots = (!leased.is_empty())
            .then(|| leased.get(&self.objects.hash_of(tenant, key)))
            .flatten();
        let theirs = move |slot: &u32| self.objects.bodies.is_of(*slot, tenant, key);
        slots.into_iter().flatten().copied().filter(theirs)
    }

    /// The last lease on a gone body has ended.
    pub(super) fn unread(&mut self, slot: u32) {
        let bodies = &self.objects.bodies;
        let tenant = bodies[slot].tenant();
        let hash = self.objects.hash_of(tenant, bodies.key(slot));
        if let Entry::Occupied(mut slots) = self.promises.leased.entry(hash) {
            slots.get_mut().retain(|other| *other != slot);
            if slots.get().is_empty() {
                slots.remove();
            }
        }
        if self.promises.read.is_empty() {
            return;
        }
        for ticket in self.promises.read.remove(&slot).unwrap_or_default() {
            self.settle(ticket);
        }
    }

    /// One thing less to wait for.
    pub(super) fn settle(&mut self, ticket: u64) {
        let Some(promise) = self.promises.pass(ticket) else {
            return;
        };
        let Promise {
            caller,
            operation,
            answer,
            ..
        } = promise;
        if let Caller::Session { client, number } = caller
            && let Some(client) = self.clients.all.get_mut(&client)
        {
            client.answers().replace(number, answer.clone());
        }
        self.effects.push(Effect::Settled {
            ticket,
            caller,
            operation,
            answer,
        });
    }
}
