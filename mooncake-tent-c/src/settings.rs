//! Settings as users of the engine in C++ have them.

use std::{cell::RefCell, collections::BTreeMap, fs, path::PathBuf};

use serde_json::Value;

use crate::failure::{Failure, Result};

thread_local! {
    static STAGED: RefCell<Staged> = RefCell::default();
}

/// What a thread has said for the engines that it will create.
#[derive(Clone, Debug, Default)]
struct Staged {
    file: Option<PathBuf>,
    settings: BTreeMap<String, String>,
}

pub(crate) fn stage_file(path: Option<&str>) {
    STAGED.with_borrow_mut(|staged| staged.file = path.map(PathBuf::from));
}

pub(crate) fn stage(key: &str, value: Option<&str>) {
    STAGED.with_borrow_mut(|staged| match value {
        Some(value) => _ = staged.settings.insert(key.to_owned(), value.to_owned()),
        None => _ = staged.settings.remove(key),
    });
}

/// What an engine is made of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Where it listens, and what peers are told.
    pub(crate) host: String,
    /// 0: any.
    pub(crate) port: u16,
    pub(crate) tcp: bool,
    pub(crate) shm: bool,
    pub(crate) cma: bool,
    pub(crate) file: bool,
    /// The array of policies, as JSON.
    pub(crate) policies: Option<String>,
    /// Keys that mean nothing here.
    pub(crate) ignored: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            tcp: true,
            shm: true,
            cma: true,
            file: true,
            policies: None,
            ignored: Vec::new(),
        }
    }
}

impl Settings {
    /// Of the calling thread.
    pub(crate) fn staged() -> Result<Self> {
        let Staged { file, settings } = STAGED.with_borrow(Staged::clone);
        let mut all = BTreeMap::new();
        if let Some(path) = file {
            let shown = path.display();
            let text = fs::read_to_string(&path)
                .map_err(|error| Failure::new(format!("{shown}: {error}")))?;
            let document: Value = serde_json::from_str(&text)
                .map_err(|error| Failure::new(format!("{shown} is not JSON: {error}")))?;
            if !document.is_object() {
                return Err(Failure::new(format!("{shown} is not a JSON object")));
            }
            flatten("", document, &mut all);
        }
        // What was said one by one is text; it may mean a number, or be one.
        let said = settings.into_iter();
        all.extend(said.map(|(key, value)| (key, Value::String(value))));
        Self::of(all)
    }

    fn of(all: BTreeMap<String, Value>) -> Result<Self> {
        let mut settings = Self::default();
        let mut strict = false;
        for (key, value) in all {
            match key.as_str() {
                "metadata_type" => peer_to_peer(&text(&key, &value)?)?,
                "rpc_server_hostname" => settings.host = text(&key, &value)?,
                "rpc_server_port" => settings.port = port(&key, &value)?,
                "transports/tcp/enable" => settings.tcp = flag(&key, &value)?,
                "transports/shm/enable" => settings.shm = flag(&key, &value)?,
                "transports/cma/enable" => settings.cma = flag(&key, &value)?,
                "transports/io_uring/enable" => settings.file = flag(&key, &value)?,
                "policy" => settings.policies = Some(value.to_string()),
                "strict" => strict = flag(&key, &value)?,
                _ => settings.ignored.push(key),
            }
        }
        match strict && !settings.ignored.is_empty() {
            true => {
                let unknown = settings.ignored.join(", ");
                Err(Failure::new(format!(
                    "settings that mean nothing: {unknown}"
                )))
            }
            false => Ok(settings),
        }
    }
}

fn flatten(prefix: &str, value: Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = match prefix {
                    "" => key,
                    prefix => format!("{prefix}/{key}"),
                };
                flatten(&key, value, all);
            }
        }
        value => _ = all.insert(prefix.to_owned(), value),
    }
}

fn peer_to_peer(kind: &str) -> Result<()> {
    match kind {
        "p2p" | "P2PHANDSHAKE" => Ok(()),
        other => Err(Failure::new(format!(
            "metadata_type {other}: this library finds peers by their address only (p2p)"
        ))),
    }
}

fn text(key: &str, value: &Value) -> Result<String> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| wrong(key, value, "a text"))
}

fn port(key: &str, value: &Value) -> Result<u16> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    let port = number.and_then(|number| u16::try_from(number).ok());
    port.ok_or_else(|| wrong(key, value, "a port"))
}

fn flag(key: &str, value: &Value) -> Result<bool> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::String(text) if matches!(text.as_str(), "true" | "1") => Ok(true),
        Value::String(text) if matches!(text.as_str(), "false" | "0") => Ok(false),
        value => Err(wrong(key, value, "true or false")),
    }
}

fn wrong(key: &str, value: &Value, wanted: &str) -> Failure {
    Failure::new(format!("{key}: {value} is not {wanted}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(document: Value) -> Result<Settings> {
        let mut all = BTreeMap::new();
        flatten("", document, &mut all);
        Settings::of(all)
    }

    #[test]
    fn objects_are_paths_and_texts_may_be_numbers_and_flags() {
        let settings = of(json!({
            "rpc_server_port": "12345",
            "rpc_server_hostname": "::1",
            "transports": { "shm": { "enable": "0" }, "cma": { "enable": false }, "rdma": { "enable": true } },
        }));
        let expected = Settings {
            host: "::1".to_owned(),
            port: 12345,
            shm: false,
            cma: false,
            ignored: vec!["transports/rdma/enable".to_owned()],
            ..Settings::default()
        };
        assert_eq!(settings.unwrap(), expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (document, said) in [
            (
                json!({ "rpc_server_port": 65_536 }),
                "rpc_server_port: 65536 is not a port",
            ),
            (json!({ "metadata_type": "etcd" }), "metadata_type etcd"),
            (
                json!({ "metadata_type": 7 }),
                "metadata_type: 7 is not a text",
            ),
            (
                json!({ "transports": { "tcp": { "enable": "maybe" } } }),
                "transports/tcp/enable",
            ),
            (
                json!({ "strict": true, "rpc_server_prot": 1 }),
                "mean nothing: rpc_server_prot",
            ),
        ] {
            let refused = format!("{:?}", of(document.clone()).unwrap_err());
            assert!(refused.contains(said), "{document}: {refused}");
        }
    }
}
