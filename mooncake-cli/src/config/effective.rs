//! The settings that hold in the end, and where each came from.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::file::ROLES;
use super::{ConfigError, ConfigFile, Flags, Setting, SettingValue, Settings, env};

/// Where a value came from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// The configuration file.
    File {
        /// Its name.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// The command line.
    Flag {
        /// The flag, with its dashes.
        flag: String,
    },
}

impl Origin {
    /// The kind of origin, in a word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Environment { .. } => "env",
            Self::File { .. } => "file",
            Self::Flag { .. } => "flag",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Environment { variable } => f.write_str(variable),
            Self::File { file, line } => write!(f, "{file}, line {line}"),
            Self::Flag { flag } => f.write_str(flag),
        }
    }
}

/// The value of one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Value {
    /// Whose value it is.
    #[serde(skip)]
    pub setting: &'static Setting,
    /// The value, as one would write it.
    #[serde(rename = "value")]
    pub text: String,
    /// Where it came from.
    #[serde(flatten, serialize_with = "serialize_origin")]
    pub origin: Origin,
}

fn serialize_origin<S: serde::Serializer>(
    origin: &Origin,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Named {
        source: &'static str,
        r#where: Option<String>,
    }
    let r#where = (*origin != Origin::Default).then(|| origin.to_string());
    Named {
        source: origin.kind(),
        r#where,
    }
    .serialize(serializer)
}

/// The settings of a role, and the value of each with its origin.
#[derive(Clone, Debug)]
pub struct Effective<S> {
    /// The settings.
    pub settings: S,
    /// The values behind them, in the order of the role's table.
    pub values: Vec<Value>,
}

impl<S> Effective<S> {
    /// Whether somebody said what `setting` should be.
    #[must_use]
    pub fn is_given(&self, setting: &str) -> bool {
        let named = self
            .values
            .iter()
            .find(|value| value.setting.name == setting);
        named.is_some_and(|value| value.origin != Origin::Default)
    }
}

impl Effective<()> {
    /// Reads one value; for [`Settings::assemble`].
    pub(super) fn parse<T: SettingValue>(&self, name: &'static str) -> Result<T, ConfigError> {
        let value = self
            .values
            .iter()
            .find(|value| value.setting.name == name)
            .expect("every setting has a value");
        T::parse(&value.text).map_err(|what| ConfigError::Value {
            origin: value.origin.clone(),
            setting: name,
            what,
        })
    }
}

/// What is known besides the flags: the environment and the configuration file.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    file: Option<ConfigFile>,
    variables: Vec<(String, String)>,
}

impl Sources {
    /// Reads the process's environment, and the file at `path` or else at `MOONCAKE_CONFIG`.
    ///
    /// # Errors
    ///
    /// When there is such a file and it is wrong, or when a variable names no setting of its role.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let named = std::env::var_os("MOONCAKE_CONFIG").filter(|name| !name.is_empty());
        let path = path
            .map(Path::to_path_buf)
            .or_else(|| named.map(Into::into));
        let file = path.as_deref().map(ConfigFile::open).transpose()?;
        let variables: Vec<_> = std::env::vars_os()
            .filter_map(|(name, text)| {
                let name = name
                    .into_string()
                    .ok()
                    .filter(|name| name.starts_with("MOONCAKE_"))?;
                // A text that is not UTF-8 stays wrong, and its setting will say so.
                Some((name, text.to_string_lossy().into_owned()))
            })
            .collect();
        // As in the file, whichever role it is that runs now.
        for (role, table) in ROLES {
            env::values(role, table, &variables)?;
        }
        Ok(Self::new(file, variables))
    }

    /// Takes a file that was read, and (name, text) of environment variables.
    #[must_use]
    pub fn new(file: Option<ConfigFile>, variables: Vec<(String, String)>) -> Self {
        Self { file, variables }
    }

    /// The settings that hold for a role, given its flags.
    ///
    /// # Errors
    ///
    /// When an environment variable names no setting or has a wrong value, or settings contradict
    /// each other.
    pub fn settle<S: Settings>(&self, flags: &Flags<S>) -> Result<Effective<S>, ConfigError> {
        let environment = env::values(S::ROLE, S::TABLE, &self.variables)?;
        let from_env = |setting: &Setting| {
            let said = environment
                .iter()
                .find(|said| said.setting == setting.name)?;
            let variable = said.variable.clone();
            Some((said.text.clone(), Origin::Environment { variable }))
        };
        let from_flag = |setting: &Setting| {
            let text = flags.value(setting.name)?.to_owned();
            Some((
                text,
                Origin::Flag {
                    flag: format!("--{}", setting.flag()),
                },
            ))
        };
        let from_file = |setting: &Setting| self.file.as_ref()?.value(S::ROLE, setting.name);
        let mut values = Vec::new();
        for setting in S::TABLE {
            let (text, origin) = from_flag(setting)
                .or_else(|| from_env(setting))
                .or_else(|| from_file(setting))
                .unwrap_or_else(|| (setting.default.to_owned(), Origin::Default));
            values.push(Value {
                setting,
                text,
                origin,
            });
        }
        let effective = Effective {
            settings: (),
            values,
        };
        Ok(Effective {
            settings: S::assemble(&effective)?,
            values: effective.values,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{ClientSettings, MasterSettings, NodeSettings};
    use super::*;

    const FILE: &str =
        "[client]\ntenant = \"file\"\noperation_deadline = \"7s\"\nconnect_deadline = \"2s\"\n";

    fn sources(variables: &[(&str, &str)]) -> Sources {
        let variables = variables
            .iter()
            .map(|(name, text)| (name.to_string(), text.to_string()))
            .collect();
        Sources::new(Some(ConfigFile::parse("m.toml", FILE).unwrap()), variables)
    }

    #[test]
    fn a_flag_beats_the_environment_which_beats_the_file() {
        let sources = sources(&[
            ("MOONCAKE_CLIENT_TENANT", "env"),
            ("MOONCAKE_CLIENT_OPERATION_DEADLINE", "6s"),
        ]);
        let effective = sources
            .settle(&Flags::<ClientSettings>::default().with("tenant", "flag"))
            .unwrap();
        assert_eq!(effective.settings.tenant, "flag");
        assert_eq!(
            effective.settings.operation_deadline,
            Duration::from_secs(6)
        );
        assert_eq!(effective.settings.connect_deadline, Duration::from_secs(2));
        assert_eq!(effective.settings.master.as_str(), "127.0.0.1:50051");
        let kinds: Vec<_> = effective
            .values
            .iter()
            .map(|value| value.origin.kind())
            .collect();
        assert_eq!(kinds, ["default", "flag", "env", "file"]);
    }

    #[test]
    fn every_default_is_a_value_of_its_setting() {
        let sources = Sources::default();
        assert!(sources.settle(&Flags::<MasterSettings>::default()).is_ok());
        assert!(sources.settle(&Flags::<NodeSettings>::default()).is_ok());
        assert!(sources.settle(&Flags::<ClientSettings>::default()).is_ok());
    }

    #[test]
    fn a_wrong_variable_is_named() {
        let error = sources(&[("MOONCAKE_CLIENT_CONNECT_DEADLINE", "soon")]);
        let error = error
            .settle(&Flags::<ClientSettings>::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("MOONCAKE_CLIENT_CONNECT_DEADLINE: connect_deadline: \"soon\""),
            "{error}"
        );
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let flags = Flags::<MasterSettings>::default().with("eviction_low_watermark_ratio", "0.95");
        let error = Sources::default().settle(&flags).unwrap_err().to_string();
        assert!(error.contains("eviction would never stop"), "{error}");
        let flags = Flags::<ClientSettings>::default().with("tenant", "_system");
        assert!(Sources::default().settle(&flags).is_err());
    }

    #[test]
    fn an_origin_serialises_beside_its_value() {
        let effective = sources(&[])
            .settle(&Flags::<ClientSettings>::default())
            .unwrap();
        let json = serde_json::to_value(&effective.values[..2]).unwrap();
        assert_eq!(
            json[0],
            serde_json::json!({"value": "127.0.0.1:50051", "source": "default", "where": null})
        );
        assert_eq!(json[1]["where"], "m.toml, line 2");
    }
}
