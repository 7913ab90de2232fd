//! Compares what the parties say with what the oracle knows and the memory holds.

use bytes::Bytes;
use mooncake_proto::{
    master::{
        self, answer::Answer as Reply, describe_result, lookup_result,
        operation::Operation as Request, put_result, put_start_result, replica,
    },
    status::ErrorCode,
};

use mooncake_store::core::Incarnation;

use super::{AUDIT, FULL, REFILL, SWEEP, What, World, operations::How};
use crate::{
    CELL,
    master::Performed,
    name::Name,
    node::{Mount, Node},
    plan::{KEYS, Party},
};

impl World {
    /// What follows from the master's answer, and whether it was true.
    pub(super) fn judge_answer(&mut self, party: Party, performed: &Performed) {
        let tenant = self.tenant(party);
        if performed.reply().is_some() {
            self.judge_bars(tenant, performed);
        }
        match (&performed.request, performed.reply()) {
            (Request::Exist(asked), Some(Reply::Exist(answer))) => {
                let both = asked.keys.iter().zip(&answer.results);
                let there = both.filter(|(_, result)| result.exists);
                let keys = there.map(|(key, _)| key.clone()).collect();
                self.check_announced(tenant, keys, false);
            }
            (Request::Lookup(asked), Some(Reply::Lookup(answer))) => {
                for (key, result) in asked.keys.iter().zip(&answer.results) {
                    if let Some(lookup_result::Result::Object(object)) = &result.result {
                        self.check_object(Name::of(tenant, key), object, &answer.segments);
                        self.places.looked_up(object, &answer.segments);
                    }
                }
            }
            (Request::PutEnd(asked), Some(Reply::PutEnd(answer))) => {
                let both = asked.items.iter().zip(&answer.results);
                let ended = both.filter(|(_, result)| result.error.is_none());
                let keys = ended.map(|(item, _)| item.key.clone()).collect();
                // Making room may have taken them in the same step.
                self.check_announced(tenant, keys, true);
            }
            (Request::Put(asked), Some(Reply::Put(answer))) => {
                let mut keys = Vec::new();
                for (item, result) in asked.items.iter().zip(&answer.results) {
                    if let Some(put_result::Result::Incarnation(incarnation)) = result.result {
                        self.places.made_at_once(incarnation.into());
                        self.oracle.begins(incarnation.into());
                        keys.push(item.key.clone());
                    }
                }
                self.check_announced(tenant, keys, true);
            }
            (_, Some(Reply::PutStart(answer))) => {
                for result in &answer.results {
                    if let Some(put_start_result::Result::Object(object)) = &result.result {
                        self.places.made(object);
                        let incarnation = object.incarnation.unwrap_or_default();
                        self.oracle.begins(incarnation.into());
                    }
                }
            }
            (Request::Goodbye(asked), Some(Reply::Goodbye(_))) if asked.quiet => {
                let life = self.peer(party).session.identity;
                if let Some(moving) = self.moving(life) {
                    self.broken(format!(
                        "law 4: {party:?} says that it is quiet, and {moving:?}"
                    ));
                }
            }
            // It is gone already, whenever the answer comes.
            (Request::Remove(asked), None) => {
                for item in &asked.items {
                    self.oracle.buries(Name::of(tenant, &item.key));
                }
            }
            (Request::RemoveAll(_), None | Some(Reply::RemoveAll(_))) => {
                for key in 0..KEYS {
                    self.oracle.buries(Name { tenant, key });
                }
            }
            (Request::Remove(asked), Some(Reply::Remove(answer))) => {
                for (item, result) in asked.items.iter().zip(&answer.results) {
                    let error = result.error.as_ref();
                    if error.is_none_or(|error| error.code() == ErrorCode::ObjectNotFound) {
                        self.oracle.buries(Name::of(tenant, &item.key));
                    }
                }
            }
            _ => {}
        }
    }

    /// An answer that was promised has come.
    pub(super) fn judge_settled(&mut self, party: Party, performed: &Performed) {
        let tenant = self.tenant(party);
        self.judge_bars(tenant, performed);
    }

    fn judge_bars(&mut self, tenant: usize, performed: &Performed) {
        if let Some(Reply::Remove(_) | Reply::RemoveAll(_)) = performed.reply() {
            for bar in &performed.bars {
                let last = Incarnation {
                    epoch: bar.last.epoch,
                    sequence: bar.last.sequence,
                };
                let name = Name::of(tenant, &bar.key);
                self.oracle.bars(self.now, name, last);
            }
        }
    }

    /// Keys that are said to exist can be read at this moment, unless they `may_be_gone`.
    fn check_announced(&mut self, tenant: usize, keys: Vec<Bytes>, may_be_gone: bool) {
        if keys.is_empty() {
            return;
        }
        let names: Vec<_> = keys.iter().map(|key| Name::of(tenant, key)).collect();
        let described = self.master.describe(self.now, tenant, keys);
        for (name, result) in names.into_iter().zip(described.results) {
            match result.result {
                Some(describe_result::Result::Description(description)) if !description.writing => {
                    let object = description.object.unwrap_or_default();
                    self.check_object(name, &object, &described.segments);
                }
                _ if may_be_gone => {}
                other => self.broken(format!("law 6: {name} is said to exist, and is {other:?}")),
            }
        }
    }

    /// Each replica on a node that lives holds all of one version.
    fn check_object(&mut self, name: Name, object: &master::Object, segments: &[master::Segment]) {
        let incarnation = object.incarnation.unwrap_or_default().into();
        self.hold(self.oracle.announces(name, incarnation));
        for replica in &object.replicas {
            let Some(replica::Replica::Memory(memory)) = &replica.replica else {
                continue;
            };
            let segment = &segments[memory.segment as usize];
            let lives = |node: &&Node| {
                node.name == segment.name && node.is(segment.owner_incarnation, segment.generation)
            };
            let Some(node) = self.nodes.iter().find(lives) else {
                if self.now >= AUDIT {
                    self.broken(format!(
                        "law 6: {name} is announced on {segment:?}, which is gone"
                    ));
                }
                continue;
            };
            let first = (memory.offset / CELL) as usize;
            let cells = memory.length.div_ceil(CELL) as usize;
            let cells = &node.cells[first..first + cells];
            let promise = self
                .oracle
                .whole(name, cells)
                .and_then(|version| self.oracle.same_life(version, incarnation));
            if let Err(what) = promise {
                let node = node.name.clone();
                self.broken(format!("law 8: announced on {node}: {what}"));
                return;
            }
        }
    }

    /// All deadlines, leases and holds are over: what is charged is what is there, and all that is
    /// announced can be read.
    pub(super) fn audit(&mut self) {
        self.judge_rest();
        self.judge_mounts();
        let (mut objects, mut bytes) = (0, 0);
        for tenant in 0..self.plan.tenants {
            let names = (0..KEYS).map(|key| Name { tenant, key });
            let keys = names.clone().map(Name::bytes).collect();
            let described = self.master.describe(self.now, tenant, keys);
            let mut there = Vec::new();
            for (name, result) in names.zip(described.results) {
                let object = match result.result {
                    Some(describe_result::Result::Description(description)) => description.object,
                    _ => None,
                };
                there.push(object.is_some());
                if let Some(object) = object {
                    objects += 1;
                    bytes += object.length.next_multiple_of(CELL) * object.replicas.len() as u64;
                    self.check_object(name, &object, &described.segments);
                }
            }
            let what = What::Get((0..KEYS).collect());
            self.start(tenant, what, SWEEP - AUDIT, Some(there.clone()));
            let what = What::Exist((0..KEYS).collect());
            self.start(tenant, what, SWEEP - AUDIT, Some(there));
        }
        self.judge_books(objects, bytes);
    }

    /// Removes all that is left.
    pub(super) fn sweep(&mut self) {
        for tenant in 0..self.plan.tenants {
            let all = (0..KEYS).collect();
            let what = match (self.plan.seed + tenant as u64) % 3 {
                0 => What::RemoveAll,
                kind => What::Remove(all, kind == 1),
            };
            self.start(tenant, what, REFILL - SWEEP, Some(vec![true; KEYS]));
        }
    }

    /// The empty store takes an object as large as its segments.
    pub(super) fn refill(&mut self) {
        // Clients have to give back what was set aside for them.
        let how = How {
            wait: true,
            ..How::default()
        };
        let what = What::Put(vec![(0, self.plan.node_cells)], how);
        self.start(0, what, FULL - REFILL, Some(vec![true]));
    }

    /// The store is empty, and all was given back.
    pub(super) fn judge_the_end(&mut self) {
        self.judge_rest();
        self.judge_mounts();
        self.judge_books(0, 0);
    }

    fn judge_rest(&mut self) {
        let busy = self
            .clients
            .iter()
            .position(|client| !client.running.is_empty() || !client.core.is_idle());
        if let Some(at) = busy {
            let client = &self.clients[at];
            let what = format!("law 2: client {at} does not come to rest: {client:?}");
            self.broken(what);
        }
    }

    fn judge_books(&mut self, objects: u64, bytes: u64) {
        let counters = self.master.counters();
        let granted: u64 = self.clients.iter().map(|one| one.core.granted()).sum();
        if counters.granted_bytes != granted {
            self.broken(format!(
                "law 13: clients know of {granted} bytes that are set aside, and charged are \
                 {counters:?}"
            ));
        }
        let charged = [
            counters.objects,
            counters.used_bytes,
            counters.puts_in_progress,
            counters.quarantined_bytes,
            counters.leases,
            counters.reservations,
            counters.reserved_bytes,
            counters.promised_answers,
        ];
        if charged != [objects, bytes, 0, 0, 0, 0, 0, 0] {
            self.broken(format!(
                "law 13: {objects} objects of {bytes} bytes are there, and charged are {counters:?}"
            ));
        }
    }

    fn judge_mounts(&mut self) {
        let mounted = self.master.segments(self.now);
        let missing = self.nodes.iter().find(|node| {
            let here = |segment: &master::Segment| {
                node.is(segment.owner_incarnation, segment.generation) && segment.name == node.name
            };
            !mounted.iter().any(here) || node.mount != Mount::Done
        });
        if let Some(node) = missing {
            let (name, mount) = (node.name.clone(), node.mount);
            self.broken(format!(
                "{name} lives and is not mounted; it believes that it is {mount:?}"
            ));
        }
    }
}
