//! One value for each of several threads, so that those that do the same do not meet.

use std::{
    cell::Cell,
    ops::Deref,
    sync::atomic::{AtomicUsize, Ordering},
};

/// More threads share. A model has few threads and no need.
const COUNT: usize = if cfg!(mooncake_loom) { 1 } else { 8 };

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

#[cold]
fn deal() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % COUNT
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
