//! The pieces of a transfer: which comes next, and what is known of those that were begun.

use std::ops::Range;

use crate::{error::Applied, transport::Op};

/// Hands out a transfer in pieces of at most the size of a slot, each once, and keeps book of them.
#[derive(Debug)]
pub(super) struct Ring {
    length: u64,
    piece: u64,
    next: u64,
    /// Begun and not done, with whether the destination may be touched: as many as the window at most.
    open: Vec<(u64, bool)>,
    /// Done beyond one that is open.
    ahead: Vec<u64>,
    /// All before this is done.
    prefix: u64,
    stopped: bool,
}

impl Ring {
    /// Of `length` bytes, in pieces of at most `piece`.
    pub(super) fn new(length: u64, piece: u64) -> Self {
        Self {
            length,
            piece: piece.max(1),
            next: 0,
            open: Vec::new(),
            ahead: Vec::new(),
            prefix: 0,
            stopped: false,
        }
    }

    /// How many pieces there are in all.
    pub(super) fn pieces(&self) -> u64 {
        self.length.div_ceil(self.piece)
    }

    /// Begins the next piece; `None`: there is none, or none shall begin any more.
    pub(super) fn take(&mut self) -> Option<Range<u64>> {
        if self.stopped || self.next >= self.length {
            return None;
        }
        let piece = self.at(self.next);
        self.next = piece.end;
        self.open.push((piece.start, false));
        Some(piece)
    }

    fn at(&self, start: u64) -> Range<u64> {
        start..start.saturating_add(self.piece).min(self.length)
    }

    /// Bytes of the piece may be at the destination from now on; `false`: nothing may be begun any more.
    #[must_use]
    pub(super) fn touch(&mut self, piece: &Range<u64>) -> bool {
        if !self.stopped {
            self.set(piece, true);
        }
        !self.stopped
    }

    /// Nothing of the piece has come to the destination, or will.
    pub(super) fn untouch(&mut self, piece: &Range<u64>) {
        self.set(piece, false);
    }

    fn set(&mut self, piece: &Range<u64>, touched: bool) {
        let open = self.open.iter_mut().find(|(at, _)| *at == piece.start);
        if let Some((_, known)) = open {
            *known = touched;
        }
    }

    /// All of the piece is at the destination.
    pub(super) fn done(&mut self, piece: &Range<u64>) {
        let Some(place) = self.open.iter().position(|(at, _)| *at == piece.start) else {
            return;
        };
        self.open.swap_remove(place);
        self.ahead.push(piece.start);
        while let Some(place) = self.ahead.iter().position(|at| *at == self.prefix) {
            self.ahead.swap_remove(place);
            self.prefix = self.at(self.prefix).end;
        }
    }

    /// No further piece begins.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Everything is at the destination.
    pub(super) fn is_done(&self) -> bool {
        self.prefix == self.length
    }

    /// What can be said of the destination. A write is `UpTo` only if nothing can lie beyond that, since
    /// it may go on from there.
    pub(super) fn applied(&self, op: Op) -> Applied {
        let beyond = !self.ahead.is_empty() || self.open.iter().any(|(_, touched)| *touched);
        match (beyond, self.prefix) {
            (false, 0) => Applied::Nothing,
            (true, 0) => Applied::Unknown,
            (true, _) if op == Op::Write => Applied::Unknown,
            (_, prefix) => Applied::UpTo(prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_transfer_that_stops_says_how_far_it_came() {
        let mut ring = Ring::new(10, 4);
        let (a, b) = (ring.take().unwrap(), ring.take().unwrap());
        assert_eq!((a.clone(), b.clone()), (0..4, 4..8));
        assert_eq!(ring.applied(Op::Write), Applied::Nothing);
        assert!(ring.touch(&b));
        assert_eq!(ring.applied(Op::Write), Applied::Unknown);
        ring.untouch(&b);
        assert_eq!(ring.applied(Op::Write), Applied::Nothing);
        assert!(ring.touch(&b));
        ring.done(&b);
        assert_eq!(ring.applied(Op::Read), Applied::Unknown);
        ring.done(&a);
        assert_eq!(ring.applied(Op::Write), Applied::UpTo(8));
        let c = ring.take().unwrap();
        assert!(ring.touch(&c));
        assert_eq!(ring.applied(Op::Write), Applied::Unknown);
        assert_eq!(ring.applied(Op::Read), Applied::UpTo(8));
        ring.stop();
        assert!(ring.take().is_none() && !ring.is_done());
        ring.done(&c);
        ring.done(&c);
        assert!(ring.is_done());
    }

    proptest! {
        #[test]
        fn pieces_tile_the_transfer_in_whatever_order_they_end(
            length in 1..5_000_u64,
            piece in 1..700_u64,
            window in 1..9_usize,
            order in prop::collection::vec(any::<prop::sample::Index>(), 64),
        ) {
            let mut ring = Ring::new(length, piece);
            let pieces = ring.pieces();
            let (mut open, mut taken, mut bytes) = (Vec::new(), 0, 0);
            let mut order = order.iter().cycle();
            loop {
                while open.len() < window && let Some(piece) = ring.take() {
                    prop_assert_eq!(piece.start, bytes);
                    prop_assert!(!piece.is_empty() && piece.end <= length);
                    bytes = piece.end;
                    taken += 1;
                    open.push(piece);
                }
                if open.is_empty() {
                    break;
                }
                let place = order.next().unwrap().index(open.len());
                let piece = open.swap_remove(place);
                assert!(ring.touch(&piece));
                ring.done(&piece);
                // All before the first that is open is done, and nothing more is claimed in a row.
                let first = open.iter().map(|piece| piece.start).min();
                if let Applied::UpTo(prefix) = ring.applied(Op::Read) {
                    prop_assert_eq!(prefix, first.unwrap_or(bytes));
                }
            }
            prop_assert_eq!((taken, bytes), (pieces, length));
            prop_assert!(ring.is_done());
        }
    }

    #[test]
    fn law_03_nothing_is_begun_after_the_end() {
        let mut ring = Ring::new(10, 5);
        let piece = ring.take().unwrap();
        ring.stop();
        assert!(!ring.touch(&piece));
        assert_eq!(ring.applied(Op::Write), Applied::Nothing);
        assert_eq!(ring.take(), None);
    }
}
