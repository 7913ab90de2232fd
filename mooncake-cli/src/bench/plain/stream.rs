//! A connection that asks, and the memory that it walks over.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;

use super::{Direction, Pattern};
use crate::output::Failure;

/// Length of a request.
pub(super) const REQUEST: usize = 48;
/// Length of an answer that carries no block.
pub(super) const ANSWER: usize = 64;
/// What goes out in one call, where blocks are smaller.
pub(super) const CALL: usize = 256 << 10;

/// A request on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) direction: Direction,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Request {
    pub(super) fn encode(self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[0] = u8::from(self.direction == Direction::Write);
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; REQUEST]) -> Self {
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            direction: match bytes[0] {
                0 => Direction::Read,
                _ => Direction::Write,
            },
            offset: number(8),
            length: number(16),
        }
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    socket: TcpStream,
    direction: Direction,
    block_bytes: usize,
    memory: Vec<u8>,
    cursor: usize,
    requests: Vec<[u8; REQUEST]>,
}

impl Stream {
    pub(super) fn connect(address: &str, pattern: &Pattern, memory: u64) -> Result<Self, Failure> {
        let socket = TcpStream::connect(address).map_err(broken)?;
        socket.set_nodelay(true).map_err(broken)?;
        Ok(Self {
            socket,
            direction: pattern.direction,
            block_bytes: pattern.block_bytes as usize,
            // Not zero, so that all of it is there.
            memory: vec![1; memory as usize],
            cursor: 0,
            requests: Vec::new(),
        })
    }

    /// A round trip without a block.
    pub(super) fn ask(&mut self) -> Result<(), Failure> {
        let request = Request {
            direction: Direction::Read,
            offset: 0,
            length: ANSWER as u64,
        };
        self.socket.write_all(&request.encode()).map_err(broken)?;
        self.socket.read_exact(&mut [0; ANSWER]).map_err(broken)
    }

    /// The next `count` blocks.
    pub(super) fn blocks(&mut self, count: u64) -> Result<(), Failure> {
        let all = count as usize * self.block_bytes;
        if self.cursor + all > self.memory.len() {
            self.cursor = 0;
        }
        let start = self.cursor;
        self.cursor += all;
        let blocks = (0..count).map(|block| Request {
            direction: self.direction,
            offset: start as u64 + block * self.block_bytes as u64,
            length: self.block_bytes as u64,
        });
        self.requests.clear();
        self.requests.extend(blocks.map(Request::encode));
        let memory = &mut self.memory[start..start + all];
        match self.direction {
            Direction::Read => {
                let asked = self.socket.write_all(self.requests.as_flattened());
                asked.map_err(broken)?;
                self.socket.read_exact(memory).map_err(broken)
            }
            Direction::Write => {
                let pairs = self.requests.iter().zip(memory.chunks(self.block_bytes));
                let slices: Vec<_> = pairs
                    .flat_map(|(request, block)| [IoSlice::new(request), IoSlice::new(block)])
                    .collect();
                let per_call = 2 * (CALL / self.block_bytes).max(1);
                for some in slices.chunks(per_call) {
                    write_all(&mut self.socket, some).map_err(broken)?;
                }
                let mut left = count as usize;
                let mut acknowledged = [0; 256];
                while left > 0 {
                    let some = left.min(acknowledged.len());
                    self.socket
                        .read_exact(&mut acknowledged[..some])
                        .map_err(broken)?;
                    left -= some;
                }
                Ok(())
            }
        }
    }
}

fn write_all(socket: &mut TcpStream, slices: &[IoSlice<'_>]) -> io::Result<()> {
    let mut slices = slices.to_vec();
    let mut left = slices.as_mut_slice();
    while !left.is_empty() {
        let written = socket.write_vectored(left)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut left, written);
    }
    Ok(())
}

pub(super) fn broken(error: io::Error) -> Failure {
    Failure::new("a plain socket broke").because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_back() {
        for direction in [Direction::Read, Direction::Write] {
            let request = Request {
                direction,
                offset: 0x0102_0304_0506_0708,
                length: 1 << 20,
            };
            assert_eq!(Request::decode(&request.encode()), request);
        }
    }
}
