//! The network between clients, nodes and the master: late, double, deaf and broken streams.

use mooncake_proto::master::{self, ClientFrame, event};
use rand::RngExt;

use super::{MS, Next, World};
use crate::{Micros, plan::Party};

impl World {
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    pub(super) fn delay(&mut self) -> Micros {
        if self.chance(self.plan.weather.late) {
            self.rng.random_range(2 * MS..30 * MS)
        } else {
            self.rng.random_range(50..1_500)
        }
    }

    /// How long something is stuck on its way to a node: less than what the master allows for it.
    pub(super) fn jam(&mut self) -> Micros {
        if self.chance(self.plan.weather.stuck) {
            self.rng.random_range(50 * MS..400 * MS)
        } else {
            0
        }
    }

    pub(super) fn send(&mut self, party: Party, frame: ClientFrame) {
        let (now, delay) = (self.now, self.delay());
        let twice = self.chance(self.plan.weather.twice);
        let peer = self.peer(party);
        if peer.muted_until > now {
            return;
        }
        let at = (now + delay).max(peer.last_frame + 1);
        peer.last_frame = at;
        let stream = peer.session.stream;
        if twice && frame.hello.is_none() {
            let again = at + self.delay();
            let frame = frame.clone();
            self.at(
                again,
                Next::Up {
                    party,
                    stream,
                    frame,
                },
            );
        }
        self.at(
            at,
            Next::Up {
                party,
                stream,
                frame,
            },
        );
    }

    pub(super) fn down(&mut self, party: Party, stream: u64, event: event::Event) {
        if self.peer(party).muted_until > self.now {
            return;
        }
        let twice = self.chance(self.plan.weather.twice);
        let events = vec![master::Event { event: Some(event) }];
        for _ in 0..=u32::from(twice) {
            let at = self.now + self.delay();
            let events = events.clone();
            self.at(
                at,
                Next::Down {
                    party,
                    stream,
                    events,
                },
            );
        }
    }

    pub(super) fn break_stream(&mut self, party: Party) {
        let stream = self.peer(party).session.stream;
        let at = self.now + self.delay();
        self.at(at, Next::Broken { party, stream });
        self.tell_master(stream);
    }

    /// The master may hear of a broken stream, or notice it by silence.
    pub(super) fn tell_master(&mut self, stream: u64) {
        if self.chance(50) {
            let at = self.now + self.delay();
            self.at(at, Next::Lost(stream));
        }
    }
}
