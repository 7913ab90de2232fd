//! The sending end: repeats a notification until it is known what became of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mooncake_proto::tent::{NotifyOutcome, NotifyRequest, NotifyResponse};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::{runtime::Handle, sync::oneshot, time::timeout_at};

use super::{Announcement, Delivery, Notification, NotificationQueue};
use crate::{
    control::Unanswered,
    error::{Applied, Error, Result},
    identity::{Incarnation, PeerId},
    platform::{after, jittered},
    segment::{Segment, SegmentManager},
    transport::BatchState,
};

/// Receivers whose window at them is known; beyond that, those are forgotten to whom nothing is
/// being sent.
const LINES: usize = 4096;
/// Pauses between tries double from here …
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// … up to here.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// One try takes no longer, so that a connection that leads nowhere is not waited for all the time.
const LONGEST_TRY: Duration = Duration::from_secs(2);

/// Sends what an engine has to say.
#[derive(Debug)]
pub(crate) struct Notifier {
    me: Incarnation,
    segment: String,
    queue: Arc<NotificationQueue>,
    segments: Arc<SegmentManager>,
    /// How long a target has for its answer once all tasks of a submission have completed.
    patience: Duration,
    runtime: Handle,
    /// Of the next notification, to whomever.
    sequence: AtomicU64,
    lines: Mutex<FxHashMap<PeerId, Line>>,
}

/// To one receiver; whoever holds the lock is the one who sends, so that one comes after the other.
/// It holds the window that the receiver keeps for us, 0 before there is one.
type Line = Arc<tokio::sync::Mutex<u64>>;

/// A process that is told something.
#[derive(Clone, Debug)]
struct Receiver {
    segment: Segment,
    life: PeerId,
}

impl Receiver {
    fn of(segment: &Segment) -> Result<Self> {
        if segment.provider().is_some() {
            let name = segment.name();
            let what = format!("nobody takes notifications behind {name}: it is no process");
            return Err(Error::Invalid(what));
        }
        Ok(Self {
            segment: segment.clone(),
            life: segment.incarnation(),
        })
    }

    fn not_told(&self, message: impl Into<String>, applied: Applied) -> Error {
        Error::NotDelivered {
            segment: self.segment.name().to_owned(),
            message: message.into(),
            applied,
        }
    }
}

/// How far the sending of one notification has come.
#[derive(Debug, Default)]
struct Tries {
    made: u32,
    /// One of them may have reached the receiver without our knowing.
    lost: bool,
    /// What the last one said.
    why: String,
}

impl Tries {
    fn applied(&self) -> Applied {
        match self.lost {
            true => Applied::Unknown,
            false => Applied::Nothing,
        }
    }
}

impl Notifier {
    /// For the engine `me`, whose segment has this name. Call it within a tokio runtime.
    pub(crate) fn new(
        me: Incarnation,
        segment: String,
        queue: Arc<NotificationQueue>,
        segments: Arc<SegmentManager>,
        patience: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            me,
            segment,
            queue,
            segments,
            patience,
            runtime: Handle::current(),
            sequence: AtomicU64::new(1),
            lines: Mutex::default(),
        })
    }

    pub(crate) fn queue(&self) -> &Arc<NotificationQueue> {
        &self.queue
    }

    /// Puts a notification into the queue of the segment's owner, in the life in which it is known.
    pub(crate) async fn send(
        &self,
        segment: &Segment,
        notification: &Notification,
        budget: Duration,
    ) -> Result<()> {
        notification.check()?;
        let to = Receiver::of(segment)?;
        self.tell(&to, notification, after(budget)).await
    }

    /// Announces a submission to the owners of `segments`, once all tasks that `part` counts have
    /// completed.
    ///
    /// # Errors
    ///
    /// The notification is too long, or nobody is behind one of the segments.
    pub(crate) fn plan<'a>(
        &self,
        segments: impl Iterator<Item = &'a Segment>,
        notification: &Notification,
    ) -> Result<Plan> {
        notification.check()?;
        let mut receivers: Vec<Receiver> = Vec::new();
        for segment in segments {
            let same = |known: &Receiver| known.segment.is(segment);
            if receivers.iter().any(same) {
                continue;
            }
            let receiver = Receiver::of(segment)?;
            if !receivers.iter().any(|known| known.life == receiver.life) {
                receivers.push(receiver);
            }
        }
        Ok(Plan {
            receivers,
            notification: notification.clone(),
        })
    }

    /// Carries out a plan.
    pub(crate) fn announce(self: &Arc<Self>, plan: Plan, part: Arc<BatchState>) -> Announcement {
        let (tell, told) = oneshot::channel();
        let targets = plan.receivers.iter();
        let targets = targets.map(|to| to.segment.clone()).collect();
        let notifier = Arc::clone(self);
        self.runtime.spawn(async move {
            part.until_terminal().await;
            let deliveries = if part.is_spoiled() {
                let why = "a transfer of the submission did not complete";
                let withheld = plan.receivers.iter().map(|to| Delivery {
                    segment: to.segment.clone(),
                    result: Err(to.not_told(why, Applied::Nothing)),
                });
                withheld.collect()
            } else {
                notifier.tell_all(&plan).await
            };
            // Nobody may be interested.
            let _told = tell.send(deliveries);
        });
        Announcement { targets, told }
    }

    /// At once: one that is slow holds up no other.
    async fn tell_all(self: &Arc<Self>, plan: &Plan) -> Vec<Delivery> {
        let end = after(self.patience);
        let told = plan.receivers.iter().map(|to| {
            let (notifier, to) = (Arc::clone(self), to.clone());
            let notification = plan.notification.clone();
            let told = tokio::spawn({
                let to = to.clone();
                async move { notifier.tell(&to, &notification, end).await }
            });
            (to, told)
        });
        let mut deliveries = Vec::with_capacity(plan.receivers.len());
        for (to, told) in told.collect::<Vec<_>>() {
            let ended = |_| Err(to.not_told("the engine has ended", Applied::Unknown));
            deliveries.push(Delivery {
                result: told.await.unwrap_or_else(ended),
                segment: to.segment,
            });
        }
        deliveries
    }

    async fn tell(&self, to: &Receiver, notification: &Notification, end: Instant) -> Result<()> {
        if to.life == self.me {
            return self.tell_myself(to, notification, end).await;
        }
        let line = self.line(to.life);
        let Ok(mut window) = timeout_at(end.into(), line.lock()).await else {
            let why = "those before it were not delivered in time";
            return Err(to.not_told(why, Applied::Nothing));
        };
        // Under the lock, so that they come in this order. A number is used once: whoever gave up on
        // one leaves a gap.
        let mut request = NotifyRequest {
            target: to.life.get(),
            sender: self.me.get(),
            segment: self.segment.clone(),
            window: 0,
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed),
            name: notification.name.clone(),
            message: notification.message.clone().into(),
        };
        let mut tries = Tries::default();
        loop {
            request.window = *window;
            let pause = match self.once(to, &request, end, &mut tries).await? {
                Step::Delivered => return Ok(()),
                Step::Window(new) => {
                    *window = new;
                    // Without a pause once: who forgets us at once is busy forgetting.
                    if tries.made < 4 {
                        Duration::ZERO
                    } else {
                        FIRST_PAUSE
                    }
                }
                Step::Again(pause) => pause,
            };
            if pause > end.saturating_duration_since(Instant::now()) {
                return Err(to.not_told(std::mem::take(&mut tries.why), tries.applied()));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One try, and what to do next.
    async fn once(
        &self,
        to: &Receiver,
        request: &NotifyRequest,
        end: Instant,
        tries: &mut Tries,
    ) -> Result<Step> {
        let pause = FIRST_PAUSE.saturating_mul(1 << tries.made.min(16));
        let pause = jittered(pause.min(LONGEST_PAUSE));
        tries.made += 1;
        // What asks for a window delivers nothing.
        let delivers = request.window != 0;
        let end = end.min(after(LONGEST_TRY));
        let asked = self.segments.notify(&to.segment, request.clone());
        let answer = match timeout_at(end.into(), asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(Unanswered::Never(why))) => return Err(to.not_told(why, tries.applied())),
            Ok(Err(Unanswered::NotSent(why))) => {
                tries.why = why;
                return Ok(Step::Again(pause));
            }
            Ok(Err(Unanswered::Lost(why))) => {
                tries.lost |= delivers;
                tries.why = why;
                return Ok(Step::Again(pause));
            }
            Err(_) => {
                self.segments.forget_connection(&to.segment);
                tries.lost |= delivers;
                tries.why = "no answer in time".to_owned();
                return Ok(Step::Again(pause));
            }
        };
        self.judge(to, answer, pause, tries)
    }

    fn judge(
        &self,
        to: &Receiver,
        answer: NotifyResponse,
        pause: Duration,
        tries: &mut Tries,
    ) -> Result<Step> {
        let outcome = answer.outcome();
        let NotifyResponse {
            window,
            retry_after_ms,
            reason,
            ..
        } = answer;
        match outcome {
            NotifyOutcome::Accepted => Ok(Step::Delivered),
            // Whether it took an earlier try is forgotten with the window.
            NotifyOutcome::Window if tries.lost => {
                Err(to.not_told("it has forgotten what it took of us", Applied::Unknown))
            }
            NotifyOutcome::Window => {
                tries.why = "it opens no window".to_owned();
                Ok(Step::Window(window))
            }
            NotifyOutcome::Busy => {
                let hint = Duration::from_millis(retry_after_ms.into());
                tries.why = reason;
                Ok(Step::Again(jittered(hint.min(LONGEST_PAUSE)).max(pause)))
            }
            NotifyOutcome::OtherIncarnation => Err(Error::Restarted {
                segment: to.segment.name().to_owned(),
                known: to.life,
            }),
            NotifyOutcome::Passed => Err(to.not_told(reason, Applied::Unknown)),
            NotifyOutcome::Refused | NotifyOutcome::Unspecified => {
                Err(to.not_told(format!("refused: {reason}"), Applied::Nothing))
            }
        }
    }

    async fn tell_myself(
        &self,
        to: &Receiver,
        notification: &Notification,
        end: Instant,
    ) -> Result<()> {
        loop {
            let Err(full) = self.queue.put(&self.segment, notification) else {
                return Ok(());
            };
            let pause = jittered(FIRST_PAUSE);
            if pause > end.saturating_duration_since(Instant::now()) {
                return Err(to.not_told(full.to_string(), Applied::Nothing));
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn line(&self, life: PeerId) -> Line {
        let mut lines = self.lines.lock();
        if lines.len() >= LINES && !lines.contains_key(&life) {
            // One that is in use must not exist twice.
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        Arc::clone(lines.entry(life).or_default())
    }
}

/// Who is told what, once a submission has completed.
#[derive(Debug)]
pub(crate) struct Plan {
    receivers: Vec<Receiver>,
    notification: Notification,
}

#[derive(Debug)]
enum Step {
    Delivered,
    /// Again, under this window.
    Window(u64),
    /// Again, after so long.
    Again(Duration),
}
