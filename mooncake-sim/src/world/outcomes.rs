//! How operations ended for their callers, and what that promises.

use mooncake_proto::{Fault, master::operation::Operation as Request, status::ErrorCode};
use mooncake_store::core::{Got, Incarnation, Outcome};

use super::{MS, World, operations::How};
use crate::{
    CELL, Micros,
    client::Running,
    oracle::{Reading, Removed},
    plan::Party,
    world::What,
};

/// An answer that is kept arrives within this, if nothing is in its way.
const PROMPT: Micros = 150 * MS;

impl World {
    /// How an operation of the client ended for its caller.
    pub(super) fn judge_outcome(
        &mut self,
        at: usize,
        running: &Running,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let (now, asked) = (self.now, running.began);
        let reader = self.clients[at].peer.session.identity;
        let names = running.names.iter().copied();
        let removed = Removed {
            asked,
            ended: now,
            by: reader,
        };
        match outcome {
            Outcome::Exist(results) => {
                for (item, result) in results.iter().enumerate() {
                    let there = |item: usize| running.must.as_ref().map(|must| must[item]);
                    let said = result.as_ref().ok().map(|existence| existence.exists);
                    if there(item).is_some_and(|there| said != Some(there)) {
                        let name = running.names[item];
                        return Err(format!("law 6: {name} is said to exist: {result:?}"));
                    }
                }
                if let What::ExistThenGet(keys) = &running.what
                    && now < running.deadline
                {
                    let both = keys.iter().zip(results);
                    let there = both.filter(|(_, result)| result.as_ref().is_ok_and(|e| e.exists));
                    let keys: Vec<_> = there.map(|(key, _)| *key).collect();
                    if !keys.is_empty() {
                        self.begin(at, What::Get(keys), running.deadline - now, None);
                    }
                }
            }
            Outcome::Get(results) => {
                for (item, (name, result)) in names.zip(results).enumerate() {
                    judge_calm(running, item, result)?;
                    let got = match result {
                        Ok(got) => got,
                        Err(fault) => {
                            self.judge_failed_read(running, item, fault)?;
                            continue;
                        }
                    };
                    let cells = &running.buffers[item];
                    if got.length.div_ceil(CELL) != cells.len() as u64 {
                        return Err(format!("law 5: {got:?} of {name} has {cells:?}"));
                    }
                    self.report.gets += 1;
                    let outlived = self.outlived(running, item, got.incarnation);
                    self.report.outlived_nodes += usize::from(outlived);
                    self.report.failovers += usize::from(self.failed_over(running, item));
                    let reading = Reading {
                        name,
                        reader,
                        asked,
                        incarnation: got.incarnation,
                    };
                    let arrived = running.arrived[item];
                    let version = self.oracle.read(arrived, &reading, cells)?;
                    if self.plan.keeper == Some(at) {
                        self.keep(running, item, version, reading);
                    }
                }
            }
            Outcome::Put(results) => {
                for (item, (name, result)) in names.zip(results).enumerate() {
                    let Ok(incarnation) = result else {
                        if running.must.is_some() {
                            return Err(format!(
                                "law 13: the empty store does not take {name}: {result:?}"
                            ));
                        }
                        continue;
                    };
                    self.report.puts += 1;
                    let version = running.versions[item];
                    self.oracle.put(now, reader, version, *incarnation)?;
                    self.count_put(at, running, item, *incarnation);
                }
            }
            Outcome::Remove(results) => {
                let barrier = matches!(running.what, What::Remove(_, true));
                for (name, result) in names.zip(results) {
                    match result {
                        Ok(()) if barrier && !self.oracle.barred_since(asked, name) => {
                            return Err(format!(
                                "law 6: a barrier of {name} succeeds, and no master has passed it"
                            ));
                        }
                        Err(fault) if fault.code != ErrorCode::ObjectNotFound => {
                            self.judge_unanswered(at, running, fault)?;
                            continue;
                        }
                        _ => {}
                    }
                    self.report.removes += 1;
                    self.oracle.removed(name, removed);
                }
                if barrier && self.kept_since(at, running).is_some() {
                    self.report.barriers += 1;
                }
            }
            Outcome::RemoveAll(Ok(count)) => {
                self.report.removed_all += 1;
                self.report.removed_together += *count as usize;
                for name in names {
                    if !self.oracle.barred_since(asked, name) {
                        return Err(format!(
                            "law 6: all is removed, {name} too, and no master has said so"
                        ));
                    }
                    self.oracle.removed(name, removed);
                }
            }
            Outcome::RemoveAll(Err(fault)) => self.judge_unanswered(at, running, fault)?,
            _ => {}
        }
        Ok(())
    }

    fn count_put(&mut self, at: usize, running: &Running, item: usize, incarnation: Incarnation) {
        let made = self.places.made_of(incarnation);
        self.report.moved_puts += usize::from(running.tried[item].len() > made);
        let refused = self
            .refused
            .get(&(Party::Client(at), running.names[item]))
            .is_some_and(|refused| *refused >= running.began);
        let waits = matches!(running.what, What::Put(_, How { wait: true, .. }));
        self.report.waited_puts += usize::from(waits && refused);
    }

    /// A remove that did not end well had a reason.
    fn judge_unanswered(&self, at: usize, running: &Running, fault: &Fault) -> Result<(), String> {
        if running.must.is_some() {
            return Err(format!(
                "law 9: though nothing disturbs it, a remove ends with {fault:?}"
            ));
        }
        let peer = &self.clients[at].peer;
        let (Some(open), Some(kept)) = (peer.session.open_since, self.kept_since(at, running))
        else {
            return Ok(());
        };
        let sleeps = [
            peer.muted_until,
            peer.paused_until,
            self.master.paused_until,
        ];
        let since = sleeps.into_iter().fold(open.max(kept), Micros::max);
        if since + PROMPT < running.deadline && running.deadline <= self.now {
            return Err(format!(
                "law 9: an operation ends with {fault:?}, and the master has kept its answer since \
                 {kept}"
            ));
        }
        Ok(())
    }

    /// Since when the master keeps an answer that had been promised before.
    fn kept_since(&self, at: usize, running: &Running) -> Option<Micros> {
        let same = |request: &Request| match request {
            Request::Remove(asked) => {
                asked.barrier
                    && asked.items.len() == running.names.len()
                    && asked
                        .items
                        .iter()
                        .zip(&running.names)
                        .all(|(item, name)| item.key == name.bytes())
            }
            Request::RemoveAll(_) => matches!(running.what, What::RemoveAll),
            _ => false,
        };
        let client = self.clients[at].peer.session.identity;
        self.master.kept_since(client, running.began, same)
    }
}

/// In a calm world a read of what is there succeeds.
fn judge_calm(running: &Running, item: usize, result: &Result<Got, Fault>) -> Result<(), String> {
    let Some(must) = &running.must else {
        return Ok(());
    };
    let as_it_is = match result {
        Ok(_) => must[item],
        Err(fault) => !must[item] && fault.code == ErrorCode::ObjectNotFound,
    };
    if as_it_is {
        return Ok(());
    }
    let (name, there) = (running.names[item], must[item]);
    Err(format!(
        "law 6: though nothing disturbs it, a read of {name} ends with {result:?}; is it there: {there}"
    ))
}
