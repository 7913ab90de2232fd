//! A relay for bytes between processes that delays, holds back, loses and cuts.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// How long a thread sleeps before it looks whether it should stop.
const GLANCE: Duration = Duration::from_millis(20);
const CHUNK: usize = 64 << 10;

/// Stands between two processes: whoever connects to it reaches its target, under [`Rules`].
///
/// ```no_run
/// use mooncake_tent::conformance::{Relay, Rules};
///
/// let mut rules = Rules::default();
/// rules.up.pause_after = Some(1 << 20);
/// let relay = Relay::start("127.0.0.1:0".parse()?, "127.0.0.1:7000".parse()?, move |_| rules)?;
/// println!("reach it at {}", relay.address());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<thread::JoinHandle<()>>,
}

/// What happens to the bytes of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// From whoever connected to the target.
    pub up: Flow,
    /// From the target back.
    pub down: Flow,
}

/// What happens in one direction. Counts are of bytes since the connection began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flow {
    /// Each chunk arrives so much later.
    pub delay: Duration,
    /// Holds everything back after so many bytes, until [`Relay::resume`].
    pub pause_after: Option<u64>,
    /// Takes everything after so many bytes, and passes none of it on.
    pub lose_after: Option<u64>,
    /// Ends the connection after so many bytes.
    pub cut_after: Option<u64>,
    /// The byte with this number, from 0 on, arrives with one bit changed.
    pub flip: Option<u64>,
    /// How it ends.
    pub cut: Cut,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cut {
    /// In order, for both sides.
    Close,
    /// Only the sender learns of it. The receiver gets what the relay holds, late, and then
    /// nothing: the worst that a network does.
    HalfOpen,
    /// By a reset, for both sides.
    #[default]
    Reset,
}

/// What went through a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayCounts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that the rules ended.
    pub cuts: u64,
    /// Bytes passed on to the target.
    pub up_bytes: u64,
    /// Bytes passed back from it.
    pub down_bytes: u64,
    /// Bytes taken and passed to nobody.
    pub lost_bytes: u64,
}

type Plan = dyn Fn(u64) -> Rules + Send + Sync;

struct Shared {
    to: SocketAddr,
    plan: Box<Plan>,
    stopped: AtomicBool,
    connections: AtomicU64,
    cuts: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
    lost: AtomicU64,
    open: Mutex<Vec<Weak<Pair>>>,
    /// How often was said to go on; whoever pauses goes on at the next.
    resumed: Mutex<u64>,
    resume: Condvar,
}

/// Both sides of a connection.
struct Pair {
    near: TcpStream,
    far: TcpStream,
}

impl Relay {
    /// Listens on `listen` and passes connections on to `to`; `plan` says what happens to each, by
    /// its number from 0.
    ///
    /// # Errors
    ///
    /// The address cannot be listened on.
    pub fn start(
        listen: SocketAddr,
        to: SocketAddr,
        plan: impl Fn(u64) -> Rules + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        Self::over(listener, to, plan)
    }

    /// As [`start`](Self::start), on a socket that listens already.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub fn over(
        listener: TcpListener,
        to: SocketAddr,
        plan: impl Fn(u64) -> Rules + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            to,
            plan: Box::new(plan),
            stopped: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            open: Mutex::default(),
            resumed: Mutex::default(),
            resume: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = thread::Builder::new()
            .name("relay-accept".to_owned())
            .spawn(move || accept(&listener, &accepting))?;
        Ok(Self {
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets go of everything that is held back.
    pub fn resume(&self) {
        *self.shared.resumed.lock() += 1;
        self.shared.resume.notify_all();
    }

    /// Resets all connections that are open now.
    pub fn cut_all(&self) {
        for pair in self.shared.pairs() {
            self.shared.cuts.fetch_add(1, Ordering::Relaxed);
            reset(&pair.near);
            reset(&pair.far);
        }
    }

    /// What went through so far.
    pub fn counts(&self) -> RelayCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RelayCounts {
            connections: load(&self.shared.connections),
            cuts: load(&self.shared.cuts),
            up_bytes: load(&self.shared.up),
            down_bytes: load(&self.shared.down),
            lost_bytes: load(&self.shared.lost),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.resume();
        for pair in self.shared.pairs() {
            // Ends both threads of the pair.
            let _near = pair.near.shutdown(Shutdown::Both);
            let _far = pair.far.shutdown(Shutdown::Both);
        }
        if let Some(acceptor) = self.acceptor.take() {
            let _panicked = acceptor.join();
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, to) = (self.address, self.shared.to);
        write!(f, "Relay({address} to {to}, {:?})", self.counts())
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stopped.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((near, _)) => {
                if let Err(error) = connect(near, shared) {
                    tracing::debug!(%error, to = %shared.to, "the relay's target is not reached");
                }
            }
            Err(_) => {
                let mut listener = [rustix::event::PollFd::new(
                    listener,
                    rustix::event::PollFlags::IN,
                )];
                let glance = rustix::event::Timespec::try_from(GLANCE).expect("it is short");
                let _ready = rustix::event::poll(&mut listener, Some(&glance));
            }
        }
    }
}

fn connect(near: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
    near.set_nonblocking(false)?;
    let far = TcpStream::connect_timeout(&shared.to, Duration::from_secs(5))?;
    for socket in [&near, &far] {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(GLANCE))?;
        socket.set_write_timeout(Some(GLANCE))?;
    }
    let pair = Arc::new(Pair { near, far });
    {
        let mut open = shared.open.lock();
        open.retain(|pair| pair.strong_count() > 0);
        open.push(Arc::downgrade(&pair));
    }
    let rules = (shared.plan)(number);
    for (name, flow, is_up) in [
        ("relay-up", rules.up, true),
        ("relay-down", rules.down, false),
    ] {
        let (pair, shared) = (Arc::clone(&pair), Arc::clone(shared));
        let pump = Pump {
            pair,
            shared,
            flow,
            is_up,
            seen: 0,
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || pump.run())?;
    }
    Ok(())
}

impl Shared {
    fn pairs(&self) -> Vec<Arc<Pair>> {
        self.open.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn sleep(&self, long: Duration) {
        let end = Instant::now() + long;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_stopped() {
                return;
            }
            thread::sleep(left.min(GLANCE));
        }
    }

    fn wait_for_resume(&self, seen: u64) {
        let mut resumed = self.resumed.lock();
        while *resumed == seen && !self.is_stopped() {
            self.resume.wait(&mut resumed);
        }
    }
}

/// Carries the bytes of one direction.
struct Pump {
    pair: Arc<Pair>,
    shared: Arc<Shared>,
    flow: Flow,
    is_up: bool,
    /// Bytes that the sender got rid of.
    seen: u64,
}

impl Pump {
    fn run(mut self) {
        let pair = Arc::clone(&self.pair);
        let (mut from, to) = match self.is_up {
            true => (&pair.near, &pair.far),
            false => (&pair.far, &pair.near),
        };
        let resumed = *self.shared.resumed.lock();
        let mut paused = false;
        let mut chunk = vec![0; CHUNK];
        loop {
            let most = self.flow.cut_after.map_or(CHUNK as u64, |cut| {
                cut.saturating_sub(self.seen).min(CHUNK as u64)
            });
            let read = match most {
                0 => 0,
                most => match from.read(&mut chunk[..most as usize]) {
                    Ok(read) => read,
                    Err(error) if is_pause(&error) && !self.shared.is_stopped() => continue,
                    Err(_) => {
                        reset(to);
                        return;
                    }
                },
            };
            self.seen += read as u64;
            let cut = self.flow.cut_after.is_some_and(|cut| self.seen >= cut);
            if cut {
                self.shared.cuts.fetch_add(1, Ordering::Relaxed);
                match self.flow.cut {
                    Cut::Close => {}
                    Cut::HalfOpen | Cut::Reset => reset(from),
                }
            }
            self.shared.sleep(self.flow.delay);
            let before = self.seen - read as u64;
            if let Some(flip) = self.flow.flip
                && (before..self.seen).contains(&flip)
            {
                chunk[(flip - before) as usize] ^= 1 << (flip % 8);
            }
            let until = |mark: Option<u64>| {
                mark.map_or(read, |mark| {
                    mark.saturating_sub(before).min(read as u64) as usize
                })
            };
            let kept = until(self.flow.lose_after);
            self.shared
                .lost
                .fetch_add((read - kept) as u64, Ordering::Relaxed);
            let first = if paused {
                kept
            } else {
                until(self.flow.pause_after).min(kept)
            };
            let mut passed = self.pass(to, &chunk[..first]);
            let reached = self
                .flow
                .pause_after
                .is_some_and(|pause| self.seen >= pause);
            if reached && !paused {
                self.shared.wait_for_resume(resumed);
                paused = true;
            }
            passed = passed && self.pass(to, &chunk[first..kept]);
            if cut {
                return self.end(from, to);
            }
            if read == 0 {
                // An orderly end is passed on, unless whatever comes now is lost.
                if self.flow.lose_after.is_none_or(|lose| self.seen < lose) {
                    let _gone = to.shutdown(Shutdown::Write);
                }
                return;
            }
            if !passed {
                reset(from);
                return;
            }
        }
    }

    fn end(&self, from: &TcpStream, to: &TcpStream) {
        match self.flow.cut {
            Cut::Close => {
                let _from = from.shutdown(Shutdown::Both);
                let _to = to.shutdown(Shutdown::Both);
            }
            Cut::Reset => reset(to),
            Cut::HalfOpen => {
                // Stays open until the receiver leaves or the relay ends.
                let mut to = to;
                while !self.shared.is_stopped() {
                    match to.read(&mut [0; 1024]) {
                        Ok(0) => return,
                        Ok(_) => {}
                        Err(error) if is_pause(&error) => {}
                        Err(_) => return,
                    }
                }
            }
        }
    }

    fn pass(&self, mut to: &TcpStream, mut bytes: &[u8]) -> bool {
        let count = if self.is_up {
            &self.shared.up
        } else {
            &self.shared.down
        };
        while !bytes.is_empty() {
            match to.write(bytes) {
                Ok(0) => return false,
                Ok(written) => {
                    count.fetch_add(written as u64, Ordering::Relaxed);
                    bytes = &bytes[written..];
                }
                Err(error) if is_pause(&error) && !self.shared.is_stopped() => {}
                Err(_) => return false,
            }
        }
        true
    }
}

fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Ends a connection at once and not in order, although others may be using the socket.
fn reset(socket: &TcpStream) {
    let reset = rustix::net::connect_unspec(socket);
    if reset.is_err() {
        let _gone = socket.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_secs(10);

    /// A relay before a target that sends back what it gets.
    fn echo(rules: Rules) -> (Relay, TcpStream) {
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = target.local_addr().unwrap();
        thread::spawn(move || {
            for socket in target.incoming().take(1) {
                let socket = socket.unwrap();
                let _end = io::copy(&mut &socket, &mut &socket);
            }
        });
        let relay = Relay::start("127.0.0.1:0".parse().unwrap(), to, move |_| rules).unwrap();
        let socket = TcpStream::connect(relay.address()).unwrap();
        socket.set_read_timeout(Some(BUDGET)).unwrap();
        (relay, socket)
    }

    fn back(mut socket: &TcpStream) -> (Vec<u8>, Option<io::ErrorKind>) {
        let mut bytes = Vec::new();
        let end = socket.read_to_end(&mut bytes);
        (bytes, end.err().map(|error| error.kind()))
    }

    #[test]
    fn without_rules_everything_passes_and_is_counted() {
        let (relay, mut socket) = echo(Rules::default());
        let sent: Vec<u8> = (0..300_007_u32).map(|i| (i % 251) as u8).collect();
        let reader = socket.try_clone().unwrap();
        let reader = thread::spawn(move || back(&reader));
        socket.write_all(&sent).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let (found, end) = reader.join().unwrap();
        assert!(
            found == sent && end.is_none(),
            "{} bytes, {end:?}",
            found.len()
        );
        let counts = relay.counts();
        assert_eq!((counts.up_bytes, counts.down_bytes), (300_007, 300_007));
        assert_eq!((counts.connections, counts.cuts), (1, 0));
    }

    #[test]
    fn a_cut_lets_exactly_so_many_bytes_through() {
        for cut in [Cut::Close, Cut::HalfOpen, Cut::Reset] {
            let mut rules = Rules::default();
            rules.up.cut_after = Some(5);
            rules.up.cut = cut;
            let (relay, mut socket) = echo(rules);
            let _may_be_cut = socket.write_all(b"0123456789");
            let (found, _end) = back(&socket);
            assert!(found.len() <= 5, "{cut:?}: {found:?}");
            assert!(relay.counts().up_bytes <= 5, "{cut:?}");
            assert_eq!(relay.counts().cuts, 1, "{cut:?}");
        }
    }

    #[test]
    fn what_is_paused_arrives_after_resume_and_what_is_lost_never() {
        let mut rules = Rules::default();
        rules.up.pause_after = Some(3);
        rules.up.lose_after = Some(7);
        let (relay, mut socket) = echo(rules);
        socket.write_all(b"0123456789").unwrap();
        let mut first = [0; 3];
        socket.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"012");
        socket.set_read_timeout(Some(3 * GLANCE)).unwrap();
        assert!(socket.read(&mut first).is_err(), "nothing more yet");
        relay.resume();
        socket.set_read_timeout(Some(BUDGET)).unwrap();
        let mut then = [0; 4];
        socket.read_exact(&mut then).unwrap();
        assert_eq!(&then, b"3456");
        socket.set_read_timeout(Some(3 * GLANCE)).unwrap();
        assert!(socket.read(&mut first).is_err(), "the rest is lost");
        assert_eq!(relay.counts().lost_bytes, 3);
    }

    #[test]
    fn a_delay_takes_its_time() {
        let mut rules = Rules::default();
        rules.down.delay = Duration::from_millis(60);
        let (_relay, mut socket) = echo(rules);
        let start = Instant::now();
        socket.write_all(b"x").unwrap();
        socket.read_exact(&mut [0]).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(60));
    }

    #[test]
    fn a_flip_changes_one_bit_of_one_byte() {
        for flip in [0, 7, 70_000, 99_999] {
            let mut rules = Rules::default();
            rules.up.flip = Some(flip);
            let (_relay, mut socket) = echo(rules);
            let reader = socket.try_clone().unwrap();
            let reader = thread::spawn(move || back(&reader));
            socket.write_all(&[0; 100_000]).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
            let (found, _) = reader.join().unwrap();
            let mut wanted = vec![0; 100_000];
            wanted[flip as usize] = 1 << (flip % 8);
            assert!(found == wanted, "flip {flip}");
        }
    }
}
