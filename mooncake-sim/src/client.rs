//! A client: the real core, and what its operations read and wrote.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mooncake_store::core::{ClientCore, OpId, SegmentInfo, Settings, TransferId};

use crate::{Micros, oracle::Mark, world::Peer};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) peer: Peer,
    pub(crate) core: ClientCore,
    pub(crate) running: BTreeMap<OpId, Running>,
}

/// An operation that has not ended.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) began: Micros,
    pub(crate) deadline: Micros,
    pub(crate) keys: Vec<usize>,
    /// What a put writes, by item.
    pub(crate) versions: Vec<usize>,
    /// Where a get reads to, by item.
    pub(crate) buffers: Vec<Vec<Option<Mark>>>,
}

/// A read or write on its way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) client: usize,
    /// The client's process.
    pub(crate) life: u64,
    pub(crate) id: TransferId,
    pub(crate) op: OpId,
    pub(crate) item: usize,
    /// The version that is written; `None`: it reads.
    pub(crate) writes: Option<usize>,
    pub(crate) node: usize,
    pub(crate) segment: Arc<SegmentInfo>,
    pub(crate) first: usize,
    pub(crate) cells: usize,
    pub(crate) bytes: u64,
    /// What the first frame says.
    pub(crate) budget: Micros,
    /// By the node's clock, once the first frame is there.
    pub(crate) until: Micros,
    /// Between two frames, at most.
    pub(crate) gap: Micros,
    /// From this frame on nothing gets through.
    pub(crate) silent_from: usize,
    /// The process that sends has crashed at.
    pub(crate) sender_ends: Micros,
    /// No byte of it moves any more.
    pub(crate) closed: bool,
    pub(crate) reported: bool,
    pub(crate) quiet: bool,
}

impl Client {
    pub(crate) fn new(peer: Peer, put_deadline: Duration) -> Self {
        let mut settings = Settings::default();
        settings.batch = 4;
        settings.linger = Duration::from_millis(1);
        settings.put_deadline = put_deadline;
        Self {
            peer,
            core: ClientCore::new(settings),
            running: BTreeMap::new(),
        }
    }
}
