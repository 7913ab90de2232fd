//! The answer no.

use serde::Serialize;

use super::Show;

/// Why the answer about a key is no.
#[derive(Clone, Debug, Serialize)]
pub struct No {
    no: About,
}

#[derive(Clone, Debug, Serialize)]
struct About {
    key: String,
    message: String,
}

impl No {
    /// Says why the answer about `key` is no.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            no: About {
                key: key.into(),
                message: message.into(),
            },
        }
    }
}

impl Show for No {
    fn human(&self) -> String {
        format!("{}: {}", self.no.key, self.no.message)
    }
}
