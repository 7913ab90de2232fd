//! The limit: messages of the same length go to and fro between two processes, and nobody reads them.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::{
    bench::{Contender, ProcessCpu, Sample, own_cpu},
    cluster::Process,
    latency::Latency,
    output::{Failure, Output},
};

/// What one read takes at most.
const PIECE_BYTES: usize = 256 << 10;
/// How long the other process may take to start.
const READY_BUDGET: Duration = Duration::from_secs(10);

/// The shape of an echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EchoShape {
    /// Length of a message on its way up.
    pub(super) request_bytes: usize,
    /// Length of a message on its way down.
    pub(super) answer_bytes: usize,
    /// Messages up, one after the other, that are one call.
    pub(super) trips: u32,
    /// Keys of one call.
    pub(super) batch: u64,
    /// Calls under way on each connection.
    pub(super) depth: usize,
    pub(super) connections: usize,
}

/// Tells where the echo listens.
#[derive(Debug, Deserialize, Serialize)]
struct Ready {
    address: SocketAddr,
}

#[derive(Debug, Deserialize)]
struct ReadyLine {
    ready: Ready,
}

/// Answers until standard input ends.
///
/// # Errors
///
/// The system refuses a socket.
pub fn serve_echo(output: Output) -> Result<(), Failure> {
    let failed = |error| Failure::new("the echo cannot listen").because(error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    output.event(&serde_json::json!({ "ready": Ready { address } }))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A peer that goes away is at its end.
            thread::spawn(move || answer(stream));
        }
    });
    let ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
    ended.map_err(|error| Failure::new("standard input cannot be read").because(error))?;
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let length = |at: usize| {
        let bytes = head[at..at + 8].try_into().expect("eight bytes");
        usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
    };
    let (request_bytes, answer_bytes) = (length(0), length(8));
    let mut piece = vec![0; PIECE_BYTES];
    let mut answers = Vec::new();
    let mut got = 0;
    loop {
        let more = stream.read(&mut piece)?;
        if more == 0 {
            return Ok(());
        }
        got += more;
        answers.resize(got / request_bytes * answer_bytes, 0);
        got %= request_bytes;
        stream.write_all(&answers)?;
    }
}

/// The echo as a contender.
#[derive(Debug)]
pub(super) struct Echo {
    shape: EchoShape,
    connections: Vec<TcpStream>,
    cpu: ProcessCpu,
    /// Ends with this.
    _process: Process,
}

impl Echo {
    /// Starts the other process and connects.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn start(runtime: &Handle, shape: EchoShape) -> Result<Self, Failure> {
        let process = runtime.block_on(async {
            let arguments = ["bench", "master", "--serve-echo", "--output=json"];
            let mut process = Process::start("the echo", &arguments)?;
            let ready: ReadyLine = process.ready(READY_BUDGET).await?;
            Ok::<_, Failure>((process, ready.ready.address))
        });
        let (process, address) = process?;
        let connect = || {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            let mut head = [0; 16];
            head[..8].copy_from_slice(&(shape.request_bytes as u64).to_le_bytes());
            head[8..].copy_from_slice(&(shape.answer_bytes as u64).to_le_bytes());
            stream.write_all(&head)?;
            Ok(stream)
        };
        let connections = (0..shape.connections).map(|_| connect());
        Ok(Self {
            shape,
            connections: connections.collect::<Result<_, _>>().map_err(lost)?,
            cpu: ProcessCpu::of(process.id().unwrap_or(0)),
            _process: process,
        })
    }
}

fn lost(error: io::Error) -> Failure {
    Failure::new("the echo is lost").because(error)
}

impl Contender for Echo {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let (theirs, ours) = (self.cpu.read(), own_cpu());
        let began = Instant::now();
        let shape = self.shape;
        let latencies: Vec<io::Result<Latency>> = thread::scope(|scope| {
            let threads: Vec<_> = self
                .connections
                .iter()
                .map(|stream| scope.spawn(move || load(stream, shape, began + budget)))
                .collect();
            let ended = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().expect("a loop over a socket does not panic")
            };
            threads.into_iter().map(ended).collect()
        });
        let wall = began.elapsed();
        let cpu = own_cpu() - ours + (self.cpu.read() - theirs);
        let mut latency = Latency::default();
        for one in latencies {
            latency.merge(&one.map_err(lost)?);
        }
        Ok(Sample {
            operations: latency.count() * shape.batch,
            wall,
            cpu,
            latency,
            ..Sample::default()
        })
    }
}

/// A call under way: when it began, and the messages that it still has to send.
struct Open {
    begun: Instant,
    trips_left: u32,
}

fn load(mut stream: &TcpStream, shape: EchoShape, end: Instant) -> io::Result<Latency> {
    let mut latency = Latency::default();
    let mut open: VecDeque<Open> = VecDeque::with_capacity(shape.depth);
    // Written to: untouched memory is one page that all addresses share.
    let requests = vec![1; shape.request_bytes * shape.depth];
    let mut piece = vec![0; PIECE_BYTES];
    let (mut got, mut unsent) = (0, shape.depth);
    let now = Instant::now();
    open.extend((0..shape.depth).map(|_| Open {
        begun: now,
        trips_left: shape.trips - 1,
    }));
    while !open.is_empty() {
        stream.write_all(&requests[..unsent * shape.request_bytes])?;
        let more = stream.read(&mut piece)?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        got += more;
        let answers = got / shape.answer_bytes;
        got %= shape.answer_bytes;
        let now = Instant::now();
        unsent = 0;
        for _ in 0..answers {
            let Some(Open { begun, trips_left }) = open.pop_front() else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let next = match trips_left {
                0 => {
                    latency.record(now - begun);
                    (now < end).then_some(Open {
                        begun: now,
                        trips_left: shape.trips - 1,
                    })
                }
                _ => Some(Open {
                    begun,
                    trips_left: trips_left - 1,
                }),
            };
            if let Some(next) = next {
                open.push_back(next);
                unsent += 1;
            }
        }
    }
    Ok(latency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || answer(listener.accept().unwrap().0));
        let shape = EchoShape {
            request_bytes: 1_000,
            answer_bytes: 7,
            trips: 2,
            batch: 1,
            depth: 5,
            connections: 1,
        };
        let mut stream = TcpStream::connect(address).unwrap();
        let head = [1_000_u64.to_le_bytes(), 7_u64.to_le_bytes()].concat();
        stream.write_all(&head).unwrap();
        // An end that is over already: each place makes one call.
        let latency = load(&stream, shape, Instant::now()).unwrap();
        assert_eq!(latency.count(), 5);
        drop(stream);
        server.join().unwrap().unwrap();
    }
}
