//! Whatever is told to end while it is busy ends in order, and leaves nothing behind.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mooncake_store::core::PutOptions;
use mooncake_store::{Client, ClientOptions, RealClient};
use rustix::process::{Pid, Signal, test_kill_process};
use tokio::runtime::Runtime;

use super::processes::{END, PATIENCE, Role, Running, Store, run, spawn_in, until};

/// Where the draws start.
const SEED: u64 = 20_260;

/// Moments to wait until, drawn from a seed.
struct Moments(u64);

impl Moments {
    /// Lets a while pass, up to `most`.
    fn pass(&mut self, most: Duration) {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        thread::sleep(most.mul_f64((self.0 >> 11) as f64 / (1_u64 << 53) as f64));
    }
}

/// A client that puts and gets as fast as it can; failures are none of its business.
struct Load {
    runtime: Runtime,
    client: RealClient,
    stop: Arc<AtomicBool>,
    operations: Arc<AtomicU64>,
}

impl Load {
    fn start(address: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let mut options = ClientOptions::default();
        options.operation_deadline = Duration::from_millis(300);
        let client = runtime.block_on(RealClient::connect(address, options));
        let load = Self {
            runtime,
            client: client.unwrap(),
            stop: Arc::default(),
            operations: Arc::default(),
        };
        for task in 0..3_u8 {
            let client = load.client.clone();
            let (stop, operations) = (Arc::clone(&load.stop), Arc::clone(&load.operations));
            load.runtime.spawn(async move {
                for number in 0_u64.. {
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                    let key = Bytes::from(format!("{task}/{number}"));
                    let value = vec![task ^ number as u8; 50_000];
                    let items = vec![(key.clone(), value.as_slice())];
                    let _may_fail = client.put(items, PutOptions::default()).await;
                    if let Ok(got) = client.get(vec![key]).await.pop().unwrap() {
                        let mut bytes = vec![0; got.len() as usize];
                        got.read_at(0, &mut bytes);
                        assert!(bytes == value, "wrong bytes");
                    }
                    operations.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("it is busy", || {
            (load.operations.load(Ordering::Relaxed) > 3).then_some(())
        });
        load
    }

    fn end(self) {
        const BUDGET: Duration = Duration::from_millis(500);
        let begun = Instant::now();
        self.stop.store(true, Ordering::Release);
        // Whether all is proven quiet depends on who is left to ask.
        let _unproven = self.runtime.block_on(self.client.close(BUDGET));
        assert!(begun.elapsed() < BUDGET + END, "{:?}", begun.elapsed());
    }
}

/// A store whose processes work in this folder.
fn store_in(folder: &Path) -> (Role, Role) {
    let listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let master = Role::start_in(folder, &[&["master"], &listen[..]].concat());
    let address = master.field("address");
    let words = ["node", "--master", address, "--segment-size", "16MiB"];
    let node = Role::start_in(folder, &words);
    (master, node)
}

fn assert_empty(folder: &Path) {
    let left: Vec<_> = fs::read_dir(folder).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let ours: Vec<_> = shared
        .map(|file| file.file_name())
        .filter(|name| name.to_string_lossy().contains("mooncake"))
        .collect();
    assert!(ours.is_empty(), "{ours:?}");
}

/// Another may listen where a process listened that is gone.
fn assert_free(address: &str) {
    until("its address is free", || TcpListener::bind(address).ok());
}

fn a_role_ends(moments: &mut Moments, is_master: bool) {
    let folder = tempfile::tempdir().unwrap();
    let (master, node) = store_in(folder.path());
    let load = Load::start(master.field("address"));
    moments.pass(Duration::from_millis(100));
    let (role, other, fields) = if is_master {
        (master, node, ["address", "admin_address"])
    } else {
        (node, master, ["segment", "admin_address"])
    };
    let addresses = fields.map(|field| role.field(field).to_owned());
    let (code, took) = role.end(Signal::TERM);
    assert_eq!(code, Some(0));
    assert!(took < END, "{took:?}");
    for address in addresses {
        assert_free(&address);
    }
    load.end();
    drop(other);
    assert_empty(folder.path());
}

/// A command that is told to end before it is done has not done what it should: that is an error.
fn assert_cut_short(code: Option<i32>, said: &str) {
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("ended by SIGTERM"), "{said}");
}

fn a_client_ends(moments: &mut Moments, store: &Store, trace: &str) {
    let words = ["bench", "replay", "--block-bytes", "4KiB", "--trace", trace];
    let lookups = || store.master.number("mooncake_master_operations_total");
    let before = lookups();
    let client = Running::start(&words, b"", store.address());
    until("it is busy", || (lookups() > before + 20).then_some(()));
    moments.pass(Duration::from_millis(100));
    let begun = Instant::now();
    client.signal(Signal::TERM);
    let done = client.done(PATIENCE);
    assert!(begun.elapsed() < END, "{:?}", begun.elapsed());
    assert_cut_short(Some(done.code), &done.err);
}

fn a_demo_ends(moments: &mut Moments) {
    let folder = tempfile::tempdir().unwrap();
    let words = [
        "demo",
        "--requests",
        "5000",
        "--nodes",
        "1",
        "--clients",
        "1",
        "--segment-size",
        "16MiB",
        "--block-bytes",
        "4KiB",
    ];
    let mut demo = spawn_in(folder.path(), &words);
    let mut said = BufReader::new(demo.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("processes: ") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    let rest = thread::spawn(move || {
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        rest
    });
    moments.pass(Duration::from_millis(100));
    let begun = Instant::now();
    rustix::process::kill_process(Pid::from_child(&demo), Signal::TERM).unwrap();
    let status = until("the demo ends", || demo.try_wait().unwrap());
    assert!(begun.elapsed() < END, "{:?}", begun.elapsed());
    let members = line.trim_end().strip_prefix("processes: ").unwrap();
    for member in members.split(", ") {
        let (_, id) = member.rsplit_once(' ').unwrap();
        let pid = Pid::from_raw(id.parse().unwrap()).unwrap();
        until(member, || is_gone(pid).then_some(()));
    }
    assert_cut_short(status.code(), &rest.join().unwrap());
    assert_empty(folder.path());
}

/// It does not run any more, whether anybody has asked how it ended or not.
fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    test_kill_process(pid).is_err() || stat.map_or(true, |stat| stat.contains(") Z"))
}

#[test]
fn whoever_is_told_to_end_at_any_of_fifty_moments_ends_in_order() {
    println!("seed {SEED}");
    let mut moments = Moments(SEED);
    let deadlines = ["--default-kv-lease-ttl", "1s", "--put-deadline", "1s"];
    let store = Store::start(1, "64MiB", &deadlines);
    let trace = store.file("trace.jsonl");
    let words = ["trace", "generate", "--requests", "20000", "--to", &trace];
    assert_eq!(run(&words, b"", store.address()).code, 0);
    for stop in 0..50 {
        match stop % 4 {
            0 => a_role_ends(&mut moments, true),
            1 => a_role_ends(&mut moments, false),
            2 => a_client_ends(&mut moments, &store, &trace),
            _ => a_demo_ends(&mut moments),
        }
    }
    // What the clients had under way when they ended is given back.
    store.assert_all_gauges_zero();
}
