//! One value for each of several threads, so that those that do the same do not meet.

use std::ops::Deref;
#[cfg(not(mooncake_loom))]
use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

/// More threads share. A model has few threads.
const COUNT: usize = if cfg!(mooncake_loom) { 2 } else { 8 };

/// Threads use their own stripe where they can, and the others' where that has nothing for them.
#[derive(Debug)]
pub(crate) struct Stripes<T>([Stripe<T>; COUNT]);

/// Two lines, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe<T>(T);

impl<T: Default> Default for Stripes<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Stripe::default()))
    }
}

impl<T> Stripes<T> {
    /// That of the calling thread.
    pub(crate) fn own(&self) -> &T {
        &self.0[own()]
    }

    /// All, that of the calling thread first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        let (before, from) = self.0.split_at(own());
        from.iter().chain(before).map(|stripe| stripe.deref())
    }
}

impl<T> Deref for Stripe<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The number of the calling thread's stripe: threads are dealt out as they come.
#[cfg(not(mooncake_loom))]
#[inline]
fn own() -> usize {
    thread_local! {
        // It has no destructor and no state, so that to look costs one load.
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| match own.get() {
        number if number < COUNT => number,
        _ => {
            own.set(deal());
            own.get()
        }
    })
}

#[cfg(not(mooncake_loom))]
#[cold]
fn deal() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % COUNT
}

#[cfg(mooncake_loom)]
use modelled::own;
#[cfg(all(test, mooncake_loom))]
pub(crate) use modelled::sit_at;

/// Threads of a model say for themselves which stripe is theirs, or have the first.
#[cfg(mooncake_loom)]
mod modelled {
    use std::cell::Cell;

    loom::thread_local! {
        static OWN: Cell<usize> = Cell::new(0);
    }

    pub(super) fn own() -> usize {
        OWN.try_with(Cell::get).unwrap_or(0)
    }

    #[cfg(test)]
    pub(crate) fn sit_at(stripe: usize) {
        assert!(stripe < super::COUNT);
        OWN.with(|own| own.set(stripe));
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use std::{sync::Mutex, thread};

    use super::*;

    #[test]
    fn a_thread_keeps_its_stripe_and_finds_all_others() {
        let stripes = Stripes::<Mutex<u32>>::default();
        *stripes.own().lock().unwrap() += 1;
        *stripes.own().lock().unwrap() += 1;
        thread::scope(|scope| {
            for _ in 1..COUNT {
                scope.spawn(|| *stripes.own().lock().unwrap() += 1);
            }
        });
        let all: Vec<u32> = stripes.all().map(|own| *own.lock().unwrap()).collect();
        assert!(all[0] >= 2, "the own one comes first: {all:?}");
        assert_eq!(all.iter().sum::<u32>(), 1 + COUNT as u32);
    }
}
