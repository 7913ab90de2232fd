//! Targets and initiators on their own, with the flags of `tebench`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::bench::transfer::{
    Grid, Initiator, Links, MOST_BATCH, Target, Work, doublings, initiate,
};
use crate::commands::serve::{END_BUDGET, Ready, Stop};
use crate::commands::{Context, block_on, unless_interrupted};
use crate::config::Size;
use crate::output::{Exit, Failure};

/// Flags of a target or an initiator. Those with several words may be written with underscores.
#[derive(Args, Debug)]
#[command(next_help_heading = "Between processes that you start yourself, as with tebench")]
pub struct RoleArgs {
    /// Offer memory to initiators until it is told to end.
    #[arg(long, conflicts_with = "target_seg_name")]
    pub serve: bool,
    /// Where a target is found [default: a free port of the loopback address].
    #[arg(long, alias = "seg_name", value_name = "HOST:PORT", requires = "serve")]
    pub seg_name: Option<SocketAddr>,
    /// Be an initiator of these targets; threads take one each in turn.
    #[arg(
        long,
        alias = "target_seg_name",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub target_seg_name: Vec<String>,
    /// What an initiator does.
    #[arg(long, alias = "op_type", value_enum, value_name = "OP", default_value_t = Work::Read)]
    pub op_type: Work,
    /// Over which links it may go [default: the best].
    #[arg(long, alias = "xport_type", value_enum, value_name = "LINK")]
    pub xport_type: Option<Links>,
    /// Memory that is offered, or that an initiator uses of it.
    #[arg(long, alias = "total_buffer_size", value_name = "SIZE", default_value_t = Size::of(1 << 30))]
    pub total_buffer_size: Size,
    /// The first block size; each further one is twice as large.
    #[arg(long, alias = "start_block_size", value_name = "SIZE", default_value_t = Size::of(4 << 10))]
    pub start_block_size: Size,
    /// The last block size at most.
    #[arg(long, alias = "max_block_size", value_name = "SIZE", default_value_t = Size::of(64 << 20))]
    pub max_block_size: Size,
    /// The first batch; each further one is twice as large.
    #[arg(long, alias = "start_batch_size", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=MOST_BATCH))]
    pub start_batch_size: u64,
    /// The last batch at most [default: the first].
    #[arg(long, alias = "max_batch_size", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_BATCH))]
    pub max_batch_size: Option<u64>,
    /// The first number of threads; each further one is twice as large.
    #[arg(long, alias = "start_num_threads", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub start_num_threads: u64,
    /// The last number of threads at most [default: the first].
    #[arg(long, alias = "max_num_threads", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub max_num_threads: Option<u64>,
    /// Seconds of each case.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = super::positive)]
    pub duration: f64,
    /// Microseconds between the starts of two batches of one thread.
    #[arg(
        long,
        alias = "request_interval_us",
        value_name = "MICROS",
        default_value_t = 0
    )]
    pub request_interval_us: u64,
    /// Microseconds after which a request is given up [default: the engine's patience].
    #[arg(long, alias = "deadline_us", value_name = "MICROS")]
    pub deadline_us: Option<u64>,
    /// Whether every byte is checked.
    #[arg(long, alias = "check_consistency", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub check_consistency: bool,
}

/// A target that is ready.
#[derive(Clone, Debug, Serialize)]
struct Offering<'a> {
    role: &'static str,
    segment: &'a str,
}

impl RoleArgs {
    /// Whether there is a role to play.
    pub(super) fn is_asked(&self) -> bool {
        self.serve || !self.target_seg_name.is_empty()
    }

    fn grid(&self) -> Result<Grid, Failure> {
        let most = |most: Option<u64>, start: u64| doublings(start, most.unwrap_or(start));
        let grid = Grid {
            blocks: match self.start_block_size.bytes() {
                0 => Vec::new(),
                start => doublings(start, self.max_block_size.bytes()),
            },
            batches: most(self.max_batch_size, self.start_batch_size),
            threads: most(self.max_num_threads, self.start_num_threads),
            work: self.op_type,
            duration: Duration::from_secs_f64(self.duration),
            interval: Duration::from_micros(self.request_interval_us),
            deadline: self.deadline_us.map(Duration::from_micros),
            verify: self.check_consistency,
        };
        for (what, sizes) in [
            ("block-size", &grid.blocks),
            ("batch-size", &grid.batches),
            ("num-threads", &grid.threads),
        ] {
            if sizes.is_empty() {
                let why = format!("no case lies between --start-{what} and --max-{what}");
                return Err(Failure::new(why));
            }
        }
        Ok(grid)
    }
}

/// Plays the role that is asked for; "no" when some batches failed.
///
/// # Errors
///
/// When it cannot start, or a byte did not arrive.
pub(super) fn run(args: &RoleArgs, context: &Context) -> Result<Exit, Failure> {
    if args.serve {
        return block_on(serve(args, context));
    }
    let (grid, output) = (args.grid()?, context.output);
    let links = args.xport_type.unwrap_or_default();
    let work = async {
        let bytes = args.total_buffer_size.bytes();
        let initiator = Initiator::start(&args.target_seg_name, links, bytes).await?;
        let cases = grid.blocks.len() * grid.batches.len() * grid.threads.len();
        let bar = output.progress(cases as u64, "cases");
        let told = bar.clone();
        let report = initiate(initiator, grid, move |_| told.inc(1)).await;
        bar.finish_and_clear();
        report
    };
    let report = block_on(unless_interrupted(work))?;
    output.result(&report)?;
    Ok(report.rows.iter().all(|row| row.failed == 0).into())
}

async fn serve(args: &RoleArgs, context: &Context) -> Result<Exit, Failure> {
    let mut stop = Stop::listen(false)?;
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let listen = args.seg_name.unwrap_or(anywhere);
    let target = Target::start(listen, args.total_buffer_size.bytes()).await?;
    let segment = target.name().to_owned();
    context.output.event(&Ready {
        ready: Offering {
            role: "transfer target",
            segment: &segment,
        },
    })?;
    context.output.remark(format_args!(
        "to measure: mooncake bench transfer --target-seg-name {segment}"
    ));
    stop.wait().await;
    target.stop(END_BUDGET).await?;
    Ok(Exit::Yes)
}
