//! What a request is for.

use std::{fmt, str::FromStr};

/// Why bytes are moved. Policies tell requests apart by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Intent {
    /// The caller does not say.
    #[default]
    Unspecified,
    /// Somebody waits for the block.
    ForegroundGet,
    /// A block that may be wanted soon.
    BackgroundPrefetch,
    /// Blocks move to another node.
    Migration,
    /// State is saved.
    Checkpoint,
    /// A model's weights are loaded.
    WeightLoading,
    /// Part of a transfer that goes through stage buffers.
    StagingInternal,
}

impl Intent {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Unspecified,
        Self::ForegroundGet,
        Self::BackgroundPrefetch,
        Self::Migration,
        Self::Checkpoint,
        Self::WeightLoading,
        Self::StagingInternal,
    ];

    /// Its name in configurations, such as `FOREGROUND_GET`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "INTENT_UNSPEC",
            Self::ForegroundGet => "FOREGROUND_GET",
            Self::BackgroundPrefetch => "BACKGROUND_PREFETCH",
            Self::Migration => "MIGRATION",
            Self::Checkpoint => "CHECKPOINT",
            Self::WeightLoading => "WEIGHT_LOADING",
            Self::StagingInternal => "STAGING_INTERNAL",
        }
    }
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Intent {
    type Err = String;

    /// Capital and small letters are the same.
    fn from_str(text: &str) -> Result<Self, String> {
        let named = |intent: &Self| text.eq_ignore_ascii_case(intent.name());
        Self::ALL.into_iter().find(named).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("{text:?} is no intent: {known}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_is_known_by_its_name() {
        for intent in Intent::ALL {
            assert_eq!(intent.name().to_lowercase().parse(), Ok(intent));
        }
        let error = "FOREGROUND".parse::<Intent>().unwrap_err();
        assert!(error.contains("FOREGROUND_GET"), "{error}");
    }
}
