//! The table that every form of a setting is made from.

use super::{ConfigError, Effective};

/// One setting of a role.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name in files; flags have dashes for underscores.
    pub name: &'static str,
    /// What it is for.
    pub help: &'static str,
    /// What it is when nobody says otherwise, as one would write it.
    pub default: &'static str,
    /// What kind of value it takes, in a word.
    pub kind: &'static str,
    /// Says what is wrong with a text, if anything.
    pub check: fn(&str) -> Result<(), String>,
}

impl Setting {
    /// The flag, without its dashes in front.
    #[must_use]
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The environment variable, of `role`.
    #[must_use]
    pub fn variable(&self, role: &str) -> String {
        format!("MOONCAKE_{role}_{}", self.name).to_uppercase()
    }
}

/// The settings of one role.
pub trait Settings: Sized + 'static {
    /// The role: the section of the file, and part of the environment variables' names.
    const ROLE: &'static str;
    /// All settings, in the order in which they are shown.
    const TABLE: &'static [Setting];

    /// Puts the struct together from texts that each passed their setting's check.
    ///
    /// # Errors
    ///
    /// When settings contradict each other.
    fn assemble(effective: &Effective<()>) -> Result<Self, ConfigError>;
}

/// Declares a role's settings: the struct, and the table that everything else is made from.
macro_rules! settings {
    (
        $(#[$about:meta])*
        pub struct $name:ident, $role:literal, $check:path {
            $( $(#[doc = $help:literal])+ $field:ident: $kind:ty = $default:literal, )+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $( $(#[doc = $help])+ pub $field: $kind, )+
        }

        impl $crate::config::Settings for $name {
            const ROLE: &'static str = $role;
            const TABLE: &'static [$crate::config::Setting] = &[
                $( $crate::config::Setting {
                    name: stringify!($field),
                    help: concat!($($help),+),
                    default: $default,
                    kind: <$kind as $crate::config::SettingValue>::KIND,
                    check: |text| <$kind as $crate::config::SettingValue>::parse(text).map(drop),
                }, )+
            ];

            fn assemble(effective: &$crate::config::Effective<()>) -> Result<Self, $crate::config::ConfigError> {
                let settings = Self { $( $field: effective.parse(stringify!($field))?, )+ };
                $check(&settings).map_err(|what| $crate::config::ConfigError::Contradiction { role: $role, what })?;
                Ok(settings)
            }
        }
    };
}
pub(super) use settings;
