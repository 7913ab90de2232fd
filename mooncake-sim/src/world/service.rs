//! The master's end of the streams.

use mooncake_proto::{
    master::{
        ClientFrame, Fenced, Reclaim, answer::Answer as Reply, event,
        operation::Operation as Request, put_result, put_start_result,
    },
    status::ErrorCode,
};
use rand::RngExt;

use super::{Next, World};
use crate::{
    master::{Performed, Settled},
    name::Name,
    plan::Party,
};

impl World {
    pub(super) fn up(&mut self, party: Party, stream: u64, frame: ClientFrame) {
        let now = self.now;
        let known = self.master.up && (frame.hello.is_some() || self.master.knows(stream));
        if !known {
            let at = now + self.delay();
            self.at(at, Next::Broken { party, stream });
            return;
        }
        if let Some(hello) = frame.hello {
            let (answer, older) = self.master.greet(now, party, stream, hello);
            self.report.resumed += usize::from(answer.resumed);
            if let Some(older) = older {
                let reason = "a newer stream took over".to_owned();
                self.down(party, older, event::Event::Fenced(Fenced { reason }));
            }
            self.down(party, stream, event::Event::Hello(answer));
            self.spread_news();
            return;
        }
        self.master
            .acknowledge(now, stream, frame.acknowledged_below);
        for operation in frame.operations {
            let draw = self.rng.random();
            let performed = self.master.perform(now, stream, operation, draw);
            if let Some(what) = performed.violation.clone() {
                self.broken(what);
            }
            if performed.anew {
                self.judge_answer(party, &performed);
                self.count(party, &performed);
            }
            self.spread_news();
            if let Some(answer) = performed.answer {
                self.down(party, stream, event::Event::Answer(answer));
            }
        }
    }

    /// What the master's last step means for others.
    pub(super) fn spread_news(&mut self) {
        for (party, stream, gone) in self.master.news() {
            if !self.chance(self.plan.weather.untold) {
                self.down(party, stream, event::Event::Invalidate(gone));
            }
        }
        for (party, stream) in self.master.reclaims() {
            if !self.chance(self.plan.weather.untold) {
                self.down(party, stream, event::Event::Reclaim(Reclaim {}));
            }
        }
        for settled in self.master.settled() {
            let Settled {
                party,
                stream,
                again,
                performed,
            } = settled;
            self.report.deferred += 1;
            self.report.deferred_again += usize::from(again);
            if let Some(what) = performed.violation.clone() {
                self.broken(what);
            }
            self.judge_settled(party, &performed);
            if let (Some(stream), Some(answer)) = (stream, performed.answer) {
                self.down(party, stream, event::Event::Answer(answer));
            }
        }
    }

    fn count(&mut self, party: Party, performed: &Performed) {
        let (before, after) = (performed.before, self.master.counters());
        let tenant = self.tenant(party);
        let report = &mut self.report;
        if after.leases > 0 {
            let evicted = after.evicted_objects - before.evicted_objects;
            report.evicted_beside_leases += evicted as usize;
        }
        match (&performed.request, performed.reply()) {
            (_, Some(Reply::Exist(answer))) => {
                let held = answer.results.iter().filter(|result| result.held_ms > 0);
                report.reservations += held.count();
            }
            (_, Some(Reply::Grant(answer))) => report.grants += usize::from(answer.length > 0),
            (Request::ReturnGrants(asked), Some(Reply::ReturnGrants(_))) => {
                report.returned_grants += asked.grants.len();
            }
            (Request::Put(asked), Some(Reply::Error(error)))
                if error.code() == ErrorCode::SegmentNotFound =>
            {
                report.misplaced_puts += asked.items.len();
            }
            (Request::Put(asked), Some(Reply::Put(answer))) => {
                for result in &answer.results {
                    match &result.result {
                        Some(put_result::Result::Incarnation(_)) => {
                            report.placed_puts += 1;
                            report.placed_upserts += usize::from(asked.upsert);
                        }
                        Some(put_result::Result::Error(error)) => {
                            let stale = error.code() == ErrorCode::Stale;
                            report.misplaced_puts += usize::from(stale);
                        }
                        None => {}
                    }
                }
            }
            (Request::PutStart(asked), Some(Reply::PutStart(answer))) => {
                let taken_over = after.abandoned_puts - before.abandoned_puts;
                report.taken_over += taken_over as usize;
                for (item, result) in asked.items.iter().zip(&answer.results) {
                    match &result.result {
                        Some(put_start_result::Result::Object(object)) => {
                            report.replicated_puts += usize::from(object.replicas.len() > 1);
                        }
                        Some(put_start_result::Result::Error(error)) => {
                            if matches!(error.code(), ErrorCode::Busy | ErrorCode::NoSpace) {
                                let name = Name::of(tenant, &item.key);
                                self.refused.insert((party, name), self.now);
                            }
                            match error.code() {
                                ErrorCode::Busy => report.busy += 1,
                                ErrorCode::NoSpace if after.segments > 0 => report.no_space += 1,
                                _ => {}
                            }
                        }
                        None => {}
                    }
                }
            }
            (_, Some(Reply::PutEnd(answer))) => {
                let errors = answer.results.iter().filter_map(|one| one.error.as_ref());
                let revoked = errors.filter(|error| error.code() == ErrorCode::Revoked);
                report.revoked_puts += revoked.count();
            }
            _ => {}
        }
    }

    /// Of a life of the master that ends.
    pub(super) fn count_master(&mut self) {
        let counters = self.master.counters();
        let (upserts, held_reads, clean_goodbyes) = self.master.seen();
        self.report.upserts += upserts;
        self.report.held_reads += held_reads;
        self.report.clean_goodbyes += clean_goodbyes;
        self.report.evicted += counters.evicted_objects as usize;
        self.report.abandoned_puts += counters.abandoned_puts as usize;
        self.report.expired_clients += counters.expired_clients as usize;
    }
}
