//! What a device has to do, and how fast it does it.

use std::{fmt, sync::Arc, time::Duration};

use super::{DeviceId, Priority};
use crate::{
    Time,
    sync::atomic::{AtomicU64, Ordering},
};

/// The bytes in flight on one device and its measured rate, for all threads.
///
/// Alone on its cache lines: devices are charged by different threads at once.
#[repr(align(128))]
pub struct DeviceLoad {
    device: DeviceId,
    /// By priority.
    in_flight: [AtomicU64; Priority::ALL.len()],
    /// A rate and when it was measured in one word, so that nobody sees one without the other.
    rate: AtomicU64,
    /// Bytes that it was given, for taking turns.
    given: AtomicU64,
}

impl DeviceLoad {
    /// An idle device of unknown speed.
    pub fn new(device: DeviceId) -> Arc<Self> {
        Arc::new(Self {
            device,
            in_flight: Default::default(),
            rate: AtomicU64::new(UNKNOWN),
            given: AtomicU64::new(0),
        })
    }

    /// Which one it is.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Counts `bytes` as in flight on this device until the charge is dropped.
    pub fn charge(self: &Arc<Self>, bytes: u64, priority: Priority) -> Charge {
        // Nothing is published by these counters but themselves.
        self.count(priority).fetch_add(bytes, Ordering::Relaxed);
        Charge {
            load: Arc::clone(self),
            bytes,
            priority,
        }
    }

    /// Bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.ahead_of(Priority::Low)
    }

    /// Bytes in flight that a new slice of `priority` would have to wait for: those that are as urgent
    /// or more.
    pub fn ahead_of(&self, priority: Priority) -> u64 {
        let counts = &self.in_flight[..=usize::from(priority.level())];
        let bytes = counts.iter().map(|count| count.load(Ordering::Relaxed));
        bytes.fold(0, u64::wrapping_add)
    }

    /// Lets everybody know the rate, as a [`WireMeter`](super::WireMeter) has measured it.
    pub fn publish_rate(&self, now: Time, bytes_per_second: f64) {
        self.rate
            .store(pack(now, bytes_per_second), Ordering::Relaxed);
    }

    /// Bytes per second; `None` if unknown, or if the last measurement is older than `stale_after`.
    pub fn rate(&self, now: Time, stale_after: Duration) -> Option<f64> {
        let (measured, rate) = unpack(self.rate.load(Ordering::Relaxed))?;
        (now.since(measured) < stale_after).then_some(rate)
    }

    /// Who was given least is the first among equals. Threads that choose at once may lose sight of each
    /// other's slices here: it decides nothing else.
    pub(super) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    pub(super) fn set_given(&self, bytes: u64) {
        self.given.store(bytes, Ordering::Relaxed);
    }

    fn count(&self, priority: Priority) -> &AtomicU64 {
        &self.in_flight[usize::from(priority.level())]
    }
}

impl fmt::Debug for DeviceLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = unpack(self.rate.load(Ordering::Relaxed)).map(|(_, rate)| rate);
        f.debug_struct("DeviceLoad")
            .field("device", &self.device.0)
            .field("in_flight", &self.in_flight())
            .field("rate", &rate)
            .finish()
    }
}

/// Bytes that are in flight on a device, for as long as this lives.
///
/// A slice that moves to another device takes a charge of that one instead: the old one is given back
/// to where it was taken, whatever happened meanwhile.
#[must_use = "it is given back when it is dropped"]
pub struct Charge {
    load: Arc<DeviceLoad>,
    bytes: u64,
    priority: Priority,
}

impl Charge {
    /// Where the bytes are.
    pub fn device(&self) -> DeviceId {
        self.load.device
    }

    /// How many they are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How urgent they are.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// The device's load.
    pub fn load(&self) -> &Arc<DeviceLoad> {
        &self.load
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let count = self.load.count(self.priority);
        count.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({} bytes on {})", self.bytes, self.load.device)
    }
}

const UNKNOWN: u64 = 0;
/// 2¹⁶ µs are one step of the time of a measurement, so that 32 bits last for nine years.
const STEP_BITS: u32 = 16;

fn pack(now: Time, rate: f64) -> u64 {
    let rate = rate as f32;
    if !(rate > 0.0 && rate.is_finite()) {
        return UNKNOWN;
    }
    let steps = (now.0 >> STEP_BITS).min(u64::from(u32::MAX));
    steps << 32 | u64::from(rate.to_bits())
}

fn unpack(word: u64) -> Option<(Time, f64)> {
    let rate = f32::from_bits(word as u32);
    (rate > 0.0).then(|| (Time((word >> 32) << STEP_BITS), rate.into()))
}

#[cfg(all(test, not(mooncake_loom)))]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn law_13_what_is_charged_is_released_once_by_whatever_thread_it_ends_on() {
        let load = DeviceLoad::new(DeviceId(3));
        let charges: Vec<_> = (1..=1000u64)
            .map(|bytes| load.charge(bytes, Priority::ALL[bytes as usize % 3]))
            .collect();
        assert_eq!(load.in_flight(), 500_500);
        let mut charges = charges.into_iter();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let share: Vec<_> = charges.by_ref().take(250).collect();
                let load = Arc::clone(&load);
                thread::spawn(move || {
                    for charge in share {
                        // It moves to another device and back.
                        let away =
                            DeviceLoad::new(DeviceId(4)).charge(charge.bytes(), Priority::High);
                        drop(charge);
                        drop(load.charge(away.bytes(), Priority::Low));
                        assert!(load.in_flight() <= 501_500, "it does not wrap");
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(load.in_flight(), 0);
    }

    #[test]
    fn a_slice_waits_for_what_is_as_urgent_and_for_nothing_less() {
        let load = DeviceLoad::new(DeviceId(0));
        let _low = load.charge(100, Priority::Low);
        let _medium = load.charge(10, Priority::Medium);
        let _high = load.charge(1, Priority::High);
        let ahead = Priority::ALL.map(|priority| load.ahead_of(priority));
        assert_eq!(ahead, [1, 11, 111]);
    }

    #[test]
    fn a_rate_that_nobody_has_measured_for_long_is_unknown_again() {
        let load = DeviceLoad::new(DeviceId(0));
        let minute = Duration::from_secs(60);
        assert_eq!(load.rate(Time(0), minute), None);
        load.publish_rate(Time(1_000_000), 1e9);
        assert!(load.rate(Time(60_000_000), minute).is_some());
        assert_eq!(load.rate(Time(61_000_000), minute), None);
        for nonsense in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            load.publish_rate(Time(1), nonsense);
            assert_eq!(load.rate(Time(1), minute), None);
        }
    }

    proptest! {
        #[test]
        fn a_rate_survives_its_word(rate in 1.0..1e15f64, now in 0..1u64 << 47) {
            let (measured, kept) = unpack(pack(Time(now), rate)).unwrap();
            prop_assert!((kept / rate - 1.0).abs() < 1e-6);
            prop_assert!(measured.0 <= now && now - measured.0 < 1 << STEP_BITS);
        }
    }
}
