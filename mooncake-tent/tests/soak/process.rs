//! What this process has of the system.

use std::{
    fs,
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;

use crate::common::BUDGET;

/// Descriptors and threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holdings {
    descriptors: usize,
    threads: usize,
}

impl Holdings {
    /// Before anything else: what every process with a runtime keeps, such as its way to hear of signals,
    /// is there already.
    pub(crate) fn at_first() -> Self {
        drop(Runtime::new().unwrap());
        Self::now()
    }

    fn now() -> Self {
        let entries = |path| fs::read_dir(path).unwrap().count();
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
        }
    }

    pub(crate) fn must_be_back(self) {
        let start = Instant::now();
        loop {
            let now = Self::now();
            if now.descriptors <= self.descriptors && now.threads <= self.threads {
                return;
            }
            assert!(
                start.elapsed() < BUDGET,
                "{self:?} became {now:?}: {:?} {:?}",
                links(),
                names()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn links() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let targets = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.map(|target| target.display().to_string()).collect()
}

fn names() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// Without what the allocator only keeps for later.
pub(crate) fn resident_bytes() -> u64 {
    give_back();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the allocator is one in C")]
fn give_back() {
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn give_back() {}
