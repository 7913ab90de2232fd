//! fio, where it is installed, with the same pattern on a file of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::bench::{Contender, Sample};
use crate::output::Failure;

/// What fio does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// Writes one block after the other, and syncs after so many.
    Write { block: u64, sync_after: u64 },
    /// Reads blocks at random, so many at a time, past the page cache.
    Read { block: u64, depth: usize },
}

/// One job.
#[derive(Debug)]
pub(super) struct Fio {
    file: PathBuf,
    file_bytes: u64,
    job: Job,
}

impl Fio {
    /// Whether there is one.
    pub(super) fn is_installed() -> bool {
        let mut fio = Command::new("fio");
        fio.arg("--version").stdin(Stdio::null());
        fio.stdout(Stdio::null()).stderr(Stdio::null());
        fio.status().is_ok_and(|status| status.success())
    }

    pub(super) fn new(file: &Path, file_bytes: u64, job: Job) -> Self {
        Self {
            file: file.to_path_buf(),
            file_bytes,
            job,
        }
    }

    fn words(&self, budget: Duration) -> Vec<String> {
        let mut words = vec![
            "--name=job".to_owned(),
            "--output-format=json".to_owned(),
            "--time_based".to_owned(),
            format!("--filename={}", self.file.display()),
            format!("--size={}", self.file_bytes),
            format!("--runtime={}ms", budget.as_millis().max(1)),
        ];
        match self.job {
            Job::Write { block, sync_after } => words.extend([
                "--rw=write".to_owned(),
                "--ioengine=psync".to_owned(),
                format!("--bs={block}"),
                format!("--fdatasync={sync_after}"),
                // The file grows, as ours do, and is a new one each time.
                "--fallocate=none".to_owned(),
                "--unlink=1".to_owned(),
            ]),
            Job::Read { block, depth } => words.extend([
                "--rw=randread".to_owned(),
                "--ioengine=io_uring".to_owned(),
                "--direct=1".to_owned(),
                format!("--bs={block}"),
                format!("--iodepth={depth}"),
            ]),
        }
        words
    }
}

impl Contender for Fio {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut fio = Command::new("fio");
        fio.args(self.words(budget)).stdin(Stdio::null());
        let done = fio
            .output()
            .map_err(|error| Failure::new("fio could not be started").because(error))?;
        let said = String::from_utf8_lossy(&done.stderr);
        let wrong = || Failure::new("fio failed").cause(said.trim().to_owned());
        if !done.status.success() {
            return Err(wrong().remedy("--without-fio"));
        }
        let text = String::from_utf8_lossy(&done.stdout);
        // It may say something before.
        let json = text.find('{').map_or("", |at| &text[at..]);
        let told: Value = serde_json::from_str(json).map_err(|error| wrong().because(error))?;
        sample(&told, self.job).ok_or_else(|| wrong().remedy("--without-fio"))
    }
}

/// What a job says of itself.
fn sample(told: &Value, job: Job) -> Option<Sample> {
    let whole = told["jobs"].get(0)?;
    let part = match job {
        Job::Write { .. } => &whole["write"],
        Job::Read { .. } => &whole["read"],
    };
    let wall = Duration::from_millis(part["runtime"].as_u64()?.max(1));
    let busy = whole["usr_cpu"].as_f64()? + whole["sys_cpu"].as_f64()?;
    let mut sample = Sample {
        operations: part["total_ios"].as_u64()?,
        bytes: part["io_bytes"].as_u64()?,
        wall,
        cpu: wall.mul_f64(busy / 100.0),
        ..Sample::default()
    };
    let half = part["clat_ns"]["percentile"]["50.000000"].as_u64();
    sample
        .latency
        .record(Duration::from_nanos(half.unwrap_or(0)));
    Some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_tells_is_understood() {
        let told = serde_json::json!({"jobs": [{
            "usr_cpu": 10.0, "sys_cpu": 15.0,
            "read": {
                "runtime": 2_000, "total_ios": 100, "io_bytes": 100 << 20,
                "clat_ns": {"percentile": {"50.000000": 1_500_000}},
            },
            "write": {"runtime": 0, "total_ios": 0, "io_bytes": 0},
        }]});
        let job = Job::Read {
            block: 1 << 20,
            depth: 32,
        };
        let figures = sample(&told, job).unwrap().figures();
        assert_eq!(figures.ops_per_s, 50.0);
        assert!((figures.p50_us - 1_500.0).abs() < 2.0, "{figures:?}");
        assert!((figures.cpu_us_per_op - 5_000.0).abs() < 1.0, "{figures:?}");
        assert!(sample(&serde_json::json!({"jobs": []}), job).is_none());
    }
}
