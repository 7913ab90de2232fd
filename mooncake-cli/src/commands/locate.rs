//! `mooncake where`: tells which nodes hold an object.

use clap::Args;
use serde::Serialize;

use super::{Context, not_built};
use crate::config::{ClientSettings, Flags};
use crate::output::{Align, Exit, Failure, Show, Table, bytes};

/// The arguments of `mooncake where`.
#[derive(Args, Debug)]
pub struct WhereArgs {
    /// The key.
    pub key: String,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

/// The places of an object.
#[derive(Clone, Debug, Serialize)]
pub struct Places {
    /// Its key.
    pub key: String,
    /// Its copies.
    pub replicas: Vec<Place>,
}

/// One copy of an object.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// What it is on: `memory`, `local_disk` or `remote`.
    pub kind: &'static str,
    /// The node that holds it, or the remote store.
    pub node: String,
    /// The address of the node's control service; empty when there is none.
    pub address: String,
    /// Where it starts in the node's segment; 0 on anything but memory.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl Show for Places {
    fn human(&self) -> String {
        use Align::{Left, Right};
        let columns = [
            ("kind", Left),
            ("node", Left),
            ("address", Left),
            ("offset", Right),
            ("size", Right),
        ];
        let mut table = Table::new(&columns);
        for place in &self.replicas {
            let offset = format!("{:#x}", place.offset);
            table.row([
                place.kind.to_owned(),
                place.node.clone(),
                place.address.clone(),
                offset,
                bytes(place.bytes),
            ]);
        }
        table.text()
    }
}

/// Runs the command; "no" when there is no such key.
///
/// # Errors
///
/// When the store cannot be asked.
pub fn run(args: &WhereArgs, context: &Context) -> Result<Exit, Failure> {
    context.sources.settle(&args.settings)?;
    Err(not_built("where"))
}
