//! Reads which fields `docs/json.md` lists.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

/// The file `name` in `docs/`. A package that was taken from a registry comes without these pages.
pub(crate) fn doc(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs");
    folder.is_dir().then(|| folder.join(name))
}

/// The fields that the page lists under the heading of `form`: the first column of its table.
pub(crate) fn listed(page: &str, form: &str) -> BTreeSet<String> {
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
pub(crate) fn fields(value: &Value, prefix: &str, into: &mut BTreeSet<String>) {
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
