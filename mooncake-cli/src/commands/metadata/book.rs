//! Values under keys, each for as long as its lease lasts: pure, time is passed in.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

/// What an entry takes besides its texts.
const OVERHEAD: u64 = 128;

/// All entries.
#[derive(Debug)]
pub(super) struct Book {
    entries: HashMap<String, Held>,
    bytes: u64,
    capacity: u64,
}

#[derive(Debug)]
struct Held {
    value: Bytes,
    owner: String,
    until: Duration,
}

/// Who wants which value under which key.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) key: String,
    pub(super) owner: String,
    pub(super) replaces: Option<String>,
    pub(super) ttl: Duration,
    pub(super) value: Bytes,
}

/// What became of a put.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Put {
    Stored,
    /// Another owner has this value there.
    HeldBy(Bytes),
    /// There is no room.
    Full,
}

/// What became of a removal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Removed,
    Absent,
    HeldBy(Bytes),
}

impl Book {
    /// Entries may take so many bytes together.
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            entries: HashMap::new(),
            bytes: 0,
            capacity,
        }
    }

    /// Puts a value there until `ttl` from now, unless another owner's is there that it does not
    /// replace.
    pub(super) fn put(&mut self, now: Duration, wanted: Wanted) -> Put {
        let holder = self.entries.get(&wanted.key);
        let others = holder.filter(|held| {
            held.until > now
                && held.owner != wanted.owner
                && wanted.replaces.as_ref() != Some(&held.owner)
        });
        if let Some(held) = others {
            return Put::HeldBy(held.value.clone());
        }
        let before = holder.map_or(0, |held| held.size(&wanted.key));
        let held = Held {
            until: now.saturating_add(wanted.ttl),
            value: wanted.value,
            owner: wanted.owner,
        };
        let bytes = self.bytes - before + held.size(&wanted.key);
        if bytes > self.capacity && bytes > self.bytes {
            return Put::Full;
        }
        self.bytes = bytes;
        self.entries.insert(wanted.key, held);
        Put::Stored
    }

    /// What is there.
    pub(super) fn get(&self, now: Duration, key: &str) -> Option<Bytes> {
        let held = self.entries.get(key).filter(|held| held.until > now)?;
        Some(held.value.clone())
    }

    /// Removes what this owner has there.
    pub(super) fn remove(&mut self, now: Duration, key: &str, owner: &str) -> Removal {
        match self.entries.get(key) {
            Some(held) if held.until > now && held.owner != owner => {
                Removal::HeldBy(held.value.clone())
            }
            Some(held) if held.until > now => {
                self.bytes -= held.size(key);
                self.entries.remove(key);
                Removal::Removed
            }
            _ => Removal::Absent,
        }
    }

    /// Drops every entry whose lease has ended, and says how many these were.
    pub(super) fn expire(&mut self, now: Duration) -> u64 {
        let before = self.entries.len();
        let bytes = &mut self.bytes;
        self.entries.retain(|key, held| {
            let lasts = held.until > now;
            if !lasts {
                *bytes -= held.size(key);
            }
            lasts
        });
        (before - self.entries.len()) as u64
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Held {
    fn size(&self, key: &str) -> u64 {
        (key.len() + self.owner.len() + self.value.len()) as u64 + OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TTL: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn wanted(key: &str, owner: &str, value: &'static str) -> Wanted {
        Wanted {
            key: key.to_owned(),
            owner: owner.to_owned(),
            replaces: None,
            ttl: TTL,
            value: value.into(),
        }
    }

    #[test]
    fn a_value_belongs_to_its_owner_until_its_lease_ends() {
        let mut book = Book::new(1 << 20);
        assert_eq!(book.put(at(0), wanted("k", "a", "1")), Put::Stored);
        assert_eq!(
            book.put(at(4), wanted("k", "b", "2")),
            Put::HeldBy("1".into())
        );
        assert_eq!(book.remove(at(4), "k", "b"), Removal::HeldBy("1".into()));
        assert_eq!(
            book.put(at(4), wanted("k", "a", "3")),
            Put::Stored,
            "renewed"
        );
        assert_eq!(book.get(at(8), "k"), Some("3".into()));
        assert_eq!((book.get(at(9), "k"), book.len()), (None, 1));
        assert_eq!(book.put(at(9), wanted("k", "b", "2")), Put::Stored);
        let mut replaces = wanted("k", "c", "4");
        replaces.replaces = Some("a".to_owned());
        assert_eq!(book.put(at(9), replaces.clone()), Put::HeldBy("2".into()));
        replaces.replaces = Some("b".to_owned());
        assert_eq!(book.put(at(9), replaces), Put::Stored);
        assert_eq!(book.remove(at(9), "k", "c"), Removal::Removed);
        assert_eq!(book.remove(at(9), "k", "c"), Removal::Absent);
        assert_eq!((book.len(), book.bytes()), (0, 0));
    }

    #[test]
    fn a_full_book_takes_no_more_but_renews_what_it_has() {
        let mut book = Book::new(2 * (OVERHEAD + 3));
        for key in ["1", "2"] {
            assert_eq!(book.put(at(0), wanted(key, "a", "v")), Put::Stored);
        }
        assert_eq!(book.put(at(1), wanted("3", "a", "v")), Put::Full);
        assert_eq!(book.put(at(1), wanted("1", "a", "w")), Put::Stored);
        assert_eq!(book.put(at(1), wanted("1", "a", "long")), Put::Full);
        assert_eq!(book.expire(at(5)), 1, "the second one");
        assert_eq!(book.put(at(5), wanted("3", "a", "v")), Put::Stored);
    }

    proptest! {
        #[test]
        fn what_is_charged_is_released(
            steps in proptest::collection::vec((0..4_u8, 0..3_u8, 0..3_u8, 0..9_u64), 0..60),
        ) {
            let mut book = Book::new(500);
            let mut now = 0;
            for (step, key, owner, seconds) in steps {
                now += seconds;
                let (key, owner) = (key.to_string(), owner.to_string());
                match step {
                    0 | 1 => drop(book.put(at(now), wanted(&key, &owner, "value"))),
                    2 => drop(book.remove(at(now), &key, &owner)),
                    _ => drop(book.expire(at(now))),
                }
                let sum = book.entries.iter().map(|(key, held)| held.size(key)).sum::<u64>();
                prop_assert_eq!(book.bytes(), sum);
                prop_assert!(sum <= 500);
            }
            book.expire(at(now) + TTL);
            prop_assert_eq!((book.len(), book.bytes()), (0, 0));
        }
    }
}
