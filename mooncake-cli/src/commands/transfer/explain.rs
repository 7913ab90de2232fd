//! `mooncake transfer explain`: ranks links for a made-up request, with the reasons.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use mooncake_tent::selector::{
    Merit, Policies, Ranking, RequestFacts, Ruling, SegmentKind, TransportSelector, memory_kind,
};
use mooncake_tent::transport::Op;
use mooncake_tent::{DeviceSet, Hint, Intent, Priority, Strength};

use super::LinkSpec;
use crate::commands::Context;
use crate::commands::topology::{read, wrong};
use crate::config::Size;
use crate::output::{Align, Exit, Failure, Show, Table, bytes};

/// The arguments of `mooncake transfer explain`.
///
/// Nobody is asked and nothing moves: the answer is what the engine would decide if all of this were
/// so. The exit code is 1 when no link carries the request.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// In which direction bytes move.
    #[arg(long, value_enum, value_name = "OP", default_value_t = Direction::Read)]
    pub op: Direction,
    /// How many bytes.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pub length: Size,
    /// How urgent it is: high, medium or low.
    #[arg(long, value_name = "PRIORITY", default_value_t = Priority::default())]
    pub priority: Priority,
    /// What it is for, such as FOREGROUND_GET.
    #[arg(long, value_name = "INTENT", default_value_t = Intent::default())]
    pub intent: Intent,
    /// Whose request it is.
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<String>,
    /// What it reads from or writes to: memory or file.
    #[arg(long, value_name = "KIND", default_value_t = SegmentKind::Memory)]
    pub segment: SegmentKind,
    /// The other end is on this machine.
    #[arg(long)]
    pub same_machine: bool,
    /// Where the memory here is, such as cpu:0 or cuda:1.
    #[arg(long, value_name = "LOCATION", default_value = "cpu")]
    pub local: String,
    /// Where the memory there is.
    #[arg(long, value_name = "LOCATION", default_value = "cpu")]
    pub remote: String,
    /// The operator's policies, in JSON.
    #[arg(long, value_name = "FILE")]
    pub policies: Option<PathBuf>,
    /// The policy that the request names.
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// The link that the request would like.
    #[arg(long, value_name = "LINK", conflicts_with = "only")]
    pub hint: Option<String>,
    /// The link that the request wants, and no other.
    #[arg(long, value_name = "LINK")]
    pub only: Option<String>,
    /// The devices that may carry the request; several may be given [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub device: Vec<String>,
    /// The pool of connections that the request names.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// A link that there is, with what is known of it, such as rdma,rate=25GB/s,latency=3us. Also
    /// device=NAME, failed=WHY, half-open=WHY, unreachable and unregistered. Once for each link
    /// [default: tcp].
    #[arg(long, value_name = "LINK")]
    pub link: Vec<LinkSpec>,
}

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

/// Runs the command; "no" when no link carries the request.
///
/// # Errors
///
/// When the policies make no sense.
pub fn run(args: &ExplainArgs, context: &Context) -> Result<Exit, Failure> {
    let policies = match &args.policies {
        Some(file) => Policies::from_json(&read(file)?).map_err(|error| wrong(file, error))?,
        None => Policies::default(),
    };
    let explanation = explain(args, policies);
    context.output.result(&explanation)?;
    Ok(Exit::from(!explanation.ranked.is_empty()))
}

fn explain(args: &ExplainArgs, policies: Policies) -> Explanation {
    let hint = match (&args.hint, &args.only) {
        (Some(link), _) => Some(Hint::soft(link.as_str())),
        (None, Some(link)) => Some(Hint::hard(link.as_str())),
        (None, None) => None,
    };
    let wanted = (!args.device.is_empty()).then(|| DeviceSet::new(args.device.clone()));
    let op = match args.op {
        Direction::Read => Op::Read,
        Direction::Write => Op::Write,
    };
    let request = RequestFacts {
        segment: args.segment,
        same_machine: args.same_machine,
        local: memory_kind(&args.local),
        remote: memory_kind(&args.remote),
        priority: args.priority,
        intent: args.intent,
        tenant: args.tenant.as_deref(),
        policy: args.policy.as_deref(),
        hint: hint.as_ref(),
        devices: wanted.as_ref(),
        pool: args.pool.as_deref(),
        ..RequestFacts::new(op, args.length.bytes())
    };
    let usual = [LinkSpec::named("tcp")];
    let links = match &args.link[..] {
        [] => &usual[..],
        given => given,
    };
    let devices: Vec<Vec<&str>> = links.iter().map(LinkSpec::devices).collect();
    let facts: Vec<_> = links
        .iter()
        .zip(&devices)
        .map(|(link, devices)| link.facts(devices))
        .collect();
    let selector = TransportSelector::with_policies(policies);
    let ranking = selector.rank(&request, &facts);
    let policies = rulings(&request, selector.policies());
    Explanation::new(args.op, &request, policies, ranking, &devices)
}

/// Each policy, and whether it is for the request.
fn rulings(request: &RequestFacts<'_>, policies: &Policies) -> Vec<PolicyRow> {
    let counts = match policies.ruling(request) {
        Ruling::Applies(place, _) => Some(place),
        Ruling::Free | Ruling::Unknown(_) => None,
    };
    let row = |(place, policy): (usize, &mooncake_tent::selector::Policy)| {
        let applies = counts == Some(place);
        let why = match (applies, request.policy, policy.mismatch(request)) {
            (true, Some(_), _) => "the request names it".to_owned(),
            (true, None, _) => "the first that fits".to_owned(),
            (false, Some(_), _) => "the request names another one".to_owned(),
            (false, None, Some(filter)) => format!("the request does not pass {filter}"),
            (false, None, None) => "an earlier one fits".to_owned(),
        };
        PolicyRow {
            policy: policies.title(place),
            applies,
            why,
        }
    };
    policies.iter().enumerate().map(row).collect()
}

impl Explanation {
    fn new(
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
