//! How fast a device moves bytes while it moves them.

use std::time::Duration;

use crate::Time;

/// Measures the wire rate of one device from the completions of its slices.
///
/// A slice occupies its device from when the device begins with it, which is when it was posted or
/// when the slice before it was completed, whichever came later, until its own completion. Time spent
/// in the queue does not count, so a device does not look slower for being busy. The rate is that of
/// all bytes to all such time, where each [`STEP`](Self::STEP) takes a quarter from the weight of what
/// came before it.
///
/// Before a device moves the first byte of a slice, and after it has moved the last, the slice waits for
/// distance. That goes unnoticed while the device has others to move. So a slice counts if it had been
/// with the device for longer than that when the one before it was completed: for the least time that
/// any took altogether, or for [`DISTANCE`](Self::DISTANCE). One that takes longer than
/// [`TELLING`](Self::TELLING) counts always. Slices that failed do not.
///
/// It belongs to whoever reaps the device's completions. A reaper that takes several at once gives
/// them the same time: together they took as long as the first of them.
#[derive(Clone, Debug)]
pub struct WireMeter {
    /// Of the last completion.
    last: Time,
    /// The last completion did not count.
    uncounted: bool,
    /// The least time from post to completion, of which distance is a part.
    shortest: Duration,
    /// Not yet folded into the sums.
    recent: Sums,
    sums: Sums,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    bytes: f64,
    micros: f64,
}

impl WireMeter {
    /// How much time on the wire, without a break, makes one step of the mean.
    pub const STEP: Duration = Duration::from_micros(10);
    /// No device is farther away from its peer than this, or hardly.
    pub const DISTANCE: Duration = Duration::from_micros(10);
    /// From this on distance does not matter.
    pub const TELLING: Duration = Duration::from_micros(100);

    /// What a step leaves of the ones before it.
    const KEEP: f64 = 0.75;

    /// Nothing was measured.
    pub fn new() -> Self {
        Self {
            last: Time::ZERO,
            uncounted: false,
            shortest: Self::DISTANCE,
            recent: Sums::default(),
            sums: Sums::default(),
        }
    }

    /// A slice of `bytes` that was posted at `posted` is complete. The rate in bytes per second, if it
    /// has just been measured.
    pub fn completed(&mut self, now: Time, posted: Time, bytes: u64) -> Option<f64> {
        let took = now.since(self.last.max(posted));
        self.shortest = self.shortest.min(now.since(posted));
        if now > self.last {
            let queued = self.last > posted && self.last.since(posted) >= self.shortest;
            self.uncounted = !queued && took < Self::TELLING;
            self.last = now;
        }
        if self.uncounted {
            // The clock is coarse: a step must not be put together from many short times.
            self.recent = Sums::default();
            return None;
        }
        let bytes = bytes as f64;
        if took.is_zero() && self.recent.micros == 0.0 && self.sums.micros > 0.0 {
            // It belongs to the step that has just ended.
            self.sums.bytes += bytes;
            return self.rate();
        }
        self.recent.bytes += bytes;
        self.recent.micros += took.as_micros() as f64;
        if self.recent.micros < Self::STEP.as_micros() as f64 {
            return None;
        }
        let recent = std::mem::take(&mut self.recent);
        self.sums.bytes = self.sums.bytes * Self::KEEP + recent.bytes;
        self.sums.micros = self.sums.micros * Self::KEEP + recent.micros;
        self.rate()
    }

    /// A slice ended otherwise: what the device did until now says nothing.
    pub fn interrupted(&mut self, now: Time) {
        if now > self.last {
            self.uncounted = true;
            self.recent = Sums::default();
            self.last = now;
        }
    }

    /// Bytes per second; `None`: unknown.
    pub fn rate(&self) -> Option<f64> {
        (self.sums.micros > 0.0).then(|| self.sums.bytes / self.sums.micros * 1e6)
    }
}

impl Default for WireMeter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A device of `rate` bytes per microsecond that always has `depth` slices of `bytes`.
    struct Device {
        meter: WireMeter,
        /// Of the device, in microseconds.
        free_at: f64,
        posted: std::collections::VecDeque<Time>,
    }

    impl Device {
        fn new(depth: usize) -> Self {
            let posted = std::iter::repeat_n(Time(1000), depth).collect();
            Self {
                meter: WireMeter::new(),
                free_at: 1000.0,
                posted,
            }
        }

        fn run(&mut self, rate: f64, bytes: u64, slices: usize) {
            for _ in 0..slices {
                self.free_at += bytes as f64 / rate;
                let now = Time(self.free_at as u64);
                let posted = self.posted.pop_front().unwrap();
                self.meter.completed(now, posted, bytes);
                self.posted.push_back(now);
            }
        }

        fn is_near(&self, rate: f64) -> bool {
            let measured = self.meter.rate().unwrap() / 1e6;
            (0.9 * rate..1.1 * rate).contains(&measured)
        }
    }

    proptest! {
        #[test]
        fn the_rate_is_that_of_the_wire_however_long_slices_queue(
            rate in 10.0..50_000f64, depth in 3..64usize, kib in 64..1024u64
        ) {
            let mut device = Device::new(depth);
            device.run(rate, kib << 10, 400);
            prop_assert!(device.is_near(rate), "{:?} for {rate}", device.meter.rate());
        }

        #[test]
        fn a_change_of_the_rate_is_known_within_64_slices(
            rate in 1000.0..50_000f64, after in 50.0..50_000f64, depth in 3..16usize
        ) {
            let (mut device, bytes) = (Device::new(depth), 256 << 10);
            device.run(rate, bytes, 200);
            device.run(after, bytes, 64);
            prop_assert!(device.is_near(after), "{:?} for {after}", device.meter.rate());
        }
    }

    #[test]
    fn slices_that_are_reaped_together_took_as_long_as_the_first() {
        let mut meter = WireMeter::new();
        for round in 1..50u64 {
            // 16 slices of 10,000 bytes in 100 µs: 1.6 GB/s. The queue never runs dry.
            let posted = Time(100 * round - 1);
            (0..16).for_each(|_| {
                meter.completed(Time(100 * (round + 1)), posted, 10_000);
            });
        }
        let rate = meter.rate().unwrap();
        assert!((1.55e9..1.65e9).contains(&rate), "{rate}");
    }

    #[test]
    fn law_12_a_slice_that_mostly_waited_for_its_first_byte_leaves_the_rate_unknown() {
        let mut meter = WireMeter::new();
        for round in 1..100u64 {
            // A kilobyte in 5 µs on an idle device; with a second that comes along for nothing.
            let (posted, done) = (Time(1000 * round), Time(1000 * round + 5));
            meter.completed(done, posted, 1024);
            meter.completed(done, posted, 1024);
        }
        assert_eq!(meter.rate(), None);
        // One that takes a millisecond says how slow the device is, even alone.
        meter.completed(Time(500_000), Time(499_000), 1_000_000);
        assert_eq!(meter.rate(), Some(1e9));
    }

    proptest! {
        #[test]
        fn what_distance_adds_when_few_slices_are_in_flight_is_not_taken_for_slowness(
            wire in 1..200u64, distance in 0..10u64, depth in 1..8usize
        ) {
            // Slices of 100,000 bytes; the next is posted when the oldest completes.
            let mut meter = WireMeter::new();
            let (mut free_at, mut ends) = (0, vec![0; depth]);
            for slice in 0..400 {
                let posted: u64 = ends[slice % depth];
                free_at = posted.max(free_at) + wire;
                ends[slice % depth] = free_at + distance;
                meter.completed(Time(1 + free_at + distance), Time(1 + posted), 100_000);
            }
            if let Some(rate) = meter.rate() {
                let expected = 100_000.0 / wire as f64 * 1e6;
                prop_assert!((0.9..1.05).contains(&(rate / expected)), "{rate} of {expected}");
            } else {
                prop_assert!(wire * (depth as u64 - 1) < wire + distance, "it could have been known");
            }
        }
    }

    #[test]
    fn the_time_of_a_slice_that_failed_is_nobodys() {
        let mut meter = WireMeter::new();
        let bytes = 100_000;
        for at in 1..=10 {
            meter.completed(Time(100 * at), Time(0), bytes);
        }
        assert_eq!(meter.rate(), Some(1e9));
        // Ten seconds of nothing, then a failure; what follows is as fast as before.
        meter.interrupted(Time(10_001_000));
        meter.completed(Time(10_001_100), Time(0), bytes);
        assert_eq!(meter.rate(), Some(1e9));
    }

    #[test]
    fn no_rate_is_put_together_from_runs_that_are_short_for_the_clock() {
        let mut meter = WireMeter::new();
        for round in 1..100u64 {
            let posted = Time(1000 * round);
            // The first of two waits for distance, the second takes five ticks, or nearly.
            meter.completed(Time(1000 * round + 20), posted, 50_000);
            meter.completed(Time(1000 * round + 25), posted, 50_000);
        }
        assert_eq!(meter.rate(), None);
        // Two more behind them make a run.
        for late in [20, 25, 30, 35] {
            meter.completed(Time(100_000 + late), Time(100_000), 50_000);
        }
        assert_eq!(meter.rate(), Some(1e10));
    }

    #[test]
    fn a_clock_that_goes_back_does_no_harm() {
        let mut meter = WireMeter::new();
        meter.completed(Time(1000), Time(0), 1000);
        meter.completed(Time(500), Time(900), 1000);
        meter.completed(Time(1100), Time(600), 100_000);
        assert!(
            meter
                .rate()
                .is_some_and(|rate| rate.is_finite() && rate > 0.0)
        );
    }
}
