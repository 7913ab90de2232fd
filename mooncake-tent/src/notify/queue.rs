//! The receiving end: one bounded queue, and what it takes to put each notification into it once.

use std::{collections::VecDeque, time::Duration};

use mooncake_proto::tent::{NotifyOutcome, NotifyRequest, NotifyResponse};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use super::{Notification, NotificationCounts, ReceivedNotification};
use crate::identity::Incarnation;

/// Senders whose last notification is known. Beyond that, the one that was silent for longest is
/// forgotten, and has to ask for a new window.
const SENDERS: usize = 4096;
/// Bytes of names and messages in the queue, whatever their number.
const BYTES: usize = 16 << 20;
/// Longest name of a sender's segment.
const LONGEST_SEGMENT: usize = 1024;
/// When a sender should look again whether there is room.
const AGAIN: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct NotificationQueue {
    me: Incarnation,
    room: usize,
    inner: Mutex<Inner>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<ReceivedNotification>,
    bytes: usize,
    windows: FxHashMap<Incarnation, Window>,
    /// Grows with each use of a window.
    uses: u64,
    counts: NotificationCounts,
}

/// What is known of one sender.
#[derive(Debug)]
struct Window {
    id: u64,
    /// Sequence of the last notification that was taken; those below it count for nothing.
    last: u64,
    used: u64,
}

/// Why one is not taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) notifications: usize,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the queue is full of {} notifications",
            self.notifications
        )
    }
}

impl NotificationQueue {
    /// For the engine `me`, with room for so many.
    pub(crate) fn new(me: Incarnation, room: usize) -> Self {
        Self {
            me,
            room,
            inner: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    /// All that is there, oldest first.
    pub(crate) fn take_all(&self) -> Vec<ReceivedNotification> {
        let mut inner = self.inner.lock();
        inner.bytes = 0;
        std::mem::take(&mut inner.waiting).into()
    }

    /// The oldest, once there is one. Losing the future loses nothing.
    pub(crate) async fn take_one(&self) -> ReceivedNotification {
        loop {
            let arrived = self.arrived.notified();
            let (next, more) = {
                let mut inner = self.inner.lock();
                (inner.pop(), !inner.waiting.is_empty())
            };
            if let Some(next) = next {
                if more {
                    // Whoever was woken for the others may have been us.
                    self.arrived.notify_one();
                }
                return next;
            }
            arrived.await;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.inner.lock().waiting.len()
    }

    pub(crate) fn counts(&self) -> NotificationCounts {
        self.inner.lock().counts
    }

    /// One from this engine itself.
    pub(super) fn put(&self, segment: &str, notification: &Notification) -> Result<(), Full> {
        let received = ReceivedNotification {
            sender: self.me,
            segment: segment.to_owned(),
            notification: notification.clone(),
        };
        let put = self.inner.lock().push(self.room, received);
        if put.is_ok() {
            self.arrived.notify_one();
        }
        put
    }

    /// Answers a peer.
    pub(crate) fn accept(&self, request: NotifyRequest) -> NotifyResponse {
        let mut inner = self.inner.lock();
        let (outcome, window, reason) = inner.accept(self.me, self.room, request);
        match outcome {
            NotifyOutcome::Accepted => self.arrived.notify_one(),
            NotifyOutcome::Busy => inner.counts.busy += 1,
            NotifyOutcome::Window => {}
            _ => inner.counts.refused += 1,
        }
        let busy = outcome == NotifyOutcome::Busy;
        NotifyResponse {
            outcome: outcome.into(),
            window,
            retry_after_ms: if busy { AGAIN.as_millis() as u32 } else { 0 },
            reason,
        }
    }
}

type Answer = (NotifyOutcome, u64, String);

impl Inner {
    fn pop(&mut self) -> Option<ReceivedNotification> {
        let next = self.waiting.pop_front()?;
        self.bytes -= size(&next);
        Some(next)
    }

    fn push(&mut self, room: usize, received: ReceivedNotification) -> Result<(), Full> {
        let size = size(&received);
        if self.waiting.len() >= room || self.bytes + size > BYTES {
            let notifications = self.waiting.len();
            return Err(Full { notifications });
        }
        self.bytes += size;
        self.counts.accepted += 1;
        self.waiting.push_back(received);
        Ok(())
    }

    fn accept(&mut self, me: Incarnation, room: usize, request: NotifyRequest) -> Answer {
        let refused = |outcome, reason: String| (outcome, 0, reason);
        if request.target != me.get() {
            let reason = format!("this is {me}");
            return refused(NotifyOutcome::OtherIncarnation, reason);
        }
        let Some(sender) = Incarnation::from_u64(request.sender) else {
            return refused(NotifyOutcome::Refused, "it has no sender".to_owned());
        };
        let notification = Notification::new(request.name, request.message);
        if let Err(error) = notification.check() {
            return refused(NotifyOutcome::Refused, error.to_string());
        }
        if request.segment.len() > LONGEST_SEGMENT {
            let reason = "its sender's segment has too long a name".to_owned();
            return refused(NotifyOutcome::Refused, reason);
        }
        if request.window == 0 {
            let window = self.open(sender);
            return (NotifyOutcome::Window, window, String::new());
        }
        if request.sequence == 0 {
            // It would pass for a repeat of what nobody has sent.
            return refused(NotifyOutcome::Refused, "its sequence is 0".to_owned());
        }
        self.uses += 1;
        let uses = self.uses;
        let known = self.windows.get_mut(&sender);
        let Some(window) = known.filter(|window| window.id == request.window) else {
            let reason = "its window is not kept any more".to_owned();
            return refused(NotifyOutcome::Window, reason);
        };
        window.used = uses;
        let id = window.id;
        if request.sequence == window.last {
            self.counts.repeated += 1;
            return (NotifyOutcome::Accepted, id, String::new());
        }
        if request.sequence < window.last {
            let reason = format!("{} has come before", window.last);
            return (NotifyOutcome::Passed, id, reason);
        }
        let received = ReceivedNotification {
            sender,
            segment: request.segment,
            notification,
        };
        if let Err(full) = self.push(room, received) {
            return (NotifyOutcome::Busy, id, full.to_string());
        }
        // After it is there (law 8); both under one lock.
        if let Some(window) = self.windows.get_mut(&sender) {
            window.last = request.sequence;
        }
        (NotifyOutcome::Accepted, id, String::new())
    }

    /// The window of this sender, which is a new one only if it has none.
    fn open(&mut self, sender: Incarnation) -> u64 {
        self.uses += 1;
        let used = self.uses;
        if let Some(window) = self.windows.get_mut(&sender) {
            window.used = used;
            return window.id;
        }
        if self.windows.len() >= SENDERS {
            let oldest = self.windows.iter().min_by_key(|(_, window)| window.used);
            if let Some(oldest) = oldest.map(|(sender, _)| *sender) {
                self.windows.remove(&oldest);
            }
        }
        // Random, so that what was sent under a forgotten one fits no later one.
        let id = Incarnation::random().get();
        self.windows.insert(sender, Window { id, last: 0, used });
        id
    }
}

fn size(received: &ReceivedNotification) -> usize {
    let Notification { name, message } = &received.notification;
    received.segment.len() + name.len() + message.len()
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn life(raw: u64) -> Incarnation {
        Incarnation::from_u64(raw).unwrap()
    }

    fn request(window: u64, sequence: u64) -> NotifyRequest {
        NotifyRequest {
            target: 1,
            sender: 2,
            segment: "host:1".to_owned(),
            window,
            sequence,
            name: "n".to_owned(),
            message: sequence.to_le_bytes().to_vec().into(),
        }
    }

    fn window_of(queue: &NotificationQueue, sender: u64) -> u64 {
        let mut opening = request(0, 0);
        opening.sender = sender;
        queue.accept(opening).window
    }

    fn taken(queue: &NotificationQueue) -> Vec<u64> {
        let taken = queue.take_all().into_iter();
        let number = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().unwrap());
        taken
            .map(|received| number(received.notification.message))
            .collect()
    }

    #[test]
    fn a_repeat_is_accepted_and_not_delivered_again() {
        let queue = NotificationQueue::new(life(1), 10);
        let window = window_of(&queue, 2);
        for sequence in [5, 5, 7, 7, 5] {
            queue.accept(request(window, sequence));
        }
        assert_eq!(taken(&queue), [5, 7]);
        // Also after it was taken.
        let again = queue.accept(request(window, 7));
        assert_eq!(again.outcome(), NotifyOutcome::Accepted);
        let late = queue.accept(request(window, 6));
        assert_eq!(late.outcome(), NotifyOutcome::Passed);
        assert_eq!(taken(&queue), [0; 0]);
        let counts = queue.counts();
        assert_eq!(
            (counts.accepted, counts.repeated, counts.refused),
            (2, 3, 2)
        );
    }

    #[test]
    fn law_07_what_is_meant_for_another_life_or_an_old_window_is_not_delivered() {
        let queue = NotificationQueue::new(life(1), 10);
        let window = window_of(&queue, 2);
        let mut other = request(window, 1);
        other.target = 3;
        let answer = queue.accept(other);
        assert_eq!(answer.outcome(), NotifyOutcome::OtherIncarnation);
        let answer = queue.accept(request(window ^ 1, 1));
        assert_eq!(
            (answer.outcome(), answer.window),
            (NotifyOutcome::Window, 0)
        );
        assert_eq!(window_of(&queue, 2), window, "it is still kept");
        for sender in 10..10 + SENDERS as u64 {
            window_of(&queue, sender);
        }
        let forgotten = queue.accept(request(window, 1));
        assert_eq!(forgotten.outcome(), NotifyOutcome::Window);
        assert_ne!(window_of(&queue, 2), window);
        assert_eq!(taken(&queue), [0; 0]);
        assert!(queue.inner.lock().windows.len() <= SENDERS);
    }

    #[test]
    fn law_11_a_full_queue_answers_busy_and_takes_the_same_one_later() {
        let queue = NotificationQueue::new(life(1), 2);
        let window = window_of(&queue, 2);
        for sequence in [1, 2] {
            queue.accept(request(window, sequence));
        }
        let busy = queue.accept(request(window, 3));
        assert_eq!(busy.outcome(), NotifyOutcome::Busy);
        assert!(busy.retry_after_ms > 0 && busy.reason.contains("full"));
        assert_eq!(queue.counts().busy, 1);
        assert_eq!(taken(&queue), [1, 2]);
        queue.accept(request(window, 3));
        assert_eq!(taken(&queue), [3]);
        // Bytes count, too.
        let wide = NotificationQueue::new(life(1), usize::MAX);
        let large = Notification::new("", vec![0; Notification::LONGEST_MESSAGE]);
        let put = (0..BYTES).take_while(|_| wide.put("", &large).is_ok());
        assert_eq!(put.count(), BYTES / Notification::LONGEST_MESSAGE);
    }

    #[test]
    fn law_04_what_is_malformed_is_refused() {
        let queue = NotificationQueue::new(life(1), 2);
        let window = window_of(&queue, 2);
        let break_it: [fn(&mut NotifyRequest); 5] = [
            |request| request.sequence = 0,
            |request| request.sender = 0,
            |request| request.name = "n".repeat(Notification::LONGEST_NAME + 1),
            |request| request.message = vec![0; Notification::LONGEST_MESSAGE + 1].into(),
            |request| request.segment = "s".repeat(LONGEST_SEGMENT + 1),
        ];
        for break_it in break_it {
            let mut broken = request(window, 1);
            break_it(&mut broken);
            let answer = queue.accept(broken);
            assert_eq!(answer.outcome(), NotifyOutcome::Refused, "{answer:?}");
        }
        assert_eq!(queue.len(), 0);
    }

    proptest! {
        #[test]
        fn however_copies_are_delayed_and_doubled_each_is_taken_once_and_in_order(
            order in proptest::collection::vec((1_u64..9, 0_u8..4), 0..80),
        ) {
            let queue = NotificationQueue::new(life(1), 3);
            let window = window_of(&queue, 2);
            let (mut seen, mut accepted) = (Vec::new(), std::collections::BTreeSet::new());
            for (sequence, then) in order {
                let answer = queue.accept(request(window, sequence));
                if answer.outcome() == NotifyOutcome::Accepted {
                    accepted.insert(sequence);
                }
                if then == 0 {
                    seen.extend(taken(&queue));
                }
            }
            seen.extend(taken(&queue));
            prop_assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", seen);
            prop_assert_eq!(seen, accepted.into_iter().collect::<Vec<_>>());
        }
    }
}
