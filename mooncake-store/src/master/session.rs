//! The session's task: reads answers, pings, ends what is overdue, and connects again.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use mooncake_proto::{
    master::{self, Event, PingRequest, PingResponse, ServerFrame, event, master_client},
    status::ErrorCode,
};
use rand::RngExt;
use tokio::{
    sync::broadcast,
    time::{Instant, sleep, sleep_until, timeout},
};
use tonic::{Streaming, transport::Endpoint};

use super::{
    ConnectOptions, Hello, SessionEvent, SessionInfo,
    outbound::{Outbound, Shared},
    table::{Kind, Pending},
};
use crate::{
    core::{MasterAnswer, MasterRequest},
    error::StoreError,
    time::{Clock, Time},
};

/// The largest answer that is read. Beyond it, the master is not to be trusted.
const MOST_ANSWER_BYTES: usize = 64 << 20;
/// Events that a slow subscriber may leave behind.
const MOST_EVENTS: usize = 1_024;
/// A ping that has no answer after so many intervals means that the stream is dead.
const SUSPECT_INTERVALS: u32 = 3;

#[derive(Debug)]
pub(super) struct Session {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    hello: master::Hello,
    options: ConnectOptions,
    events: broadcast::Sender<SessionEvent>,
    info: Arc<ArcSwap<SessionInfo>>,
}

/// An open stream whose hello was answered.
pub(super) struct Stream {
    inbound: Streaming<ServerFrame>,
    /// What came with the answer to hello.
    first: Vec<Event>,
}

/// Where the current ping stands.
#[derive(Debug)]
struct Heartbeat {
    state: Arc<AtomicU8>,
    /// When to ping, or to count that the last ping has no answer.
    due: Time,
    /// Counted, not measured: a process that slept has missed one.
    missed: u32,
}

const PING_ANSWERED: u8 = 0;
const PING_SENT: u8 = 1;
const PING_UNKNOWN: u8 = 2;

impl Session {
    pub(super) async fn open(
        shared: Arc<Shared>,
        hello: Hello,
        options: ConnectOptions,
    ) -> Result<(Self, Arc<ArcSwap<SessionInfo>>, Stream), StoreError> {
        let begun = Clock.now();
        let address = shared.address.clone();
        let refused = |reason: String| StoreError::Connect {
            address: address.clone(),
            after: Clock.now().since(begun),
            reason,
        };
        let uri = if address.contains("://") {
            address.clone()
        } else {
            format!("http://{address}")
        };
        let endpoint = Endpoint::from_shared(uri)
            .map_err(|error| refused(error.to_string()))?
            .tcp_nodelay(true)
            .http2_adaptive_window(true);
        let hello = master::Hello::from(hello);
        let opened = dial(&shared, &endpoint, &hello, options.connect_timeout).await;
        let (stream, answer) = opened.map_err(refused)?;
        let info = Arc::new(ArcSwap::from_pointee(SessionInfo::first(&answer)));
        let session = Self {
            shared,
            endpoint,
            hello,
            options,
            events: broadcast::Sender::new(MOST_EVENTS),
            info: info.clone(),
        };
        session.shared.opened(answer.resumed);
        Ok((session, info, stream))
    }

    pub(super) const fn events(&self) -> &broadcast::Sender<SessionEvent> {
        &self.events
    }

    /// Keeps a stream open until the client is closed.
    pub(super) async fn run(self, mut stream: Stream) {
        loop {
            let reason = self.serve(stream).await;
            let mut info = **self.info.load();
            info.connected = false;
            self.info.store(Arc::new(info));
            if self.shared.is_closed() {
                return;
            }
            tracing::warn!(
                address = self.shared.address,
                reason,
                "lost the master's session"
            );
            self.emit(SessionEvent::Lost);
            let Some(next) = self.attend(self.connect_again()).await else {
                return;
            };
            stream = next;
        }
    }

    /// Reads one stream to its end, and says why it ended.
    async fn serve(&self, stream: Stream) -> String {
        let Stream { mut inbound, first } = stream;
        if let Some(reason) = self.take(first) {
            return reason;
        }
        let interval = self.info.load().ping_interval.max(Duration::from_millis(1));
        let now = Clock.now();
        let mut heartbeat = Heartbeat {
            state: Arc::new(AtomicU8::new(PING_ANSWERED)),
            due: now + interval,
            missed: 0,
        };
        let next = self.shared.expire(now).min(heartbeat.due);
        let mut alarm = pin!(sleep_until(instant(now, next)));
        loop {
            // Unbiased: answers without a pause must not keep deadlines and pings waiting.
            tokio::select! {
                frame = inbound.message() => match frame {
                    Ok(Some(ServerFrame { events })) => {
                        if let Some(reason) = self.take(events) {
                            return reason;
                        }
                    }
                    Ok(None) => return "the master ended the stream".into(),
                    Err(status) => return status.message().to_owned(),
                },
                () = self.shared.nudge.notified() => {
                    if self.shared.is_closed() {
                        return "closed".into();
                    }
                    alarm.as_mut().reset(Instant::now());
                }
                () = &mut alarm => {
                    let now = Clock.now();
                    if let Some(reason) = self.beat(now, interval, &mut heartbeat) {
                        return reason;
                    }
                    let next = self.shared.expire(now).min(heartbeat.due);
                    alarm.as_mut().reset(instant(now, next));
                }
            }
        }
    }

    /// Pings if it is time. `Some`: the stream is of no use any more.
    fn beat(&self, now: Time, interval: Duration, heartbeat: &mut Heartbeat) -> Option<String> {
        let state = heartbeat.state.load(Ordering::Relaxed);
        if state == PING_UNKNOWN {
            let reason = "the master does not know this client";
            self.emit(SessionEvent::Fenced(reason.into()));
            return Some(reason.into());
        }
        if now < heartbeat.due {
            return None;
        }
        heartbeat.due = now + interval;
        if state == PING_SENT {
            heartbeat.missed += 1;
            let dead = heartbeat.missed >= SUSPECT_INTERVALS;
            return dead.then(|| format!("no answer to a ping for {SUSPECT_INTERVALS} intervals"));
        }
        heartbeat.missed = 0;
        heartbeat.state.store(PING_SENT, Ordering::Relaxed);
        let (state, shared) = (heartbeat.state.clone(), Arc::downgrade(&self.shared));
        self.shared.submit(Pending {
            request: MasterRequest::Ping(PingRequest::default()),
            kind: Kind::Heartbeat,
            deadline: now + interval * (SUSPECT_INTERVALS + 1),
            on_answer: Box::new(move |result| {
                let unknown = |answer: &PingResponse| answer.unknown_client;
                match result {
                    Ok(MasterAnswer::Ping(answer)) if unknown(&answer) => {
                        state.store(PING_UNKNOWN, Ordering::Relaxed);
                        if let Some(shared) = shared.upgrade() {
                            shared.nudge.notify_one();
                        }
                    }
                    // A refused ping (too much to do) says nothing about the stream.
                    _ => state.store(PING_ANSWERED, Ordering::Relaxed),
                }
            }),
        });
        None
    }

    /// Acts on the events of one frame, in their order. `Some`: the stream is over.
    fn take(&self, events: Vec<Event>) -> Option<String> {
        let mut answers = Vec::with_capacity(events.len());
        let mut over = None;
        for event in events {
            let tell = |answers: &mut Vec<_>, event| {
                // What was answered before is known before.
                self.shared.complete(std::mem::take(answers));
                self.emit(event);
            };
            match event.event {
                Some(event::Event::Answer(answer)) => {
                    if let Some(MasterAnswer::Error(detail)) = &answer.answer
                        && detail.code() == ErrorCode::Fenced
                        && over.is_none()
                    {
                        over = Some(format!("fenced: {}", detail.message));
                        tell(&mut answers, SessionEvent::Fenced(detail.message.clone()));
                    }
                    answers.push(answer);
                }
                Some(event::Event::Nudge(_)) => tell(&mut answers, SessionEvent::Nudge),
                Some(event::Event::Reclaim(_)) => tell(&mut answers, SessionEvent::Reclaim),
                Some(event::Event::Invalidate(invalidate)) => {
                    let objects = invalidate.objects.into_iter();
                    let void = objects.map(|object| {
                        let incarnation = object.incarnation.unwrap_or(ALL_INCARNATIONS);
                        (object.key, incarnation.into())
                    });
                    tell(&mut answers, SessionEvent::Invalidate(void.collect()));
                }
                Some(event::Event::Fenced(fenced)) => {
                    over = Some(format!("fenced: {}", fenced.reason));
                    tell(&mut answers, SessionEvent::Fenced(fenced.reason));
                }
                Some(event::Event::Hello(_)) | None => {}
            }
        }
        self.shared.complete(answers);
        over
    }

    async fn connect_again(&self) -> Stream {
        // From here on, nothing is sent on the old stream.
        self.shared.begin();
        let mut backoff = self.options.first_backoff;
        loop {
            // Clients of one master should not all come back at the same moment.
            let share = rand::rng().random_range(0.5..1.0);
            sleep(backoff.mul_f64(share)).await;
            backoff = (backoff * 2).min(self.options.last_backoff);
            let timeout = self.options.connect_timeout;
            match dial(&self.shared, &self.endpoint, &self.hello, timeout).await {
                Ok((stream, answer)) => {
                    let info = self.info.load().next(&answer);
                    self.info.store(Arc::new(info));
                    self.emit(SessionEvent::Connected {
                        epoch: answer.epoch,
                        resumed: answer.resumed,
                    });
                    self.shared.opened(answer.resumed);
                    return stream;
                }
                Err(reason) => {
                    tracing::debug!(address = self.shared.address, reason, "no master yet");
                }
            }
        }
    }

    /// Waits for `work` while deadlines are kept. `None`: the client was closed.
    async fn attend<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let now = Clock.now();
            let next = self.shared.expire(now);
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                () = self.shared.nudge.notified() => {}
                () = sleep_until(instant(now, next)) => {}
            }
            if self.shared.is_closed() {
                return None;
            }
        }
    }

    fn emit(&self, event: SessionEvent) {
        self.shared.listeners.tell(&event);
        // Nobody may have subscribed.
        drop(self.events.send(event));
    }
}

impl Drop for Session {
    /// However its task ends, by a panic or with its runtime: nobody waits for it any longer.
    fn drop(&mut self) {
        self.shared.close();
    }
}

const ALL_INCARNATIONS: master::ObjectIncarnation = master::ObjectIncarnation {
    epoch: u64::MAX,
    sequence: u64::MAX,
};

/// Opens a stream and waits for the answer to hello.
async fn dial(
    shared: &Arc<Shared>,
    endpoint: &Endpoint,
    hello: &master::Hello,
    within: Duration,
) -> Result<(Stream, master::HelloAnswer), String> {
    let generation = shared.begin();
    let outbound = Outbound::new(shared.clone(), generation, hello.clone());
    let dialled = timeout(within, async {
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| with_causes(&error))?;
        let mut client =
            master_client::MasterClient::new(channel).max_decoding_message_size(MOST_ANSWER_BYTES);
        let stream = client.session(outbound).await;
        let mut inbound = stream
            .map_err(|status| status.message().to_owned())?
            .into_inner();
        let frame = inbound
            .message()
            .await
            .map_err(|status| status.message().to_owned())?;
        let mut events = frame
            .map_or_else(Vec::new, |frame| frame.events)
            .into_iter();
        let Some(Event {
            event: Some(event::Event::Hello(answer)),
        }) = events.next()
        else {
            return Err("the first event was no answer to hello".to_owned());
        };
        let first = events.collect();
        Ok((Stream { inbound, first }, answer))
    });
    dialled
        .await
        .unwrap_or_else(|_| Err(format!("hello was not answered within {within:?}")))
}

/// An error and what caused it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// When `at` is on the clock of the timers.
fn instant(now: Time, at: Time) -> Instant {
    // Far enough for a deadline that never comes; timers do not reach further.
    const FAR: Duration = Duration::from_secs(86_400);
    Instant::now() + at.since(now).min(FAR)
}
