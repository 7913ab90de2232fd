//! A client's session by the rules of the real one, over the real table of calls: numbers, what is
//! sent again, what is acknowledged, pings, and dialling anew.

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

use mooncake_proto::{
    Fault,
    master::{self, ClientFrame, PingRequest, event},
    status::ErrorCode,
};
use mooncake_store::{
    Time,
    core::{CallId, MasterAnswer, MasterRequest},
    master::table::{Done, Kind, Pending, Table},
};

use crate::Micros;

const CONNECT: Micros = 100_000;
const FIRST_BACKOFF: Micros = 2_000;
const LAST_BACKOFF: Micros = 50_000;
const SUSPECT_INTERVALS: u32 = 3;

/// Whose call it was.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag {
    Call(CallId),
    Goodbye,
    Mount,
    Ping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Hello was sent; given up at.
    Dialling(Micros),
    Open,
    /// Dials again at.
    Waiting(Micros),
}

type Ended = (Tag, Result<MasterAnswer, Fault>);

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) identity: u64,
    tenant: String,
    table: Table,
    /// Of all sessions of a run no two have the same.
    pub(crate) stream: u64,
    phase: Phase,
    backoff: Micros,
    ping_interval: Micros,
    ping_due: Micros,
    ping_sent: bool,
    missed: u32,
    sender: Sender<Ended>,
    receiver: Receiver<Ended>,
    /// What hello was answered with and the owner does not know yet: `resumed`.
    greeted: Option<bool>,
    hello: Option<ClientFrame>,
    /// The stream broke, which the owner does not know yet.
    broken: bool,
    /// Since when the stream is open, if it is.
    pub(crate) open_since: Option<Micros>,
}

impl Session {
    pub(crate) fn new(identity: u64, tenant: String, ping_interval: Micros, now: Micros) -> Self {
        let (sender, receiver) = channel();
        Self {
            identity,
            tenant,
            table: Table::new("master".into(), 1_024),
            stream: 0,
            phase: Phase::Waiting(now),
            backoff: FIRST_BACKOFF,
            ping_interval,
            ping_due: 0,
            ping_sent: false,
            missed: 0,
            sender,
            receiver,
            greeted: None,
            hello: None,
            broken: false,
            open_since: None,
        }
    }

    pub(crate) fn submit(&mut self, now: Micros, tag: Tag, request: MasterRequest, deadline: Time) {
        let sender = self.sender.clone();
        let kind = match tag {
            Tag::Ping => Kind::Heartbeat,
            _ => Kind::of(&request),
        };
        let pending = Pending {
            kind,
            request,
            deadline,
            on_answer: Box::new(move |result| {
                // The process may have crashed.
                drop(sender.send((tag, result)));
            }),
        };
        if let Err(done) = self.table.submit(Time(now), pending) {
            done.report();
        }
    }

    /// Calls that are over.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        loop {
            match self.receiver.try_recv().ok()? {
                (Tag::Ping, Ok(MasterAnswer::Ping(answer))) if answer.unknown_client => {
                    self.ping_sent = false;
                    self.missed = SUSPECT_INTERVALS;
                    self.ping_due = 0;
                }
                (Tag::Ping, _) => self.ping_sent = false,
                ended => return Some(ended),
            }
        }
    }

    /// `Some`: hello was answered, by a master that still knows us or does not.
    pub(crate) fn greeted(&mut self) -> Option<bool> {
        self.greeted.take()
    }

    /// `true`: the stream has broken.
    pub(crate) fn broken(&mut self) -> bool {
        std::mem::take(&mut self.broken)
    }

    /// `true`: the master has ended the stream.
    pub(crate) fn receive(&mut self, now: Micros, stream: u64, events: Vec<master::Event>) -> bool {
        if stream != self.stream {
            return false;
        }
        let mut fenced = false;
        for event in events {
            match event.event {
                Some(event::Event::Hello(answer)) if matches!(self.phase, Phase::Dialling(_)) => {
                    let mut done = Vec::new();
                    if answer.resumed {
                        self.table.resume();
                    } else {
                        self.table.restart(&mut done);
                    }
                    done.into_iter().for_each(Done::report);
                    self.phase = Phase::Open;
                    self.open_since = Some(now);
                    self.backoff = FIRST_BACKOFF;
                    self.greeted = Some(answer.resumed);
                    (self.ping_sent, self.missed) = (false, 0);
                    self.ping_due = now + self.ping_interval;
                }
                Some(event::Event::Answer(answer)) => {
                    if let Some(MasterAnswer::Error(detail)) = &answer.answer {
                        fenced |= detail.code() == ErrorCode::Fenced;
                    }
                    if let Some(done) = self.table.complete(answer) {
                        done.report();
                    }
                }
                Some(event::Event::Fenced(_)) => fenced = true,
                _ => {}
            }
        }
        if fenced {
            self.lose(now);
        }
        fenced
    }

    pub(crate) fn cut(&mut self, now: Micros, stream: u64) {
        if stream == self.stream && !matches!(self.phase, Phase::Waiting(_)) {
            self.lose(now);
        }
    }

    fn lose(&mut self, now: Micros) {
        let mut done = Vec::new();
        self.table.lost(&mut done);
        done.into_iter().for_each(Done::report);
        self.stream = 0;
        self.broken = true;
        self.open_since = None;
        self.phase = Phase::Waiting(now + self.backoff);
        self.backoff = (self.backoff * 2).min(LAST_BACKOFF);
    }

    /// Does what is due; `stream` numbers the next attempt.
    pub(crate) fn tick(&mut self, now: Micros, stream: &mut u64) {
        let mut done = Vec::new();
        self.table.expire(Time(now), &mut done);
        done.into_iter().for_each(Done::report);
        match self.phase {
            Phase::Dialling(until) if until <= now => self.lose(now),
            Phase::Open if self.ping_due <= now => self.beat(now),
            Phase::Waiting(at) if at <= now => self.dial(now, stream),
            _ => {}
        }
    }

    fn beat(&mut self, now: Micros) {
        self.ping_due = now + self.ping_interval;
        if self.ping_sent {
            self.missed += 1;
        }
        if self.missed >= SUSPECT_INTERVALS {
            self.lose(now);
            return;
        }
        if !self.ping_sent {
            (self.ping_sent, self.missed) = (true, 0);
            let patience = Duration::from_micros(self.ping_interval) * (SUSPECT_INTERVALS + 1);
            let request = MasterRequest::Ping(PingRequest::default());
            self.submit(now, Tag::Ping, request, Time(now) + patience);
        }
    }

    fn dial(&mut self, now: Micros, stream: &mut u64) {
        let mut done = Vec::new();
        self.table.lost(&mut done);
        done.into_iter().for_each(Done::report);
        *stream += 1;
        self.stream = *stream;
        self.phase = Phase::Dialling(now + CONNECT);
        self.hello = Some(ClientFrame {
            hello: Some(master::Hello {
                protocol: 1,
                client_incarnation: self.identity,
                tenant: self.tenant.clone(),
                name: String::new(),
                capabilities: 0,
            }),
            ..ClientFrame::default()
        });
    }

    /// What goes to the master next, on the current stream.
    pub(crate) fn next_frame(&mut self) -> Option<ClientFrame> {
        if let Some(hello) = self.hello.take() {
            return Some(hello);
        }
        if self.phase == Phase::Open {
            return self.table.next_frame();
        }
        None
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(crate) fn next(&self) -> Micros {
        let own = match self.phase {
            Phase::Dialling(until) => until,
            Phase::Open => self.ping_due,
            Phase::Waiting(at) => at,
        };
        own.min(self.table.earliest().0)
    }
}
