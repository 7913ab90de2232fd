//! Settings from the command line.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::{ErrorKind, Result};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::Settings;

/// The settings of a role that were given as flags. Flattened into a command's arguments, it adds
/// one flag per setting.
#[derive(Clone, Debug)]
pub struct Flags<S> {
    given: BTreeMap<&'static str, String>,
    role: PhantomData<S>,
}

impl<S> Default for Flags<S> {
    fn default() -> Self {
        Self {
            given: BTreeMap::new(),
            role: PhantomData,
        }
    }
}

impl<S: Settings> Flags<S> {
    /// What the flag of `setting` said.
    pub(super) fn value(&self, setting: &str) -> Option<&str> {
        self.given.get(setting).map(String::as_str)
    }

    /// Sets what a flag says, for commands that decide a setting themselves.
    ///
    /// # Panics
    ///
    /// When the role has no such setting.
    #[must_use]
    pub fn with(mut self, setting: &str, text: impl Into<String>) -> Self {
        let known = S::TABLE
            .iter()
            .find(|known| known.name == setting)
            .expect("a setting of the role");
        self.given.insert(known.name, text.into());
        self
    }
}

impl<S: Settings> Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        let heading = format!("Settings (also in [{}] of the configuration file)", S::ROLE);
        S::TABLE.iter().fold(command, |command, setting| {
            let check = setting.check;
            let (default, variable) = (setting.default, setting.variable(S::ROLE));
            let shown = if default.is_empty() {
                String::new()
            } else {
                format!("default: {default}, ")
            };
            command.arg(
                Arg::new(setting.name)
                    .long(setting.flag())
                    .value_name(setting.kind.to_uppercase())
                    .help(format!("{} [{shown}env: {variable}]", setting.help.trim()))
                    .help_heading(heading.clone())
                    .value_parser(
                        StringValueParser::new().try_map(move |text| check(&text).map(|()| text)),
                    ),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Settings> FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<()> {
        for setting in S::TABLE {
            let given = matches
                .try_get_one::<String>(setting.name)
                .map_err(|error| clap::Error::raw(ErrorKind::ArgumentConflict, error))?;
            if let Some(text) = given {
                self.given.insert(setting.name, text.clone());
            }
        }
        Ok(())
    }
}
