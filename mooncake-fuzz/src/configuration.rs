//! Configuration files.

use std::fmt::Debug;

use mooncake_cli::config::{
    ClientSettings, ConfigError, ConfigFile, Flags, MasterSettings, NodeSettings, Settings, Sources,
};

use crate::{
    Target,
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "configuration",
    run,
    words: &[
        b"[master]\n",
        b"[node]\n",
        b"[client]\n",
        b"listen = \"127.0.0.1:0\"\n",
        b"client_ttl = \"3s\"\n",
        b"default_kv_lease_ttl = \"5us\"\n",
        b"eviction_low_watermark_ratio = 1e-3\n",
        b"allocation_strategy = \"random\"\n",
        b"segment_size = 4_096\n",
        b"segment_size = \"1GiB\"\n",
        b"tenant = \"a\"\n",
        b"name = '''",
        b"\"\"\"",
        b"\\u0000",
        b"[[[[[[[[",
        b"{a={a={a=",
        b"0x10",
        b"nan",
        b"\xc3\xa9",
    ],
};

fn run(bytes: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return 0;
    };
    match ConfigFile::parse("m.toml", text) {
        Ok(file) => {
            let sources = Sources::new(Some(file), Vec::new());
            shape((
                role::<MasterSettings>(&sources),
                role::<NodeSettings>(&sources),
                role::<ClientSettings>(&sources),
            ))
        }
        Err(error) => {
            if let ConfigError::Syntax { line, .. } = &error {
                let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
                assert!((1..=lines).contains(line), "{error}");
            }
            shape(words(&error.to_string()))
        }
    }
}

/// Settles the settings of a role, and does it again from what the first time gave.
fn role<S: Settings + Debug + PartialEq>(sources: &Sources) -> String {
    let effective = match sources.settle(&Flags::<S>::default()) {
        Ok(effective) => effective,
        Err(error) => return words(&error.to_string()),
    };
    let mut text = format!("[{}]\n", S::ROLE);
    for value in &effective.values {
        let quoted = toml::Value::String(value.text.clone());
        text += &format!("{} = {quoted}\n", value.setting.name);
    }
    let file = ConfigFile::parse("again.toml", &text).expect("what was settled is a file");
    let sources = Sources::new(Some(file), Vec::new());
    let again = sources.settle(&Flags::<S>::default());
    let again = again.expect("what was settled goes together");
    assert_eq!(again.settings, effective.settings);
    let given = effective.values.iter();
    given
        .filter(|value| effective.is_given(value.setting.name))
        .map(|value| value.setting.name)
        .collect()
}
