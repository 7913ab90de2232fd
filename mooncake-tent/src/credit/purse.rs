//! The sender's side: pays for requests, and hears of new grants.

use super::Credit;

/// What was spent since the session began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Purse {
    spent: Credit,
}

impl Purse {
    /// Pays `cost` if `granted` covers all of it; a request that goes `alone` always does.
    pub(crate) fn pay(&mut self, cost: Credit, granted: Credit, alone: bool) -> bool {
        let after = self.spent.plus(cost);
        let pays = alone || granted.covers(after);
        if pays {
            self.spent = after.min(granted).max(self.spent);
        }
        pays
    }

    /// What is granted beyond that.
    pub(crate) fn left(&self, granted: Credit) -> Credit {
        granted.minus(self.spent)
    }
}

/// What was granted since the session began, as the answers say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grants {
    /// What the requests cost that were answered.
    answered: Credit,
    granted: Credit,
}

impl Default for Grants {
    /// As long as no grant was heard of, there is no limit.
    fn default() -> Self {
        Self {
            answered: Credit::default(),
            granted: Credit::ENDLESS,
        }
    }
}

impl Grants {
    /// What a session begins with.
    pub(crate) fn first(granted: Credit) -> Self {
        Self {
            granted,
            ..Self::default()
        }
    }

    pub(crate) fn granted(&self) -> Credit {
        self.granted
    }

    /// What may be under way at once.
    pub(crate) fn room(&self) -> Credit {
        self.granted.minus(self.answered)
    }

    /// A request was answered that costs `cost`, and so much is granted now. A grant only grows.
    pub(crate) fn hear(&mut self, cost: Credit, granted: Credit) {
        // One that went alone has cost all that there was.
        self.answered = self.answered.plus(cost).min(self.granted);
        self.granted = self.granted.max(granted);
    }

    /// So much was given back of what was never spent.
    pub(crate) fn give_back(&mut self, unspent: Credit) {
        self.granted = self.granted.minus(unspent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit(bytes: u64, requests: u64) -> Credit {
        Credit { bytes, requests }
    }

    #[test]
    fn a_request_is_paid_as_a_whole_or_not_at_all() {
        let mut purse = Purse::default();
        let granted = credit(10, 3);
        assert!(purse.pay(Credit::of_request(8), granted, false));
        assert!(!purse.pay(Credit::of_request(3), granted, false));
        assert_eq!(purse.left(granted), credit(2, 2), "nothing was taken");
        assert!(purse.pay(Credit::of_request(1), granted, false));
        assert!(purse.pay(Credit::of_request(0), granted, false));
        assert!(
            !purse.pay(Credit::of_request(0), granted, false),
            "no request is left"
        );
    }

    #[test]
    fn what_is_too_large_goes_alone_and_takes_all() {
        let mut purse = Purse::default();
        let granted = credit(10, 3);
        assert!(!purse.pay(Credit::of_request(100), granted, false));
        assert!(purse.pay(Credit::of_request(100), granted, true));
        assert_eq!(purse.left(granted), credit(0, 2));
        // A receiver that grants nothing at all is still asked for one at a time.
        assert!(!purse.pay(Credit::of_request(1), Credit::default(), false));
        assert!(purse.pay(Credit::of_request(1), Credit::default(), true));
    }

    #[test]
    fn a_grant_that_is_late_or_comes_twice_changes_nothing() {
        let mut grants = Grants::first(credit(10, 3));
        let cost = Credit::of_request(4);
        grants.hear(cost, credit(14, 4));
        assert_eq!(grants.room(), credit(10, 3));
        for stale in [credit(14, 4), credit(10, 3), Credit::default()] {
            grants.hear(Credit::default(), stale);
            assert_eq!(grants.granted(), credit(14, 4));
        }
    }

    #[test]
    fn without_a_grant_there_is_no_limit() {
        let (mut purse, mut grants) = (Purse::default(), Grants::default());
        assert!(purse.pay(Credit::of_request(u64::MAX), grants.granted(), false));
        assert!(purse.pay(Credit::of_request(7), grants.granted(), false));
        grants.hear(Credit::of_request(7), credit(1, 1));
        assert_eq!(grants.granted(), Credit::ENDLESS);
    }
}
