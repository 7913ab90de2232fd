//! What would become of a request, as tables and as JSON.

use clap::ValueEnum;
use serde::Serialize;

use mooncake_tent::selector::{Merit, Ranking, RequestFacts, SegmentKind};
use mooncake_tent::{DeviceSet, Intent, Strength};

use crate::output::{Align, Show, Table, bytes};

/// In which direction bytes move.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the segment into memory here.
    Read,
    /// From memory here into the segment.
    Write,
}

/// What would become of a request.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The request.
    pub request: Asked,
    /// The operator's policies, in order.
    pub policies: Vec<PolicyRow>,
    /// Links that could carry it, the best first.
    pub ranked: Vec<RankedRow>,
    /// Links that could not.
    pub excluded: Vec<ExcludedRow>,
    /// The pool of connections.
    pub pool: Option<String>,
    /// The service level that the policy asks for.
    pub service_level: Option<u8>,
    /// The traffic class that the policy asks for.
    pub traffic_class: Option<u8>,
}

/// A request that is only talked about.
#[derive(Clone, Debug, Serialize)]
pub struct Asked {
    /// Its direction.
    pub op: Direction,
    /// Its length.
    pub bytes: u64,
    /// What its segment is made of.
    pub segment: &'static str,
    /// Whether the other end is on this machine.
    pub same_machine: bool,
    /// The kind of memory here.
    pub local: String,
    /// The kind of memory there; `file` for a file segment.
    pub remote: String,
    /// How urgent it is.
    pub priority: &'static str,
    /// What it is for.
    pub intent: &'static str,
    /// Whose it is.
    pub tenant: Option<String>,
    /// The policy that it names.
    pub policy: Option<String>,
    /// The link that it names.
    pub hint: Option<String>,
    /// Whether no other link will do.
    pub hint_is_hard: bool,
    /// The devices that may carry it.
    pub devices: Option<Vec<String>>,
}

/// A policy, and whether it is for the request.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyRow {
    /// What it is called.
    pub policy: String,
    /// Whether it is the one that counts.
    pub applies: bool,
    /// Why it does, or does not.
    pub why: String,
}

/// A link that could carry the request.
#[derive(Clone, Debug, Serialize)]
pub struct RankedRow {
    /// Its name.
    pub link: String,
    /// How long it would take.
    pub estimate_us: Option<f64>,
    /// The devices that it would use; `null`: all that it has.
    pub devices: Option<Vec<String>>,
    /// Why it stands where it stands.
    pub why: Vec<String>,
}

/// A link that could not.
#[derive(Clone, Debug, Serialize)]
pub struct ExcludedRow {
    /// Its name.
    pub link: String,
    /// Why not.
    pub why: String,
}

impl Explanation {
    /// What came of ranking links whose devices have these names.
    pub(super) fn new(
        op: Direction,
        request: &RequestFacts<'_>,
        policies: Vec<PolicyRow>,
        ranking: Ranking,
        devices: &[Vec<&str>],
    ) -> Self {
        let names = |set: &DeviceSet| set.names().map(str::to_owned).collect();
        let ranked = ranking.ranked.into_iter().map(|link| {
            let own = &devices[link.index];
            let used = link.devices.map(|mask| {
                let names = mask.iter().map(|place| own[place].to_owned());
                names.collect()
            });
            let why = link.merits.iter().filter(|merit| {
                // It has a column of its own.
                !matches!(merit, Merit::Estimated(_))
            });
            RankedRow {
                estimate_us: link.estimate.map(|time| time.as_secs_f64() * 1e6),
                devices: used,
                why: why.map(Merit::to_string).collect(),
                link: link.name,
            }
        });
        let excluded = ranking.excluded.into_iter().map(|link| ExcludedRow {
            why: link.why.to_string(),
            link: link.name,
        });
        Self {
            ranked: ranked.collect(),
            excluded: excluded.collect(),
            pool: ranking.pool,
            service_level: ranking.service_level,
            traffic_class: ranking.traffic_class,
            policies,
            request: Asked {
                op,
                bytes: request.length,
                segment: request.segment.name(),
                same_machine: request.same_machine,
                local: request.local.to_owned(),
                remote: match request.segment {
                    SegmentKind::File => "file".to_owned(),
                    SegmentKind::Memory => request.remote.to_owned(),
                },
                priority: request.priority.name(),
                intent: request.intent.name(),
                tenant: request.tenant.map(str::to_owned),
                policy: request.policy.map(str::to_owned),
                hint: request.hint.map(|hint| hint.link().to_owned()),
                hint_is_hard: request
                    .hint
                    .is_some_and(|hint| hint.strength() == Strength::Hard),
                devices: request.devices.map(names),
            },
        }
    }
}

impl Show for Explanation {
    fn human(&self) -> String {
        let mut parts = vec![self.request.sentence()];
        if !self.policies.is_empty() {
            let columns = [
                ("policy", Align::Left),
                ("", Align::Left),
                ("why", Align::Left),
            ];
            let mut table = Table::new(&columns);
            for row in &self.policies {
                let name = row.policy.trim_start_matches("policy ");
                table.row([name, if row.applies { "yes" } else { "no" }, &row.why]);
            }
            parts.push(table.text());
        }
        let columns = [
            ("", Align::Right),
            ("link", Align::Left),
            ("takes", Align::Right),
            ("why", Align::Left),
        ];
        let mut table = Table::new(&columns);
        for (place, row) in self.ranked.iter().enumerate() {
            let mut why = row.why.clone();
            why.extend(
                row.devices
                    .as_ref()
                    .map(|devices| format!("through {}", devices.join(", "))),
            );
            let time = row.estimate_us.map_or_else(|| "?".to_owned(), time);
            table.row([
                (place + 1).to_string(),
                row.link.clone(),
                time,
                why.join(", "),
            ]);
        }
        for row in &self.excluded {
            table.row([
                String::new(),
                row.link.clone(),
                "-".to_owned(),
                row.why.clone(),
            ]);
        }
        parts.push(table.text());
        let asks = [
            self.pool.as_ref().map(|pool| format!("pool {pool}")),
            self.service_level
                .map(|level| format!("service level {level}")),
            self.traffic_class
                .map(|class| format!("traffic class {class}")),
        ];
        let asks: Vec<_> = asks.into_iter().flatten().collect();
        if !asks.is_empty() {
            parts.push(format!("for links that have these: {}", asks.join(", ")));
        }
        if self.ranked.is_empty() {
            parts.push("no link carries it".to_owned());
        }
        parts.join("\n\n")
    }
}

impl Asked {
    /// The request in words.
    fn sentence(&self) -> String {
        let (op, from, to) = match self.op {
            Direction::Read => ("a read", &self.remote, &self.local),
            Direction::Write => ("a write", &self.local, &self.remote),
        };
        let place = if self.same_machine {
            "within this machine"
        } else {
            "between machines"
        };
        let mut text = format!(
            "{op} of {} from {from} to {to}, {place}; priority {}",
            bytes(self.bytes),
            self.priority
        );
        let meant = Some(self.intent).filter(|intent| *intent != Intent::Unspecified.name());
        let more = [
            meant.map(str::to_owned),
            self.tenant
                .as_ref()
                .map(|tenant| format!("tenant {tenant}")),
            self.policy
                .as_ref()
                .map(|policy| format!("policy {policy:?}")),
            self.hint.as_ref().map(|link| match self.hint_is_hard {
                true => format!("only {link}"),
                false => format!("{link} if possible"),
            }),
            self.devices
                .as_ref()
                .map(|devices| format!("only devices {}", devices.join(", "))),
        ];
        for more in more.into_iter().flatten() {
            text += ", ";
            text += &more;
        }
        text
    }
}

/// A time that is given in microseconds and may be short.
fn time(micros: f64) -> String {
    if micros < 10.0 {
        format!("{micros:.2} µs")
    } else {
        crate::output::micros(micros.round() as u64)
    }
}
