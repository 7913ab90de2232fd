//! A sorted map of which one entry more or less costs next to nothing, however many there are, and a
//! copy nothing at all: copies share their chunks.

use std::{fmt, sync::Arc};

/// The most entries of a chunk.
const MOST: usize = 128;
/// A chunk with fewer joins its neighbour if both fit well into one.
const FEW: usize = MOST / 4;

/// How far an entry reaches, whatever that is measured in.
pub(crate) trait Reach {
    fn reach(&self) -> u64;
}

/// Entries sorted by key, each key once.
pub(crate) struct Chunks<K, V> {
    /// None is empty.
    chunks: Arc<Vec<Headed<K, V>>>,
    len: usize,
}

type Chunk<K, V> = Vec<(K, V)>;

/// A chunk, and what one may know without looking into it.
struct Headed<K, V> {
    /// Its lowest key.
    first: K,
    /// The farthest that an entry of it reaches.
    reach: u64,
    chunk: Arc<Chunk<K, V>>,
}

impl<K: Copy, V: Reach> Headed<K, V> {
    fn new(entries: Chunk<K, V>) -> Self {
        let (first, reach) = head(&entries);
        Self {
            first,
            reach,
            chunk: Arc::new(entries),
        }
    }

    /// Its entries have changed.
    fn renew(&mut self) {
        (self.first, self.reach) = head(&self.chunk);
    }
}

fn head<K: Copy, V: Reach>(entries: &Chunk<K, V>) -> (K, u64) {
    let reach = entries.iter().map(|(_, value)| value.reach()).max();
    (entries[0].0, reach.unwrap_or_default())
}

impl<K: Copy, V> Clone for Headed<K, V> {
    fn clone(&self) -> Self {
        Self {
            chunk: Arc::clone(&self.chunk),
            ..*self
        }
    }
}

impl<K: Ord + Copy, V: Clone + Reach> Chunks<K, V> {
    /// All of them; of equal keys the last stays.
    pub(crate) fn new(mut entries: Vec<(K, V)>) -> Self {
        entries.sort_by_key(|(key, _)| *key);
        entries.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        let len = entries.len();
        let chunks = entries.chunks(MOST / 2).map(|chunk| chunk.to_vec());
        let chunks = chunks.map(Headed::new).collect();
        Self {
            chunks: Arc::new(chunks),
            len,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        let (found, value) = self.at_or_before(key)?;
        (found == key).then_some(value)
    }

    /// The last entry whose key is not above this one.
    pub(crate) fn at_or_before(&self, key: K) -> Option<(K, &V)> {
        let chunk = &self.chunks[self.place(key)?].chunk;
        let after = chunk.partition_point(|(other, _)| *other <= key);
        let (found, value) = &chunk[after.checked_sub(1)?];
        Some((*found, value))
    }

    /// Those whose key is not above this one and that reach so far at least, the last first. Chunks in
    /// which nothing does are passed over.
    pub(crate) fn reaching(&self, key: K, reach: u64) -> impl Iterator<Item = &V> {
        let from = self.place(key).map_or(0, |place| place + 1);
        let chunks = self.chunks[..from].iter().rev();
        chunks
            .filter(move |headed| headed.reach >= reach)
            .flat_map(move |headed| {
                let after = headed.chunk.partition_point(|(other, _)| *other <= key);
                headed.chunk[..after].iter().rev()
            })
            .filter_map(move |(_, value)| (value.reach() >= reach).then_some(value))
    }

    /// Puts it in place of what has this key.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let place = self.place(key).unwrap_or(0);
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(headed) = chunks.get_mut(place) else {
            chunks.push(Headed::new(vec![(key, value)]));
            self.len += 1;
            return None;
        };
        let entries = Arc::make_mut(&mut headed.chunk);
        let before = match entries.binary_search_by_key(&key, |(other, _)| *other) {
            Ok(at) => Some(std::mem::replace(&mut entries[at].1, value)),
            Err(at) => {
                entries.insert(at, (key, value));
                self.len += 1;
                None
            }
        };
        let upper = (entries.len() > MOST).then(|| entries.split_off(entries.len() / 2));
        headed.renew();
        if let Some(upper) = upper {
            chunks.insert(place + 1, Headed::new(upper));
        }
        before
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let place = self.place(key)?;
        let find = |chunk: &Chunk<K, V>| chunk.binary_search_by_key(&key, |(other, _)| *other);
        let at = find(&self.chunks[place].chunk).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let headed = &mut chunks[place];
        let entries = Arc::make_mut(&mut headed.chunk);
        let (_, removed) = entries.remove(at);
        self.len -= 1;
        if entries.is_empty() {
            chunks.remove(place);
            return Some(removed);
        }
        let few = entries.len() < FEW;
        headed.renew();
        if few {
            let lower = place.saturating_sub(1);
            let fits =
                |upper: &Chunk<K, V>, lower: &Chunk<K, V>| upper.len() + lower.len() <= MOST / 2;
            if let Some(upper) = chunks.get(lower + 1)
                && fits(&upper.chunk, &chunks[lower].chunk)
            {
                let upper = chunks.remove(lower + 1);
                let lower = &mut chunks[lower];
                Arc::make_mut(&mut lower.chunk).extend(upper.chunk.iter().cloned());
                lower.renew();
            }
        }
        Some(removed)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        let chunks = self.chunks.iter();
        chunks.flat_map(|headed| headed.chunk.iter().map(|(_, value)| value))
    }

    /// Of the chunk that has this key, if any has; only keys below all others have none.
    fn place(&self, key: K) -> Option<usize> {
        let after = self.chunks.partition_point(|headed| headed.first <= key);
        after.checked_sub(1)
    }
}

impl<K, V> Clone for Chunks<K, V> {
    fn clone(&self) -> Self {
        Self {
            chunks: Arc::clone(&self.chunks),
            len: self.len,
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Chunks<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.chunks.iter().flat_map(|headed| headed.chunk.iter());
        f.debug_map()
            .entries(entries.map(|(key, value)| (key, value)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn check(ours: &Chunks<u16, u32>, model: &BTreeMap<u16, u32>) {
        assert_eq!(ours.len(), model.len());
        assert!(ours.values().eq(model.values()));
        for headed in &*ours.chunks {
            let chunk = &headed.chunk;
            assert!((1..=MOST).contains(&chunk.len()) && headed.first == chunk[0].0);
            let reach = chunk.iter().map(|(_, value)| value.reach()).max();
            assert_eq!(Some(headed.reach), reach);
        }
    }

    impl Reach for u32 {
        fn reach(&self) -> u64 {
            (*self).into()
        }
    }

    impl Reach for Arc<u32> {
        fn reach(&self) -> u64 {
            0
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_a_plain_map_holds(
            begun in proptest::collection::vec((0..2000_u16, any::<u32>()), 0..600),
            steps in proptest::collection::vec((0..2000_u16, any::<Option<u32>>()), 0..600),
        ) {
            let mut model: BTreeMap<_, _> = begun.iter().copied().collect();
            let mut ours = Chunks::new(begun);
            check(&ours, &model);
            let (before, then) = (ours.clone(), model.clone());
            for (key, value) in steps {
                match value {
                    Some(value) => prop_assert_eq!(ours.insert(key, value), model.insert(key, value)),
                    None => prop_assert_eq!(ours.remove(key), model.remove(&key)),
                }
                prop_assert_eq!(ours.get(key), model.get(&key));
                let below = model.range(..=key + 1).next_back();
                prop_assert_eq!(ours.at_or_before(key + 1), below.map(|(key, value)| (*key, value)));
                let reach = u64::from(u32::MAX / 4 * 3);
                let reaching = model.range(..=key).rev().map(|(_, value)| value);
                let reaching = reaching.filter(|value| value.reach() >= reach);
                prop_assert!(ours.reaching(key, reach).eq(reaching));
            }
            check(&ours, &model);
            check(&before, &then);
            for key in model.keys() {
                ours.remove(*key);
            }
            prop_assert_eq!((ours.len(), ours.chunks.len()), (0, 0));
        }
    }

    #[test]
    fn a_change_of_many_entries_copies_few_of_them() {
        let mut ours = Chunks::new((0..10_000_u32).map(|key| (key, Arc::new(key))).collect());
        let before = ours.clone();
        ours.insert(5_000, Arc::new(0));
        let alone = ours.values().filter(|value| Arc::strong_count(value) > 1);
        assert!(alone.count() <= MOST, "the others are in chunks of both");
        assert_eq!(before.get(5_000).map(|value| **value), Some(5_000));
    }
}
