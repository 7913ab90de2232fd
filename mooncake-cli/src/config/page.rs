//! The page that documents every setting.

use std::fmt::Write;

use super::{ClientSettings, MasterSettings, MetadataSettings, NodeSettings, Setting, Settings};

const INTRODUCTION: &str = "\
# Configuration

Made from the settings in `mooncake-cli`; `MOONCAKE_BLESS=1 cargo test -p mooncake-cli --test pages` writes it anew.

A setting has one name. In the configuration file it stands in the section of its role; as a flag it has dashes for
underscores; as an environment variable it is upper case, with the role in front, and `MOONCAKE_MASTER` alone names the
master for every role that has one. A flag beats the environment, which beats the file, which beats the default. The
file is the one that `--config` or else `MOONCAKE_CONFIG` names; without either there is none. A name that is not listed
here is refused, wherever it stands. `mooncake config show` prints what holds, and where each value came from.

```toml
[master]
listen = \"0.0.0.0:50051\"
client_ttl = \"30s\"

[node]
master = \"mooncake-master:50051\"
segment_size = \"64GiB\"
```

A *duration* is a whole number and `us`, `ms`, `s`, `m` or `h`. A *size* is a whole number of bytes, or one with `KiB`,
`MiB`, `GiB`, `TiB` (powers of 1,024) or `kB`, `MB`, `GB`, `TB` (powers of 1,000). A *ratio* lies between 0 and 1.
A *switch* is `true` or `false`.

Variables that Kubernetes makes for a service of the name `mooncake-master` (`MOONCAKE_MASTER_PORT`,
`MOONCAKE_MASTER_SERVICE_HOST` and so on) are no settings and do no harm. `MOONCAKE_LOG` chooses what is logged to
standard error, such as `info` or `mooncake_master=debug`.
";

/// The text of `docs/configuration.md`.
#[must_use]
pub fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    section::<MasterSettings>(&mut page, "a process that knows which node holds what");
    section::<NodeSettings>(&mut page, "a process that lends memory to the store");
    section::<MetadataSettings>(&mut page, "a process that keeps names of segments");
    section::<ClientSettings>(&mut page, "every command that uses a store");
    page
}

fn section<S: Settings>(page: &mut String, about: &str) {
    let mut line = |text: String| writeln!(page, "{text}").expect("a string takes any text");
    line(format!("\n## `[{}]`: {about}\n", S::ROLE));
    line("| Setting | Kind | Default | Flag | Variable | |\n|---|---|---|---|---|---|".to_owned());
    S::TABLE
        .iter()
        .for_each(|setting| line(row(S::ROLE, setting)));
}

fn row(role: &str, setting: &Setting) -> String {
    let Setting {
        name,
        kind,
        default,
        help,
        ..
    } = setting;
    let default = if default.is_empty() {
        "empty".to_owned()
    } else {
        format!("`{default}`")
    };
    format!(
        "| `{name}` | {kind} | {default} | `--{}` | `{}` | {} |",
        setting.flag(),
        setting.variable(role),
        help.trim()
    )
}
