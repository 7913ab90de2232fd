//! `mooncake bench transfer`: the transfer engine beside plain loops of the same pattern.

mod roles;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::runtime::Handle;

use crate::bench::cpp::Wheel;
use crate::bench::transfer::{
    Against, Case, Conditions, MOST_BATCH, Measurement, Op, Peers, Role, Transport,
};
use crate::bench::{Report, Turns};
use crate::commands::{Context, block_on, unless_interrupted};
use crate::config::Size;
use crate::output::{Exit, Failure, Output};

pub use roles::RoleArgs;

/// The arguments of `mooncake bench transfer`.
///
/// Without any that describes a case, a suite of them is measured. `--serve` and `--target-seg-name`
/// make it a target or an initiator of somebody else's instead. The exit code is 1 when a row
/// does not reach what it should, and 2 when a byte did not arrive.
#[derive(Args, Debug)]
pub struct TransferArgs {
    /// All of the suite in less than a minute: shorter turns, and fewer.
    #[arg(long)]
    pub quick: bool,
    /// Over what blocks move; several may be given.
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub transport: Vec<Transport>,
    /// In which direction [default: both].
    #[arg(long, value_enum, value_name = "OP")]
    pub op: Option<Direction>,
    /// How large a block is, of any size; several may be given [default: 1MiB].
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub block_size: Vec<Size>,
    /// How many blocks each caller submits together; several may be given [default: 1].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=MOST_BATCH))]
    pub batch: Vec<u64>,
    /// How many threads call [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub threads: Option<u64>,
    /// Callers look for the end of a batch instead of sleeping until it comes.
    #[arg(long)]
    pub poll: bool,
    /// With what it is compared [default: plain].
    #[arg(long, value_enum, value_name = "WHAT")]
    pub against: Option<Against>,
    /// Start so many blocks per second, whether or not earlier ones have ended. Latency counts from
    /// when a batch should have started [default: the next batch starts when one has ended].
    #[arg(long, value_name = "RATE", value_parser = positive)]
    pub open_loop: Option<f64>,
    /// How often each has its turn [default: 5, or 3 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub rounds: Option<u16>,
    /// How long a turn is [default: 0.4, or 0.1 with --quick].
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub seconds: Option<f64>,
    /// Connections of the engine to its target, and of the plain loop where a batch has several blocks.
    #[arg(long, value_name = "N", default_value_t = Conditions::LANES, value_parser = clap::value_parser!(u64).range(1..=16))]
    pub lanes: u64,
    /// Through how much memory blocks walk, on either side.
    #[arg(long, value_name = "SIZE", default_value_t = Size::of(Conditions::WINDOW))]
    pub window: Size,
    /// Where files are made, which have the size of the window and go when it is over [default: the
    /// system's folder for temporary files].
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Do not check that bytes arrive.
    #[arg(long)]
    pub no_verify: bool,
    /// Measure the C++ engine in the same rounds, whose wheel this Python has.
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3")]
    pub vs_cpp: Option<PathBuf>,
    /// Let a target make some bytes wrong.
    #[arg(long, value_enum, hide = true)]
    pub spoil: Option<Role>,
    /// Of a target or an initiator.
    #[command(flatten)]
    pub roles: RoleArgs,
}

/// In which direction blocks move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// Each in a row of its own.
    Both,
    /// From the target to us.
    Read,
    /// From us to the target.
    Write,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (1e-6..=1e9).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is no number above 0, such as 2.5")),
    }
}

/// Runs the command; "no" when a row misses its bar.
///
/// # Errors
///
/// When something cannot be measured, or a byte did not arrive.
pub(super) fn run(args: &TransferArgs, context: &Context) -> Result<Exit, Failure> {
    if args.roles.is_asked() {
        return roles::run(&args.roles, context);
    }
    let (cases, conditions, output) = (args.cases()?, args.conditions(), context.output);
    let wheel = args.vs_cpp.as_deref().map(Wheel::find).transpose()?;
    let folder = args.folder.clone();
    let work = async move {
        let runtime = Handle::current();
        let work = move || measure(&runtime, &cases, conditions, (wheel, folder), output);
        let ended = tokio::task::spawn_blocking(work).await;
        ended
            .unwrap_or_else(|error| Err(Failure::new("the measurement was cut off").because(error)))
    };
    let report = block_on(unless_interrupted(work))?;
    output.result(&report)?;
    Ok(report.all_met().into())
}

fn measure(
    runtime: &Handle,
    cases: &[Case],
    conditions: Conditions,
    (wheel, folder): (Option<Wheel>, Option<PathBuf>),
    output: Output,
) -> Result<Report, Failure> {
    let peers = Peers::start(runtime, &conditions)?;
    let mut measurement = Measurement::new(runtime.clone(), conditions, &peers)
        .with_cpp(wheel)
        .with_folder(folder);
    let bar = output.progress(cases.len() as u64, "rows");
    let mut report = Report::default();
    for case in cases {
        report.rows.push(measurement.row(case)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(report)
}

impl TransferArgs {
    fn conditions(&self) -> Conditions {
        let (rounds, seconds) = if self.quick { (3, 0.1) } else { (5, 0.4) };
        Conditions {
            turns: Turns {
                rounds: self.rounds.map_or(rounds, usize::from),
                budget: Duration::from_secs_f64(self.seconds.unwrap_or(seconds)),
            },
            lanes: self.lanes,
            window: self.window.bytes(),
            // Checks take the longest; this much is still more than caches hold.
            walk: self.window.bytes() / if self.quick { 4 } else { 1 },
            verify: !self.no_verify,
            spoil: self.spoil,
        }
    }

    fn describes_a_case(&self) -> bool {
        !(self.transport.is_empty() && self.block_size.is_empty() && self.batch.is_empty())
            || self.op.is_some()
            || self.threads.is_some()
            || self.poll
            || self.against.is_some()
            || self.open_loop.is_some()
    }

    fn cases(&self) -> Result<Vec<Case>, Failure> {
        if !self.describes_a_case() {
            return Ok(Case::suite());
        }
        let mut cases = Vec::new();
        for transport in or(&self.transport, Transport::Tcp) {
            for op in self.ops(transport) {
                for batch in or(&self.batch, 1) {
                    for block in or(&self.block_size, Size::of(1 << 20)) {
                        cases.push(Case {
                            threads: self.threads.unwrap_or(1),
                            poll: self.poll,
                            against: self.against.unwrap_or_default(),
                            rate: self.open_loop,
                            ..Case::new(transport, op, block.bytes(), batch)
                        });
                    }
                }
            }
        }
        if cases.iter().any(|case| case.block == 0) {
            return Err(
                Failure::new("a block of 0 bytes cannot be moved").remedy("--block-size 1MiB")
            );
        }
        Ok(cases)
    }

    fn ops(&self, transport: Transport) -> Vec<Op> {
        match (transport, self.op) {
            (Transport::Memory, _) => vec![Op::Copy],
            (_, Some(Direction::Read)) => vec![Op::Read],
            (_, Some(Direction::Write)) => vec![Op::Write],
            (_, None | Some(Direction::Both)) => vec![Op::Read, Op::Write],
        }
    }
}

fn or<T: Copy>(given: &[T], default: T) -> Vec<T> {
    if given.is_empty() {
        vec![default]
    } else {
        given.to_vec()
    }
}
