//! The limit: plain sockets with the same pattern, and nothing around them.
//!
//! A stream is one connection with memory of its own at either end. For each batch the caller sends
//! a header for every block; blocks follow in one direction or the other, as many to a system call
//! as it takes, and a byte for each block that was written comes back.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::super::{Contender, Sample, own_cpu};
use super::Conditions;
use super::case::{Case, Op};
use super::contents::{check_and_wipe, corrupt, fill, wipe};
use super::pace::{Pace, Tally, sample, together};
use super::peer::Peer;
use super::walk::{Walk, Walked};
use crate::output::Failure;

/// Of each block, as of any protocol that says what it wants and where.
const HEADER: usize = 48;
/// More than this is not handed to one system call.
const PER_CALL: usize = 1 << 20;
/// Who has looked in vain so often lets others run: there may be more threads than processors.
const PATIENT_LOOKS: u32 = 64;

const READ: u8 = b'R';
const WRITE: u8 = b'W';
/// Sleep until the next batch.
const PARK: u8 = b'P';
/// Say whether all blocks have arrived.
const CHECK: u8 = b'C';

/// Memory that one stream after the other uses, since the first touch of fresh memory is slow.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool(Arc<Mutex<Vec<Vec<u8>>>>);

impl Pool {
    fn take(&self, len: u64) -> Region {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free.iter().position(|bytes| bytes.len() as u64 == len);
        let bytes = found.map_or_else(|| vec![0; len as usize], |at| free.swap_remove(at));
        Region {
            bytes,
            pool: self.clone(),
        }
    }
}

/// Memory that goes back to its pool.
#[derive(Debug)]
struct Region {
    bytes: Vec<u8>,
    pool: Pool,
}

impl Region {
    /// Blocks are taken from here, or arrive here.
    fn prepare(&mut self, is_source: bool) {
        let len = self.bytes.len() as u64;
        if is_source {
            fill(self.bytes.as_mut_slice(), len);
        } else {
            wipe(&mut self.bytes.as_mut_slice(), 0, len);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut free = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(bytes);
    }
}

/// Several streams, each with a thread that calls.
#[derive(Debug)]
pub(super) struct Plain<'a> {
    peer: &'a Peer,
    pace: Pace,
    block: u64,
    verify: bool,
    streams: Vec<Stream>,
}

impl<'a> Plain<'a> {
    /// Connects the streams of `case` to a peer and the address where it accepts them. They share the
    /// memory that there is.
    pub(super) fn connect(
        case: &Case,
        conditions: &Conditions,
        (peer, address): (&'a Peer, SocketAddr),
        pool: &Pool,
    ) -> Result<Self, Failure> {
        let Conditions {
            lanes,
            window,
            verify,
            ..
        } = *conditions;
        let batches = case.streams(lanes);
        let region = window / batches.len() as u64;
        let streams = batches.into_iter().map(|batch| {
            let setup = Setup {
                op: case.op,
                poll: case.poll,
                verify,
                batch,
                walk: Walk::new(0, region, case.block, batch)
                    .ok_or_else(|| case.too_large(window))?,
                region,
            };
            Stream::connect(address, setup, pool).map_err(broken)
        });
        Ok(Self {
            peer,
            pace: case.pace(),
            block: case.block,
            verify,
            streams: streams.collect::<Result<_, _>>()?,
        })
    }
}

impl Contender for Plain<'_> {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let cpu = own_cpu() + self.peer.cpu()?;
        let pace = self.pace;
        let (tallies, wall) = together(&mut self.streams, |stream| stream.run(pace, budget))?;
        for stream in &mut self.streams {
            stream.rest().map_err(broken)?;
        }
        let cpu = own_cpu() + self.peer.cpu()? - cpu;
        if self.verify {
            for (stream, tally) in self.streams.iter_mut().zip(&tallies) {
                stream.check(tally.batches)?;
            }
        }
        let batches = self.streams.iter().map(|stream| stream.setup.batch);
        Ok(sample(tallies.iter().zip(batches), self.block, wall, cpu))
    }
}

/// What a connection is going to carry.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Setup {
    op: Op,
    poll: bool,
    verify: bool,
    batch: u64,
    walk: Walk,
    region: u64,
}

impl Setup {
    const LEN: usize = 512;

    /// As JSON, filled up with blanks.
    fn encode(self) -> [u8; Self::LEN] {
        let text = serde_json::to_vec(&self).expect("numbers have a JSON form");
        let mut bytes = [b' '; Self::LEN];
        bytes[..text.len()].copy_from_slice(&text);
        bytes
    }

    fn decode(bytes: &[u8; Self::LEN]) -> io::Result<Self> {
        let setup: Self = serde_json::from_slice(bytes)?;
        let fits = setup.walk.end().is_some_and(|end| end <= setup.region);
        if fits && !setup.walk.is_empty() && (1..=MOST_BATCH).contains(&setup.batch) {
            Ok(setup)
        } else {
            Err(garbage())
        }
    }

    fn headers(self) -> Vec<u8> {
        vec![0; HEADER * self.batch as usize]
    }
}

/// Blocks of a batch, so that their headers always fit into a socket.
pub(super) const MOST_BATCH: u64 = 1_024;

/// The caller's end of a connection.
#[derive(Debug)]
struct Stream {
    line: Line,
    setup: Setup,
    memory: Region,
    headers: Vec<u8>,
}

impl Stream {
    fn connect(address: SocketAddr, setup: Setup, pool: &Pool) -> io::Result<Self> {
        let mut line = Line {
            socket: TcpStream::connect(address)?,
            poll: false,
        };
        line.socket.set_nodelay(true)?;
        line.send(&mut [IoSlice::new(&setup.encode())])?;
        let mut memory = pool.take(setup.region);
        memory.prepare(setup.op == Op::Write);
        // The other end is ready, too.
        line.receive(&mut [IoSliceMut::new(&mut [0])])?;
        Ok(Self {
            line,
            setup,
            memory,
            headers: setup.headers(),
        })
    }

    fn run(&mut self, pace: Pace, budget: Duration) -> Result<Tally, Failure> {
        self.line.poll_if(self.setup.poll).map_err(broken)?;
        pace.run(budget, |number| self.batch(number).map_err(broken))
    }

    fn batch(&mut self, number: u64) -> io::Result<()> {
        let Setup {
            op, batch, walk, ..
        } = self.setup;
        let (first, block) = (number * batch, walk.block() as usize);
        let (kind, remote): (u8, fn(Walk, u64) -> u64) = match op {
            Op::Write => (WRITE, Walk::dest),
            _ => (READ, Walk::source),
        };
        for (header, i) in self.headers.chunks_exact_mut(HEADER).zip(first..) {
            header[0] = kind;
            header[8..16].copy_from_slice(&remote(walk, i).to_le_bytes());
            header[16..24].copy_from_slice(&walk.block().to_le_bytes());
        }
        if op == Op::Write {
            let memory = &self.memory.bytes;
            let blocks = (first..first + batch).map(|i| {
                let at = walk.source(i) as usize;
                &memory[at..at + block]
            });
            let headers = std::iter::once(&*self.headers);
            let pieces = headers.chain(blocks.flat_map(|block| block.chunks(PER_CALL)));
            self.line
                .send(&mut pieces.map(IoSlice::new).collect::<Vec<_>>())?;
            let mut answers = [0; MOST_BATCH as usize];
            let answers = &mut answers[..batch as usize];
            return self.line.receive(&mut [IoSliceMut::new(answers)]);
        }
        self.line.send(&mut [IoSlice::new(&self.headers)])?;
        let at = walk.dest(first) as usize;
        let memory = &mut self.memory.bytes[at..at + batch as usize * block];
        self.line.receive(&mut scattered(memory, block))
    }

    /// Neither end looks any more.
    fn rest(&mut self) -> io::Result<()> {
        if self.setup.poll {
            self.line.poll_if(false)?;
            self.control(PARK, 0)?;
        }
        Ok(())
    }

    fn control(&mut self, kind: u8, number: u64) -> io::Result<()> {
        self.headers[0] = kind;
        self.headers[8..16].copy_from_slice(&number.to_le_bytes());
        self.line.send(&mut [IoSlice::new(&self.headers)])
    }

    fn check(&mut self, batches: u64) -> Result<(), Failure> {
        let done = batches * self.setup.batch;
        if self.setup.op == Op::Write {
            let mut right = [0];
            self.control(CHECK, done)
                .and_then(|()| self.line.receive(&mut [IoSliceMut::new(&mut right)]))
                .map_err(broken)?;
            return match right {
                [1] => Ok(()),
                _ => Err(Failure::new("a plain socket has written wrong bytes")),
            };
        }
        let walked = Walked {
            walk: self.setup.walk,
            done,
        };
        let mut memory = self.memory.bytes.as_mut_slice();
        check_and_wipe(&mut memory, walked, "what a plain socket has read")
    }
}

/// Accepts streams for ever, each served by a thread.
pub(super) fn serve(listener: &TcpListener, spoil: bool) -> io::Result<()> {
    let pool = Pool::default();
    loop {
        let (socket, _) = listener.accept()?;
        let pool = pool.clone();
        thread::spawn(move || {
            // It ends when its caller does, who notices anything else by itself.
            let _ended = Served::accept(socket, &pool, spoil).and_then(Served::run);
        });
    }
}

/// The other end of a connection.
struct Served {
    line: Line,
    setup: Setup,
    memory: Region,
    spoil: bool,
}

impl Served {
    fn accept(socket: TcpStream, pool: &Pool, spoil: bool) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let mut line = Line {
            socket,
            poll: false,
        };
        let mut bytes = [0; Setup::LEN];
        line.receive(&mut [IoSliceMut::new(&mut bytes)])?;
        let setup = Setup::decode(&bytes)?;
        let mut memory = pool.take(setup.region);
        memory.prepare(setup.op == Op::Read);
        if spoil {
            corrupt(&mut memory.bytes.as_mut_slice(), 0);
        }
        line.send(&mut [IoSlice::new(&[1])])?;
        Ok(Self {
            line,
            setup,
            memory,
            spoil,
        })
    }

    fn run(mut self) -> io::Result<()> {
        let mut headers = self.setup.headers();
        loop {
            self.line
                .receive(&mut [IoSliceMut::new(headers.as_mut_slice())])?;
            match headers[0] {
                READ => {
                    self.line.poll_if(self.setup.poll)?;
                    self.read(&headers)?;
                }
                WRITE => {
                    self.line.poll_if(self.setup.poll)?;
                    self.write(&headers)?;
                }
                PARK => self.line.poll_if(false)?,
                CHECK => self.check(number(&headers, 8))?,
                _ => return Err(garbage()),
            }
        }
    }

    fn read(&mut self, headers: &[u8]) -> io::Result<()> {
        let blocks = headers.chunks_exact(HEADER).map(|header| {
            let at = number(header, 8) as usize;
            let end = at.saturating_add(number(header, 16) as usize);
            self.memory.bytes.get(at..end).ok_or_else(garbage)
        });
        let mut slices = Vec::with_capacity(headers.len() / HEADER);
        for block in blocks {
            slices.extend(block?.chunks(PER_CALL).map(IoSlice::new));
        }
        self.line.send(&mut slices)
    }

    /// Blocks of one batch go side by side.
    fn write(&mut self, headers: &[u8]) -> io::Result<()> {
        let (first, block) = (number(headers, 8), number(headers, 16));
        let mut expected = first;
        for header in headers.chunks_exact(HEADER) {
            if number(header, 8) != expected || number(header, 16) != block || block == 0 {
                return Err(garbage());
            }
            expected = expected.checked_add(block).ok_or_else(garbage)?;
        }
        let memory = self
            .memory
            .bytes
            .get_mut(first as usize..expected as usize)
            .ok_or_else(garbage)?;
        self.line.receive(&mut scattered(memory, block as usize))?;
        let answers = [1; MOST_BATCH as usize];
        let answers = &answers[..self.setup.batch as usize];
        self.line.send(&mut [IoSlice::new(answers)])
    }

    fn check(&mut self, done: u64) -> io::Result<()> {
        let walked = Walked {
            walk: self.setup.walk,
            done,
        };
        let mut memory = self.memory.bytes.as_mut_slice();
        if self.spoil {
            corrupt(&mut memory, 0);
        }
        let right = check_and_wipe(&mut memory, walked, "it").is_ok();
        self.line.send(&mut [IoSlice::new(&[u8::from(right)])])
    }
}

fn number(header: &[u8], at: usize) -> u64 {
    let bytes = header[at..at + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(bytes)
}

fn scattered(memory: &mut [u8], block: usize) -> Vec<IoSliceMut<'_>> {
    memory.chunks_mut(block).map(IoSliceMut::new).collect()
}

fn garbage() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "that is no plain stream")
}

fn broken(error: io::Error) -> Failure {
    Failure::new("a plain socket failed").because(error)
}

/// A socket that either sleeps or looks.
#[derive(Debug)]
struct Line {
    socket: TcpStream,
    poll: bool,
}

impl Line {
    fn poll_if(&mut self, poll: bool) -> io::Result<()> {
        if self.poll != poll {
            self.poll = poll;
            self.socket.set_nonblocking(poll)?;
        }
        Ok(())
    }

    fn send(&mut self, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut looks = 0;
        while !pieces.is_empty() {
            let some = within(pieces.iter().map(|piece| piece.len()));
            match self.socket.write_vectored(&pieces[..some]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => IoSlice::advance_slices(&mut pieces, sent),
                Err(error) => look_again(error, &mut looks)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, mut pieces: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut looks = 0;
        while !pieces.is_empty() {
            let some = within(pieces.iter().map(|piece| piece.len()));
            match self.socket.read_vectored(&mut pieces[..some]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => IoSliceMut::advance_slices(&mut pieces, got),
                Err(error) => look_again(error, &mut looks)?,
            }
        }
        Ok(())
    }
}

/// How many pieces go into one call, at least one.
fn within(pieces: impl Iterator<Item = usize>) -> usize {
    let mut sum = 0;
    let fit = pieces.take(MOST_BATCH as usize).take_while(|len| {
        sum += len;
        sum <= PER_CALL
    });
    fit.count().max(1)
}

fn look_again(error: io::Error, looks: &mut u32) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            *looks += 1;
            if looks.is_multiple_of(PATIENT_LOOKS) {
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            Ok(())
        }
        io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}
