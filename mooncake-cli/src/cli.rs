//! The command line: what may be said, and who answers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::commands::{self, Context};
use crate::config::Sources;
use crate::output::{Exit, Failure, Format, Output};

/// Runs, uses and measures a Mooncake Store.
///
/// Results go to standard output, everything else to standard error. The exit code is 0 for yes or
/// done, 1 for no or not there, 2 for an error.
#[derive(Debug, Parser)]
#[command(name = "mooncake", version)]
pub struct Cli {
    /// What results look like.
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORMAT",
        value_enum,
        default_value_t
    )]
    pub output: Format,
    /// The configuration file [env: MOONCAKE_CONFIG].
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the binary can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a master, which knows which node holds what.
    Master(commands::master::MasterArgs),
    /// Run a node, which lends memory to the store.
    Node(commands::node::NodeArgs),
    /// Run a service that keeps names of segments, for engines without any store.
    Metadata(commands::metadata::MetadataArgs),
    /// Start a small store on this machine, replay conversations against it and check every byte.
    Demo(commands::demo::DemoArgs),
    /// A client that `demo` starts.
    #[command(hide = true)]
    DemoClient(commands::demo::DemoClientArgs),
    /// Tools for those who work on the store itself.
    #[command(subcommand, hide = true)]
    Dev(commands::dev::DevCommand),
    /// Store a value under a key.
    Put(commands::put::PutArgs),
    /// Fetch the value of a key.
    Get(commands::get::GetArgs),
    /// List objects.
    Ls(commands::ls::LsArgs),
    /// Tell what is known about an object.
    Stat(commands::stat::StatArgs),
    /// Tell which nodes hold an object.
    Where(commands::locate::WhereArgs),
    /// Remove objects.
    Rm(commands::rm::RmArgs),
    /// Make up or examine request traces.
    #[command(subcommand)]
    Trace(commands::trace::TraceCommand),
    /// Tell how transfers would go.
    #[command(subcommand)]
    Transfer(commands::transfer::TransferCommand),
    /// Tell what the machine is made of, as far as transfers care.
    Topology(commands::topology::TopologyArgs),
    /// Measure a store.
    #[command(subcommand)]
    Bench(commands::bench::BenchCommand),
    /// Look after the directories in which nodes keep objects on disks.
    #[command(subcommand)]
    Bucket(commands::bucket::BucketCommand),
    /// Show the configuration.
    #[command(subcommand)]
    Config(commands::config::ConfigCommand),
}

/// The whole program: reads the command line, runs the command and shows what came of it.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, wants_json(&arguments)),
    };
    let output = Output::new(cli.output);
    match run(cli, output) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output.failure(&failure);
            Exit::FAILURE.into()
        }
    }
}

fn run(cli: Cli, output: Output) -> Result<Exit, Failure> {
    let serves = matches!(
        cli.command,
        Command::Master(_) | Command::Node(_) | Command::Metadata(_)
    );
    log(if serves { "info" } else { "warn" })?;
    let context = Context {
        output,
        sources: Sources::load(cli.config.as_deref())?,
    };
    match cli.command {
        Command::Master(args) => commands::master::run(&args, &context),
        Command::Node(args) => commands::node::run(&args, &context),
        Command::Metadata(args) => commands::metadata::run(&args, &context),
        Command::Demo(args) => commands::demo::run(&args, &context),
        Command::DemoClient(args) => commands::demo::run_client(&args),
        Command::Dev(command) => commands::dev::run(&command, &context),
        Command::Put(args) => commands::put::run(&args, &context),
        Command::Get(args) => commands::get::run(&args, &context),
        Command::Ls(args) => commands::ls::run(&args, &context),
        Command::Stat(args) => commands::stat::run(&args, &context),
        Command::Where(args) => commands::locate::run(&args, &context),
        Command::Rm(args) => commands::rm::run(&args, &context),
        Command::Trace(command) => commands::trace::run(&command, &context),
        Command::Transfer(command) => commands::transfer::run(&command, &context),
        Command::Topology(args) => commands::topology::run(&args, &context),
        Command::Bench(command) => commands::bench::run(&command, &context),
        Command::Bucket(command) => commands::bucket::run(&command, &context),
        Command::Config(command) => commands::config::run(&command, &context),
    }
}

/// Sends logs to stderr; `MOONCAKE_LOG` says which, else those of `level` and above.
fn log(level: &str) -> Result<(), Failure> {
    use tracing_subscriber::EnvFilter;

    let directives = std::env::var("MOONCAKE_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let filter = EnvFilter::try_new(directives.as_deref().unwrap_or(level)).map_err(|error| {
        Failure::new("MOONCAKE_LOG does not say what to log")
            .because(error)
            .remedy("info, or mooncake_master=debug")
    })?;
    let color = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // A second call, as in tests, finds a subscriber in place and leaves it there.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(color)
        .try_init();
    Ok(())
}

/// Tells a user who wrote something wrong, or shows the help that was asked for.
fn refuse(error: &clap::Error, json: bool) -> ExitCode {
    let asked = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    if asked || !json {
        // Nobody is left to tell when this fails.
        let _ = error.print();
        return u8::try_from(error.exit_code())
            .unwrap_or(Exit::FAILURE)
            .into();
    }
    let text = error.render().to_string();
    let message = text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    Output::new(Format::Json).failure(&Failure::new(message).remedy("mooncake --help"));
    Exit::FAILURE.into()
}

/// Whether a command line that could not be read asks for JSON.
fn wants_json(arguments: &[OsString]) -> bool {
    let follows =
        |pair: &[OsString]| (pair[0] == "-o" || pair[0] == "--output") && pair[1] == "json";
    let joined = |argument: &OsString| {
        argument == "-ojson" || argument == "-o=json" || argument == "--output=json"
    };
    arguments.windows(2).any(follows) || arguments.iter().any(joined)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_tree_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_of_the_design_parses() {
        for line in [
            "master --listen 0.0.0.0:1 --client-ttl 3s",
            "node --segment-size 512MiB --name a --config x.toml",
            "demo --requests 10",
            "dev relay --to a:1 --listen 127.0.0.1:0 --cut-after 5 --cut half-open --delay-ms 3 --direction up",
            "put k file --tenant t",
            "put k",
            "get k --to file",
            "ls",
            "ls prefix -o json",
            "stat k",
            "where k",
            "rm a b c",
            "trace generate --requests 1 --users 2 --seed 3 --to f",
            "trace stats f",
            "bench replay --trace f --start-cluster --clients 4 --block-bytes 1MiB --capacity-blocks 10 --speed 2 --batch 8",
            "bench replay --trace f --master a:1",
            "bench transfer",
            "bench transfer --quick -o json",
            "bench transfer --transport tcp,in-process --op write --block-size 4097,1MiB --batch 16 --threads 4 --against one-thread --poll --lanes 3",
            "bench transfer --open-loop 2.5 --rounds 7 --seconds 0.2 --window 64MiB --no-verify",
            "bench replay --trace f --requests 10 --vs-cpp python3",
            "bench store --quick --vs-cpp --vs-redis",
            "bench store --op get --value-bytes 16KiB --batch 128 --clients 2 --placement local --lookup cached --rounds 3",
            "bench store --master a:1 --vs-cpp /usr/bin/python3",
            "bench master --quick --vs-cpp python3",
            "bench transfer --quick --vs-cpp",
            "bench master --case exist-batch --case put --clients 4 --batch 16 --depth 2 --key-bytes 40 --rounds 1 --seconds 0.1",
            "topology",
            "topology --map -o json --kind rdma,ub --sysfs /tmp/sys --priority-matrix m.json",
            "topology --from machine.json",
            "transfer explain",
            "transfer explain --op write --length 4KiB --priority low --intent checkpoint --tenant t --policies f --policy p --link tcp --link rdma,rate=25GB/s,latency=3us,device=mlx5_0 --hint tcp",
            "transfer explain --same-machine --segment file --local cuda:0 --remote cpu:1 --device a,b --pool p --only file",
            "bench bucket --quick",
            "bench bucket --case put --case gc --folder d --rounds 3 --seconds 0.5 --records 5000 --without-fio -o json",
            "bucket stat d",
            "bucket ls d",
            "bucket ls d prefix --tenant t --limit 3 -o json",
            "bucket verify d",
            "bucket compact d --live-fraction 0.9 --bytes-per-second 64MiB",
            "bucket compact d --bucket 00000001 --bucket 2f --accept-damaged-logs",
            "bucket dump d",
            "bucket dump d --bucket 00000001",
            "config show",
            "config show node --name a",
        ] {
            let arguments = std::iter::once("mooncake").chain(line.split(' '));
            assert!(Cli::try_parse_from(arguments).is_ok(), "{line}");
        }
    }

    #[test]
    fn what_is_unknown_or_wrong_is_refused() {
        for line in [
            "",
            "mastr",
            "master --lissten 0.0.0.0:1",
            "master --listen 1",
            "node --client-ttl 3s",
            "rm",
            "bench replay",
            "bench replay --trace f --start-cluster --master a:1",
            "bench replay --trace f --clients 0",
            "bench replay --trace f --speed -1",
            "topology --from a --sysfs b",
            "topology --kind token-ring",
            "transfer explain --hint a --only b",
            "transfer explain --priority urgent",
            "transfer explain --link tcp,speed=9GB/s",
            "transfer explain --link rdma,latency=3us",
            "transfer explain --link tcp,rate=9GB",
            "bench transfer --op sideways",
            "bench transfer --batch 0",
            "bench transfer --open-loop 0",
            "bench transfer --seconds NaN",
            "bench replay --trace f --clients 2 --vs-cpp python3",
            "bench store --batch 3",
            "bench store --op sing",
            "bench store --op get --batch 0",
            "bench master --case nothing",
            "bench master --key-bytes 3",
            "bench master --seconds 0",
            "trace generate --requests -1",
            "bench bucket --case sing",
            "bench bucket --records 1",
            "bucket stat",
            "bucket dump d --bucket none",
            "bucket compact d --live-fraction 2",
            "ls -o yaml",
            "dev relay",
            "dev relay --to a:1 --direction sideways",
        ] {
            let arguments = std::iter::once("mooncake").chain(line.split_whitespace());
            assert!(Cli::try_parse_from(arguments).is_err(), "{line}");
        }
    }
}
