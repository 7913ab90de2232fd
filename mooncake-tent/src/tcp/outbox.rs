//! The sending end of a lane: frames of a header and leased payload, sent as many as fit at once.

use std::{
    collections::VecDeque,
    io,
    net::TcpStream,
    ops::{Range, RangeInclusive},
    time::Instant,
};

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
    /// Its payload goes on with the message of the frame before it, without a header.
    pub(super) joined: bool,
    /// It is never joined.
    pub(super) single: bool,
    pub(super) payload: SmallVec<[LocalSlice; 1]>,
    /// It is not begun afterwards.
    pub(super) deadline: Option<Instant>,
}

/// A message of which a part was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    /// Its frames.
    pub(super) tags: RangeInclusive<u64>,
    /// The first frame of which bytes are left, and how many were sent of it.
    pub(super) place: (u64, u64),
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

/// What sending came to without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Some of what was there.
    Some,
    /// Nothing below the limit is left.
    All,
    /// The next one waits for credit.
    Broke,
    /// The first message's deadline is over, and nothing of it was sent.
    Overdue,
}

/// Frames that wait to be sent.
#[derive(Debug)]
pub(super) struct Outbox<const H: usize> {
    frames: VecDeque<Frame<H>>,
    /// Of the first frame, which is paid then.
    sent: u64,
    bytes: u64,
    /// The message of which the last byte was sent begins with this frame.
    lead: u64,
    /// So many frames were looked at for what they may be joined with.
    looked: usize,
    purse: Purse,
}

impl<const H: usize> Outbox<H> {
    pub(super) fn new() -> Self {
        Self {
            frames: VecDeque::new(),
            sent: 0,
            bytes: 0,
            lead: 0,
            looked: 0,
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

    /// The first frame of the first message of which bytes have yet to be sent.
    pub(super) fn first(&self) -> Option<u64> {
        let first = self.frames.front()?;
        Some(if first.joined { self.lead } else { first.tag })
    }

    /// The first frame of a message that was not begun.
    pub(super) fn first_not_begun(&self) -> Option<u64> {
        self.frames.get(self.begun_frames()).map(|frame| frame.tag)
    }

    /// How many frames are left of the message that was begun.
    fn begun_frames(&self) -> usize {
        let Some(first) = self.frames.front().filter(|it| it.joined || self.sent > 0) else {
            return 0;
        };
        debug_assert!(self.sent < length(first), "it would be gone");
        1 + self
            .frames
            .iter()
            .skip(1)
            .take_while(|it| it.joined)
            .count()
    }

    /// Joins neighbours among the frames that are next to be sent and that were not looked at yet.
    /// `joins` is asked whether a frame may follow the one before it in a message of so many frames;
    /// `joined` is told each lead, with how many frames are its message.
    pub(super) fn join(
        &mut self,
        limit: Limit,
        mut joins: impl FnMut(&Frame<H>, &Frame<H>, usize) -> bool,
        mut joined: impl FnMut(&mut Frame<H>, usize),
    ) {
        debug_assert!(
            self.looked >= self.begun_frames(),
            "it was not looked at before"
        );
        let mut lead = self.looked;
        let mut bytes = 0;
        let mut purse = self.purse;
        let paid = usize::from(self.sent > 0);
        for frame in self.frames.range(paid..self.looked.max(paid)) {
            pays(frame, Some(limit), &mut purse);
        }
        let below = |it: &&Frame<H>| is_below(it, Some(limit));
        while let Some(frame) = self.frames.get(self.looked).filter(below) {
            let at = self.looked;
            let before = (at > lead).then(|| &self.frames[at - 1]);
            let follows = before.is_some_and(|before| {
                !before.single && !frame.single && joins(before, frame, at - lead)
            });
            // Joined, they are one request.
            let mut cost = frame.cost;
            cost.requests *= u64::from(!follows);
            if !purse.pay(cost, limit.granted, !follows && frame.tag == limit.alone) {
                break;
            }
            if !follows {
                self.close_run(lead..at, &mut joined);
                lead = at;
                if bytes >= MOST_BYTES as u64 {
                    return;
                }
            }
            let frame = &mut self.frames[at];
            if follows {
                self.bytes -= frame.head as u64;
                frame.joined = true;
            }
            bytes += length(frame);
            self.looked += 1;
        }
        self.close_run(lead..self.looked, &mut joined);
    }

    fn close_run(&mut self, run: Range<usize>, joined: &mut impl FnMut(&mut Frame<H>, usize)) {
        if run.len() > 1 {
            joined(&mut self.frames[run.start], run.len());
        }
    }

    /// Has each frame be a message again that was joined with others and not begun, and tells of it.
    pub(super) fn part(&mut self, mut parted: impl FnMut(&mut Frame<H>)) {
        let begun = self.begun_frames();
        for frame in self.frames.range_mut(begun..self.looked.max(begun)) {
            if frame.joined {
                frame.joined = false;
                self.bytes += frame.head as u64;
            }
            parted(frame);
        }
        self.looked = begun;
    }

    /// All frames were looked at, and the last one may belong to a longer message.
    pub(super) fn last_may_be_joined(&self) -> bool {
        self.looked == self.frames.len()
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

    /// The message of which a part was sent.
    pub(super) fn begun(&self) -> Option<Begun> {
        let last = self.begun_frames().checked_sub(1)?;
        Some(Begun {
            tags: self.first()?..=self.frames[last].tag,
            place: (self.frames[0].tag, self.sent),
        })
    }

    /// Changes the headers of all frames, none of which was sent in part.
    pub(super) fn amend(&mut self, amend: impl Fn(&mut Frame<H>)) {
        debug_assert_eq!(self.sent, 0, "what was sent cannot be amended");
        self.frames.iter_mut().for_each(amend);
    }

    /// Takes the last frame back, of which nothing was sent.
    pub(super) fn pop_back(&mut self) -> Option<Frame<H>> {
        debug_assert!(self.looked < self.frames.len(), "it may be joined");
        let last = self.frames.pop_back()?;
        self.bytes -= length(&last);
        Some(last)
    }

    /// Sends some of the frames below `limit`. An error says that the socket takes no more, or that the
    /// deadline of a message is over that was sent in part.
    pub(super) fn send(
        &mut self,
        socket: &TcpStream,
        limit: Limit,
        mode: Mode,
    ) -> io::Result<Sent> {
        let limit = Some(limit);
        let below = |frame: &&Frame<H>| is_below(frame, limit);
        let Some(first) = self.frames.front().filter(below) else {
            return Ok(Sent::All);
        };
        if self.sent == 0 && !pays(first, limit, &mut { self.purse }) {
            return Ok(Sent::Broke);
        }
        let mut clock = Clock(None);
        if clock.is_over(first.deadline) {
            return match self.begun_frames() {
                0 => Ok(Sent::Overdue),
                _ => Err(io::ErrorKind::TimedOut.into()),
            };
        }
        let sent = self.gather(limit, &mut clock).send(socket, mode)?;
        self.advance(sent as u64, limit);
        Ok(Sent::Some)
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
        // What was not looked at may yet be joined, which nothing may that was begun.
        let ready = limit.map_or(self.frames.len(), |_| self.looked);
        let below = self.frames.iter().take(ready).take_while(|frame| {
            let paid = std::mem::take(&mut begun);
            is_below(frame, limit) && (paid || pays(frame, limit, &mut purse))
        });
        for frame in below {
            if sending.bytes() >= MOST_BYTES || clock.is_over(frame.deadline) {
                break;
            }
            let head = head(frame);
            let header = skip.min(head.len());
            if !sending.push_private(&head[header..]) {
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
        while let Some(first) = self.frames.front() {
            let length = length(first);
            // Of a read that is joined to another one nothing is sent at all.
            if self.sent == 0 && length > 0 {
                break;
            }
            let paid = std::mem::take(&mut paid) || pays(first, limit, &mut self.purse);
            debug_assert!(paid, "it was sent without credit");
            if self.sent < length {
                break;
            }
            if !first.joined {
                self.lead = first.tag;
            }
            self.sent -= length;
            self.frames.pop_front();
            self.looked = self.looked.saturating_sub(1);
        }
    }
}

fn is_below<const H: usize>(frame: &Frame<H>, limit: Option<Limit>) -> bool {
    limit.is_none_or(|it| frame.joined || frame.tag < it.tag && frame.before < it.before)
}

/// What is sent of its header.
fn head<const H: usize>(frame: &Frame<H>) -> &[u8] {
    &frame.header[..if frame.joined { 0 } else { frame.head }]
}

/// Pays for a frame before its first byte. One that is joined to another is paid with that.
fn pays<const H: usize>(frame: &Frame<H>, limit: Option<Limit>, purse: &mut Purse) -> bool {
    limit.is_none_or(|limit| {
        frame.joined || purse.pay(frame.cost, limit.granted, frame.tag == limit.alone)
    })
}

fn length<const H: usize>(frame: &Frame<H>) -> u64 {
    head(frame).len() as u64 + frame.payload.iter().map(LocalSlice::len).sum::<u64>()
}

/// Looks at the time once, and only if there is a deadline. Whoever is stopped after that is too
/// late for the target.
struct Clock(Option<Instant>);

impl Clock {
    fn is_over(&mut self, deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|deadline| deadline <= *self.0.get_or_insert_with(Instant::now))
    }
}
