//! How many bytes a lane keeps on the way: as many as fill its connection, and no more, so that what
//! waits behind them can still be cancelled, overtaken or go to another lane.

use std::time::Duration;

/// Waits in the connection, beyond what fills it, for no longer than this.
const QUEUE: Duration = Duration::from_millis(20);
/// However slow it is, so many bytes go at once.
const LEAST: u64 = 256 << 10;
/// A window that is less than what is configured is filled by so many requests.
const PIECES: u64 = 4;

/// Measures the rate of a lane that is kept busy. No more than twice the window can follow from one
/// look, and no less than half of it.
#[derive(Debug)]
pub(super) struct Tuner {
    least: u64,
    most: u64,
    /// As the hello took it.
    round_trip: Duration,
    window: u64,
    /// When the measurement began.
    since: Option<Duration>,
    /// Answered since then, or since the lane was idle.
    bytes: u64,
}

impl Tuner {
    /// Begins with a window of `most` bytes.
    pub(super) fn new(most: u64, round_trip: Duration) -> Self {
        Self {
            least: LEAST.min(most),
            most,
            round_trip,
            window: most,
            since: None,
            bytes: 0,
        }
    }

    /// Bytes that are best on the way at once.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// The best length of a request; `None`: any.
    pub(super) fn piece(&self) -> Option<u64> {
        (self.window < self.most).then_some(self.window / PIECES)
    }

    /// So much was answered.
    pub(super) fn answered(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Enough was answered for a [`look`](Self::look) at the time.
    pub(super) fn is_due(&self) -> bool {
        self.bytes >= self.window.max(LEAST)
    }

    /// Nothing is on the way, so the time that follows says nothing of the connection.
    pub(super) fn rest(&mut self) {
        (self.since, self.bytes) = (None, 0);
    }

    /// Draws the conclusions at a time that is counted from whenever.
    pub(super) fn look(&mut self, now: Duration) {
        let bytes = std::mem::take(&mut self.bytes);
        let Some(since) = self.since.replace(now) else {
            return;
        };
        let took = now.saturating_sub(since).as_nanos().max(1);
        // Twice the way there and back: a window that is the only limit has to grow.
        let ahead = self.round_trip.saturating_mul(2).saturating_add(QUEUE);
        let fills = u128::from(bytes).saturating_mul(ahead.as_nanos()) / took;
        let fills = u64::try_from(fills).unwrap_or(u64::MAX);
        let (half, twice) = (self.window / 2, self.window.saturating_mul(2));
        self.window = fills.clamp(half, twice).clamp(self.least, self.most);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The window after a long transfer over a connection of so many bytes per second.
    fn after(most: u64, rate: u64, round_trip: Duration) -> u64 {
        let mut tuner = Tuner::new(most, round_trip);
        let mut now = Duration::ZERO;
        for _ in 0..100 {
            let window = tuner.window().max(LEAST);
            // What is in the window goes there, and its answers come back.
            let sent = Duration::from_secs_f64(window as f64 / rate as f64);
            now += sent.max(round_trip);
            tuner.answered(window);
            assert!(tuner.is_due());
            tuner.look(now);
        }
        tuner.window()
    }

    #[test]
    fn a_fast_connection_gets_all_that_is_configured() {
        assert_eq!(after(4 << 20, 5 << 30, Duration::from_micros(50)), 4 << 20);
        assert_eq!(
            after(64 << 20, 1 << 30, Duration::from_millis(80)),
            64 << 20
        );
    }

    #[test]
    fn on_a_slow_connection_little_waits() {
        // 20 ms of it, and no less than is worth a call.
        let slow = after(4 << 20, 20 << 20, Duration::from_micros(100));
        assert!((300 << 10..600 << 10).contains(&slow), "{slow}");
        assert_eq!(after(4 << 20, 1 << 20, Duration::from_micros(100)), LEAST);
    }

    #[test]
    fn what_an_idle_lane_waits_for_is_not_taken_for_slowness() {
        let mut tuner = Tuner::new(4 << 20, Duration::from_micros(100));
        for second in 1..100 {
            tuner.answered(3 << 20);
            tuner.rest();
            tuner.answered(1 << 20);
            assert!(!tuner.is_due());
            tuner.look(Duration::from_secs(second));
            tuner.rest();
        }
        assert_eq!(tuner.window(), 4 << 20);
        assert_eq!(tuner.piece(), None, "requests are as long as is configured");
    }

    proptest! {
        #[test]
        fn every_connection_is_filled_and_its_queue_is_short(
            rate in 1_u64 << 20..1 << 32,
            round_trip in 1_u64..200_000,
        ) {
            let (most, round_trip) = (1 << 30, Duration::from_micros(round_trip));
            let window = after(most, rate, round_trip);
            let on_the_way = (rate as f64 * round_trip.as_secs_f64()) as u64;
            prop_assert!(window >= on_the_way.min(most), "{window} of {on_the_way}");
            let longest = 2 * round_trip + QUEUE;
            let queued = (rate as f64 * longest.as_secs_f64() * 1.1) as u64;
            prop_assert!(window <= queued.max(LEAST) + 1, "{window} of {queued}");
        }

        #[test]
        fn whatever_the_clock_says_the_window_keeps_its_bounds(
            most in 0_u64..u64::MAX,
            looks in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..20),
        ) {
            let mut tuner = Tuner::new(most, Duration::MAX);
            for (bytes, nanos) in looks {
                tuner.answered(bytes);
                tuner.look(Duration::from_nanos(nanos));
                prop_assert!((LEAST.min(most)..=most).contains(&tuner.window()));
            }
        }
    }
}
