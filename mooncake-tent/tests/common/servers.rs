//! Servers of others, each on a free loopback port with a folder of its own, for as long as a test
//! runs.

use std::{
    fs::File,
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long a server may take to listen.
const READY: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    folder: tempfile::TempDir,
    command: fn(SocketAddr, SocketAddr, &Path) -> Command,
}

impl Server {
    /// Starts it; `None`: it is not installed, which counts as a skipped test.
    pub(crate) fn start(command: fn(SocketAddr, SocketAddr, &Path) -> Command) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let (address, child) = run(command, None, folder.path())?;
        Some(Self {
            child,
            address,
            folder,
            command,
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// At the same address as before, with nothing of what it had.
    pub(crate) fn start_anew(&mut self) {
        self.folder = tempfile::tempdir().unwrap();
        let (_, child) = run(self.command, Some(self.address), self.folder.path()).unwrap();
        self.child = child;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(
    command: fn(SocketAddr, SocketAddr, &Path) -> Command,
    at: Option<SocketAddr>,
    folder: &Path,
) -> Option<(SocketAddr, Child)> {
    let end = Instant::now() + READY;
    loop {
        let address = at.unwrap_or_else(free);
        let mut command = command(address, free(), folder);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = match command.stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) => {
                skip(&format!("{:?}: {error}", command.get_program()));
                return None;
            }
        };
        // One that ends has lost its port to somebody else.
        while child.try_wait().unwrap().is_none() {
            if TcpStream::connect(address).is_ok() {
                return Some((address, child));
            }
            assert!(Instant::now() < end, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(Instant::now() < end, "{command:?} does not run");
    }
}

/// An address at which nobody listens.
pub(crate) fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Says that a test could not run: `./test` counts the lines of the file that MOONCAKE_SKIP_LOG
/// names.
fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    let Some(log) = std::env::var_os("MOONCAKE_SKIP_LOG") else {
        return;
    };
    let mut log = File::options().append(true).create(true).open(log).unwrap();
    let line = format!("skipped: {reason}\n");
    log.write_all(line.as_bytes()).unwrap();
}
