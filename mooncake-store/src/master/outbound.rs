//! The way up: HTTP/2 itself pulls frames out of the table, with no task in between.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use mooncake_proto::master::{self, ClientFrame};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_stream::Stream;

use super::{
    events::Listeners,
    table::{Done, Pending, Table, closed},
};
use crate::time::{Clock, Time};

/// What callers, the stream and the session's task share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: String,
    state: Mutex<State>,
    /// The session's task should look at the alarm, or at `closed`.
    pub(super) nudge: Notify,
    pub(super) listeners: Listeners,
}

#[derive(Debug)]
struct State {
    table: Table,
    /// Of the current stream; what an older one does means nothing.
    generation: u64,
    /// Hello was answered on the current stream.
    open: bool,
    closed: bool,
    /// Of the current stream, while it has nothing to send.
    waker: Option<Waker>,
}

impl Shared {
    pub(super) fn new(address: String, most: usize) -> Self {
        let state = State {
            table: Table::new(address.clone(), most),
            generation: 0,
            open: false,
            closed: false,
            waker: None,
        };
        Self {
            address,
            state: Mutex::new(state),
            nudge: Notify::new(),
            listeners: Listeners::default(),
        }
    }

    /// Queues a call. One that cannot be queued is reported before this returns.
    pub(super) fn submit(&self, pending: Pending) {
        let now = Clock.now();
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            (pending.on_answer)(Err(closed(&self.address)));
            return;
        }
        let alarm = state.table.earliest();
        let submitted = state.table.submit(now, pending);
        let sooner = state.table.earliest() < alarm;
        let waker = if state.open { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        if sooner {
            self.nudge.notify_one();
        }
        if let Err(done) = submitted {
            done.report();
        }
    }

    /// Takes the answers of one frame.
    pub(super) fn complete(&self, answers: Vec<master::Answer>) {
        if answers.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let done: Vec<Done> = answers
            .into_iter()
            .filter_map(|answer| state.table.complete(answer))
            .collect();
        // What waited for the window may go now.
        let waker = if state.open && state.table.has_work() {
            state.waker.take()
        } else {
            None
        };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        done.into_iter().for_each(Done::report);
    }

    /// Ends what is overdue, and says when to look again.
    pub(super) fn expire(&self, now: Time) -> Time {
        let mut done = Vec::new();
        let mut state = self.state.lock();
        state.table.expire(now, &mut done);
        let next = state.table.earliest();
        drop(state);
        done.into_iter().for_each(Done::report);
        next
    }

    /// A new stream begins; the one before it, if any, is lost.
    pub(super) fn begin(&self) -> u64 {
        let mut done = Vec::new();
        let mut state = self.state.lock();
        state.table.lost(&mut done);
        state.open = false;
        state.generation += 1;
        let generation = state.generation;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        done.into_iter().for_each(Done::report);
        generation
    }

    /// Hello was answered: operations may flow.
    pub(super) fn opened(&self, resumed: bool) {
        let mut done = Vec::new();
        let mut state = self.state.lock();
        if resumed {
            state.table.resume();
        } else {
            state.table.restart(&mut done);
        }
        state.open = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        done.into_iter().for_each(Done::report);
    }

    /// Ends the stream and every call.
    pub(super) fn close(&self) {
        let mut done = Vec::new();
        let mut state = self.state.lock();
        state.closed = true;
        state.open = false;
        state.table.close(&mut done);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        self.nudge.notify_one();
        done.into_iter().for_each(Done::report);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

/// The frames of one stream: hello, then operations once it was answered.
pub(super) struct Outbound {
    shared: Arc<Shared>,
    generation: u64,
    hello: Option<master::Hello>,
}

impl Outbound {
    pub(super) const fn new(shared: Arc<Shared>, generation: u64, hello: master::Hello) -> Self {
        Self {
            shared,
            generation,
            hello: Some(hello),
        }
    }
}

impl Stream for Outbound {
    type Item = ClientFrame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ClientFrame>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(ClientFrame {
                hello: Some(hello),
                ..ClientFrame::default()
            }));
        }
        let mut state = self.shared.state.lock();
        if state.closed || state.generation != self.generation {
            return Poll::Ready(None);
        }
        if state.open
            && let Some(frame) = state.table.next_frame()
        {
            return Poll::Ready(Some(frame));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
