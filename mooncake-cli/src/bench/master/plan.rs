//! What a client does, and with which keys.

use bytes::Bytes;

use super::keys::Keys;

/// What is done with the keys of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Ask whether they exist; all do, or none does.
    Exist {
        /// What the answer must be.
        found: bool,
    },
    /// Start a put of each, and end it.
    Put,
    /// Look them up, and give the lease back.
    Query,
}

/// The shape of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) work: Work,
    /// Keys of one call.
    pub(super) batch: usize,
    /// Calls of one client under way.
    pub(super) depth: usize,
}

/// Where keys come from.
#[derive(Debug)]
pub(super) enum Source {
    /// Around and around.
    Known { keys: Vec<Bytes>, at: usize },
    /// A new one each time.
    Fresh { keys: Keys, next: u64 },
}

impl Source {
    /// So many keys from the first of `keys` on, around and around.
    pub(super) fn known(keys: &Keys, count: u64) -> Self {
        Self::Known {
            keys: (0..count).map(|number| keys.key(number)).collect(),
            at: 0,
        }
    }

    /// Keys that nobody has seen.
    pub(super) fn fresh(keys: Keys) -> Self {
        Self::Fresh { keys, next: 0 }
    }

    /// The next keys.
    pub(super) fn take(&mut self, count: usize) -> Vec<Bytes> {
        match self {
            Self::Known { keys, at } => {
                let count = count.min(keys.len());
                if *at + count > keys.len() {
                    *at = 0;
                }
                let taken = keys[*at..*at + count].to_vec();
                *at += count;
                taken
            }
            Self::Fresh { keys, next } => {
                let first = *next;
                *next += count as u64;
                (first..*next).map(|number| keys.key(number)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keys_come_around_and_fresh_ones_never_do() {
        let keys = Keys::new(20, 0);
        let mut known = Source::known(&keys, 5);
        let first = known.take(2);
        assert_eq!(known.take(2), [keys.key(2), keys.key(3)]);
        assert_eq!(known.take(2), first);
        assert_eq!(known.take(99).len(), 5);
        let mut fresh = Source::fresh(keys.clone());
        assert_eq!(fresh.take(2), first);
        assert_eq!(fresh.take(1), [keys.key(2)]);
    }
}
