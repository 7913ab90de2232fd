//! A peer in a process of its own, which is killed and comes back under its name.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, TcpListener},
    process::{self, ChildStdin, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;

use crate::{SEED, builder, common::BUDGET, ledger::Ledger, owner::Owner, part, process::Holdings};

const PLACE: &str = "MOONCAKE_SOAK_PLACE";

pub(crate) struct Child {
    name: String,
    life: Life,
}

struct Life {
    process: process::Child,
    /// It ends when this is closed.
    stdin: Option<ChildStdin>,
}

impl Child {
    pub(crate) fn start(seed: u64) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = free.local_addr().unwrap().to_string();
        drop(free);
        let life = Life::begin(&name, seed);
        Self { name, life }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn kill_and_restart(&mut self, seed: u64) {
        self.life.process.kill().unwrap();
        let died = self.life.process.wait().unwrap();
        assert!(died.code().is_none(), "it had ended by itself: {died}");
        self.life = Life::begin(&self.name, seed);
    }

    pub(crate) fn stop_for(&self, time: Duration) {
        self.life.signal(Signal::STOP);
        std::thread::sleep(time);
        self.life.signal(Signal::CONT);
    }

    /// Whether it leaves nothing.
    pub(crate) fn end(mut self) -> Result<(), String> {
        drop(self.life.stdin.take());
        let ended = self.life.process.wait().unwrap();
        match ended.success() {
            true => Ok(()),
            false => Err(ended.to_string()),
        }
    }
}

impl Life {
    fn begin(name: &str, seed: u64) -> Self {
        let mut command = part("a_peer");
        command
            .env(PLACE, name)
            .env(SEED, seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let stdin = process.stdin.take();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("at your service") {
            line.clear();
            let read = said.read_line(&mut line).unwrap();
            assert!(read > 0, "it ends before it begins");
        }
        // Nobody waits for what else it says.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::stdout()));
        Self { process, stdin }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// The peer's own part.
pub(crate) fn run() {
    let before = Holdings::at_first();
    let place: SocketAddr = env::var(PLACE).unwrap().parse().unwrap();
    let seed = env::var(SEED).unwrap().parse().unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let start = Instant::now();
        let engine = loop {
            match builder().listen(place).build().await {
                Ok(engine) => break engine,
                Err(error) => assert!(start.elapsed() < BUDGET, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let ledger = Arc::new(Ledger::new(Duration::MAX));
        let owner = Owner::start(engine, ledger, seed).await;
        println!("at your service");
        let end = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
        assert!(matches!(end.await, Ok(Ok(0))));
        owner.end().await;
    });
    runtime.shutdown_timeout(BUDGET);
    before.must_be_back();
}
