//! The sending end of a lane: frames of a header and leased payload, sent as many as fit at once.

use std::{collections::VecDeque, io, net::TcpStream, time::Instant};

use smallvec::SmallVec;

use super::socket::{Mode, Sending};
use crate::{
    credit::{Credit, Purse},
    memory::LocalSlice,
};

/// Bytes of one call; more only makes the receiver wait for the first of them.
const MOST_BYTES: usize = 1 << 20;

/// A message with a header of at most `H` bytes.
#[derive(Debug)]
pub(super) struct Frame<const H: usize> {
    pub(super) tag: u64,
    /// Bytes of the requests before it, of those of its lane.
    pub(super) before: u64,
    /// The credit that it takes.
    pub(super) cost: Credit,
    pub(super) header: [u8; H],
    /// So much of it is sent.
    pub(super) head: usize,
    pub(super) payload: SmallVec<[LocalSlice; 1]>,
    /// It is not begun afterwards.
    pub(super) deadline: Option<Instant>,
}

/// What is beyond it is not begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) tag: u64,
    pub(super) before: u64,
    /// What a frame costs has to be covered by this …
    pub(super) granted: Credit,
    /// … unless it has this tag: nothing before it is unanswered.
    pub(super) alone: u64,
}

/// Why sending stopped without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Nothing below the limit is left.
    All,
    /// The next one waits for credit.
    Broke,
    /// The first frame's deadline is over, and nothing of it was sent.
    Overdue,
}

/// Frames that wait to be sent.
#[derive(Debug)]
pub(super) struct Outbox<const H: usize> {
    frames: VecDeque<Frame<H>>,
    /// Of the first frame, which is paid then.
    sent: u64,
    bytes: u64,
    purse: Purse,
}

impl<const H: usize> Outbox<H> {
    pub(super) fn new() -> Self {
        Self {
            frames: VecDeque::new(),
            sent: 0,
            bytes: 0,
            purse: Purse::default(),
        }
    }

    /// What is left of the credit.
    pub(super) fn left(&self, granted: Credit) -> Credit {
        self.purse.left(granted)
    }

    pub(super) fn push(&mut self, frame: Frame<H>) {
        self.bytes += length(&frame);
        self.frames.push_back(frame);
    }

    pub(super) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first frame of which bytes have yet to be sent.
    pub(super) fn first(&self) -> Option<u64> {
        self.frames.front().map(|frame| frame.tag)
    }

    /// The first frame of which no byte has been sent.
    pub(super) fn first_unsent(&self) -> Option<u64> {
        self.frames
            .get(usize::from(self.sent > 0))
            .map(|frame| frame.tag)
    }

    /// Takes out those frames that `keep` does not want, none of which was sent in part.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Frame<H>) -> bool) {
        let bytes = &mut self.bytes;
        self.frames.retain(|frame| {
            let kept = keep(frame);
            *bytes -= if kept { 0 } else { length(frame) };
            kept
        });
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    /// The first frame, if a part of it was sent, and how much of it.
    pub(super) fn begun(&self) -> Option<(u64, u64)> {
        let first = self.frames.front().filter(|_| self.sent > 0)?;
        Some((first.tag, self.sent))
    }

    /// Changes the headers of all frames, none of which was sent in part.
    pub(super) fn amend(&mut self, amend: impl Fn(&mut Frame<H>)) {
        debug_assert_eq!(self.sent, 0, "what was sent cannot be amended");
        self.frames.iter_mut().for_each(amend);
    }

    /// Takes the last frame back, of which nothing was sent.
    pub(super) fn pop_back(&mut self) -> Option<Frame<H>> {
        let last = self.frames.pop_back()?;
        debug_assert!(self.sent == 0 || !self.frames.is_empty(), "it was begun");
        self.bytes -= length(&last);
        Some(last)
    }

    /// Sends frames below `limit` until none is left or the socket takes no more. An error also says
    /// that the deadline of a frame is over that was sent in part.
    pub(super) fn send(
        &mut self,
        socket: &TcpStream,
        limit: Limit,
        mode: Mode,
    ) -> io::Result<Sent> {
        let limit = Some(limit);
        let below = |frame: &&Frame<H>| is_below(frame, limit);
        while let Some(first) = self.frames.front().filter(below) {
            if self.sent == 0 && !pays(first, limit, &mut { self.purse }) {
                return Ok(Sent::Broke);
            }
            let mut clock = Clock(None);
            if clock.is_over(first.deadline) {
                return match self.sent {
                    0 => Ok(Sent::Overdue),
                    _ => Err(io::ErrorKind::TimedOut.into()),
                };
            }
            let sent = self.gather(limit, &mut clock).send(socket, mode)?;
            self.advance(sent as u64, limit);
        }
        Ok(Sent::All)
    }

    /// Sends some of what waits; `false`: nothing is left.
    pub(super) fn send_some(&mut self, socket: &TcpStream, mode: Mode) -> io::Result<bool> {
        if !self.frames.is_empty() {
            let sent = self.gather(None, &mut Clock(None)).send(socket, mode)?;
            self.advance(sent as u64, None);
        }
        Ok(!self.frames.is_empty())
    }

    fn gather(&self, limit: Option<Limit>, clock: &mut Clock) -> Sending<'_> {
        let mut sending = Sending::new();
        let mut skip = self.sent as usize;
        let mut purse = self.purse;
        let mut begun = self.sent > 0;
        let below = self.frames.iter().take_while(|frame| {
            let paid = std::mem::take(&mut begun);
            is_below(frame, limit) && (paid || pays(frame, limit, &mut purse))
        });
        for frame in below {
            if sending.bytes() >= MOST_BYTES || clock.is_over(frame.deadline) {
                break;
            }
            let header = skip.min(frame.head);
            if !sending.push_private(&frame.header[header..frame.head]) {
                break;
            }
            skip -= header;
            for slice in &frame.payload {
                let piece = slice.piece();
                let here = skip.min(piece.len());
                skip -= here;
                // A frame whose pieces do not fit goes on in the next call.
                if !sending.push_leased(piece.skip(here)) {
                    return sending;
                }
            }
        }
        debug_assert!(!sending.is_empty(), "there was a frame to send");
        sending
    }

    fn advance(&mut self, sent: u64, limit: Option<Limit>) {
        let mut paid = self.sent > 0;
        self.bytes -= sent;
        self.sent += sent;
        while self.sent > 0
            && let Some(first) = self.frames.front()
        {
            let paid = std::mem::take(&mut paid) || pays(first, limit, &mut self.purse);
            debug_assert!(paid, "it was sent without credit");
            if self.sent < length(first) {
                break;
            }
            self.sent -= length(first);
            self.frames.pop_front();
        }
    }
}

fn is_below<const H: usize>(frame: &Frame<H>, limit: Option<Limit>) -> bool {
    limit.is_none_or(|limit| frame.tag < limit.tag && frame.before < limit.before)
}

/// Pays for a frame before its first byte.
fn pays<const H: usize>(frame: &Frame<H>, limit: Option<Limit>, purse: &mut Purse) -> bool {
    limit.is_none_or(|limit| purse.pay(frame.cost, limit.granted, frame.tag == limit.alone))
}

fn length<const H: usize>(frame: &Frame<H>) -> u64 {
    frame.head as u64 + frame.payload.iter().map(LocalSlice::len).sum::<u64>()
}

/// Looks at the time once, and only if there is a deadline. Whoever is stopped after that is too
/// late for the target.
struct Clock(Option<Instant>);

impl Clock {
    fn is_over(&mut self, deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|deadline| deadline <= *self.0.get_or_insert_with(Instant::now))
    }
}
