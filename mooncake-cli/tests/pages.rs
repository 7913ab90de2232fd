//! The pages in `docs/` say what the code does.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use mooncake_cli::commands::get::GetResult;
use mooncake_cli::commands::locate::{Place, Places};
use mooncake_cli::commands::ls::{Listed, Listing};
use mooncake_cli::commands::put::PutResult;
use mooncake_cli::commands::rm::{Removal, Removals};
use mooncake_cli::commands::stat::ObjectStat;
use mooncake_cli::commands::trace::TraceStats;
use mooncake_cli::config::{Flags, MasterSettings, Sources, page};
use mooncake_cli::output::Failure;
use mooncake_cli::report::{NodeSummary, Summary};
use mooncake_cli::trace::Ideal;
use serde::Serialize;
use serde_json::{Value, json};

/// The file `name` in `docs/`. A package that was taken from a registry comes without these pages.
fn doc(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs");
    folder.is_dir().then(|| folder.join(name))
}

#[test]
fn the_configuration_page_is_made_from_the_settings() {
    let Some(path) = doc("configuration.md") else {
        return;
    };
    if std::env::var_os("MOONCAKE_BLESS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page(),
        "{} is out of date: MOONCAKE_BLESS=1 cargo test -p mooncake-cli --test pages",
        path.display()
    );
}

/// The fields that the page lists under the heading of `form`: the first column of its table.
fn listed(page: &str, form: &str) -> BTreeSet<String> {
    let start = page
        .find(&format!("\n## {form}\n"))
        .unwrap_or_else(|| panic!("no heading {form:?}"));
    let section = &page[start + 4..];
    let section = &section[..section.find("\n## ").unwrap_or(section.len())];
    let cells = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    cells.map(str::to_owned).collect()
}

/// The paths of all fields in `value`, written as the page writes them: `nodes[].name`.
fn fields(value: &Value, prefix: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}.{name}")
                };
                into.insert(path.clone());
                fields(value, &path, into);
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| fields(item, &format!("{prefix}[]"), into)),
        _ => {}
    }
}

fn check(form: &str, value: &impl Serialize) {
    let Some(path) = doc("json.md") else { return };
    let page = std::fs::read_to_string(path).unwrap();
    let mut found = BTreeSet::new();
    fields(&serde_json::to_value(value).unwrap(), "", &mut found);
    assert_eq!(listed(&page, form), found, "docs/json.md, {form}");
}

#[test]
fn runs_have_the_fields_of_the_page() {
    check(
        "demo, bench replay",
        &Summary {
            nodes: vec![NodeSummary::default()],
            ..Summary::default()
        },
    );
}

#[test]
fn objects_have_the_fields_of_the_page() {
    let key = || "k".to_owned();
    check(
        "put",
        &PutResult {
            key: key(),
            bytes: 1,
            seconds: 1.0,
        },
    );
    check(
        "get",
        &GetResult {
            key: key(),
            to: key(),
            bytes: 1,
            seconds: 1.0,
        },
    );
    check(
        "ls",
        &Listing {
            objects: vec![Listed {
                key: key(),
                bytes: 1,
                replicas: 1,
            }],
            more: false,
        },
    );
    check(
        "stat",
        &ObjectStat {
            key: key(),
            tenant: key(),
            bytes: 1,
            epoch: 1,
            sequence: 1,
            writing: false,
            replicas: 1,
            leases: 0,
            idle_seconds: 0.0,
        },
    );
    let place = Place {
        kind: "memory",
        node: key(),
        address: key(),
        offset: 0,
        bytes: 1,
    };
    check(
        "where",
        &Places {
            key: key(),
            replicas: vec![place],
        },
    );
    check(
        "rm",
        &Removals {
            keys: vec![Removal {
                key: key(),
                removed: true,
                error: None,
            }],
        },
    );
}

#[test]
fn traces_have_the_fields_of_the_page() {
    check(
        "trace generate, trace stats",
        &TraceStats::new("f", Ideal::default()),
    );
}

#[test]
fn errors_have_the_fields_of_the_page() {
    check("Errors", &Failure::new("a").json());
}

#[test]
fn settings_have_the_fields_of_the_page() {
    let effective = Sources::default()
        .settle(&Flags::<MasterSettings>::default())
        .unwrap();
    check(
        "config show",
        &json!({"ROLE": {"SETTING": &effective.values[0]}}),
    );
}
