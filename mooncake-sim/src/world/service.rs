//! The master's end of the streams.

use mooncake_proto::master::{ClientFrame, Fenced, event};
use rand::RngExt;

use super::{Next, World};
use crate::plan::Party;

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
                self.judge_answer(&performed);
            }
            self.down(party, stream, event::Event::Answer(performed.answer));
        }
    }

    /// Of a life of the master that ends.
    pub(super) fn count_master(&mut self) {
        let counters = self.master.counters();
        self.report.evicted += counters.evicted_objects as usize;
        self.report.abandoned_puts += counters.abandoned_puts as usize;
        self.report.expired_clients += counters.expired_clients as usize;
    }
}
