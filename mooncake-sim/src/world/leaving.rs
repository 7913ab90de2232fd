//! Clients that take leave: they end what they can, say goodbye, and stop.

use mooncake_proto::master::GoodbyeRequest;
use mooncake_store::{Time, core::MasterRequest};
use rand::RngExt;

use super::{MS, Next, World};
use crate::{Micros, Plant, client::Leaving, plan::Party, session::Tag};

/// How long a client waits for its goodbye to be heard.
const FAREWELL: Micros = 300 * MS;

impl World {
    /// The client asks for nothing any more, and starts anew at `back`.
    pub(super) fn leave(&mut self, at: usize, back: Micros) {
        let patience = self.now + self.rng.random_range(0..400 * MS);
        let client = &mut self.clients[at];
        if !client.peer.up || client.leaving.is_some() {
            return;
        }
        client.leaving = Some(Leaving {
            patience,
            back,
            said: false,
        });
        client.core.keep_nothing(Time(self.now));
        let life = client.peer.session.identity;
        self.at(patience, Next::LosePatience { client: at, life });
        self.settle(Party::Client(at));
    }

    pub(super) fn lose_patience(&mut self, at: usize, life: u64) {
        let peer = &self.clients[at].peer;
        if peer.up && peer.session.identity == life {
            self.settle(Party::Client(at));
        }
    }

    /// Says goodbye once nothing of the client moves, or its patience is over.
    pub(super) fn take_leave(&mut self, at: usize) {
        let now = self.now;
        let client = &mut self.clients[at];
        let quiet = client.is_quiet(now);
        let lies = self.plan.plant == Plant::NeverQuiet;
        let Some(leaving) = &mut client.leaving else {
            return;
        };
        if leaving.said || !(quiet || lies || leaving.patience <= now) {
            return;
        }
        leaving.said = true;
        self.report.goodbyes += 1;
        self.report.quiet_goodbyes += usize::from(quiet);
        let request = MasterRequest::Goodbye(GoodbyeRequest {
            quiet: quiet || lies,
            ..GoodbyeRequest::default()
        });
        let session = &mut client.peer.session;
        session.submit(now, Tag::Goodbye, request, Time(now + FAREWELL));
    }

    /// The goodbye was heard, or not; the process ends.
    pub(super) fn gone(&mut self, at: usize) {
        let Some(Leaving { back, .. }) = self.clients[at].leaving else {
            return;
        };
        self.end_process(at);
        let stream = self.clients[at].peer.session.stream;
        self.tell_master(stream);
        let back = back.max(self.now + MS);
        self.at(back, Next::Restart(Party::Client(at)));
    }
}
