//! `mooncake transfer trace`: makes one transfer and tells what became of it, step by step.

use clap::Args;
use mooncake_tent::transport::{Op, Outcome};
use mooncake_tent::{TraceEvent, TraceStep};
use serde::Serialize;

use super::{Direction, RankedLink};
use crate::bench::transfer::{Links, Traced, traced};
use crate::commands::{Context, block_on, unless_interrupted};
use crate::config::Size;
use crate::output::{Align, Exit, Failure, Show, Table, bytes};

/// The arguments of `mooncake transfer trace`.
///
/// The transfer goes to the start of the largest buffer that the target offers. A write brings back what
/// was read there just before, so that it changes nothing. The exit code is 1 when it did not complete.
#[derive(Args, Debug)]
pub struct TraceArgs {
    /// The segment of a process that runs, such as `mooncake bench transfer --serve` prints.
    #[arg(long, value_name = "NAME")]
    pub target: String,
    /// In which direction bytes move.
    #[arg(long, value_enum, value_name = "OP", default_value_t = Direction::Read)]
    pub op: Direction,
    /// How many bytes.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = some)]
    pub size: Size,
    /// Over which links it may go.
    #[arg(long, value_enum, value_name = "LINK", default_value_t = Links::All)]
    pub transport: Links,
}

/// At least one byte.
fn some(text: &str) -> Result<Size, String> {
    match text.parse::<Size>()? {
        none if none.bytes() == 0 => Err("nothing would move".to_owned()),
        some => Ok(some),
    }
}

/// A transfer, step by step.
#[derive(Clone, Debug, Serialize)]
pub struct TraceReport {
    /// The segment.
    pub target: String,
    /// The direction.
    pub op: Direction,
    /// How many bytes.
    pub bytes: u64,
    /// How it ended.
    pub outcome: &'static str,
    /// What happened, in order.
    pub steps: Vec<StepRow>,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub struct StepRow {
    /// When, from the submission.
    pub at_us: f64,
    /// What, in a word or two.
    pub step: &'static str,
    /// The link that it is about.
    pub link: Option<&'static str>,
    /// What there is to say of it.
    pub detail: String,
    /// Of the ranking: every link in order, the best first, then those that are out of the question.
    pub links: Option<Vec<RankedLink>>,
}

/// Runs the command; "no" when the transfer did not complete.
///
/// # Errors
///
/// When the target does not answer, or the transfer cannot begin.
pub fn run(args: &TraceArgs, context: &Context) -> Result<Exit, Failure> {
    let op = match args.op {
        Direction::Read => Op::Read,
        Direction::Write => Op::Write,
    };
    let size = args.size.bytes();
    let work = traced(&args.target, op, size, args.transport);
    let traced = block_on(unless_interrupted(work))?;
    context.output.result(&TraceReport::new(args, &traced))?;
    Ok(traced.outcome.is_completed().into())
}

impl TraceReport {
    fn new(args: &TraceArgs, traced: &Traced) -> Self {
        let steps = traced.trace.steps();
        let start = steps.first().map(|step| step.at).unwrap_or_default();
        let row = |step: &TraceStep| StepRow {
            at_us: (step.at - start).as_nanos() as f64 / 1e3,
            step: step.event.name(),
            link: step.event.link(),
            links: match &step.event {
                TraceEvent::Ranked { ranking, .. } => Some(RankedLink::all(ranking)),
                _ => None,
            },
            detail: step.event.to_string(),
        };
        Self {
            target: args.target.clone(),
            op: args.op,
            bytes: args.size.bytes(),
            outcome: match traced.outcome {
                Outcome::Completed { .. } => "completed",
                Outcome::Failed(_) => "failed",
                Outcome::Cancelled(_) => "cancelled",
                Outcome::TimedOut(_) => "timed out",
            },
            steps: steps.iter().map(row).collect(),
        }
    }
}

impl Show for TraceReport {
    fn human(&self) -> String {
        let columns = [
            ("at", Align::Right),
            ("step", Align::Left),
            ("link", Align::Left),
            ("", Align::Left),
        ];
        let mut table = Table::new(&columns);
        for row in &self.steps {
            let at = format!("{:.1} µs", row.at_us);
            let mut first = vec![at, row.step.to_owned()];
            first.push(row.link.unwrap_or_default().to_owned());
            match &row.links {
                None => first.push(row.detail.clone()),
                Some(_) => first.push("the best of these:".to_owned()),
            }
            table.row(first);
            for link in row.links.iter().flatten() {
                let (place, why) = (link.place(), &link.why);
                let cells = [String::new(), String::new(), String::new()];
                let cells = cells.into_iter();
                table.row(cells.chain([format!("{place} {}: {why}", link.link)]));
            }
        }
        let op = match self.op {
            Direction::Read => "a read",
            Direction::Write => "a write",
        };
        format!(
            "{op} of {}, segment {}: {}\n\n{}",
            bytes(self.bytes),
            self.target,
            self.outcome,
            table.text()
        )
    }
}
