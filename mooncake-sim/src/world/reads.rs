//! Reads that fail although the key is there: whose fault that is.

use std::collections::BTreeMap;

use mooncake_proto::{
    Fault,
    master::{Object, Segment, replica},
    status::ErrorCode,
};
use mooncake_store::core::Incarnation;
use rand::RngExt;

use super::{Next, World, transfers::Transfer};
use crate::{
    CELL,
    client::Running,
    name::Name,
    node::Node,
    oracle::{Mark, Reading},
};

/// Where a replica begins: the life of the memory, and a cell in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    owner: u64,
    generation: u32,
    first: usize,
}

impl Place {
    fn of(transfer: &Transfer) -> Self {
        Self {
            owner: transfer.segment.owner_incarnation,
            generation: transfer.segment.generation,
            first: transfer.first,
        }
    }

    /// Since it has had this life.
    fn lives_on<'a>(&self, nodes: &'a [Node]) -> Option<&'a Node> {
        nodes
            .iter()
            .find(|node| node.is(self.owner, self.generation))
    }
}

/// What the master said about where objects lie.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// The other replicas of the same object, as of the last answer that named them.
    together: BTreeMap<Place, Vec<Place>>,
    /// Replicas that were made.
    made: BTreeMap<Incarnation, usize>,
}

impl Places {
    /// How many replicas of the object were made.
    pub(super) fn made_of(&self, object: Incarnation) -> usize {
        self.made.get(&object).copied().unwrap_or_default()
    }

    pub(super) fn made(&mut self, object: &Object) {
        let incarnation = object.incarnation.unwrap_or_default().into();
        self.made.insert(incarnation, object.replicas.len());
    }

    /// In one place, without having been started.
    pub(super) fn made_at_once(&mut self, incarnation: Incarnation) {
        self.made.insert(incarnation, 1);
    }

    pub(super) fn looked_up(&mut self, object: &Object, segments: &[Segment]) {
        let place = |replica: &mooncake_proto::master::Replica| match &replica.replica {
            Some(replica::Replica::Memory(memory)) => {
                let segment = &segments[memory.segment as usize];
                Some(Place {
                    owner: segment.owner_incarnation,
                    generation: segment.generation,
                    first: (memory.offset / CELL) as usize,
                })
            }
            _ => None,
        };
        let places: Vec<_> = object.replicas.iter().filter_map(place).collect();
        for place in &places {
            self.together.insert(*place, places.clone());
        }
    }
}

impl World {
    /// The item was read from another replica than the one that was tried first.
    pub(super) fn failed_over(&self, running: &Running, item: usize) -> bool {
        let places = self.places_tried(running, item);
        let Some(last) = places.last() else {
            return false;
        };
        let replicas = self.places.together.get(last).into_iter().flatten();
        replicas
            .into_iter()
            .any(|place| place != last && places.contains(place))
    }

    /// The item was read from what the loss of a node had left of the object.
    pub(super) fn outlived(&self, running: &Running, item: usize, object: Incarnation) -> bool {
        let tried = self.places_tried(running, item);
        let replicas = tried.last().and_then(|last| self.places.together.get(last));
        let made = self.places.made.get(&object);
        replicas
            .zip(made)
            .is_some_and(|(left, made)| left.len() < *made)
    }

    /// A key that the master announced may be unreadable only if no replica of it was left to read.
    pub(super) fn judge_failed_read(
        &self,
        running: &Running,
        item: usize,
        fault: &Fault,
    ) -> Result<(), String> {
        let unreadable = matches!(fault.code, ErrorCode::TransferFailed | ErrorCode::Stale);
        if !unreadable || self.now >= running.deadline {
            return Ok(());
        }
        let tried = self.places_tried(running, item);
        let Some(last) = tried.last() else {
            return Ok(());
        };
        let name: Name = running.names[item];
        for place in self.places.together.get(last).into_iter().flatten() {
            let Some(node) = place.lives_on(&self.nodes) else {
                continue;
            };
            let node = &node.name;
            if !tried.contains(place) {
                return Err(format!(
                    "law 6: {name} cannot be read ({fault:?}), and its replica on {node} lives and \
                     was not tried"
                ));
            }
            let wires = running.tried[item].iter();
            let refused = wires
                .filter_map(|wire| self.transfers.get(wire))
                .any(|transfer| Place::of(transfer) == *place && transfer.refused);
            if refused {
                return Err(format!(
                    "law 6: {name} cannot be read ({fault:?}), and {node}, which has it, lives and \
                     refuses"
                ));
            }
        }
        Ok(())
    }

    /// The client will read it once more under the same lease.
    pub(super) fn keep(
        &mut self,
        running: &Running,
        item: usize,
        version: usize,
        reading: Reading,
    ) {
        let Some(&wire) = running.tried[item].last() else {
            return;
        };
        let ends = self.transfers[&wire].deadline;
        if self.now < ends {
            let at = self.rng.random_range(self.now..ends);
            if let Some(client) = self.clients.get_mut(self.transfers[&wire].client) {
                client.keeps_until = client.keeps_until.max(at);
            }
            let again = Next::Again {
                wire,
                version,
                reading,
            };
            self.at(at, again);
        }
    }

    /// While a lease lasts, the bytes stay what they are, whatever became of the object.
    pub(super) fn read_again(&mut self, wire: u64, version: usize, reading: &Reading) {
        if self.is_alive(wire) {
            match self.oracle.used_again(self.now, reading, version) {
                Ok(stale) => self.report.stale_reads += usize::from(stale),
                Err(what) => self.broken(what),
            }
        }
        let transfer = &self.transfers[&wire];
        let Some(node) = Place::of(transfer).lives_on(&self.nodes) else {
            return;
        };
        self.report.kept_reads += 1;
        let cells = &node.cells[transfer.first..transfer.first + transfer.cells];
        let same = cells.iter().enumerate().all(|(index, cell)| {
            let mark = Mark { version, index };
            *cell == Some(mark)
        });
        if !same {
            let what = format!(
                "law 3: version {version} was read on {}, and while its lease lasts there are {cells:?}",
                node.name
            );
            self.broken(what);
        }
    }

    fn places_tried(&self, running: &Running, item: usize) -> Vec<Place> {
        let wires = running.tried[item].iter();
        wires
            .filter_map(|wire| self.transfers.get(wire))
            .map(Place::of)
            .collect()
    }
}
