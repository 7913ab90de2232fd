//! Durations and sizes as people write them.

use std::time::Duration;

const DURATIONS: [(&str, u64); 5] = [
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];
const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads a whole number of a unit, such as `10s` or `500ms`.
///
/// # Errors
///
/// What is wrong with `text`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let right = "a duration is a whole number and us, ms, s, m or h, such as 500ms or 10s";
    if unit.is_empty() && !number.is_empty() {
        return Err(format!("{text:?} has no unit; {right}"));
    }
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is no duration; {right}"))?;
    let (_, micros) = DURATIONS
        .into_iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("{text:?} has the unit {unit:?}; {right}"))?;
    number
        .checked_mul(micros)
        .map(Duration::from_micros)
        .ok_or_else(|| format!("{text:?} is too long"))
}

/// Reads a whole number of bytes, with or without a unit, such as `64MiB` or `4096`.
///
/// # Errors
///
/// What is wrong with `text`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let right =
        "a size is a whole number and B, KiB, MiB, GiB or TiB (or kB, MB, GB, TB), such as 64MiB";
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is no size; {right}"))?;
    let bytes = match SIZES
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
    {
        Some((_, bytes)) => bytes,
        None if unit.is_empty() => 1,
        None => return Err(format!("{text:?} has the unit {unit:?}; {right}")),
    };
    number
        .checked_mul(bytes)
        .ok_or_else(|| format!("{text:?} is more than any machine has"))
}

/// The shortest text that [`parse_duration`] reads as `duration`, to the microsecond.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    // Hours and minutes are for reading: `90s` says more than `90000ms`, but `1m` no more than `60s`.
    let (name, unit) = DURATIONS[2..]
        .iter()
        .find(|(_, unit)| micros.is_multiple_of(*unit))
        .expect("1 divides all");
    format!("{}{name}", micros / unit)
}

/// The shortest text that [`parse_size`] reads as exactly `bytes`.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    let exact = SIZES[..4]
        .iter()
        .find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    exact.map_or_else(
        || bytes.to_string(),
        |(name, unit)| format!("{}{name}", bytes / unit),
    )
}

fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|digit: char| !digit.is_ascii_digit())
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("500 ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("7us"), Ok(Duration::from_micros(7)));
        for bad in [
            "",
            "10",
            "s",
            "-1s",
            "1.5s",
            "10sec",
            "10S",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert!(parse_duration("10").unwrap_err().contains("no unit"));
    }

    #[test]
    fn sizes_may_have_a_unit() {
        assert_eq!(parse_size("4096"), Ok(4_096));
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("1 gib"), Ok(1 << 30));
        assert_eq!(parse_size("1MB"), Ok(1_000_000));
        for bad in ["", "MiB", "-1", "1.5GiB", "1G", "1 MiB/s", "99999999TiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn texts_read_back(number in any::<u64>(), shift in 0..63u32) {
            let bytes = number >> shift;
            prop_assert_eq!(parse_size(&size_text(bytes)), Ok(bytes));
            let duration = Duration::from_micros(bytes);
            prop_assert_eq!(parse_duration(&duration_text(duration)), Ok(duration));
        }

        #[test]
        fn no_text_is_too_strange(text in ".*") {
            let _ = (parse_size(&text), parse_duration(&text));
        }
    }
}
