//! How fast a link was, by size of what it carried.

use std::time::Duration;

use super::SizeClass;

/// What was measured on one link to one peer: for each size class a moving mean of length and time,
/// and with them bandwidth and latency.
///
/// A class says something once it has [`TRUSTED`](Self::TRUSTED) measurements, so that the first
/// transfer, which pays for connecting, decides nothing by itself. It says nothing again once it has
/// faded: what was true long ago is unknown, not true.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateTable {
    classes: [Measured; SizeClass::COUNT],
}

/// The mean of what was measured in a class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measured {
    weight: u8,
    bytes: f64,
    seconds: f64,
}

/// Up to so many bytes latency is all.
const ALIKE: f64 = 1024.0;

/// The newest measurement counts for at least one part in so many.
const MEMORY: u8 = 16;

impl RateTable {
    /// So many measurements of a class are believed.
    pub const TRUSTED: u8 = 3;

    /// Nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// As if transfers of every size had taken `latency` and then `bandwidth` bytes a second.
    pub fn modelled(bandwidth: f64, latency: Duration) -> Self {
        let mut table = Self::new();
        for class in SizeClass::all() {
            let length = class.most().unwrap_or(4 << 30);
            let seconds = length as f64 / bandwidth;
            let took = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
            for _ in 0..Self::TRUSTED {
                table.update(length, latency.saturating_add(took));
            }
        }
        table
    }

    /// A transfer of `length` bytes took so long, from when the link had it to its end.
    pub fn update(&mut self, length: u64, took: Duration) {
        if length == 0 {
            return;
        }
        let class = &mut self.classes[SizeClass::of(length).index()];
        class.weight = (class.weight + 1).min(MEMORY);
        let share = 1.0 / f64::from(class.weight);
        // A clock that does not see the difference has not measured an infinite speed.
        let seconds = took.max(Duration::from_nanos(1)).as_secs_f64();
        class.bytes += (length as f64 - class.bytes) * share;
        class.seconds += (seconds - class.seconds) * share;
    }

    /// Halves the weight of all that was measured. Called now and then, it makes unknown what is not
    /// measured any more.
    pub fn fade(&mut self) {
        for class in &mut self.classes {
            class.weight /= 2;
        }
    }

    /// Mean bytes a second of transfers in this class, latency included.
    pub fn bandwidth(&self, class: SizeClass) -> Option<f64> {
        self.known(class).map(|class| class.bytes / class.seconds)
    }

    /// Mean time of transfers in this class.
    pub fn latency(&self, class: SizeClass) -> Option<Duration> {
        self.known(class)
            .map(|class| Duration::from_secs_f64(class.seconds))
    }

    /// How long a transfer of `length` bytes will probably take; `None`: nothing near it was measured.
    ///
    /// Between two means it lies on the line that joins them, as a fixed latency and a fixed rate
    /// would have it. Beyond the outermost one it is only guessed within the next class: latency
    /// alone bounds it on one side, rate alone on the other, and it is put at their geometric mean.
    /// Lengths up to a kilobyte are alike.
    pub fn estimate(&self, length: u64) -> Option<Duration> {
        let bytes = (length as f64).max(ALIKE);
        let place = SizeClass::of(length);
        let mut below: Option<(SizeClass, Measured)> = None;
        let mut above: Option<(SizeClass, Measured)> = None;
        for class in SizeClass::all() {
            let Some(mut mean) = self.known(class) else {
                continue;
            };
            mean.bytes = mean.bytes.max(ALIKE);
            if mean.bytes <= bytes {
                below = Some((class, mean));
            } else {
                above = Some((class, mean));
                break;
            }
        }
        let seconds = match (below, above) {
            (Some((_, a)), Some((_, b))) => {
                let part = (bytes - a.bytes) / (b.bytes - a.bytes);
                a.seconds + (b.seconds - a.seconds) * part
            }
            (Some((class, mean)), None) | (None, Some((class, mean))) => {
                if class.index().abs_diff(place.index()) > 1 {
                    return None;
                }
                mean.seconds * (bytes / mean.bytes).sqrt()
            }
            (None, None) => return None,
        };
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    fn known(&self, class: SizeClass) -> Option<Measured> {
        let class = self.classes[class.index()];
        (class.weight >= Self::TRUSTED).then_some(class)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn measured(length: u64, micros: u64) -> RateTable {
        let mut table = RateTable::new();
        for _ in 0..RateTable::TRUSTED {
            table.update(length, Duration::from_micros(micros));
        }
        table
    }

    #[test]
    fn law_12_what_was_hardly_measured_is_unknown() {
        let mut table = RateTable::new();
        table.update(4096, Duration::from_millis(30));
        table.update(4096, Duration::from_micros(10));
        assert_eq!(table.estimate(4096), None);
        table.update(4096, Duration::from_micros(10));
        assert!(table.estimate(4096).is_some());
        let mib = SizeClass::of(1 << 20);
        assert_eq!(
            (table.bandwidth(mib), table.estimate(1 << 20)),
            (None, None)
        );
    }

    #[test]
    fn old_measurements_give_way_to_new_ones() {
        let mut table = measured(1 << 20, 100);
        for _ in 0..200 {
            table.update(1 << 20, Duration::from_micros(900));
        }
        let now = table.latency(SizeClass::of(1 << 20)).unwrap();
        assert!(now.abs_diff(Duration::from_micros(900)) < Duration::from_micros(1));
        let rate = table.bandwidth(SizeClass::of(1 << 20)).unwrap();
        assert!((rate / (1024.0 * 1024.0 / 900e-6) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn law_12_what_is_not_measured_any_more_becomes_unknown() {
        let mut table = RateTable::new();
        for _ in 0..100 {
            table.update(1 << 20, Duration::from_micros(100));
        }
        let mut fades = 0;
        while table.estimate(1 << 20).is_some() {
            table.fade();
            fades += 1;
        }
        assert_eq!(fades, 3);
    }

    #[test]
    fn a_guess_reaches_no_further_than_the_next_class() {
        let table = measured(64 << 10, 40);
        assert_eq!(table.estimate(64 << 10), Some(Duration::from_micros(40)));
        assert_eq!(table.estimate(256 << 10), Some(Duration::from_micros(80)));
        assert_eq!(table.estimate(16 << 10), Some(Duration::from_micros(20)));
        assert_eq!(table.estimate((256 << 10) + 1), None);
        assert_eq!(table.estimate(4 << 10), None);
    }

    #[test]
    fn a_speed_that_the_clock_did_not_see_is_finite() {
        let mut table = RateTable::new();
        for length in [0, 1, u64::MAX] {
            for _ in 0..3 {
                table.update(length, Duration::ZERO);
            }
        }
        assert!(table.bandwidth(SizeClass::of(1)).unwrap().is_finite());
        assert!(table.estimate(u64::MAX).is_some());
    }

    proptest! {
        #[test]
        fn a_link_of_fixed_latency_and_rate_is_estimated_as_it_is(
            latency in 1..10_000u64, megabytes in 1..100_000u64, bits in 0..30u32, more in 0.0..1.0
        ) {
            let length = ((1u64 << bits) as f64 * (1.0 + more)) as u64;
            let (latency, rate) = (latency as f64 * 1e-6, megabytes as f64 * 1e6);
            let table = RateTable::modelled(rate, Duration::from_secs_f64(latency));
            let truth = latency + length.max(1024) as f64 / rate;
            let ratio = table.estimate(length).unwrap().as_secs_f64() / truth;
            prop_assert!((0.999..1.001).contains(&ratio), "{}", ratio);
        }

        #[test]
        fn an_estimate_lies_between_what_latency_alone_and_what_rate_alone_would_make_it(
            measured_at in 1024..1u64 << 30, micros in 1..1_000_000u64, length in 1024..1u64 << 30
        ) {
            let Some(estimate) = measured(measured_at, micros).estimate(length) else {
                return Ok(());
            };
            let by_latency = micros as f64 * 1e-6;
            let by_rate = by_latency * length as f64 / measured_at as f64;
            let (least, most) = (by_latency.min(by_rate), by_latency.max(by_rate));
            let estimate = estimate.as_secs_f64();
            prop_assert!((least * 0.999 - 1e-9..=most * 1.001 + 1e-9).contains(&estimate));
        }
    }
}
