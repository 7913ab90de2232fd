//! Keeps a lane from going to sleep between requests that follow each other closely.
//!
//! Waking a thread can take longer than all that it then does. So after a request of a session the
//! lane looks for the next one a while, as long as the last ones came that soon.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// How long it looks for the next request.
const LOOK: Duration = Duration::from_micros(150);
/// Who gives way to another that computes gets the core back after milliseconds: then the lane gives
/// way no more for so many requests.
const LATE: Duration = Duration::from_micros(500);
const GRUDGE: u32 = 1_024;
/// So many requests in a row that came late end it, and as many that came soon bring it back.
const SURE: u8 = 8;

thread_local! {
    /// Of the lane whose thread it is.
    static VIGIL: RefCell<Option<Vigil>> = const { RefCell::new(None) };
}

/// One lane's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vigil(Rc<Pulse>);

#[derive(Debug, Default)]
struct Pulse {
    last: Cell<Option<Instant>>,
    score: Cell<u8>,
    /// Requests until it gives way to other threads again.
    grudge: Cell<u32>,
    begins: Notify,
}

impl Vigil {
    /// That of the calling thread, from now on.
    pub(crate) fn of_thread() -> Self {
        let vigil = Self::default();
        VIGIL.set(Some(vigil.clone()));
        vigil
    }

    /// A session of the calling thread has asked something.
    pub(crate) fn beat() {
        VIGIL.with_borrow(|vigil| {
            if let Some(vigil) = vigil {
                vigil.begin(Instant::now());
            }
        });
    }

    fn begin(&self, now: Instant) {
        let Pulse {
            last,
            score,
            grudge,
            begins,
        } = &*self.0;
        grudge.set(grudge.get().saturating_sub(1));
        let before = last.replace(Some(now));
        let soon = before.is_some_and(|before| now - before <= LOOK);
        score.set(match soon {
            true => (score.get() + 1).min(SURE),
            false => score.get().saturating_sub(1),
        });
        if score.get() > 0 {
            begins.notify_one();
        }
    }

    /// Looks whenever it pays off, for ever.
    pub(crate) async fn keep(&self) {
        let recent = |last: Instant| last.elapsed() < LOOK;
        loop {
            self.0.begins.notified().await;
            while self.0.last.get().is_some_and(recent) {
                if self.0.grudge.get() == 0 {
                    let before = Instant::now();
                    thread::yield_now();
                    if before.elapsed() >= LATE {
                        self.0.grudge.set(GRUDGE);
                    }
                }
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_ends_where_requests_come_late_and_begins_again_where_they_come_soon() {
        let vigil = Vigil::default();
        let mut now = Instant::now();
        let mut after = |gap: Duration| {
            now += gap;
            vigil.begin(now);
            vigil.0.score.get() > 0
        };
        assert!(!after(Duration::ZERO), "one alone");
        assert!(after(LOOK / 2));
        for _ in 0..SURE {
            after(LOOK / 2);
        }
        let late = (0..u32::from(SURE)).map(|_| after(LOOK * 2));
        assert_eq!(late.filter(|looks| *looks).count(), usize::from(SURE) - 1);
        assert!(after(LOOK / 2));
    }
}
