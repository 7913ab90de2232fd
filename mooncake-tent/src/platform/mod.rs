//! What machine this is.

use std::fs;

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
