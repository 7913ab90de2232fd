//! Processes of the binary, none of which outlives its test.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here may take, on a machine that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How long a role that was told to end may take, a busy machine included.
pub(crate) const END: Duration = Duration::from_secs(5);

/// What the master holds only while something is under way.
const OF_A_MASTER: [&str; 3] = [
    "mooncake_master_leases",
    "mooncake_master_puts_in_progress",
    "mooncake_master_quarantined_bytes",
];
/// What a node holds only while something is under way.
const OF_A_NODE: [&str; 8] = [
    "mooncake_tent_bytes_in_flight",
    "mooncake_tent_connections",
    "mooncake_tent_leases",
    "mooncake_tent_open_batches",
    "mooncake_tent_peer_bytes_in_flight",
    "mooncake_tent_quarantined_bytes",
    "mooncake_tent_tasks_in_flight",
    "mooncake_tent_withdrawn_bytes",
];

fn mooncake() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooncake"));
    // Settings of whoever runs the tests are not ours.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MOONCAKE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

/// One that keeps whatever files it makes in this folder.
fn mooncake_in(folder: &Path) -> Command {
    let mut command = mooncake();
    command.current_dir(folder).env("TMPDIR", folder);
    command
}

/// Starts a command with this folder to work in.
pub(crate) fn spawn_in(folder: &Path, words: &[&str]) -> Child {
    mooncake_in(folder).args(words).spawn().unwrap()
}

/// A master or a node that serves.
pub(crate) struct Role {
    child: Child,
    stdin: Option<ChildStdin>,
    pub(crate) ready: Value,
}

impl Role {
    /// Starts it with these words, and waits until it is ready.
    pub(crate) fn start(words: &[&str]) -> Self {
        Self::ready(mooncake(), words)
    }

    /// As [`start`](Self::start), with this folder to work in.
    pub(crate) fn start_in(folder: &Path, words: &[&str]) -> Self {
        Self::ready(mooncake_in(folder), words)
    }

    fn ready(mut command: Command, words: &[&str]) -> Self {
        let mut child = command
            .args(words)
            .args(["--end-with-stdin", "--output", "json"])
            .spawn()
            .unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _unheard = sender.send(line);
            }
        });
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("{line}");
            }
        });
        let mut role = Self {
            stdin: child.stdin.take(),
            child,
            ready: Value::Null,
        };
        let line = lines.recv_timeout(PATIENCE).unwrap();
        role.ready = serde_json::from_str::<Value>(&line).unwrap();
        assert!(role.ready["ready"].is_object(), "{line}");
        role
    }

    pub(crate) fn master(settings: &[&str]) -> Self {
        let mut words = vec!["master", "--admin-listen", "127.0.0.1:0"];
        if !settings.contains(&"--listen") {
            words.extend(["--listen", "127.0.0.1:0"]);
        }
        words.extend(settings);
        Self::start(&words)
    }

    pub(crate) fn node(master: &str, name: &str, size: &str) -> Self {
        let words = ["node", "--master", master, "--name", name];
        Self::start(&[&words[..], &["--segment-size", size]].concat())
    }

    pub(crate) fn field(&self, name: &str) -> &str {
        self.ready["ready"][name].as_str().unwrap()
    }

    /// What a page for operators says.
    pub(crate) fn page(&self, path: &str) -> String {
        let mut socket = TcpStream::connect(self.field("admin_address")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        body.to_owned()
    }

    /// All numbers of its page; those with several labels are added up.
    pub(crate) fn numbers(&self) -> BTreeMap<String, u64> {
        let mut numbers = BTreeMap::new();
        let text = self.page("/metrics");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split('{').next().unwrap();
            if name.ends_with("_seconds_sum") {
                // Times are no whole numbers.
                assert!(value.parse::<f64>().is_ok(), "{line}");
                continue;
            }
            *numbers.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap();
        }
        numbers
    }

    /// One of the numbers of its page.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let numbers = self.numbers();
        let number = numbers.get(name);
        *number.unwrap_or_else(|| panic!("there is no {name} in {numbers:?}"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends a signal, and returns the exit code and how long the end took.
    pub(crate) fn end(mut self, signal: Signal) -> (Option<i32>, Duration) {
        let begun = Instant::now();
        self.signal(signal);
        (self.wait(), begun.elapsed())
    }

    /// Ends its standard input.
    pub(crate) fn abandon(mut self) -> Option<i32> {
        self.stdin = None;
        self.wait()
    }

    fn wait(&mut self) -> Option<i32> {
        until("the process ends", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

impl Done {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap()
    }

    /// An error with this in its text, and within this time.
    pub(crate) fn refused(&self, said: &[&str], within: Duration) {
        assert_eq!((self.code, self.text().as_str()), (2, ""), "{self:?}");
        for said in said {
            assert!(self.err.contains(said), "{said:?} is not in {}", self.err);
        }
        assert!(self.err.starts_with("error: "), "{}", self.err);
        assert!(self.took < within, "{self:?}");
    }
}

/// A command that runs.
pub(crate) struct Running {
    pid: Pid,
    words: String,
    begun: Instant,
    ended: mpsc::Receiver<std::io::Result<std::process::Output>>,
}

impl Running {
    pub(crate) fn start<W: AsRef<std::ffi::OsStr>>(
        words: &[W],
        input: &[u8],
        master: &str,
    ) -> Self {
        let (running, mut stdin) = Self::start_unfed(words, master);
        let input = input.to_vec();
        // Some commands do not read all of it.
        thread::spawn(move || drop(stdin.write_all(&input)));
        running
    }

    /// Starts it and leaves its input to the caller.
    pub(crate) fn start_unfed<W: AsRef<std::ffi::OsStr>>(
        words: &[W],
        master: &str,
    ) -> (Self, ChildStdin) {
        let begun = Instant::now();
        let mut child = mooncake()
            .args(words)
            .env("MOONCAKE_CLIENT_MASTER", master)
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let stdin = child.stdin.take().unwrap();
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || sender.send(child.wait_with_output()));
        let words: Vec<_> = words
            .iter()
            .map(|word| word.as_ref().to_string_lossy())
            .collect();
        let running = Self {
            pid,
            words: words.join(" "),
            begun,
            ended,
        };
        (running, stdin)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Kills it, and waits until the system has it no more.
    pub(crate) fn kill(self) {
        self.signal(Signal::KILL);
        let output = self.ended.recv_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(output.status.code(), None, "{} ended by itself", self.words);
    }

    /// Waits for its end, but not for longer than `patience`.
    pub(crate) fn done(self, patience: Duration) -> Done {
        let output = self.ended.recv_timeout(patience).unwrap_or_else(|_| {
            self.signal(Signal::KILL);
            panic!("{} hangs", self.words);
        });
        let output = output.unwrap();
        Done {
            code: output.status.code().unwrap(),
            out: output.stdout,
            err: String::from_utf8(output.stderr).unwrap(),
            took: self.begun.elapsed(),
        }
    }
}

/// Runs a command to its end.
pub(crate) fn run<W: AsRef<std::ffi::OsStr>>(words: &[W], input: &[u8], master: &str) -> Done {
    Running::start(words, input, master).done(PATIENCE)
}

/// A store, and a folder for files.
pub(crate) struct Store {
    pub(crate) nodes: Vec<Role>,
    pub(crate) master: Role,
    pub(crate) folder: TempDir,
}

impl Store {
    pub(crate) fn start(nodes: usize, size: &str, settings: &[&str]) -> Self {
        let master = Role::master(settings);
        let names = (0..nodes).map(|at| format!("node-{at}"));
        let nodes = names.map(|name| Role::node(master.field("address"), &name, size));
        Self {
            nodes: nodes.collect(),
            folder: tempfile::tempdir().unwrap(),
            master,
        }
    }

    pub(crate) fn address(&self) -> &str {
        self.master.field("address")
    }

    /// Once all clients are gone, nothing is under way anywhere, within a bounded time. Leases and
    /// memory of clients that were killed are given back when the master's settings say so.
    pub(crate) fn assert_all_gauges_zero(&self) {
        let begun = Instant::now();
        let roles = || self.nodes.iter().map(|node| (node, &OF_A_NODE[..]));
        loop {
            let mut held = Vec::new();
            for (role, gauges) in roles().chain([(&self.master, &OF_A_MASTER[..])]) {
                let numbers = role.numbers();
                for gauge in gauges {
                    match numbers.get(*gauge) {
                        Some(0) => {}
                        other => held.push((*gauge, other.copied())),
                    }
                }
            }
            if held.is_empty() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "still held: {held:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn run(&self, words: &[&str]) -> Done {
        run(words, b"", self.address())
    }

    pub(crate) fn run_with(&self, words: &[&str], input: &[u8]) -> Done {
        run(words, input, self.address())
    }

    /// A file of its folder, as a word of a command.
    pub(crate) fn file(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        path.into_os_string().into_string().unwrap()
    }

    /// A file of its folder with this content.
    pub(crate) fn file_with(&self, name: &str, content: &[u8]) -> String {
        let file = self.file(name);
        std::fs::write(Path::new(&file), content).unwrap();
        file
    }
}

/// Waits until something is there.
pub(crate) fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = there() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// An address at which nobody listens.
pub(crate) fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Bytes without a pattern.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = len as u64 | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}
