//! The books of slots that are lent to peers: whose they are, for how long, and what is done in them.

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::{identity::Incarnation, time::Time};

/// Who asked, and the number that it gave to the slot.
pub(super) type Ticket = (Incarnation, u64);

/// What peers may do with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// They read what we put into it.
    Reads,
    /// They write what we then take out of it.
    Writes,
}

/// Slots `S` that are lent.
#[derive(Debug)]
pub(super) struct Ledger<S> {
    lent: FxHashMap<Ticket, Entry<S>>,
    lease: Duration,
}

#[derive(Debug)]
struct Entry<S> {
    use_: Use,
    state: State<S>,
    until: Time,
}

#[derive(Debug)]
enum State<S> {
    /// Nothing of ours is done in it.
    Ready(S),
    /// We copy into or out of it; `leaving`: it is taken back after that.
    Copying { leaving: bool },
    /// It is taken back, and bytes may still move in it.
    Retiring,
}

/// What becomes of a slot that a peer gives back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Released<S> {
    /// Nobody has such a ticket (any more): nothing of it moves.
    Unknown,
    /// Others may have it.
    Free(S),
    /// It must not be used again before nothing can move in it; then it has to be
    /// [struck out](Ledger::retired).
    Retire(S),
    /// Bytes may still move in it.
    NotQuiet,
}

impl<S> Ledger<S> {
    /// Whose slots are taken back after so long without a word.
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            lent: FxHashMap::default(),
            lease,
        }
    }

    /// Lends a slot, unless the ticket is in use: then it comes back.
    pub(super) fn lend(&mut self, now: Time, ticket: Ticket, use_: Use, slot: S) -> Result<(), S> {
        if self.lent.contains_key(&ticket) {
            return Err(slot);
        }
        let until = now + self.lease;
        let state = State::Ready(slot);
        self.lent.insert(ticket, Entry { use_, state, until });
        Ok(())
    }

    /// It is lent, or not quiet yet.
    pub(super) fn knows(&self, ticket: Ticket) -> bool {
        self.lent.contains_key(&ticket)
    }

    /// Takes a slot out to copy into it or out of it, and until when that may begin; `None`: there is none
    /// that is lent for this and ready. It has to be [put back](Self::copied).
    pub(super) fn begin(&mut self, now: Time, ticket: Ticket, use_: Use) -> Option<(S, Time)> {
        let entry = self.lent.get_mut(&ticket)?;
        let ready = matches!(entry.state, State::Ready(_)) && entry.use_ == use_;
        if !ready || entry.until <= now {
            return None;
        }
        match std::mem::replace(&mut entry.state, State::Copying { leaving: false }) {
            State::Ready(slot) => Some((slot, entry.until)),
            _ => unreachable!("it was just seen to be ready"),
        }
    }

    /// The copy has ended. The slot comes back if it has to be retired.
    #[must_use]
    pub(super) fn copied(&mut self, now: Time, ticket: Ticket, slot: S) -> Option<S> {
        let Some(entry) = self.lent.get_mut(&ticket) else {
            return Some(slot);
        };
        entry.until = now + self.lease;
        match entry.state {
            State::Copying { leaving: false } => {
                entry.state = State::Ready(slot);
                None
            }
            _ => {
                entry.state = State::Retiring;
                Some(slot)
            }
        }
    }

    /// A peer gives a slot back. `clean`: it says that nothing of its own can reach it any more.
    pub(super) fn release(&mut self, ticket: Ticket, clean: bool) -> Released<S> {
        let Some(entry) = self.lent.get_mut(&ticket) else {
            return Released::Unknown;
        };
        match std::mem::replace(&mut entry.state, State::Retiring) {
            State::Ready(slot) if clean => {
                self.lent.remove(&ticket);
                Released::Free(slot)
            }
            State::Ready(slot) => Released::Retire(slot),
            State::Copying { .. } => {
                entry.state = State::Copying { leaving: true };
                Released::NotQuiet
            }
            State::Retiring => Released::NotQuiet,
        }
    }

    /// Slots whose leases are over, which have to be retired. One that is being copied waits for that.
    pub(super) fn expire(&mut self, now: Time) -> Vec<(Ticket, S)> {
        let mut expired = Vec::new();
        for (ticket, entry) in &mut self.lent {
            if entry.until > now || !matches!(entry.state, State::Ready(_)) {
                continue;
            }
            if let State::Ready(slot) = std::mem::replace(&mut entry.state, State::Retiring) {
                expired.push((*ticket, slot));
            }
        }
        expired
    }

    /// All that are ready, whose leases end now.
    pub(super) fn recall(&mut self) -> Vec<(Ticket, S)> {
        self.expire(Time(u64::MAX))
    }

    /// Nothing moves any more in a slot that was retired.
    pub(super) fn retired(&mut self, ticket: Ticket) {
        let entry = self.lent.get(&ticket);
        if entry.is_some_and(|entry| matches!(entry.state, State::Retiring)) {
            self.lent.remove(&ticket);
        }
    }

    /// When to [expire](Self::expire) next; `None`: nothing is lent.
    pub(super) fn next_end(&self) -> Option<Time> {
        self.lent.values().map(|entry| entry.until).min()
    }

    pub(super) fn len(&self) -> usize {
        self.lent.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_micros(100);

    fn ticket(number: u64) -> Ticket {
        (Incarnation::from_u64(7).unwrap(), number)
    }

    fn with_one(use_: Use) -> Ledger<&'static str> {
        let mut ledger = Ledger::new(LEASE);
        ledger.lend(Time(0), ticket(1), use_, "slot").unwrap();
        ledger
    }

    #[test]
    fn a_slot_is_used_by_its_ticket_and_for_what_it_was_lent() {
        let mut ledger = with_one(Use::Writes);
        let other = (Incarnation::from_u64(8).unwrap(), 1);
        assert_eq!(ledger.begin(Time(1), other, Use::Writes), None);
        assert_eq!(ledger.begin(Time(1), ticket(2), Use::Writes), None);
        assert_eq!(ledger.begin(Time(1), ticket(1), Use::Reads), None);
        assert_eq!(
            ledger.begin(Time(1), ticket(1), Use::Writes).map(|it| it.0),
            Some("slot")
        );
        assert_eq!(ledger.begin(Time(1), ticket(1), Use::Writes), None, "once");
        assert_eq!(ledger.copied(Time(2), ticket(1), "slot"), None);
        assert_eq!(
            ledger.begin(Time(3), ticket(1), Use::Writes).map(|it| it.0),
            Some("slot")
        );
        let again = ledger.lend(Time(3), ticket(1), Use::Reads, "other");
        assert_eq!(again, Err("other"), "a ticket is not used twice");
    }

    #[test]
    fn a_clean_slot_is_free_at_once_and_any_other_only_when_it_is_quiet() {
        let mut ledger = with_one(Use::Writes);
        assert_eq!(ledger.release(ticket(1), true), Released::Free("slot"));
        assert_eq!(ledger.release(ticket(1), true), Released::Unknown);
        let mut ledger = with_one(Use::Writes);
        assert_eq!(ledger.release(ticket(1), false), Released::Retire("slot"));
        assert_eq!(ledger.release(ticket(1), true), Released::NotQuiet);
        assert_eq!(ledger.begin(Time(1), ticket(1), Use::Writes), None);
        ledger.retired(ticket(1));
        assert_eq!(ledger.release(ticket(1), false), Released::Unknown);
        assert_eq!((ledger.len(), ledger.next_end()), (0, None));
    }

    #[test]
    fn a_slot_that_is_given_back_during_a_copy_is_quiet_only_after_it() {
        let mut ledger = with_one(Use::Writes);
        ledger.begin(Time(1), ticket(1), Use::Writes).unwrap();
        assert_eq!(ledger.release(ticket(1), true), Released::NotQuiet);
        ledger.retired(ticket(1));
        assert!(ledger.knows(ticket(1)), "it is being copied");
        assert_eq!(ledger.copied(Time(9), ticket(1), "slot"), Some("slot"));
        assert_eq!(ledger.release(ticket(1), false), Released::NotQuiet);
        ledger.retired(ticket(1));
        assert!(!ledger.knows(ticket(1)));
    }

    #[test]
    fn a_slot_whose_holder_is_silent_comes_back_and_one_in_use_does_not() {
        let mut ledger = with_one(Use::Reads);
        assert_eq!(ledger.next_end(), Some(Time(100)));
        assert_eq!(ledger.expire(Time(99)), []);
        ledger.begin(Time(99), ticket(1), Use::Reads).unwrap();
        assert_eq!(ledger.expire(Time(500)), [], "it is being copied");
        assert_eq!(ledger.copied(Time(500), ticket(1), "slot"), None);
        assert_eq!(ledger.expire(Time(599)), []);
        assert_eq!(ledger.begin(Time(600), ticket(1), Use::Reads), None);
        assert_eq!(ledger.expire(Time(600)), [(ticket(1), "slot")]);
        assert_eq!(ledger.expire(Time(600)), []);
        assert!(ledger.knows(ticket(1)), "until it is quiet");
        ledger.retired(ticket(1));
        assert_eq!(ledger.len(), 0);
    }
}
