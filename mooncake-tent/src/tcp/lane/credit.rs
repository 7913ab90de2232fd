//! What the peer lets a lane have under way, and what suits its connection.

use std::time::{Duration, Instant};

use super::{
    super::{outbox::Frame, tuner::Tuner, wire::RequestHeader},
    AtomicU64, Extension, Lane, Ordering, Pending, Receiver, SmallVec,
};
use crate::credit::{Credit, Grants};

/// A lane that was idle for so long gives back what it does not need.
const REST: Duration = Duration::from_millis(500);

/// What was granted, for whoever sends. Written under the same lock of the pending requests under which
/// those that are answered are taken out: who sees that nothing is unanswered sees the last grant.
#[derive(Debug)]
pub(super) struct Granted {
    bytes: AtomicU64,
    requests: AtomicU64,
    /// Bytes that may be under way at once.
    room: AtomicU64,
    /// Bytes that are best under way at once.
    window: AtomicU64,
    /// The best length of a request.
    piece: AtomicU64,
}

impl Default for Granted {
    fn default() -> Self {
        let Credit { bytes, requests } = Credit::ENDLESS;
        Self {
            bytes: AtomicU64::new(bytes),
            requests: AtomicU64::new(requests),
            room: AtomicU64::new(bytes),
            window: AtomicU64::new(u64::MAX),
            piece: AtomicU64::new(u64::MAX),
        }
    }
}

impl Granted {
    pub(super) fn now(&self) -> Credit {
        Credit {
            bytes: self.bytes.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
        }
    }

    pub(super) fn window(&self) -> u64 {
        self.window.load(Ordering::Relaxed)
    }

    /// As the tuner says what suits the connection.
    #[cfg(test)]
    pub(super) fn suit(&self, window: u64, piece: u64) {
        self.window.store(window, Ordering::Relaxed);
        self.piece.store(piece, Ordering::Relaxed);
    }

    pub(super) fn set(&self, grants: &Grants) {
        let Credit { bytes, requests } = grants.granted();
        self.bytes.store(bytes, Ordering::Relaxed);
        self.requests.store(requests, Ordering::Relaxed);
        self.room.store(grants.room().bytes, Ordering::Relaxed);
    }
}

/// What the receiving side knows of its credit.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    grants: Grants,
    /// What the lane began with and never gives back.
    first: Credit,
    /// Since when, as far as was looked, it is idle, and how many requests were answered before.
    rests: Option<(Instant, u64)>,
    /// With when its time began; `None` before the lane is connected.
    tuner: Option<(Tuner, Instant)>,
}

impl Allowance {
    /// `pending` is answered, and so much is granted now.
    pub(super) fn hear(&mut self, pending: &Pending, granted: Credit) {
        // Of all that were asked for together.
        let bytes = pending.run.bytes;
        self.grants.hear(pending.verb.cost(bytes), granted);
        if let Some((tuner, _)) = &mut self.tuner {
            tuner.answered(bytes);
        }
    }

    pub(super) fn grants(&self) -> &Grants {
        &self.grants
    }
}

impl Lane {
    /// What the peer has granted to begin with, before the lane is connected, and how long its hello
    /// took. Without that there is no limit.
    pub(in crate::tcp) fn begin_with(&self, granted: Credit, round_trip: Duration) {
        let mut receiver = self.receiver();
        receiver.allowance.grants = Grants::first(granted);
        receiver.allowance.first = granted;
        let tuner = Tuner::new(self.window_bytes, round_trip);
        receiver.allowance.tuner = Some((tuner, Instant::now()));
        self.granted.set(receiver.allowance.grants());
    }

    /// How long a request should be at most: no longer than what may be under way at once.
    pub(in crate::tcp) fn piece(&self) -> u64 {
        let room = self.granted.room.load(Ordering::Relaxed);
        room.min(self.granted.piece.load(Ordering::Relaxed))
    }

    /// Looks now and then at how fast the connection is.
    pub(super) fn tune(&self, receiver: &mut Receiver) {
        let Some((tuner, zero)) = &mut receiver.allowance.tuner else {
            return;
        };
        if self.load() == 0 {
            tuner.rest();
        } else if tuner.is_due() {
            tuner.look(zero.elapsed());
            let piece = tuner.piece().unwrap_or(u64::MAX);
            self.granted.window.store(tuner.window(), Ordering::Relaxed);
            self.granted.piece.store(piece, Ordering::Relaxed);
        }
    }

    /// What it has to send waits for credit.
    pub(in crate::tcp) fn is_broke(&self) -> bool {
        self.broke.load(Ordering::Relaxed)
    }

    /// Has a lane that was idle for a while give back what others may need more.
    pub(in crate::tcp) fn give_back(&self, receiver: &mut Receiver, now: Instant) {
        if !self.is_at_rest(receiver) {
            receiver.allowance.rests = None;
            return;
        }
        let answered = receiver.answered;
        let rests = receiver.allowance.rests.filter(|rests| rests.1 == answered);
        let (since, _) = *receiver
            .allowance
            .rests
            .insert(rests.unwrap_or((now, answered)));
        let spare = receiver.allowance.grants.room();
        let spare = spare.minus(receiver.allowance.first);
        let endless = receiver.allowance.grants.granted() == Credit::ENDLESS;
        if now.saturating_duration_since(since) < REST || spare.is_zero() || endless {
            return;
        }
        {
            let mut sender = self.outbox.lock();
            let pending = self.pending.lock();
            if !pending.is_empty() || sender.outbox.frames() > 0 || sender.clock.is_none() {
                return;
            }
            debug_assert_eq!(
                sender.outbox.left(self.granted.now()),
                receiver.allowance.grants.room(),
                "all that was spent was answered"
            );
            let tag = sender.next_tag;
            sender.next_tag += 1;
            let header = RequestHeader::give_back(tag, spare);
            let before = sender.posted;
            sender.outbox.push(Frame {
                tag,
                before,
                cost: Credit::default(),
                header: header.encode_long(Extension::default()),
                head: header.sent_bytes(),
                joined: false,
                single: true,
                payload: SmallVec::new(),
                deadline: None,
            });
            receiver.allowance.grants.give_back(spare);
            self.granted.set(receiver.allowance.grants());
        }
        self.flush();
    }
}
