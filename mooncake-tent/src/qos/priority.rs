//! Which requests go first.

use std::{fmt, str::FromStr};

/// How much a request matters beside others. Lower ones wait, but not for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    High,
    /// Between the two.
    Medium,
    /// It may take its time.
    Low,
}

impl Priority {
    /// All of them, the most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Medium, Self::Low];

    /// 0 for the most urgent, as configurations count.
    pub fn level(self) -> u8 {
        self as u8
    }

    /// The priority of a level; `None`: there is none.
    pub fn from_level(level: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(level).ok()?).copied()
    }

    /// `high`, `medium` or `low`.
    pub fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |priority: &Self| text.eq_ignore_ascii_case(priority.name());
        Self::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| format!("{text:?} is no priority: high, medium or low"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_has_a_name_and_a_level() {
        for priority in Priority::ALL {
            assert_eq!(priority.to_string().parse(), Ok(priority));
            assert_eq!(
                Priority::from_level(priority.level().into()),
                Some(priority)
            );
        }
        assert!(Priority::High < Priority::Low, "in order of urgency");
        assert_eq!(Priority::from_level(3), None);
        assert!(
            "urgent".parse::<Priority>().is_err(),
            "it does not become low"
        );
    }
}
