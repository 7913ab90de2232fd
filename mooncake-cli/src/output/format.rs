//! Numbers for people.

/// A number of bytes with three digits that matter, such as `1.50 GiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64, 0);
    // 1023.5 would be shown as 1024.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{} {}", digits(value), UNITS[unit])
}

/// A number with a comma between its thousands.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate in bits a second.
#[must_use]
pub fn bits_per_s(rate: u64) -> String {
    match rate {
        ..1_000_000_000 => format!("{} Mb/s", digits(rate as f64 / 1e6)),
        _ => format!("{} Gb/s", digits(rate as f64 / 1e9)),
    }
}

/// A rate in units of 1,000,000,000 bytes a second.
#[must_use]
pub fn gb_per_s(rate: f64) -> String {
    format!("{} GB/s", digits(rate))
}

/// A latency that is given in microseconds.
#[must_use]
pub fn micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..999_500 => format!("{} ms", digits(micros as f64 / 1e3)),
        _ => seconds(micros as f64 / 1e6),
    }
}

/// A share as per cent, with two decimals.
#[must_use]
pub fn percent(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

/// A time that is given in seconds.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    if seconds < 100.0 {
        return format!("{} s", digits(seconds));
    }
    let whole = seconds.round() as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    if hours > 0 {
        format!("{hours} h {minutes} min")
    } else {
        format!("{minutes} min {rest} s")
    }
}

/// Three digits that matter, but never fewer than all before the point.
fn digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (shown, expected) in [
            (bytes(0), "0 B"),
            (bytes(1_023), "1023 B"),
            (bytes(1_024), "1.00 KiB"),
            (bytes(1_048_575), "1.00 MiB"),
            (bytes(3 << 29), "1.50 GiB"),
            (bytes(u64::MAX), "16384 PiB"),
            (count(0), "0"),
            (count(999), "999"),
            (count(1_000), "1,000"),
            (count(288_500), "288,500"),
            (bits_per_s(100_000_000), "100 Mb/s"),
            (bits_per_s(2_500_000_000), "2.50 Gb/s"),
            (bits_per_s(400_000_000_000), "400 Gb/s"),
            (gb_per_s(0.004), "0.00 GB/s"),
            (gb_per_s(12.34), "12.3 GB/s"),
            (micros(999), "999 µs"),
            (micros(1_000), "1.00 ms"),
            (micros(999_499), "999 ms"),
            (micros(999_500), "1.00 s"),
            (percent(0.36641), "36.64 %"),
            (seconds(1.0), "1.00 s"),
            (seconds(99.99), "100 s"),
            (seconds(100.0), "1 min 40 s"),
            (seconds(7_260.0), "2 h 1 min"),
        ] {
            assert_eq!(shown, expected);
        }
    }
}
