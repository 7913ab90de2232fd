//! Why there is no configuration.

use std::io;

use super::Origin;

/// Why settings could not be put together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Settings that cannot go together.
    #[error("the settings of the {role} do not go together: {what}")]
    Contradiction {
        /// Whose settings.
        role: &'static str,
        /// Which, and why.
        what: String,
    },
    /// The file could not be read.
    #[error("the configuration file {file} cannot be read")]
    Io {
        /// The file.
        file: String,
        /// Why not.
        source: io::Error,
    },
    /// The file is no TOML.
    #[error("{file}, line {line}: {what}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        what: String,
    },
    /// There is no setting or section of this name.
    #[error("{origin}: there is no {what} {name:?}{}", guess(*nearest))]
    Unknown {
        /// Where the name stands.
        origin: Origin,
        /// What it would have been.
        what: String,
        /// The name.
        name: String,
        /// A known name that is much like it.
        nearest: Option<&'static str>,
    },
    /// A value that the setting does not take.
    #[error("{origin}: {setting}: {what}")]
    Value {
        /// Where the value stands.
        origin: Origin,
        /// Whose value it is.
        setting: &'static str,
        /// What is wrong with it.
        what: String,
    },
}

impl ConfigError {
    /// What the user may try.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Unknown {
                nearest: Some(name),
                ..
            } => Some(format!("write {name}, if that is what was meant")),
            Self::Unknown { .. } => Some("`mooncake config show` lists every setting".to_owned()),
            Self::Io { .. } => {
                Some("name another file with --config or MOONCAKE_CONFIG".to_owned())
            }
            _ => None,
        }
    }
}

fn guess(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(", but there is {name:?}"))
}
