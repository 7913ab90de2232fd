//! `mooncake transfer explain`: ranks links for a made-up request, with the reasons.

use std::path::PathBuf;

use clap::Args;

use mooncake_tent::selector::{
    Policies, Policy, RequestFacts, Ruling, SegmentKind, TransportSelector, memory_kind,
};
use mooncake_tent::transport::Op;
use mooncake_tent::{DeviceSet, Hint, Intent, Priority};

use super::LinkSpec;
use super::explanation::{Direction, Explanation, PolicyRow};
use crate::commands::Context;
use crate::commands::topology::{read, wrong};
use crate::config::Size;
use crate::output::{Exit, Failure};

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
    /// device=NAME, failed=WHY, half-open=WHY, absent=WHY (it could not be installed), unreachable and
    /// unregistered. Once for each link [default: tcp].
    #[arg(long, value_name = "LINK")]
    pub link: Vec<LinkSpec>,
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
    let row = |(place, policy): (usize, &Policy)| {
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
