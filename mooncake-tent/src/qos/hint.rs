//! Which link a caller would like.

use std::{fmt, sync::Arc};

/// A link that the caller names for a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hint {
    link: Arc<str>,
    strength: Strength,
}

/// What happens if the link of a hint cannot carry the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strength {
    /// The request fails: no other link is good enough.
    Hard,
    /// Another one carries it.
    Soft,
}

impl Hint {
    /// Only `link`, or failure.
    pub fn hard(link: impl Into<Arc<str>>) -> Self {
        Self {
            link: link.into(),
            strength: Strength::Hard,
        }
    }

    /// `link` first, then the others.
    pub fn soft(link: impl Into<Arc<str>>) -> Self {
        Self {
            link: link.into(),
            strength: Strength::Soft,
        }
    }

    /// The link's name.
    pub fn link(&self) -> &str {
        &self.link
    }

    /// How much the caller insists.
    pub fn strength(&self) -> Strength {
        self.strength
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.strength {
            Strength::Hard => write!(f, "only {}", self.link),
            Strength::Soft => write!(f, "{} if possible", self.link),
        }
    }
}
