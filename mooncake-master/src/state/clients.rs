//! Clients: when they were last heard, and what they were answered.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{Answer, ClientId, Failure, leases::Unheard, tenants::TenantId};
use crate::Time;

/// Answers kept for one client until it acknowledges them.
const MAX_UNACKNOWLEDGED: usize = 65_536;

#[derive(Debug)]
pub(crate) struct Client {
    /// Known once it has said hello.
    pub(crate) tenant: Option<TenantId>,
    pub(crate) name: String,
    pub(crate) last_seen: Time,
    /// Its stream ended or it has been silent for a while: others are preferred to it.
    pub(crate) suspect: bool,
    /// Something came after hello was answered, so the client knows that this is a new life of its
    /// state.
    pub(crate) heard: bool,
    /// Leases that it had when it last said hello.
    pub(crate) unheard: Unheard,
    answers: Answers,
}

impl Client {
    pub(crate) fn new(tenant: Option<TenantId>, name: String, now: Time) -> Self {
        Self {
            tenant,
            name,
            last_seen: now,
            suspect: false,
            heard: tenant.is_none(),
            unheard: Unheard::new(),
            answers: Answers::default(),
        }
    }

    /// It has all answers to operations with smaller numbers.
    pub(crate) fn acknowledge_below(&mut self, number: u64) {
        self.answers.acknowledge_below(number);
        while let Some(first) = self.unheard.first_entry()
            && *first.key() < number
        {
            first.remove();
        }
    }

    pub(crate) fn answers(&mut self) -> &mut Answers {
        &mut self.answers
    }
}

/// Answers to mutations that the client may ask for again.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// By number, ascending.
    kept: VecDeque<(u64, Answer)>,
    acknowledged_below: u64,
}

impl Answers {
    /// The answer that the operation got before, or a reason not to perform it.
    pub(crate) fn recall(&self, number: u64) -> Option<Answer> {
        if number < self.acknowledged_below {
            return Some(Answer::Refused(Failure::OperationForgotten { number }));
        }
        if let Ok(at) = self.place(number) {
            return Some(self.kept[at].1.clone());
        }
        let held = self.kept.len();
        (held >= MAX_UNACKNOWLEDGED)
            .then(|| Answer::Refused(Failure::AnswersPileUp { held: held as u64 }))
    }

    pub(crate) fn keep(&mut self, number: u64, answer: Answer) {
        if let Err(at) = self.place(number) {
            self.kept.insert(at, (number, answer));
        }
    }

    /// The answer has come that was promised.
    pub(crate) fn replace(&mut self, number: u64, answer: Answer) {
        if let Ok(at) = self.place(number) {
            self.kept[at].1 = answer;
        }
    }

    pub(crate) fn acknowledge_below(&mut self, number: u64) {
        self.acknowledged_below = self.acknowledged_below.max(number);
        while self.kept.front().is_some_and(|(n, _)| *n < number) {
            self.kept.pop_front();
        }
        if self.kept.is_empty() && self.kept.capacity() > 1024 {
            self.kept = VecDeque::new();
        }
    }

    fn place(&self, number: u64) -> Result<usize, usize> {
        match self.kept.back() {
            Some((last, _)) if *last >= number => self.kept.binary_search_by_key(&number, |e| e.0),
            // Numbers grow, so this is the way of all but repetitions.
            _ => Err(self.kept.len()),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) all: BTreeMap<ClientId, Client>,
    last_tick: Option<Time>,
}

impl Clients {
    /// Who has been silent for longer than `ttl`. Time in which the master itself slept is not
    /// held against anybody.
    pub(crate) fn expired(&mut self, now: Time, ttl: Duration) -> Vec<ClientId> {
        let slept = self
            .last_tick
            .map_or(Duration::ZERO, |last| now.since(last));
        self.last_tick = Some(now);
        if slept > ttl / 2 {
            for client in self.all.values_mut() {
                client.last_seen = (client.last_seen + slept).min(now);
            }
        }
        self.silent_for(now, ttl, |_| true)
    }

    /// Who has been silent for longer than `after` and is not a suspect yet.
    pub(crate) fn suspicious(&self, now: Time, after: Duration) -> Vec<ClientId> {
        self.silent_for(now, after, |client| !client.suspect)
    }

    fn silent_for(
        &self,
        now: Time,
        length: Duration,
        counts: impl Fn(&Client) -> bool,
    ) -> Vec<ClientId> {
        let silent = |client: &Client| now.since(client.last_seen) > length && counts(client);
        let found = self.all.iter().filter(|(_, client)| silent(client));
        found.map(|(&id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[test]
    fn the_time_that_the_master_slept_is_not_held_against_clients() {
        let mut clients = Clients::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        clients.expired(at(0), TTL);
        clients
            .all
            .insert(ClientId(1), Client::new(None, String::new(), at(0)));
        clients.expired(at(1), TTL);
        assert_eq!(
            clients.expired(at(100), TTL),
            [],
            "99 of the 100 seconds were our own"
        );
        for second in 101..=108 {
            assert_eq!(clients.expired(at(second), TTL), []);
        }
        assert_eq!(clients.expired(at(111), TTL), [ClientId(1)]);
    }

    #[test]
    fn answers_are_kept_until_acknowledged_whatever_their_order() {
        let mut answers = Answers::default();
        for number in [3, 1, 2, 7] {
            answers.keep(number, Answer::Pong { known: number == 2 });
        }
        assert_eq!(answers.recall(2), Some(Answer::Pong { known: true }));
        assert_eq!(answers.recall(5), None);
        answers.acknowledge_below(3);
        let number = 2;
        assert_eq!(
            answers.recall(number),
            Some(Answer::Refused(Failure::OperationForgotten { number }))
        );
        assert_eq!(answers.recall(3), Some(Answer::Pong { known: false }));
    }
}
