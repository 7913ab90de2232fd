//! `mooncake trace`: makes up and examines request traces.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::Context;
use crate::output::{Exit, Failure, Output, Show, count, percent, seconds, tolerate};
use crate::trace::{Ideal, TraceReader, TraceWriter};
use crate::workload::{Shape, Workload};

/// What can be done with traces.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Make up conversations of many users.
    Generate(GenerateArgs),
    /// Tell what is in a trace, and what a cache that never forgets would hit.
    Stats(StatsArgs),
}

/// The arguments of `mooncake trace generate`.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// How many requests.
    #[arg(long, value_name = "N", default_value_t = Shape::default().requests)]
    pub requests: u64,
    /// How many users talk at the same time.
    #[arg(long, value_name = "N", default_value_t = Shape::default().users, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub users: u32,
    /// Where the draws start; equal seeds give equal traces.
    #[arg(long, value_name = "SEED", default_value_t = Shape::default().seed)]
    pub seed: u64,
    /// Where the trace goes; else to standard output, and nothing but the trace.
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// The arguments of `mooncake trace stats`.
#[derive(Args, Debug)]
pub struct StatsArgs {
    /// The trace.
    pub file: PathBuf,
}

/// What is in a trace.
#[derive(Clone, Debug, Serialize)]
pub struct TraceStats {
    /// The file.
    pub file: String,
    /// What was counted.
    #[serde(flatten)]
    pub ideal: Ideal,
    /// Blocks hit of all blocks.
    pub ideal_ratio_blocks: f64,
    /// Tokens hit of all tokens of prompts.
    pub ideal_ratio_tokens: f64,
}

impl TraceStats {
    /// What `ideal` counted in `file`.
    pub fn new(file: impl Into<String>, ideal: Ideal) -> Self {
        let (ideal_ratio_blocks, ideal_ratio_tokens) = (ideal.ratio_blocks(), ideal.ratio_tokens());
        Self {
            file: file.into(),
            ideal,
            ideal_ratio_blocks,
            ideal_ratio_tokens,
        }
    }
}

impl Show for TraceStats {
    fn human(&self) -> String {
        let Ideal {
            requests,
            blocks_total,
            blocks_distinct,
            blocks_hit,
            blocks_longest,
            ..
        } = self.ideal;
        let mean = blocks_total.checked_div(requests).unwrap_or(0);
        format!(
            "{}: {} requests in {}\n\n\
             tokens  {} asked, {} answered\n\
             blocks  {}, of which {} are distinct; a prompt has {} on average, {} at most\n\
             ideal   {} blocks hit: {} of blocks, {} of tokens",
            self.file,
            count(requests),
            seconds(self.ideal.duration_ms as f64 / 1e3),
            count(self.ideal.tokens_input),
            count(self.ideal.tokens_output),
            count(blocks_total),
            count(blocks_distinct),
            count(mean),
            count(blocks_longest),
            count(blocks_hit),
            percent(self.ideal_ratio_blocks),
            percent(self.ideal_ratio_tokens),
        )
    }
}

/// Runs the command.
///
/// # Errors
///
/// When a trace cannot be read or written.
pub fn run(command: &TraceCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        TraceCommand::Generate(args) => generate(args, context.output)?,
        TraceCommand::Stats(args) => {
            let mut ideal = Ideal::default();
            for request in TraceReader::open(&args.file)? {
                ideal.observe(&request?);
            }
            context
                .output
                .result(&TraceStats::new(args.file.display().to_string(), ideal))?;
        }
    }
    Ok(Exit::Yes)
}

fn generate(args: &GenerateArgs, output: Output) -> Result<(), Failure> {
    let workload = Workload::new(Shape {
        requests: args.requests,
        users: args.users,
        seed: args.seed,
    });
    let Some(path) = &args.to else {
        return tolerate(write(workload, io::stdout().lock(), |_| {}));
    };
    let file = path.display().to_string();
    let (mut ideal, bar) = (
        Ideal::default(),
        output.progress(args.requests, "making up"),
    );
    let written = File::create(path).and_then(|sink| {
        write(workload, sink, |request| {
            ideal.observe(request);
            bar.inc(1);
        })
    });
    bar.finish_and_clear();
    written.map_err(|error| Failure::new(format!("{file} cannot be written")).because(error))?;
    output.result(&TraceStats::new(file, ideal))
}

fn write(
    workload: Workload,
    sink: impl Write,
    mut each: impl FnMut(&crate::trace::Request),
) -> io::Result<()> {
    let mut writer = TraceWriter::new(BufWriter::with_capacity(1 << 16, sink));
    for request in workload {
        writer.write(&request)?;
        each(&request);
    }
    writer.finish().map(drop)
}
