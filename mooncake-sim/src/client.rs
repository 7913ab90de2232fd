//! A client: the real core, and what its operations read and wrote.

use std::{collections::BTreeMap, time::Duration};

use mooncake_store::core::{ClientCore, OpId, Settings};

use crate::{
    CELL, Micros,
    name::Name,
    oracle::Mark,
    plan::Plan,
    world::{Peer, What},
};

/// What clients want to have set aside in memory of their own.
const GRANTED: u64 = 8 * CELL;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) tenant: usize,
    pub(crate) peer: Peer,
    pub(crate) core: ClientCore,
    pub(crate) running: BTreeMap<OpId, Running>,
    pub(crate) leaving: Option<Leaving>,
    /// It will leave in the middle of its next write, and start anew then.
    pub(crate) leaves_writing: Option<Micros>,
    /// It reads again what it has read, until then at most.
    pub(crate) keeps_until: Micros,
}

/// A client that takes leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    /// When it waits no longer for what is under way.
    pub(crate) patience: Micros,
    /// When it starts anew.
    pub(crate) back: Micros,
    pub(crate) said: bool,
}

/// An operation that has not ended.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) what: What,
    pub(crate) began: Micros,
    pub(crate) deadline: Micros,
    pub(crate) names: Vec<Name>,
    /// What a put writes, by item.
    pub(crate) versions: Vec<usize>,
    /// Where a get reads to, by item.
    pub(crate) buffers: Vec<Vec<Option<Mark>>>,
    /// When the last read ended, by item: a batch waits for its slowest.
    pub(crate) arrived: Vec<Micros>,
    /// Reads and writes that were posted, by item.
    pub(crate) tried: Vec<Vec<u64>>,
    /// Which items are known to be there, and which to be absent, in a world that is calm.
    pub(crate) must: Option<Vec<bool>>,
}

impl Client {
    pub(crate) fn new(tenant: usize, peer: Peer, plan: &Plan) -> Self {
        let mut settings = Settings::default();
        settings.batch = 4;
        settings.linger = Duration::from_millis(1);
        settings.put_deadline = plan.settings.put_deadline;
        if !plan.keeps {
            settings.keep = Duration::ZERO;
        }
        settings.granted_bytes = GRANTED;
        Self {
            tenant,
            peer,
            core: ClientCore::new(settings),
            running: BTreeMap::new(),
            leaving: None,
            leaves_writing: None,
            keeps_until: 0,
        }
    }

    /// Nothing of it is under way, and nothing of it moves.
    pub(crate) fn is_quiet(&self, now: Micros) -> bool {
        self.running.is_empty() && self.core.is_idle() && self.keeps_until <= now
    }
}
