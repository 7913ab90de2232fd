//! `mooncake where`: tells which nodes hold an object.

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use mooncake_proto::master::describe_result::Result::{Description, Error};
use mooncake_proto::master::{DescribeRequest, Replica, Segment, Storage, replica};
use mooncake_store::core::{MasterAnswer, MasterRequest};
use mooncake_store::{ErrorCode, Fault};

use super::Context;
use super::store::{Store, parse_key};
use crate::config::{ClientSettings, Flags};
use crate::output::{Align, Exit, Failure, No, Show, Table, bytes, key};

/// The arguments of `mooncake where`.
#[derive(Args, Debug)]
pub struct WhereArgs {
    /// The key.
    pub key: OsString,
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
    let settings = context.sources.settle(&args.settings)?.settings;
    let wire_key = parse_key(&args.key)?;
    let shown = key(&wire_key);
    let places = Store::with(settings, async |store| {
        // The client's own description does not tell the names of nodes.
        let request = MasterRequest::Describe(DescribeRequest {
            keys: vec![wire_key],
            ..DescribeRequest::default()
        });
        let MasterAnswer::Describe(mut answer) = store.ask(request).await? else {
            return Err(store.nonsense());
        };
        match answer.results.pop().and_then(|found| found.result) {
            Some(Description(found)) => {
                let replicas = found.object.unwrap_or_default().replicas;
                let replicas = replicas
                    .into_iter()
                    .filter_map(|replica| place(replica, &answer.segments, &answer.storages))
                    .collect();
                Ok(Some(Places {
                    key: shown.clone(),
                    replicas,
                }))
            }
            Some(Error(detail)) => match Fault::from(detail) {
                fault if fault.code == ErrorCode::ObjectNotFound => Ok(None),
                fault => Err(store.refused(format!("nobody knows where {shown} is"), &fault)),
            },
            None => Err(store.nonsense()),
        }
    })?;
    match places {
        Some(places) => context.output.result(&places).map(|()| Exit::Yes),
        None => context.output.no(&No::new(shown, "no such object")),
    }
}

/// `None`: of a kind that only a newer version knows.
fn place(replica: Replica, segments: &[Segment], storages: &[Storage]) -> Option<Place> {
    Some(match replica.replica? {
        replica::Replica::LocalDisk(disk) => {
            let storage = storages.get(disk.storage as usize)?;
            Place {
                kind: "local_disk",
                node: storage.holder.clone(),
                address: storage.endpoint.clone(),
                offset: 0,
                bytes: disk.length,
            }
        }
        replica::Replica::Memory(memory) => {
            let segment = segments.get(memory.segment as usize)?;
            Place {
                kind: "memory",
                node: segment.owner.clone(),
                address: segment.name.clone(),
                offset: memory.offset,
                bytes: memory.length,
            }
        }
        replica::Replica::Remote(remote) => Place {
            kind: "remote",
            node: remote.store,
            address: String::new(),
            offset: 0,
            bytes: remote.length,
        },
    })
}
