//! The configuration file: TOML with one section per role.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::nearest::nearest;
use super::{
    ClientSettings, ConfigError, MasterSettings, MetadataSettings, NodeSettings, Origin, Setting,
    Settings,
};

/// A configuration file whose every name and value is known to be right.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    name: String,
    /// (role, setting) to its text and line.
    values: BTreeMap<(&'static str, &'static str), (String, usize)>,
}

impl ConfigFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is no TOML, or has a setting that is unknown or wrong.
    pub fn open(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(name, &text),
            Err(source) => Err(ConfigError::Io { file: name, source }),
        }
    }

    /// Reads `text`; errors call it `name`.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn parse(name: impl Into<String>, text: &str) -> Result<Self, ConfigError> {
        let mut file = Self {
            name: name.into(),
            values: BTreeMap::new(),
        };
        let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            file: file.name.clone(),
            line: line_at(text, error.span().map_or(0, |span| span.start)),
            what: error.message().to_owned(),
        })?;
        for (section, content) in document.get_ref() {
            file.section(text, section, content)?;
        }
        Ok(file)
    }

    /// What the file says about a setting, and where.
    pub(super) fn value(
        &self,
        role: &'static str,
        setting: &'static str,
    ) -> Option<(String, Origin)> {
        let (text, line) = self.values.get(&(role, setting))?;
        Some((text.clone(), self.origin(*line)))
    }

    fn origin(&self, line: usize) -> Origin {
        Origin::File {
            file: self.name.clone(),
            line,
        }
    }

    fn section(
        &mut self,
        text: &str,
        section: &Spanned<std::borrow::Cow<'_, str>>,
        content: &Spanned<DeValue<'_>>,
    ) -> Result<(), ConfigError> {
        let origin = self.origin(line_at(text, section.span().start));
        let name = section.get_ref();
        let Some((role, table)) = ROLES.into_iter().find(|(role, _)| role == name) else {
            let nearest = nearest(name, ROLES.map(|(role, _)| role));
            return Err(ConfigError::Unknown {
                origin,
                what: "section".to_owned(),
                name: name.to_string(),
                nearest,
            });
        };
        let DeValue::Table(settings) = content.get_ref() else {
            let what = format!(
                "expected a section [{role}], found {}",
                content.get_ref().type_str()
            );
            return Err(ConfigError::Value {
                origin,
                setting: role,
                what,
            });
        };
        for (name, value) in settings {
            let line = line_at(text, name.span().start);
            let Some(setting) = table.iter().find(|setting| setting.name == name.get_ref()) else {
                return Err(unknown(role, table, name.get_ref(), self.origin(line)));
            };
            let text = scalar(value.get_ref(), setting)
                .and_then(|text| (setting.check)(&text).map(|()| text))
                .map_err(|what| ConfigError::Value {
                    origin: self.origin(line),
                    setting: setting.name,
                    what,
                })?;
            self.values.insert((role, setting.name), (text, line));
        }
        Ok(())
    }
}

pub(super) const ROLES: [(&str, &[Setting]); 4] = [
    (MasterSettings::ROLE, MasterSettings::TABLE),
    (NodeSettings::ROLE, NodeSettings::TABLE),
    (MetadataSettings::ROLE, MetadataSettings::TABLE),
    (ClientSettings::ROLE, ClientSettings::TABLE),
];

/// The error about a name that is no setting of `role`.
pub(super) fn unknown(
    role: &str,
    table: &'static [Setting],
    name: &str,
    origin: Origin,
) -> ConfigError {
    let nearest = nearest(name, table.iter().map(|setting| setting.name));
    ConfigError::Unknown {
        origin,
        what: format!("{role} setting"),
        name: name.to_owned(),
        nearest,
    }
}

/// The text of a value, as a flag would give it.
fn scalar(value: &DeValue<'_>, setting: &Setting) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(switch) => Ok(switch.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        other => Err(format!(
            "expected {}, such as {:?}, found {}",
            setting.kind,
            setting.default,
            other.type_str()
        )),
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    1 + text
        .bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        ConfigFile::parse("m.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn values_are_found_with_their_lines() {
        let text = "# a comment\n[master]\nclient_ttl = \"3s\"\nquarantine_share = 0.5\n\n[node]\nsegment_size = 4_096\n";
        let file = ConfigFile::parse("m.toml", text).unwrap();
        let origin = |line| Origin::File {
            file: "m.toml".to_owned(),
            line,
        };
        assert_eq!(
            file.value("master", "client_ttl"),
            Some(("3s".to_owned(), origin(3)))
        );
        assert_eq!(
            file.value("master", "quarantine_share"),
            Some(("0.5".to_owned(), origin(4)))
        );
        assert_eq!(
            file.value("node", "segment_size"),
            Some(("4096".to_owned(), origin(7)))
        );
        assert_eq!(file.value("node", "name"), None);
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known_one() {
        let said = complaint("[master]\nclient_tll = \"3s\"\n");
        assert_eq!(
            said,
            "m.toml, line 2: there is no master setting \"client_tll\", but there is \"client_ttl\""
        );
        let said = complaint("[mastr]\n");
        assert_eq!(
            said,
            "m.toml, line 1: there is no section \"mastr\", but there is \"master\""
        );
        let said = complaint("[node]\nfrobnicate = 1\n");
        assert_eq!(
            said,
            "m.toml, line 2: there is no node setting \"frobnicate\""
        );
    }

    #[test]
    fn wrong_values_name_the_file_and_the_line() {
        for (text, expected) in [
            (
                "[master]\nclient_ttl = 3\n",
                "m.toml, line 2: client_ttl: \"3\" has no unit",
            ),
            (
                "[master]\n\nlisten = true\n",
                "m.toml, line 3: listen: \"true\" is no address to listen on, such as 0.0.0.0:50051",
            ),
            (
                "[master]\nlisten = [\"a\"]\n",
                "m.toml, line 2: listen: expected ip:port",
            ),
            (
                "master = 3\n",
                "m.toml, line 1: master: expected a section [master]",
            ),
            ("[master]\nlisten = \n", "m.toml, line 2: "),
            (
                "[master]\nlisten = \"a\"\nlisten = \"b\"\n",
                "m.toml, line 3: duplicate key",
            ),
        ] {
            let said = complaint(text);
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
