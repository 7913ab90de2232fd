//! Processor time of this process and of others.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this process so far.
#[must_use]
pub fn own_cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Reads the processor time of another process, whoever started it.
#[derive(Clone, Copy, Debug)]
pub struct ProcessCpu {
    pid: u32,
}

impl ProcessCpu {
    /// Of the process `pid`.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// Its processor time so far, in the kernel's ticks of 10 ms; zero once it is gone.
    #[must_use]
    pub fn read(self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        Duration::from_millis(10 * ticks(&text).unwrap_or(0))
    }
}

/// User and system ticks in the text of `/proc/PID/stat`, see proc(5).
fn ticks(stat: &str) -> Option<u64> {
    // The name may contain blanks and parentheses; what follows it does not.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_does_not_mislead() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 70 80 20 0";
        assert_eq!(ticks(stat), Some(110));
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn work_takes_processor_time() {
        let pid = std::process::id();
        let (before, before_ticks) = (own_cpu(), ProcessCpu::of(pid).read());
        while own_cpu() - before < Duration::from_millis(60) {
            std::hint::black_box((0..1_000_u64).sum::<u64>());
        }
        assert!(ProcessCpu::of(pid).read() > before_ticks);
    }
}
