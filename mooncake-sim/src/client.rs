//! A client: the real core, and what its operations read and wrote.

use std::{collections::BTreeMap, time::Duration};

use mooncake_store::core::{ClientCore, OpId, Settings};

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
