//! `mooncake topology`: tells what the machine is made of, as far as transfers care.

mod map;
mod report;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use mooncake_tent::platform::{NicKind, PriorityMatrix, Topology};

use super::Context;
use crate::output::{Exit, Failure};

pub use report::{MemoryRow, NicDistance, NicRow, NodeDistance, NodeRow, TopologyReport};

/// The arguments of `mooncake topology`.
#[derive(Args, Debug)]
pub struct TopologyArgs {
    /// Draw it instead of listing it.
    #[arg(long)]
    pub map: bool,
    /// Only devices of this kind; several may be given.
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    pub kind: Vec<Kind>,
    /// A description of the machine in JSON, instead of what the system says: one with `nics` and
    /// `mems`, or a matrix with two lists of devices for each location.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// A matrix in JSON that says which devices suit which memory, whatever the system says.
    #[arg(long, value_name = "FILE")]
    pub priority_matrix: Option<PathBuf>,
    /// Where the system tells it, or a copy of that from another machine.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "/sys",
        conflicts_with = "from"
    )]
    pub sysfs: PathBuf,
}

/// What speaks to a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Kind {
    /// RDMA verbs.
    Rdma,
    /// Unified Bus.
    Ub,
    /// Sockets.
    Tcp,
    /// A description does not say.
    Unknown,
}

impl From<Kind> for NicKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Rdma => Self::Rdma,
            Kind::Ub => Self::Ub,
            Kind::Tcp => Self::Tcp,
            Kind::Unknown => Self::Unknown,
        }
    }
}

/// Runs the command.
///
/// # Errors
///
/// When the system or a file says nothing that makes sense.
pub fn run(args: &TopologyArgs, context: &Context) -> Result<Exit, Failure> {
    let mut topology = match &args.from {
        Some(file) => Topology::from_json(&read(file)?).map_err(|error| wrong(file, error))?,
        None => Topology::probe_at(&args.sysfs)
            .map_err(|error| Failure::new("the machine does not say what it has").because(error))?,
    };
    if let Some(file) = &args.priority_matrix {
        let matrix = PriorityMatrix::from_json(&read(file)?).map_err(|error| wrong(file, error))?;
        let laid = topology.with_priority_matrix(&matrix);
        topology = laid.map_err(|error| {
            wrong(file, error).remedy("mooncake topology, which lists the devices that there are")
        })?;
    }
    if !args.kind.is_empty() {
        let kinds: Vec<NicKind> = args.kind.iter().copied().map(NicKind::from).collect();
        topology = topology.filtered(|nic| kinds.contains(&nic.kind));
    }
    let report = TopologyReport::new(&topology, args.map.then(|| map::draw(&topology)));
    context.output.result(&report)?;
    Ok(Exit::Yes)
}

/// The text of a file that the user names.
pub(super) fn read(file: &Path) -> Result<String, Failure> {
    let unread = |error| Failure::new(format!("{} cannot be read", file.display())).because(error);
    fs::read_to_string(file).map_err(unread)
}

/// The file says something that cannot be.
pub(super) fn wrong(file: &Path, error: impl std::error::Error) -> Failure {
    Failure::new(format!("{}: {error}", file.display()))
}
