//! Compares what the parties say with what the oracle knows and the memory holds.

use mooncake_proto::{
    master::{
        self, answer::Answer as Reply, describe_result, lookup_result,
        operation::Operation as Request, replica,
    },
    status::ErrorCode,
};
use mooncake_store::core::Outcome;

use super::{World, name, number};
use crate::{CELL, client::Running, master::Performed, node::Mount, plan::KEYS};

impl World {
    /// How an operation ended for its caller.
    pub(super) fn judge_outcome(
        &mut self,
        running: &Running,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let (now, began) = (self.now, running.began);
        let keys = running.keys.iter().copied().enumerate();
        match outcome {
            Outcome::Get(results) => {
                for ((item, key), result) in keys.zip(results) {
                    let Ok(got) = result else { continue };
                    let cells = &running.buffers[item];
                    if got.length.div_ceil(CELL) != cells.len() as u64 {
                        return Err(format!("law 5: {got:?} of key {key} has {cells:?}"));
                    }
                    self.report.gets += 1;
                    self.oracle.read(now, key, began, got.incarnation, cells)?;
                }
            }
            Outcome::Put(results) => {
                for ((item, _), result) in keys.zip(results) {
                    let Ok(incarnation) = result else { continue };
                    self.report.puts += 1;
                    let version = running.versions[item];
                    self.oracle.put(now, version, *incarnation)?;
                }
            }
            Outcome::Remove(results) => {
                for ((_, key), result) in keys.zip(results) {
                    let gone = match result {
                        Ok(()) => true,
                        Err(fault) => fault.code == ErrorCode::ObjectNotFound,
                    };
                    if gone {
                        self.oracle.removed(now, key, began);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What the master announces can be read at this moment.
    pub(super) fn judge_answer(&mut self, performed: &Performed) {
        let mut announced = Vec::new();
        match (&performed.request, &performed.answer.answer) {
            (Request::Exist(asked), Some(Reply::Exist(answer))) => {
                for (key, result) in asked.keys.iter().zip(&answer.results) {
                    if result.exists {
                        announced.push(key.clone());
                    }
                }
            }
            (Request::PutEnd(asked), Some(Reply::PutEnd(answer))) => {
                for (item, result) in asked.items.iter().zip(&answer.results) {
                    if result.error.is_none() {
                        announced.push(item.key.clone());
                    }
                }
            }
            (Request::Lookup(asked), Some(Reply::Lookup(answer))) => {
                for (key, result) in asked.keys.iter().zip(&answer.results) {
                    if let Some(lookup_result::Result::Object(object)) = &result.result {
                        self.check_object(number(key), object, &answer.segments);
                    }
                }
            }
            _ => {}
        }
        if announced.is_empty() {
            return;
        }
        let described = self.master.describe(self.now, announced.clone());
        for (key, result) in announced.iter().zip(described.results) {
            match result.result {
                Some(describe_result::Result::Description(description)) if !description.writing => {
                    let object = description.object.unwrap_or_default();
                    self.check_object(number(key), &object, &described.segments);
                }
                // Making room may have taken it in the same step.
                _ if matches!(performed.request, Request::PutEnd(_)) => {}
                other => self.broken(format!("law 6: {key:?} is said to exist, and is {other:?}")),
            }
        }
    }

    /// Each replica on a node that lives holds all of one version.
    fn check_object(&mut self, key: usize, object: &master::Object, segments: &[master::Segment]) {
        for replica in &object.replicas {
            let Some(replica::Replica::Memory(memory)) = &replica.replica else {
                continue;
            };
            let segment = &segments[memory.segment as usize];
            let lives = |node: &&crate::node::Node| {
                node.name == segment.name && node.is(segment.owner_incarnation, segment.generation)
            };
            let Some(node) = self.nodes.iter().find(lives) else {
                continue;
            };
            let first = (memory.offset / CELL) as usize;
            let cells = memory.length.div_ceil(CELL) as usize;
            let cells = &node.cells[first..first + cells];
            let incarnation = object.incarnation.unwrap_or_default().into();
            let promise = self
                .oracle
                .whole(key, cells)
                .and_then(|version| self.oracle.same_life(version, incarnation));
            if let Err(what) = promise {
                let node = node.name.clone();
                self.broken(format!("law 8: announced on {node}: {what}"));
                return;
            }
        }
    }

    /// All is over, and all was given back.
    pub(super) fn judge_the_end(&mut self) {
        for at in 0..self.clients.len() {
            let client = &self.clients[at];
            if !client.running.is_empty() || !client.core.is_idle() {
                let what = format!("law 2: client {at} does not come to rest: {client:?}");
                self.broken(what);
                return;
            }
        }
        let counters = self.master.counters();
        let left = [
            counters.objects,
            counters.puts_in_progress,
            counters.used_bytes,
            counters.quarantined_bytes,
            counters.leases,
        ];
        if left != [0; 5] {
            let all = (0..KEYS).map(name).collect();
            let described = self.master.describe(self.now, all);
            self.broken(format!(
                "law 13: the empty store still has {counters:?}: {described:?}"
            ));
        }
        let mounted = self.master.segments(self.now);
        for node in &self.nodes {
            let here = mounted.iter().any(|segment| {
                node.is(segment.owner_incarnation, segment.generation) && segment.name == node.name
            });
            if !here || node.mount != Mount::Done {
                let (name, mount) = (node.name.clone(), node.mount);
                self.broken(format!(
                    "{name} lives and is not mounted; it believes that it is {mount:?}"
                ));
                return;
            }
        }
    }
}
