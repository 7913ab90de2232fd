//! Measures TCP between two processes, one request at a time, beside plain sockets of the same
//! pattern: request bytes and payload one way, an answer the other.
//!
//! `cargo run --release -p mooncake-tent --example depth_one -- [BYTES…]`

use std::{
    env,
    error::Error,
    io::{self, BufRead, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mooncake_tent::{
    Buffer, Memory, Permission, RegisterOptions, RemoteRange, Request, Segment, TcpConfig,
    TcpTransport, TentEngine, TransferEngine,
};

/// Blocks are taken in turn from this much memory, so that they are not always in the cache.
const WALK: u64 = 256 << 20;
const REQUEST: usize = 48;
const ANSWER: usize = 24;
const ROUNDS: usize = 5;
const BUDGET: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut args = env::args().skip(1);
    match args.next().as_deref() {
        Some("serve-plain") => serve_plain(),
        Some("serve-engine") => serve_engine(),
        first => {
            let sizes: Vec<u64> = first
                .map(str::to_owned)
                .into_iter()
                .chain(args)
                .map(|size| size.parse())
                .collect::<std::result::Result<_, _>>()?;
            let sizes = if sizes.is_empty() {
                vec![4 << 10, 64 << 10, 1 << 20]
            } else {
                sizes
            };
            measure(&sizes)
        }
    }
}

/// Answers plain requests: `R` or `W`, offset, length.
fn serve_plain() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (mut socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    let mut memory = vec![1; WALK as usize];
    let mut request = [0; REQUEST];
    let mut polls = false;
    loop {
        if receive(&mut socket, &mut request, polls).is_err() {
            return Ok(());
        }
        let number = |at: usize| {
            let bytes = request[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes) as usize
        };
        let (offset, length) = (number(8), number(16));
        let block = &mut memory[offset..offset + length];
        let wants_polling = request[1] == b'P';
        if wants_polling != polls {
            polls = wants_polling;
            socket.set_nonblocking(polls)?;
        }
        if request[0] == b'R' {
            send(&mut socket, &[0; ANSWER])?;
            send(&mut socket, block)?;
        } else {
            receive(&mut socket, block, polls)?;
            send(&mut socket, &[0; ANSWER])?;
        }
    }
}

fn receive(socket: &mut TcpStream, mut into: &mut [u8], polls: bool) -> io::Result<()> {
    if !polls {
        return socket.read_exact(into);
    }
    while !into.is_empty() {
        match socket.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => into = &mut into[read..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn send(socket: &mut TcpStream, mut from: &[u8]) -> io::Result<()> {
    while !from.is_empty() {
        match socket.write(from) {
            Ok(sent) => from = &from[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[tokio::main]
async fn serve_engine() -> Result<()> {
    let engine = TentEngine::builder()
        .transport(TcpTransport::default())
        .build()
        .await?;
    let memory = Memory::allocate(WALK as usize)?;
    memory.prefault()?;
    let options = RegisterOptions::new(Permission::PeersReadWrite);
    let buffer = engine.register_memory(memory, options).await?;
    println!("{}", engine.segment_name());
    // Our parent holds the other end.
    tokio::task::spawn_blocking(|| io::stdin().read(&mut [0])).await??;
    drop(buffer);
    Ok(())
}

struct Server(Child, String);

impl Server {
    fn start(role: &str) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .arg(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        io::BufReader::new(stdout).read_line(&mut line)?;
        Ok(Self(child, line.trim().to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends by itself once its input does; what it says then is of no interest.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

struct Engine {
    engine: TentEngine,
    segment: Segment,
    address: u64,
    local: Buffer,
    _server: Server,
}

impl Engine {
    fn start(runtime: &tokio::runtime::Runtime, polls: bool) -> Result<Self> {
        let server = Server::start("serve-engine")?;
        let mut config = TcpConfig::default();
        config.listen = None;
        if polls {
            config.spin = BUDGET;
        }
        runtime.block_on(async {
            let engine = TentEngine::builder()
                .without_control()
                .transport(TcpTransport::new(config))
                .build()
                .await?;
            let memory = Memory::allocate(WALK as usize)?;
            memory.prefault()?;
            let options = RegisterOptions::new(Permission::Local);
            let local = engine.register_memory(memory, options).await?;
            let segment = engine.open_segment(&server.1, BUDGET).await?;
            engine.warm_up(&segment, BUDGET).await?;
            Ok(Self {
                address: segment
                    .descriptor()
                    .buffers()
                    .next()
                    .expect("the owner offers one")
                    .address,
                engine,
                segment,
                local,
                _server: server,
            })
        })
    }

    fn once(&self, write: bool, offset: u64, length: u64) -> Result<()> {
        let local = self.local.slice(offset..offset + length)?;
        let at = RemoteRange::Address(self.address + offset);
        let request = match write {
            true => Request::write(local, &self.segment, at),
            false => Request::read(local, &self.segment, at),
        };
        let mut batch = self.engine.allocate_batch(1);
        self.engine.submit_transfer(&mut batch, vec![request])?;
        batch.wait(BUDGET);
        match batch.outcome(0) {
            Some(outcome) if outcome.is_completed() => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }
}

struct Plain {
    socket: TcpStream,
    memory: Vec<u8>,
    polls: bool,
    _server: Server,
}

impl Plain {
    fn start(polls: bool) -> Result<Self> {
        let server = Server::start("serve-plain")?;
        let socket = TcpStream::connect(&server.1)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(polls)?;
        Ok(Self {
            socket,
            memory: vec![1; WALK as usize],
            polls,
            _server: server,
        })
    }

    fn once(&mut self, write: bool, offset: u64, length: u64) -> Result<()> {
        let mut request = [0; REQUEST];
        request[0] = if write { b'W' } else { b'R' };
        request[1] = if self.polls { b'P' } else { b'B' };
        request[8..16].copy_from_slice(&offset.to_le_bytes());
        request[16..24].copy_from_slice(&length.to_le_bytes());
        send(&mut self.socket, &request)?;
        let block = &mut self.memory[offset as usize..(offset + length) as usize];
        let mut answer = [0; ANSWER];
        if write {
            send(&mut self.socket, block)?;
            receive(&mut self.socket, &mut answer, self.polls)?;
        } else {
            receive(&mut self.socket, &mut answer, self.polls)?;
            receive(&mut self.socket, block, self.polls)?;
        }
        Ok(())
    }
}

/// Median latency in µs of `count` calls that walk through memory.
fn median(count: u64, length: u64, mut once: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let places = WALK / length;
    let mut times = Vec::with_capacity(count as usize);
    for i in 0..count + 10 {
        let start = Instant::now();
        once(i % places * length)?;
        if i >= 10 {
            times.push(start.elapsed());
        }
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6)
}

fn measure(sizes: &[u64]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    println!(
        "{:>9} {:>6} {:>9} | {:>10} {:>10} {:>6}",
        "bytes", "", "", "engine µs", "plain µs", "ratio"
    );
    for polls in [false, true] {
        let engine = Engine::start(&runtime, polls)?;
        let mut plain = Plain::start(polls)?;
        for length in sizes {
            for write in [false, true] {
                let count = (64 << 20) / (length + (64 << 10));
                let mut rounds = Vec::new();
                for _ in 0..ROUNDS {
                    let ours = median(count, *length, |at| engine.once(write, at, *length))?;
                    let theirs = median(count, *length, |at| plain.once(write, at, *length))?;
                    rounds.push((ours / theirs, ours, theirs));
                }
                rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
                let (ratio, ours, theirs) = rounds[ROUNDS / 2];
                let op = if write { "write" } else { "read" };
                let mode = if polls { "polling" } else { "blocking" };
                println!(
                    "{length:>9} {op:>6} {mode:>9} | {ours:>10.1} {theirs:>10.1} {ratio:>6.2}"
                );
            }
        }
    }
    Ok(())
}
