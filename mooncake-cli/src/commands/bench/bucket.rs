//! `mooncake bench bucket`: measures the object log that nodes keep on their disks.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::bench::Turns;
use crate::bench::bucket::{Case, Suite};
use crate::commands::Context;
use crate::output::{Exit, Failure};

/// The arguments of `mooncake bench bucket`.
///
/// Each case stands beside what the same disk does with plain files in the same rounds. Without
/// --case, all of them are measured.
#[derive(Args, Debug)]
pub struct BucketBenchArgs {
    /// Measure only this; may be given more than once.
    #[arg(long, value_name = "CASE", value_enum)]
    pub case: Vec<Case>,
    /// Short turns over less data: a look, not a result.
    #[arg(long)]
    pub quick: bool,
    /// On which disk: files are made here, and removed afterwards. All cases together take some GB.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// How often each contender has its turn [default: 7, or 3 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub rounds: Option<u16>,
    /// How long one turn is [default: 2, or 0.4 with --quick].
    #[arg(long, value_name = "SECONDS", value_parser = super::master::seconds)]
    pub seconds: Option<f64>,
    /// How many records a storage has that is started [default: 1000000, or 100000 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub records: Option<u64>,
    /// Do without fio, which otherwise is a column of puts and gets where it is installed.
    #[arg(long)]
    pub without_fio: bool,
}

/// Runs the command; "no" when a bar was missed.
///
/// # Errors
///
/// When something cannot be measured, or a byte was wrong.
pub(super) fn run(args: &BucketBenchArgs, context: &Context) -> Result<Exit, Failure> {
    let (rounds, budget, records) = match args.quick {
        true => (3, 0.4, 100_000),
        false => (7, 2.0, 1_000_000),
    };
    let suite = Suite {
        cases: args.case.clone(),
        quick: args.quick,
        turns: Turns {
            rounds: args.rounds.map_or(rounds, usize::from),
            budget: Duration::from_secs_f64(args.seconds.unwrap_or(budget)),
        },
        folder: args.folder.clone(),
        records: args.records.unwrap_or(records),
        fio: !args.without_fio,
    };
    let report = suite.run(context.output)?;
    context.output.result(&report)?;
    Ok(report.all_met().into())
}
