//! The receiving end of a lane: headers through a small buffer, payload straight to its place.

use std::{io, net::TcpStream};

use smallvec::SmallVec;

use super::socket::{IoPieces, Mode, receive};
use crate::memory::LocalSlice;

/// Read ahead of what is needed: many small messages in one call …
const BUFFER: usize = 64 << 10;
/// … but little behind a large payload, since what lands here is copied once more.
const LITTLE: usize = 64;
const LARGE_PAYLOAD: u64 = 32 << 10;

/// Where a payload goes, and how much of it has arrived.
#[derive(Debug)]
pub(super) struct Cursor {
    slices: SmallVec<[LocalSlice; 1]>,
    current: usize,
    within: u64,
    remaining: u64,
}

impl Cursor {
    pub(super) fn new(slices: SmallVec<[LocalSlice; 1]>) -> Self {
        let remaining = slices.iter().map(LocalSlice::len).sum();
        Self {
            slices,
            current: 0,
            within: 0,
            remaining,
        }
    }

    pub(super) fn slices(&self) -> &[LocalSlice] {
        &self.slices
    }

    pub(super) fn remaining(&self) -> u64 {
        self.remaining
    }

    pub(super) fn is_done(&self) -> bool {
        self.remaining == 0
    }

    fn fill(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let piece = self.slices[self.current].piece().skip(self.within as usize);
            let (now, rest) = bytes.split_at(bytes.len().min(piece.len()));
            piece.fill(now);
            self.advance(now.len() as u64);
            bytes = rest;
        }
    }

    /// Adds the memory that is left to fill; `false`: there is no room for all of it.
    pub(super) fn name(&self, pieces: &mut IoPieces) -> bool {
        let mut within = self.within as usize;
        self.slices[self.current..].iter().all(|slice| {
            let piece = slice.piece().skip(within);
            within = 0;
            pieces.push(piece)
        })
    }

    /// So many bytes have come to their place.
    pub(super) fn advance(&mut self, mut bytes: u64) {
        self.remaining -= bytes;
        while bytes > 0 {
            let left = self.slices[self.current].len() - self.within;
            let step = bytes.min(left);
            self.within += step;
            bytes -= step;
            if step == left {
                self.current += 1;
                self.within = 0;
            }
        }
    }
}

/// Bytes that have arrived and wait to be looked at.
#[derive(Debug)]
pub(super) struct Inbox {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    ahead: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER].into(),
            start: 0,
            end: 0,
            ahead: BUFFER,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Takes a message of `N` bytes if all of it is here.
    pub(super) fn message<const N: usize>(&mut self) -> Option<[u8; N]> {
        let message = *self.buffer[self.start..self.end].first_chunk()?;
        self.start += N;
        Some(message)
    }

    /// What has arrived.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Moves a payload that is wholly here to its place.
    pub(super) fn place(&mut self, slices: &[LocalSlice]) {
        for slice in slices {
            let piece = slice.piece();
            piece.fill(&self.buffer[self.start..self.start + piece.len()]);
            self.start += piece.len();
        }
    }

    /// Moves what has arrived of a payload to its place.
    pub(super) fn deliver(&mut self, cursor: &mut Cursor) {
        let here = (self.end - self.start).min(cursor.remaining.min(BUFFER as u64) as usize);
        cursor.fill(&self.buffer[self.start..self.start + here]);
        self.start += here;
    }

    /// Drops what has arrived of a payload that nobody wants; returns how much that was.
    pub(super) fn discard(&mut self, most: u64) -> u64 {
        let here = ((self.end - self.start) as u64).min(most);
        self.start += here as usize;
        here
    }

    /// Says how long the payload is that comes next, so that little of it is copied twice.
    pub(super) fn expect(&mut self, payload: u64) {
        self.ahead = if payload >= LARGE_PAYLOAD {
            LITTLE
        } else {
            BUFFER
        };
    }

    /// What comes next is looked at or dropped, not placed.
    pub(super) fn expect_nothing(&mut self) {
        self.ahead = BUFFER;
    }

    /// Receives more: into `cursor`'s place first, the rest into the buffer.
    pub(super) fn fill(
        &mut self,
        socket: &TcpStream,
        cursor: Option<&mut Cursor>,
        mode: Mode,
    ) -> io::Result<()> {
        let mut pieces = IoPieces::new();
        if let Some(cursor) = &cursor {
            cursor.name(&mut pieces);
        }
        let placed = self.receive(socket, &mut pieces, mode)?;
        if let Some(cursor) = cursor {
            cursor.advance(placed);
        }
        Ok(())
    }

    /// Receives more: into `pieces` first, the rest into the buffer; returns how many bytes are in the
    /// pieces.
    pub(super) fn receive(
        &mut self,
        socket: &TcpStream,
        pieces: &mut IoPieces,
        mode: Mode,
    ) -> io::Result<u64> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let limit = (self.end + self.ahead).min(BUFFER);
        let spill = &mut self.buffer[self.end..limit];
        let direct = pieces.bytes();
        let received = receive(socket, pieces, spill, mode)?;
        if received == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the other side closed the connection",
            ));
        }
        let placed = received.min(direct);
        self.end += received - placed;
        Ok(placed as u64)
    }
}
