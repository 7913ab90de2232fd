//! Sets of CPUs as the kernel writes them.

use std::{fmt, ops::RangeInclusive, str::FromStr};

/// CPUs by number, such as `0-15,32-47`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    /// In order, with a gap between neighbours.
    ranges: Vec<RangeInclusive<u32>>,
}

impl CpuSet {
    /// How many they are.
    pub fn len(&self) -> usize {
        let lengths = self.ranges.iter().map(|range| range.end() - range.start());
        lengths.map(|length| length as usize + 1).sum()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether the CPU is one of them.
    pub fn contains(&self, cpu: u32) -> bool {
        self.ranges.iter().any(|range| range.contains(&cpu))
    }

    /// Their numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.ranges.iter().cloned().flatten()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, range) in self.ranges.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            let (first, last) = range.clone().into_inner();
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no list of CPUs");
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            let after = ranges
                .last()
                .map_or(Some(0), |range| range.end().checked_add(1));
            if last < first || after.is_none_or(|after| first < after) {
                return Err(wrong());
            }
            match ranges.last_mut() {
                Some(before) if Some(first) == after => *before = *before.start()..=last,
                _ => ranges.push(first..=last),
            }
        }
        Ok(Self { ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_read_and_written_as_the_kernel_does() {
        for (text, count) in [("", 0), ("0", 1), ("0-3", 4), ("0-3,8,16-31", 21)] {
            let cpus: CpuSet = text.parse().unwrap();
            assert_eq!((cpus.len(), cpus.to_string().as_str()), (count, text));
            assert_eq!(cpus.iter().count(), count);
        }
        let cpus: CpuSet = "0-3,4,8".parse().unwrap();
        assert_eq!(cpus.to_string(), "0-4,8");
        assert!(cpus.contains(8) && !cpus.contains(5));
        for wrong in [
            "a",
            "3-1",
            "1,",
            "1,0",
            "0-3,2",
            "-1",
            "4294967296",
            "4294967295,0",
        ] {
            assert!(wrong.parse::<CpuSet>().is_err(), "{wrong}");
        }
    }
}
