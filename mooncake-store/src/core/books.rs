//! What is under way on behalf of all operations: calls, transfers, leases; and what is to be done.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use mooncake_proto::{
    Applied, Fault,
    master::{KeyIncarnation, PutRevokeRequest, ReleaseRequest},
};
use rustc_hash::FxHashMap;

use super::{
    Action, CallId, Incarnation, Location, MasterAnswer, MasterRequest, OpId, Settings, TransferId,
    home::{Granted, Home},
    known::{Kept, Known},
    lease::{LeaseId, Leases},
    peers::Peers,
    source::Source,
    wire::malformed,
};
use crate::time::Time;

/// For how long nothing is kept after space was short.
const REST: Duration = Duration::from_secs(1);

/// What a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Grant(Granted),
    Lookup,
    Put,
    PutEnd,
    PutRevoke,
    /// With the keys, so that grants can be given back when their operation is over.
    PutStart(Vec<Bytes>),
    Query,
    ReturnGrants(Vec<Granted>),
    /// Nobody waits for the answer.
    Unattended,
}

/// A request that the master has not answered.
#[derive(Debug)]
pub(super) struct Call {
    /// `None`: nobody waits for it.
    pub(super) op: Option<OpId>,
    pub(super) purpose: Purpose,
    /// The operation's items that it asks for, in the order of the request.
    pub(super) items: Vec<usize>,
    pub(super) sent_at: Time,
}

/// A transfer of which bytes may still move. It may outlive its operation.
#[derive(Debug)]
struct Transfer {
    op: OpId,
    item: usize,
    lease: Option<LeaseId>,
    /// The grant that it writes to.
    grant: Option<u64>,
    ended: bool,
    quiet: bool,
}

/// How an operation asks for a transfer.
#[derive(Debug)]
pub(super) struct TransferPlan {
    pub(super) op: OpId,
    pub(super) item: usize,
    pub(super) location: Location,
    pub(super) deadline: Time,
}

#[derive(Debug)]
pub(super) struct Books {
    pub(super) settings: Settings,
    pub(super) home: Home,
    known: Known,
    /// What look-ups find that were asked for before is not kept: space was short, or the answer may be
    /// older than what the master has said or the client has done since.
    keeps_from: Time,
    pub(super) leases: Leases,
    pub(super) peers: Peers,
    actions: VecDeque<Action>,
    calls: FxHashMap<CallId, Call>,
    transfers: FxHashMap<TransferId, Transfer>,
    next_call: u64,
    next_transfer: u64,
    /// Something went to the master since releases were last looked at.
    called: bool,
}

impl Books {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            home: Home::default(),
            known: Known::default(),
            keeps_from: Time(0),
            leases: Leases::new(),
            peers: Peers::default(),
            actions: VecDeque::new(),
            calls: FxHashMap::default(),
            transfers: FxHashMap::default(),
            next_call: 0,
            next_transfer: 0,
            called: false,
        }
    }

    pub(super) fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.calls.is_empty()
            && self.transfers.is_empty()
            && self.leases.is_empty()
            && self.home.is_idle()
    }

    pub(super) fn call(&mut self, call: Call, request: MasterRequest, deadline: Time) {
        let id = CallId(self.next_call);
        self.next_call += 1;
        self.calls.insert(id, call);
        self.called = true;
        self.push(Action::CallMaster {
            call: id,
            request,
            deadline,
        });
    }

    pub(super) fn take_call(&mut self, id: CallId) -> Option<Call> {
        self.calls.remove(&id)
    }

    /// Gives back what was granted for a put, without anybody waiting for it.
    pub(super) fn revoke(&mut self, now: Time, grants: Vec<(Bytes, Incarnation)>) {
        if grants.is_empty() {
            return;
        }
        let request = MasterRequest::PutRevoke(PutRevokeRequest {
            items: grants.into_iter().map(key_incarnation).collect(),
            ..PutRevokeRequest::default()
        });
        // Later than that the master frees it by itself.
        let deadline = now + self.settings.put_deadline;
        self.call(Call::unattended(now), request, deadline);
    }

    /// Returns grants that are over, and asks for more if there are few.
    pub(super) fn tend_home(&mut self, now: Time) {
        while let Some((grants, request)) = self.home.next_return(now) {
            let deadline = now + self.settings.put_deadline;
            let call = Call::of_home(now, Purpose::ReturnGrants(grants));
            self.call(call, request, deadline);
        }
        if let Some((grant, request)) = self.home.next_ask(now, self.settings.granted_bytes) {
            let deadline = now + self.settings.put_deadline;
            let call = Call::of_home(now, Purpose::Grant(grant));
            self.call(call, request, deadline);
        }
    }

    /// Space is short: gives up what is set aside for us, and what keeps memory from being used
    /// again. `true`: there was something.
    pub(super) fn make_space(&mut self, now: Time) -> bool {
        let kept = !self.known.is_empty();
        self.forget_all(now);
        self.keeps_from = self.keeps_from.max(now + REST);
        let granted = self.home.reclaim(now);
        // Before anything that needs the space.
        self.tend_home(now);
        self.release_now(now);
        granted || kept
    }

    /// What became of a call of [`tend_home`](Self::tend_home).
    pub(super) fn heard_of_home(
        &mut self,
        now: Time,
        purpose: Purpose,
        result: Result<MasterAnswer, Fault>,
    ) {
        let nonsense = || malformed("something else than was asked");
        match (purpose, result) {
            (Purpose::Grant(grant), Ok(MasterAnswer::Grant(answer))) => {
                self.home.granted(now, grant, &answer);
            }
            (Purpose::Grant(grant), result) => {
                let fault = result.err();
                let fault = fault.unwrap_or_else(|| nonsense().with_effect(Applied::Unknown, true));
                self.home.not_granted(now, grant, &fault);
            }
            (Purpose::ReturnGrants(grants), Err(fault)) => {
                self.home.not_returned(now, grants, &fault);
            }
            _ => {}
        }
    }

    /// Keeps what a look-up has found that was asked for at `asked`.
    pub(super) fn keep(&mut self, now: Time, asked: Time, key: &Bytes, kept: Kept) {
        // A read that begins later has half of the lease's time, at least.
        let half = kept.lease_ends.since(asked) / 2;
        let until = asked + self.settings.keep.min(half);
        if until <= now || asked <= self.keeps_from || self.settings.most_kept == 0 {
            return;
        }
        self.leases.hold(kept.lease);
        let before = self.known.insert(key.clone(), kept, until);
        self.let_go(now, before);
        let over = self.known.pop(now, self.settings.most_kept);
        self.let_go(now, over);
    }

    /// What is known of a key.
    pub(super) fn known(&self, now: Time, key: &Bytes) -> Option<&Kept> {
        self.known.get(now, key)
    }

    /// What was known of a key is true no more, or of no use.
    pub(super) fn forget(&mut self, now: Time, key: &Bytes) {
        let lease = self.known.remove(key);
        self.let_go(now, lease);
    }

    /// A life of an object is over.
    pub(super) fn invalidate(&mut self, now: Time, key: &Bytes, life: Incarnation) {
        self.keeps_from = self.keeps_from.max(now);
        let lease = self.known.invalidate(key, life);
        self.let_go(now, lease);
    }

    pub(super) fn forget_all(&mut self, now: Time) {
        while let Some(lease) = self.known.pop_any() {
            self.let_go(now, Some(lease));
        }
    }

    /// Nothing that was asked for so far is to be believed: the session was interrupted, after which
    /// what is asked again gets its first answer, or the client itself has removed all.
    pub(super) fn lost(&mut self, now: Time) {
        self.forget_all(now);
        self.keeps_from = self.keeps_from.max(now);
    }

    /// The client itself may have changed these.
    pub(super) fn changed<'a>(&mut self, now: Time, keys: impl Iterator<Item = &'a Bytes>) {
        self.keeps_from = self.keeps_from.max(now);
        if !self.known.is_empty() {
            keys.for_each(|key| self.forget(now, key));
        }
    }

    /// Forgets what has been known for long enough, if it is time to look.
    pub(super) fn expire_known(&mut self, now: Time) {
        if self.known_due() <= now {
            while let Some(lease) = self.known.pop(now, self.settings.most_kept) {
                self.let_go(now, Some(lease));
            }
        }
    }

    fn let_go(&mut self, now: Time, lease: Option<LeaseId>) {
        if let Some(lease) = lease {
            self.leases.drop_hold(now, &self.settings, lease);
        }
    }

    /// When it has something to do by itself.
    pub(super) fn due(&self) -> Time {
        let due = self.leases.due().min(self.home.due());
        due.min(self.known_due())
    }

    fn known_due(&self) -> Time {
        self.known.due(self.settings.keep / 8)
    }

    /// Releases all leases that nobody holds.
    pub(super) fn release_now(&mut self, now: Time) {
        self.called = true;
        self.release(now);
    }

    /// Releases leases if it is time.
    pub(super) fn release(&mut self, now: Time) {
        let company = std::mem::take(&mut self.called);
        let released = self.leases.take_released(now, &self.settings, company);
        if let Some((leases, deadline)) = released {
            let request = MasterRequest::Release(ReleaseRequest { leases });
            self.call(Call::unattended(now), request, deadline);
            self.called = false;
        }
    }

    pub(super) fn read(
        &mut self,
        (op, item): (OpId, usize),
        source: Source,
        deadline: Time,
        lease: LeaseId,
    ) -> TransferId {
        self.leases.hold(lease);
        let transfer = self.transfer((op, item), Some(lease), None);
        self.push(match source {
            Source::Memory(location) => Action::Read {
                transfer,
                op,
                item,
                location,
                deadline,
            },
            Source::Disk(place) => Action::ReadDisk {
                transfer,
                op,
                item,
                place,
                deadline,
            },
        });
        transfer
    }

    /// `grant`: the number of the grant that it writes to.
    pub(super) fn write(&mut self, plan: TransferPlan, grant: Option<u64>) -> TransferId {
        if let Some(number) = grant {
            self.home.write_begins(number);
        }
        let transfer = self.transfer((plan.op, plan.item), None, grant);
        self.push(Action::Write {
            transfer,
            op: plan.op,
            item: plan.item,
            location: plan.location,
            deadline: plan.deadline,
        });
        transfer
    }

    fn transfer(
        &mut self,
        (op, item): (OpId, usize),
        lease: Option<LeaseId>,
        grant: Option<u64>,
    ) -> TransferId {
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        self.transfers.insert(
            id,
            Transfer {
                op,
                item,
                lease,
                grant,
                ended: false,
                quiet: false,
            },
        );
        id
    }

    /// Asks for an early end of a transfer that has not ended.
    pub(super) fn cancel(&mut self, id: TransferId) {
        if self
            .transfers
            .get(&id)
            .is_some_and(|transfer| !transfer.ended)
        {
            self.push(Action::Cancel { transfer: id });
        }
    }

    /// Notes the first end of a transfer: whose it is, and whether it is quiet.
    pub(super) fn transfer_ended(
        &mut self,
        now: Time,
        id: TransferId,
        quiescent: bool,
    ) -> Option<(OpId, usize, bool)> {
        let transfer = self
            .transfers
            .get_mut(&id)
            .filter(|transfer| !transfer.ended)?;
        transfer.ended = true;
        transfer.quiet |= quiescent;
        let owner = (transfer.op, transfer.item, transfer.quiet);
        self.forget_if_quiet(now, id);
        Some(owner)
    }

    /// Notes that a transfer is quiet: whose it is, unless its end is still to come.
    pub(super) fn transfer_quiet(&mut self, now: Time, id: TransferId) -> Option<(OpId, usize)> {
        let transfer = self.transfers.get_mut(&id)?;
        transfer.quiet = true;
        let owner = transfer.ended.then_some((transfer.op, transfer.item));
        self.forget_if_quiet(now, id);
        owner
    }

    fn forget_if_quiet(&mut self, now: Time, id: TransferId) {
        let over = |transfer: &Transfer| transfer.ended && transfer.quiet;
        if self.transfers.get(&id).is_some_and(over)
            && let Some(Transfer { lease, grant, .. }) = self.transfers.remove(&id)
        {
            if let Some(lease) = lease {
                self.leases.drop_hold(now, &self.settings, lease);
            }
            if let Some(number) = grant {
                self.home.write_is_quiet(number);
            }
        }
    }
}

impl Call {
    const fn unattended(sent_at: Time) -> Self {
        Self::of_home(sent_at, Purpose::Unattended)
    }

    const fn of_home(sent_at: Time, purpose: Purpose) -> Self {
        Self {
            op: None,
            purpose,
            items: Vec::new(),
            sent_at,
        }
    }
}

/// A key and its incarnation as the wire has them.
pub(super) fn key_incarnation((key, incarnation): (Bytes, Incarnation)) -> KeyIncarnation {
    KeyIncarnation {
        key,
        incarnation: Some(incarnation.into()),
    }
}
