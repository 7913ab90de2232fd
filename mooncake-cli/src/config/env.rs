//! Settings from environment variables.

use super::file::unknown;
use super::{ConfigError, Origin, Setting};

/// What a variable says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// About which setting.
    pub(super) setting: &'static str,
    pub(super) text: String,
    /// The variable's name.
    pub(super) variable: String,
}

/// What the variables say about the settings of `role`.
///
/// # Errors
///
/// When a variable has the role's prefix but names no setting.
pub(super) fn values(
    role: &'static str,
    table: &'static [Setting],
    variables: &[(String, String)],
) -> Result<Vec<Said>, ConfigError> {
    let prefix = format!("MOONCAKE_{}_", role.to_uppercase());
    let mut values = Vec::new();
    for (variable, text) in variables {
        let Some(name) = variable.strip_prefix(&prefix).map(str::to_lowercase) else {
            continue;
        };
        if made_by_kubernetes(&name) {
            continue;
        }
        match table.iter().find(|setting| setting.name == name) {
            Some(setting) => values.push(Said {
                setting: setting.name,
                text: text.clone(),
                variable: variable.clone(),
            }),
            None => {
                return Err(unknown(
                    role,
                    table,
                    &name,
                    Origin::Environment {
                        variable: variable.clone(),
                    },
                ));
            }
        }
    }
    // Users of other Mooncake tools have it in their environment for every role.
    let own = values.iter().any(|said| said.setting == SHARED_SETTING);
    let shared = variables
        .iter()
        .find(|(variable, _)| variable == SHARED_VARIABLE);
    let setting = table.iter().find(|setting| setting.name == SHARED_SETTING);
    if let (false, Some((_, text)), Some(setting)) = (own, shared, setting) {
        values.push(Said {
            setting: setting.name,
            text: text.clone(),
            variable: SHARED_VARIABLE.to_owned(),
        });
    }
    Ok(values)
}

/// Names the master for all roles that have one.
const SHARED_VARIABLE: &str = "MOONCAKE_MASTER";
const SHARED_SETTING: &str = "master";

/// Kubernetes gives every container variables about each service: one that is called
/// `mooncake-master` makes `MOONCAKE_MASTER_PORT` and the like, which are no settings of ours.
fn made_by_kubernetes(name: &str) -> bool {
    name == "port"
        || ["service_host", "service_port", "port_"]
            .iter()
            .any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::super::{ClientSettings, MasterSettings, NodeSettings, Settings};
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Vec<(&'static str, String)>, ConfigError> {
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, text)| (name.to_string(), text.to_string()))
            .collect();
        let said = values(MasterSettings::ROLE, MasterSettings::TABLE, &variables)?;
        Ok(said
            .into_iter()
            .map(|said| (said.setting, said.text))
            .collect())
    }

    #[test]
    fn variables_of_other_roles_and_programs_do_not_count() {
        let found = read(&[
            ("MOONCAKE_MASTER_CLIENT_TTL", "3s"),
            ("MOONCAKE_NODE_NAME", "a"),
            ("MOONCAKE_MASTER", "b"),
        ]);
        assert_eq!(found.unwrap(), [("client_ttl", "3s".to_owned())]);
    }

    #[test]
    fn one_variable_names_the_master_for_every_role_that_has_one() {
        let shared = ("MOONCAKE_MASTER".to_owned(), "a:1".to_owned());
        let own = ("MOONCAKE_CLIENT_MASTER".to_owned(), "b:2".to_owned());
        let client = |variables: &[_]| {
            let said = values(ClientSettings::ROLE, ClientSettings::TABLE, variables).unwrap();
            said.into_iter()
                .map(|said| (said.text, said.variable))
                .collect::<Vec<_>>()
        };
        let said = |(variable, text): &(String, String)| (text.clone(), variable.clone());
        assert_eq!(client(std::slice::from_ref(&shared)), [said(&shared)]);
        assert_eq!(client(&[shared, own.clone()]), [said(&own)]);
    }

    #[test]
    fn a_misspelt_variable_is_refused() {
        let error = read(&[("MOONCAKE_MASTER_CLIENT_TLL", "3s")])
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("MOONCAKE_MASTER_CLIENT_TLL: there is no master setting"),
            "{error}"
        );
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_of_our_name_is_left_alone() {
        let names = [
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_GRPC",
            "PORT",
            "PORT_50051_TCP_ADDR",
        ];
        for name in names.map(|name| format!("MOONCAKE_MASTER_{name}")) {
            assert!(
                read(&[(&name, "tcp://10.0.0.1:50051")]).unwrap().is_empty(),
                "{name}"
            );
        }
        let tables = [
            MasterSettings::TABLE,
            NodeSettings::TABLE,
            ClientSettings::TABLE,
        ];
        assert!(
            !tables
                .into_iter()
                .flatten()
                .any(|setting| made_by_kubernetes(setting.name))
        );
    }
}
