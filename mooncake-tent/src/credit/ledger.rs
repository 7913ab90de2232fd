//! The receiver's side: shares what it takes in all among the sessions that are alive.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::Credit;
use crate::identity::PeerId;

/// Who could not be promised so many bytes gets no session.
const LEAST_BYTES: u64 = 16 << 10;
/// A share that differs by no more than this part of it is left as it is.
const TOLERANCE: u64 = 8;

/// What a receiver takes in all. Half of it is set aside, in equal parts, one for each session that it
/// may have; the other half is lent. A sender may borrow what is left to lend, shared with it half and
/// half again at each answer: so all that borrow come to hold the same, whenever they came, and as
/// much is left for the next.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// What each session has for itself.
    part: Credit,
    seats: u64,
    /// What all together may borrow.
    loans: Credit,
    free: Stock,
    senders: Mutex<Senders>,
}

#[derive(Debug, Default)]
struct Senders {
    sessions: u64,
    by_id: FxHashMap<PeerId, Arc<Sender>>,
}

/// One that has sessions.
#[derive(Debug, Default)]
struct Sender {
    /// Its sessions borrow together as much as one of another.
    sessions: AtomicU64,
}

/// What is left to lend. Nothing else is published by it.
#[derive(Debug)]
struct Stock {
    bytes: AtomicU64,
    requests: AtomicU64,
}

impl Stock {
    fn now(&self) -> Credit {
        Credit {
            bytes: self.bytes.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
        }
    }

    /// As much of it as there is.
    fn take(&self, wanted: Credit) -> Credit {
        Credit {
            bytes: take(&self.bytes, wanted.bytes),
            requests: take(&self.requests, wanted.requests),
        }
    }

    fn put_back(&self, credit: Credit) {
        if credit.bytes > 0 {
            self.bytes.fetch_add(credit.bytes, Ordering::Relaxed);
        }
        if credit.requests > 0 {
            self.requests.fetch_add(credit.requests, Ordering::Relaxed);
        }
    }
}

fn take(stock: &AtomicU64, wanted: u64) -> u64 {
    if wanted == 0 {
        return 0;
    }
    let less = |left: u64| Some(left.saturating_sub(wanted));
    let before = stock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    before.map_or(0, |before| before.min(wanted))
}

impl Ledger {
    /// For as many sessions as `seats`, or fewer if there is not enough for each.
    pub(crate) fn new(totals: Credit, seats: usize) -> Arc<Self> {
        let totals = totals.max(Credit::of_request(1));
        let half = |total: u64| (total / 2).max(1);
        let seats = (seats as u64)
            .min(half(totals.bytes) / LEAST_BYTES)
            .min(half(totals.requests))
            .max(1);
        let part = Credit {
            bytes: (half(totals.bytes) / seats).max(1),
            requests: (half(totals.requests) / seats).max(1),
        };
        let set_aside = Credit {
            bytes: part.bytes * seats,
            requests: part.requests * seats,
        };
        let loans = totals.minus(set_aside);
        Arc::new(Self {
            part,
            seats,
            loans,
            free: Stock {
                bytes: AtomicU64::new(loans.bytes),
                requests: AtomicU64::new(loans.requests),
            },
            senders: Mutex::default(),
        })
    }

    /// Opens a session of `sender`, who wants no more than `most` at once; `None`: there is no seat.
    pub(crate) fn open(self: &Arc<Self>, sender: PeerId, most: Credit) -> Option<Account> {
        let mut senders = self.senders.lock();
        if senders.sessions >= self.seats {
            return None;
        }
        senders.sessions += 1;
        let of_sender = Arc::clone(senders.by_id.entry(sender).or_default());
        of_sender.sessions.fetch_add(1, Ordering::Relaxed);
        Some(Account {
            ledger: Arc::clone(self),
            id: sender,
            sender: of_sender,
            most: most.max(self.part),
            held: self.part,
            taken: Credit::default(),
            answered: Credit::default(),
            granted: self.part,
            told: self.part,
            unsent: false,
        })
    }

    /// What the sessions hold now.
    pub(crate) fn held(&self) -> Credit {
        let sessions = self.senders.lock().sessions;
        let lent = self.loans.minus(self.free.now());
        lent.plus(Credit {
            bytes: self.part.bytes * sessions,
            requests: self.part.requests * sessions,
        })
    }

    pub(crate) fn seats(&self) -> u64 {
        self.seats
    }

    /// A sender has begun what it was not granted.
    fn beyond(&self, account: &Account, cost: Credit) -> BeyondCredit {
        BeyondCredit {
            cost,
            left: account.told.minus(account.taken),
        }
    }
}

/// A request that was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "beyond its credit: {} bytes in {} requests, with {} bytes and {} requests left",
    cost.bytes, cost.requests, left.bytes, left.requests
)]
pub(crate) struct BeyondCredit {
    cost: Credit,
    left: Credit,
}

/// The books of one session. All numbers but `most` and `held` count from its begin. Dropping it gives
/// back what it holds.
#[derive(Debug)]
pub(crate) struct Account {
    ledger: Arc<Ledger>,
    id: PeerId,
    sender: Arc<Sender>,
    most: Credit,
    /// What is accounted for it: at least what it may have under way.
    held: Credit,
    /// What the requests cost that have come.
    taken: Credit,
    /// What those of them cost that have an answer, be it one that waits to be sent.
    answered: Credit,
    /// What the answers say, those that wait to be sent included.
    granted: Credit,
    /// What the sender can have heard of.
    told: Credit,
    /// Answers wait to be sent.
    unsent: bool,
}

impl Account {
    /// A request has come. One that is larger than what is left is taken if everything before it was
    /// answered.
    pub(crate) fn take(&mut self, cost: Credit) -> Result<(), BeyondCredit> {
        let after = self.taken.plus(cost);
        if !self.told.covers(after) && self.unsent {
            return Err(self.ledger.beyond(self, cost));
        }
        self.taken = after.min(self.told);
        Ok(())
    }

    /// What the answer says that is to be sent next.
    pub(crate) fn grant(&mut self) -> Credit {
        self.unsent = true;
        self.answered = self.taken;
        let aim = self.aim();
        if !self.held.covers(aim) {
            let more = aim.minus(self.held);
            self.held = self.held.plus(self.ledger.free.take(more));
        }
        let room = aim.min(self.held);
        self.granted = self.granted.max(self.taken.plus(room));
        self.granted
    }

    /// All answers were sent.
    pub(crate) fn settle(&mut self) {
        self.unsent = false;
        self.told = self.granted;
        let needed = self.granted.minus(self.answered).max(self.ledger.part);
        let spare = self.held.minus(needed);
        if !spare.is_zero() {
            self.held = self.held.minus(spare);
            self.ledger.free.put_back(spare);
        }
    }

    /// The sender, at rest, gives back some of what it was granted.
    pub(crate) fn give_back(&mut self, unspent: Credit) -> Result<(), BeyondCredit> {
        let spare = self.told.minus(self.taken).minus(self.ledger.part);
        if self.unsent || !spare.covers(unspent) {
            return Err(self.ledger.beyond(self, unspent));
        }
        self.granted = self.granted.minus(unspent);
        self.settle();
        Ok(())
    }

    /// What it may have begun by now, for the answer to a hello.
    pub(crate) fn granted(&self) -> Credit {
        self.granted
    }

    /// What the sender may still begin, as far as it was told.
    #[cfg(test)]
    pub(crate) fn left(&self) -> Credit {
        self.told.minus(self.taken)
    }

    /// What it should hold.
    fn aim(&self) -> Credit {
        let free = self.ledger.free.now();
        let sessions = self.sender.sessions.load(Ordering::Relaxed).max(1);
        let of = |most: u64, held: u64, part: u64, free: u64| {
            // Half of what it has borrowed, and of what is left for it.
            let aim = part + (held - part) / 2 + free / (2 * sessions);
            let aim = aim.min(most);
            match aim.abs_diff(held) <= held / TOLERANCE && aim < most {
                true => held,
                false => aim,
            }
        };
        let (most, held, part) = (self.most, self.held, self.ledger.part);
        Credit {
            bytes: of(most.bytes, held.bytes, part.bytes, free.bytes),
            requests: of(most.requests, held.requests, part.requests, free.requests),
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut senders = self.ledger.senders.lock();
        senders.sessions -= 1;
        if self.sender.sessions.fetch_sub(1, Ordering::Relaxed) == 1 {
            senders.by_id.remove(&self.id);
        }
        drop(senders);
        self.ledger.free.put_back(self.held.minus(self.ledger.part));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        credit::{Grants, Purse},
        identity::Incarnation,
    };

    fn credit(bytes: u64, requests: u64) -> Credit {
        Credit { bytes, requests }
    }

    fn ledger(bytes: u64, requests: u64, seats: usize) -> Arc<Ledger> {
        Ledger::new(credit(bytes, requests), seats)
    }

    fn sender(id: u64) -> PeerId {
        Incarnation::from_u64(id + 1).unwrap()
    }

    /// A request comes, is done and answered.
    fn serve(account: &mut Account, bytes: u64) {
        account.take(Credit::of_request(bytes)).unwrap();
        account.grant();
        account.settle();
    }

    #[test]
    fn each_session_has_a_part_that_lets_it_go_on() {
        let ledger = ledger(1 << 20, 100, 4);
        let greedy: Vec<_> = (0..3)
            .map(|id| {
                let mut account = ledger.open(sender(id), Credit::ENDLESS).unwrap();
                (0..50).for_each(|_| serve(&mut account, 1));
                account
            })
            .collect();
        let mut late = ledger.open(sender(9), Credit::ENDLESS).unwrap();
        assert_eq!(late.granted(), credit(128 << 10, 12));
        serve(&mut late, 128 << 10);
        assert!(
            ledger.open(sender(10), Credit::ENDLESS).is_none(),
            "no seat"
        );
        drop((greedy, late));
        assert_eq!(ledger.held(), Credit::default());
    }

    #[test]
    fn all_that_borrow_come_to_hold_the_same_whenever_they_came() {
        for count in [2, 7, 64] {
            let ledger = ledger(64 << 20, 1 << 16, 256);
            let mut accounts: Vec<Account> = Vec::new();
            for id in 0..count {
                accounts.push(ledger.open(sender(id), Credit::ENDLESS).unwrap());
                // Those before have had all for a while.
                for _ in 0..20 {
                    accounts
                        .iter_mut()
                        .for_each(|account| serve(account, 16 << 10));
                }
            }
            for _ in 0..1000 {
                accounts
                    .iter_mut()
                    .for_each(|account| serve(account, 100 << 10));
            }
            let held = accounts.iter().map(|account| account.held.bytes);
            let (least, most) = (held.clone().min().unwrap(), held.max().unwrap());
            assert!(most < 2 * least, "{count}: {least} to {most}");
            let fair = (32 << 20) / (count + 1);
            assert!(least > fair / 2, "{count}: {least} of {fair}");
            // Those that go leave theirs to who stays.
            accounts.truncate(1);
            (0..400).for_each(|_| serve(&mut accounts[0], 64 << 10));
            assert!(accounts[0].held.bytes > 12 << 20, "{:?}", accounts[0].held);
        }
    }

    #[test]
    fn many_sessions_of_one_sender_borrow_no_more_than_one_of_another() {
        let ledger = ledger(64 << 20, 1 << 16, 256);
        let open = |id| ledger.open(sender(id), Credit::ENDLESS).unwrap();
        let mut many: Vec<_> = (0..8).map(|_| open(1)).collect();
        let mut one = open(2);
        for _ in 0..1000 {
            many.iter_mut().for_each(|account| serve(account, 16 << 10));
            serve(&mut one, 16 << 10);
        }
        let part = ledger.part.bytes;
        let borrowed: u64 = many.iter().map(|account| account.held.bytes - part).sum();
        let by_one = one.held.bytes - part;
        assert!(
            borrowed < 2 * by_one && by_one < 2 * borrowed,
            "{borrowed} {by_one}"
        );
    }

    #[test]
    fn nobody_holds_more_than_it_wants() {
        let ledger = ledger(64 << 20, 1 << 16, 16);
        let most = credit(5 << 20, 300);
        let mut account = ledger.open(sender(1), most).unwrap();
        (0..3).for_each(|_| serve(&mut account, 1));
        assert_eq!(account.held.bytes, 5 << 20);
        assert_eq!(ledger.held(), account.held);
        // Given back at rest, and lent again at once when it is wanted.
        let spare = account.held.minus(ledger.part);
        account.give_back(spare).unwrap();
        assert_eq!(ledger.held(), ledger.part);
        serve(&mut account, 1);
        assert_eq!(account.held.bytes, 5 << 20);
    }

    #[test]
    fn law_04_what_was_not_granted_is_not_taken() {
        let ledger = ledger(1 << 20, 16, 4);
        let mut account = ledger.open(sender(1), Credit::default()).unwrap();
        assert_eq!(account.granted(), credit(128 << 10, 2));
        // Two answers wait, and a third request is here all the same.
        for _ in 0..2 {
            account.take(Credit::of_request(1)).unwrap();
            account.grant();
        }
        let error = account.take(Credit::of_request(7)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "beyond its credit: 7 bytes in 1 requests, with 131070 bytes and 0 requests left"
        );
        account.settle();
        account.take(Credit::of_request(7)).unwrap();
        // What it never had cannot be given back, nor its own part.
        account.grant();
        account.settle();
        assert!(account.give_back(credit(1, 0)).is_err());
        assert!(account.give_back(credit(u64::MAX, u64::MAX)).is_err());
        drop(account);
        assert_eq!(ledger.held(), Credit::default());
    }

    #[test]
    fn there_are_no_more_seats_than_can_be_served() {
        assert_eq!(ledger(1 << 20, 1 << 10, 1024).seats(), 32);
        assert_eq!(ledger(1 << 20, 20, 1024).seats(), 10);
        for (most, requests) in [(0, 0), (1, 1), (u64::MAX, u64::MAX)] {
            let ledger = ledger(most, requests, 1024);
            let mut account = ledger.open(sender(1), Credit::ENDLESS).unwrap();
            for bytes in [0, 1, 1 << 20, u64::MAX, 3] {
                serve(&mut account, bytes);
            }
            let totals = credit(most, requests).max(Credit::of_request(1));
            assert!(totals.covers(ledger.held()));
        }
    }

    /// A sender and the account of its session, with what is on the way between them.
    struct Session {
        account: Account,
        purse: Purse,
        grants: Grants,
        requests: VecDeque<Credit>,
        begun: Option<Credit>,
        /// Costs that are accounted for what was taken and whose answers are not sent wholly.
        underway: Credit,
        unsent: VecDeque<(Credit, Credit)>,
        answers: VecDeque<(Credit, Credit)>,
        sending: bool,
        outstanding: usize,
        completed: usize,
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Send(u64),
        Receive,
        Answer,
        /// A first part of the answers goes.
        BeginToSend,
        SendAll,
        Hear,
        GiveBack,
    }

    impl Session {
        fn open(ledger: &Arc<Ledger>, id: u64, most: Credit) -> Self {
            let account = ledger.open(sender(id), most).unwrap();
            Self {
                purse: Purse::default(),
                grants: Grants::first(account.granted()),
                account,
                requests: VecDeque::new(),
                begun: None,
                underway: Credit::default(),
                unsent: VecDeque::new(),
                answers: VecDeque::new(),
                sending: false,
                outstanding: 0,
                completed: 0,
            }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Send(bytes) => {
                    let cost = Credit::of_request(bytes);
                    let alone = self.outstanding == 0;
                    if self.purse.pay(cost, self.grants.granted(), alone) {
                        self.requests.push_back(cost);
                        self.outstanding += 1;
                    }
                }
                // Who serves a session does one thing after the other.
                Step::Receive if self.begun.is_none() && !self.sending => {
                    if let Some(cost) = self.requests.pop_front() {
                        let before = self.account.taken;
                        self.account.take(cost).expect("it was granted");
                        self.underway = self.underway.plus(self.account.taken.minus(before));
                        self.begun = Some(cost);
                    }
                }
                Step::Answer if !self.sending => {
                    if let Some(cost) = self.begun.take() {
                        self.unsent.push_back((cost, self.account.grant()));
                    }
                }
                Step::BeginToSend if self.begun.is_none() => {
                    self.answers.extend(self.unsent.drain(..));
                    self.sending = true;
                }
                Step::SendAll if self.sending || !self.unsent.is_empty() => {
                    self.answers.extend(self.unsent.drain(..));
                    self.sending = false;
                    self.account.settle();
                    self.underway = match self.begun {
                        Some(_) => self.account.taken.minus(self.account.answered),
                        None => Credit::default(),
                    };
                }
                Step::Hear => {
                    if let Some((cost, granted)) = self.answers.pop_front() {
                        self.grants.hear(cost, granted);
                        self.outstanding -= 1;
                        self.completed += 1;
                    }
                }
                Step::GiveBack if self.outstanding == 0 && !self.sending => {
                    let spare = self.grants.room().minus(self.account.ledger.part);
                    self.account.give_back(spare).expect("it has it");
                    self.grants.give_back(spare);
                }
                _ => {}
            }
            assert!(self.account.held.covers(self.underway), "{step:?}");
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..40_000_u64).prop_map(Step::Send),
            1 => (0..2_000_000_u64).prop_map(Step::Send),
            4 => Just(Step::Receive),
            4 => Just(Step::Answer),
            1 => Just(Step::BeginToSend),
            3 => Just(Step::SendAll),
            4 => Just(Step::Hear),
            1 => Just(Step::GiveBack),
        ]
    }

    proptest! {
        #[test]
        fn no_more_is_held_than_there_is_and_honest_senders_are_never_refused(
            bytes in 1_u64..4 << 20,
            requests in 1_u64..200,
            most in (0_u64..2 << 20, 0_u64..100),
            steps in proptest::collection::vec((0_usize..6, step()), 1..600),
        ) {
            let ledger = ledger(bytes, requests, 6);
            let seats = ledger.seats();
            let most = credit(most.0, most.1);
            let mut sessions: Vec<_> = (0..seats)
                .map(|id| Session::open(&ledger, id / 2, most))
                .collect();
            for (at, step) in steps {
                let at = at % sessions.len();
                sessions[at].step(step);
                prop_assert!(credit(bytes, requests).covers(ledger.held()));
                let sum = sessions
                    .iter()
                    .fold(Credit::default(), |sum, session| sum.plus(session.account.held));
                prop_assert_eq!(sum, ledger.held());
            }
            // Whatever happened, each goes on: with the smallest and the largest.
            for session in &mut sessions {
                for bytes in [1, u64::MAX] {
                    let goal = session.completed + session.outstanding + 1;
                    while session.completed < goal {
                        session.step(Step::Answer);
                        session.step(Step::SendAll);
                        while !session.answers.is_empty() {
                            session.step(Step::Hear);
                        }
                        if session.completed + session.outstanding < goal {
                            session.step(Step::Send(bytes));
                        }
                        session.step(Step::Receive);
                    }
                }
            }
            drop(sessions);
            prop_assert_eq!(ledger.held(), Credit::default());
            prop_assert_eq!(ledger.free.now(), ledger.loans);
        }
    }
}
