//! What the lock-free files are made of: that of `std` and parking_lot, or under
//! `--cfg mooncake_loom` loom's, which tries every order in which threads can see it.
//!
//! Not loom's own `--cfg loom`, under which tokio does not build.

#[cfg(not(mooncake_loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(all(not(mooncake_loom), feature = "tcp"))]
pub(crate) use parking_lot::MutexGuard;
#[cfg(not(mooncake_loom))]
pub(crate) use std::sync::atomic;
#[cfg(not(mooncake_loom))]
pub(crate) use tokio::sync::Notify;

#[cfg(mooncake_loom)]
pub(crate) use self::modelled::{Mutex, MutexGuard, Notify};
#[cfg(mooncake_loom)]
pub(crate) use loom::sync::atomic;

#[cfg(mooncake_loom)]
mod modelled {
    use std::{
        future::{Future, poll_fn},
        task::{Poll, Waker},
    };

    use loom::sync::atomic::{AtomicBool, Ordering};

    /// loom's mutex, without the poison that ours does not have. Its end is a step of its own, so
    /// that a try in the middle is tried, too; loom alone does not let one fail.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T> {
        held: AtomicBool,
        content: loom::sync::Mutex<T>,
    }

    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T> {
        held: &'a AtomicBool,
        content: loom::sync::MutexGuard<'a, T>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(content: T) -> Self {
            Self {
                held: AtomicBool::new(false),
                content: loom::sync::Mutex::new(content),
            }
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.guard(self.content.lock().expect("a panic ends the model"))
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            // An exchange looks at the latest; a load need not.
            let looked = |order| self.held.compare_exchange(false, false, order, order);
            if looked(Ordering::Relaxed).is_err() {
                return None;
            }
            self.content.try_lock().ok().map(|guard| self.guard(guard))
        }

        fn guard<'a>(&'a self, content: loom::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.held.store(true, Ordering::Relaxed);
            MutexGuard {
                held: &self.held,
                content,
            }
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.held.store(false, Ordering::Relaxed);
        }
    }

    impl<T> std::ops::Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.content
        }
    }

    impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.content
        }
    }

    /// What we use of tokio's, which loom cannot see into: a future is ended by calls that come
    /// after it was made, polled or not.
    #[derive(Debug, Default)]
    pub(crate) struct Notify(Mutex<Waiting>);

    #[derive(Debug, Default)]
    struct Waiting {
        calls: u64,
        wakers: Vec<Waker>,
    }

    impl Notify {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notified(&self) -> impl Future<Output = ()> + use<'_> {
            let before = self.0.lock().calls;
            poll_fn(move |context| {
                let mut waiting = self.0.lock();
                if waiting.calls > before {
                    return Poll::Ready(());
                }
                waiting.wakers.push(context.waker().clone());
                Poll::Pending
            })
        }

        pub(crate) fn notify_waiters(&self) {
            let wakers = {
                let mut waiting = self.0.lock();
                waiting.calls += 1;
                std::mem::take(&mut waiting.wakers)
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}
