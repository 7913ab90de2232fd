//! What the machine and its clock say of themselves.

use std::{
    fs,
    time::{Duration, Instant},
};

/// The end of a budget that begins now, however large.
pub(crate) fn after(budget: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(budget).unwrap_or_else(|| now + LONG)
}

/// Between half of `pause` and one and a half, so that those who began together do not go on together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + rand::random::<f64>())
}

/// Tells processes of one machine, in one life of it; empty when unknown.
pub fn machine() -> String {
    let read = |path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().to_owned()
    };
    let boot = read("/proc/sys/kernel/random/boot_id");
    let machine = read("/etc/machine-id");
    match (boot.is_empty(), machine.is_empty()) {
        (true, _) => String::new(),
        (false, true) => boot,
        (false, false) => format!("{boot}:{machine}"),
    }
}
