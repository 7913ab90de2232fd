//! Writes that arrived here and whose writers wanted this engine to know.

use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::identity::Incarnation;

/// A write that is wholly applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// The life of the process that wrote.
    pub sender: Incarnation,
    /// The number that it gave the write.
    pub op_id: u64,
    /// How many bytes, all of which are at their place.
    pub length: u64,
    /// CRC32C of the bytes as they are at their place, which is what the sender counted; if it asked
    /// for one.
    pub checksum: Option<u32>,
}

impl Arrival {
    /// An arrival without a checksum.
    pub fn new(sender: Incarnation, op_id: u64, length: u64) -> Self {
        Self {
            sender,
            op_id,
            length,
            checksum: None,
        }
    }

    fn key(&self) -> Key {
        (self.sender, self.op_id)
    }
}

/// Whose write, and which.
type Key = (Incarnation, u64);

/// Arrivals that nobody has taken yet, in the order in which they came, within bounds: a link
/// [reserves](Self::reserve) a place before it applies a byte.
pub struct ArrivalBook {
    room: usize,
    inner: Mutex<Inner>,
    arrived: Notify,
}

#[derive(Default)]
struct Inner {
    arrivals: BTreeMap<u64, Arrival>,
    /// Places of those with this key, oldest first.
    by_key: FxHashMap<Key, Vec<u64>>,
    next: u64,
    reserved: usize,
    /// Those that somebody waits for by name.
    awaited: FxHashMap<Key, Awaited>,
}

struct Awaited {
    waiters: usize,
    arrived: Arc<Notify>,
}

impl ArrivalBook {
    /// With room for so many that were not taken yet.
    pub(crate) fn new(room: usize) -> Arc<Self> {
        Arc::new(Self {
            room,
            inner: Mutex::default(),
            arrived: Notify::new(),
        })
    }

    /// A place for an arrival; `None`: there is none, and the write must be refused before a byte of it
    /// is applied.
    pub fn reserve(self: &Arc<Self>) -> Option<ArrivalSeat> {
        let mut inner = self.inner.lock();
        if inner.arrivals.len() + inner.reserved >= self.room {
            return None;
        }
        inner.reserved += 1;
        drop(inner);
        Some(ArrivalSeat(Arc::clone(self)))
    }

    /// Arrivals that nobody has taken.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().arrivals.len()
    }

    /// All that nobody waits for by name.
    pub(crate) fn take_all(&self) -> Vec<Arrival> {
        let mut inner = self.inner.lock();
        let mut taken = Vec::new();
        while let Some(arrival) = inner.take_oldest() {
            taken.push(arrival);
        }
        taken
    }

    /// The oldest that nobody waits for by name, once there is one. Losing the future loses nothing.
    pub(crate) async fn take_one(&self) -> Arrival {
        loop {
            let arrived = self.arrived.notified();
            if let Some(arrival) = self.inner.lock().take_oldest() {
                // Whoever was woken for the others may have been us.
                self.arrived.notify_one();
                return arrival;
            }
            arrived.await;
        }
    }

    /// That of this name, once it is there. Losing the future loses nothing.
    pub(crate) async fn take(&self, sender: Incarnation, op_id: u64) -> Arrival {
        let waiting = Waiting::new(self, (sender, op_id));
        loop {
            let arrived = waiting.arrived.notified();
            if let Some(arrival) = self.inner.lock().take((sender, op_id)) {
                return arrival;
            }
            arrived.await;
        }
    }

    fn report(&self, arrival: Arrival) {
        let mut inner = self.inner.lock();
        let place = inner.next;
        inner.next += 1;
        inner.arrivals.insert(place, arrival);
        inner.by_key.entry(arrival.key()).or_default().push(place);
        match inner.awaited.get(&arrival.key()) {
            Some(awaited) => awaited.arrived.notify_one(),
            None => self.arrived.notify_one(),
        }
    }
}

impl Inner {
    fn take_oldest(&mut self) -> Option<Arrival> {
        let free = |(place, arrival): (&u64, &Arrival)| {
            let awaited = self.awaited.contains_key(&arrival.key());
            (!awaited).then_some(*place)
        };
        let place = self.arrivals.iter().find_map(free)?;
        self.take_at(place)
    }

    fn take(&mut self, key: Key) -> Option<Arrival> {
        let place = *self.by_key.get(&key)?.first()?;
        self.take_at(place)
    }

    fn take_at(&mut self, place: u64) -> Option<Arrival> {
        let btree_map::Entry::Occupied(found) = self.arrivals.entry(place) else {
            return None;
        };
        let arrival = found.remove();
        if let Some(places) = self.by_key.get_mut(&arrival.key()) {
            places.retain(|other| *other != place);
            if places.is_empty() {
                self.by_key.remove(&arrival.key());
            }
        }
        Some(arrival)
    }
}

impl std::fmt::Debug for ArrivalBook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArrivalBook({} of {})", self.len(), self.room)
    }
}

/// A place for an arrival, given back if there is none.
#[derive(Debug)]
#[must_use = "it is given back when it is dropped"]
pub struct ArrivalSeat(Arc<ArrivalBook>);

impl ArrivalSeat {
    /// Tells of a write, all of whose bytes are at their place.
    pub fn report(self, arrival: Arrival) {
        // Before the place is given back: nobody else gets it in between.
        self.0.report(arrival);
    }
}

impl Drop for ArrivalSeat {
    fn drop(&mut self) {
        self.0.inner.lock().reserved -= 1;
    }
}

/// Somebody waits for an arrival by name; nobody else is given it meanwhile.
struct Waiting<'a> {
    book: &'a ArrivalBook,
    key: Key,
    arrived: Arc<Notify>,
}

impl<'a> Waiting<'a> {
    fn new(book: &'a ArrivalBook, key: Key) -> Self {
        let mut inner = book.inner.lock();
        let awaited = inner.awaited.entry(key).or_insert_with(|| Awaited {
            waiters: 0,
            arrived: Arc::default(),
        });
        awaited.waiters += 1;
        let arrived = Arc::clone(&awaited.arrived);
        drop(inner);
        Self { book, key, arrived }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut inner = self.book.inner.lock();
        if let Some(awaited) = inner.awaited.get_mut(&self.key) {
            awaited.waiters -= 1;
            if awaited.waiters == 0 {
                inner.awaited.remove(&self.key);
            }
        }
        // What we did not take is for everybody again.
        if inner.by_key.contains_key(&self.key) {
            self.book.arrived.notify_one();
            self.arrived.notify_one();
        }
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn arrival(sender: u64, op_id: u64) -> Arrival {
        Arrival::new(Incarnation::from_u64(sender).unwrap(), op_id, 1)
    }

    fn arrive(book: &Arc<ArrivalBook>, arrival: Arrival) {
        book.reserve().unwrap().report(arrival);
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(future).poll(&mut context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn law_11_there_is_a_place_before_the_first_byte_or_none() {
        let book = ArrivalBook::new(2);
        let seat = book.reserve().unwrap();
        arrive(&book, arrival(1, 1));
        assert!(book.reserve().is_none());
        drop(seat);
        arrive(&book, arrival(1, 2));
        assert!(book.reserve().is_none());
        assert_eq!(book.take_all(), [arrival(1, 1), arrival(1, 2)]);
        assert!(book.inner.lock().by_key.is_empty());
        assert_eq!(book.inner.lock().reserved, 0);
    }

    #[test]
    fn what_is_awaited_by_name_is_given_to_nobody_else() {
        let book = ArrivalBook::new(9);
        let sender = Incarnation::from_u64(1).unwrap();
        {
            let mut second = pin!(book.take(sender, 2));
            let mut context = Context::from_waker(Waker::noop());
            assert!(second.as_mut().poll(&mut context).is_pending());
            // The same number of another sender is another one.
            for arrived in [arrival(1, 1), arrival(2, 2), arrival(1, 2)] {
                arrive(&book, arrived);
            }
            assert_eq!(book.take_all(), [arrival(1, 1), arrival(2, 2)]);
            assert_eq!(now(book.take_one()), None);
            assert_eq!(
                second.as_mut().poll(&mut context),
                Poll::Ready(arrival(1, 2))
            );
        }
        // One whose waiter went is for everybody, and for who comes later.
        assert_eq!(now(book.take(sender, 3)), None);
        arrive(&book, arrival(1, 3));
        arrive(&book, arrival(1, 4));
        assert_eq!(now(book.take(sender, 4)), Some(arrival(1, 4)));
        assert_eq!(now(book.take_one()), Some(arrival(1, 3)));
        assert!(book.inner.lock().awaited.is_empty());
    }
}
