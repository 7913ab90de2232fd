//! The cases, one after the other.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use mooncake_bucket::{BucketConfig, GcConfig};
use serde::Serialize;

use super::Case;
use super::collect::Reading;
use super::fio::{Fio, Job};
use super::get::Gets;
use super::plain::PlainWrites;
use super::put::Puts;
use super::remove::{BATCH, Removes};
use super::restart::{PlainIndexes, Restarts};
use super::ring::RingReads;
use super::site::{Contents, Site, fill};
use crate::bench::master::{Figure, Goal, table};
use crate::bench::{Contender, Report, Rounds, Row, Turns, Yardstick};
use crate::output::{Failure, Output, Show};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The cases; none: all.
    pub cases: Vec<Case>,
    /// Less data.
    pub quick: bool,
    /// How often and how long.
    pub turns: Turns,
    /// Where; `None`: where the system has temporary files.
    pub folder: Option<PathBuf>,
    /// Records of `restart`.
    pub records: u64,
    /// Whether fio is measured, if it is installed.
    pub fio: bool,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BucketReport {
    /// The loads.
    pub rows: Vec<Row>,
    /// Figures that stand alone.
    pub figures: Vec<Figure>,
}

impl BucketReport {
    /// Whether every bar was reached.
    #[must_use]
    pub fn all_met(&self) -> bool {
        let rows = Report {
            rows: self.rows.clone(),
        };
        rows.all_met() && self.figures.iter().all(|figure| figure.met != Some(false))
    }
}

impl Show for BucketReport {
    fn human(&self) -> String {
        let rows = Report {
            rows: self.rows.clone(),
        };
        let mut tables = vec![rows.human()];
        if !self.figures.is_empty() {
            tables.push(table(&self.figures));
        }
        tables.join("\n\n")
    }
}

/// What a row is about.
struct About {
    case: Case,
    op: &'static str,
    block_bytes: u64,
    batch: u64,
    threads: u64,
}

impl Suite {
    /// Measures all that is asked for.
    ///
    /// # Errors
    ///
    /// A case cannot be measured, or a byte was wrong.
    pub fn run(&self, output: Output) -> Result<BucketReport, Failure> {
        let cases = if self.cases.is_empty() {
            &Case::ALL[..]
        } else {
            &self.cases
        };
        let fio = self.fio && Fio::is_installed();
        if self.fio && !fio {
            output.remark("fio is not installed, so it has no column");
        }
        let mut report = BucketReport::default();
        for case in cases {
            output.remark(format!("measuring {} …", case.word()));
            match case {
                Case::Put => self.puts(fio, &mut report)?,
                Case::Small => self.small(&mut report)?,
                Case::Get => self.gets(fio, &mut report)?,
                Case::Remove => self.removes(&mut report)?,
                Case::Restart => self.restarts(&mut report)?,
                Case::Gc => self.collects(&mut report)?,
            }
        }
        Ok(report)
    }

    fn row(&self, rounds: &Rounds, limit: &str, by: Yardstick, about: &About) -> Row {
        let mut row = Row::beside_limit(rounds, limit, by);
        row.transport = "bucket".to_owned();
        row.op = about.op.to_owned();
        row.block_bytes = about.block_bytes;
        row.batch = about.batch;
        row.threads = about.threads;
        row.repeat = self.repeat(about.case);
        row
    }

    fn repeat(&self, case: Case) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        format!("mooncake bench bucket --case {}{quick}", case.word())
    }

    fn figure(&self, case: Case, figure: Figure) -> Figure {
        Figure {
            repeat: self.repeat(case),
            ..figure
        }
    }

    /// Ours, its limit and perhaps fio take turns.
    fn measure(
        &self,
        ours: &mut dyn Contender,
        limit: &mut dyn Contender,
        fio: Option<&mut Fio>,
    ) -> Result<Rounds, Failure> {
        match fio {
            Some(fio) => self.turns.measure(&mut [ours, limit, fio]),
            None => self.turns.measure(&mut [ours, limit]),
        }
    }

    fn puts(&self, fio: bool, report: &mut BucketReport) -> Result<(), Failure> {
        for batch in [1, 8] {
            let site = Site::new(self.folder.as_deref())?;
            let mut ours = Puts::new(&site, MIB, batch, 1)?;
            let mut limit = PlainWrites::new(&site.path("plain"), MIB as usize, batch, 1, MIB)?;
            let job = Job::Write {
                block: MIB,
                sync_after: batch,
            };
            let mut fio = fio.then(|| Fio::new(&site.path("fio"), 64 * 1024 * MIB, job));
            let has_fio = fio.is_some();
            let rounds = self.measure(&mut ours, &mut limit, fio.as_mut())?;
            let about = About {
                case: Case::Put,
                op: "put",
                block_bytes: MIB,
                batch,
                threads: 1,
            };
            let limit = "plain writes and a sync for each batch";
            let mut row = self.row(&rounds, limit, Yardstick::GbPerS, &about);
            if has_fio {
                row.add_other(&rounds, 2, "fio");
            }
            report.rows.push(row.should_reach(0.9));
        }
        Ok(())
    }

    fn small(&self, report: &mut BucketReport) -> Result<(), Failure> {
        const BATCH: u64 = 128;
        const CALLERS: u64 = 8;
        let site = Site::new(self.folder.as_deref())?;
        let mut ours = Puts::new(&site, 4 * KIB, BATCH, CALLERS)?;
        let bytes = BATCH * 4 * KIB;
        // As many bytes in as many syncs as if all callers shared each.
        let plain = site.path("plain");
        let mut limit = PlainWrites::new(&plain, bytes as usize, CALLERS, BATCH, bytes)?;
        let rounds = self.measure(&mut ours, &mut limit, None)?;
        let about = About {
            case: Case::Small,
            op: "put",
            block_bytes: 4 * KIB,
            batch: BATCH,
            threads: CALLERS,
        };
        let limit = "plain writes of whole batches and a sync for eight";
        let row = self.row(&rounds, limit, Yardstick::GbPerS, &about);
        report.rows.push(row.should_reach(0.7));
        let overhead = Figure::new(
            "space beyond values of 4 KiB",
            ours.space_overhead() * 100.0,
            "%",
        );
        let overhead = overhead.should_be(Goal::at_most(8.0));
        report.figures.push(self.figure(Case::Small, overhead));
        Ok(())
    }

    fn gets(&self, fio: bool, report: &mut BucketReport) -> Result<(), Failure> {
        const DEPTH: usize = 32;
        let data = if self.quick { 256 * MIB } else { 2048 * MIB };
        for value_bytes in [128 * KIB, MIB] {
            let site = Site::new(self.folder.as_deref())?;
            let storage = site.storage(BucketConfig::default())?;
            let contents = Contents::new(value_bytes as usize, 8);
            let count = data / value_bytes;
            fill(&storage, count, 16 * MIB / value_bytes, &contents)?;
            let mut ours = Gets::new(&storage, &contents, value_bytes as usize, count);
            let path = site.path("storage");
            let mut limit = RingReads::new(&path, value_bytes as usize, DEPTH)?;
            let job = Job::Read {
                block: value_bytes,
                depth: DEPTH,
            };
            let mut fio = fio.then(|| Fio::new(&site.path("fio"), data, job));
            let has_fio = fio.is_some();
            let rounds = self.measure(&mut ours, &mut limit, fio.as_mut())?;
            let about = About {
                case: Case::Get,
                op: "get",
                block_bytes: value_bytes,
                batch: DEPTH as u64,
                threads: 1,
            };
            let limit = "a ring of as many plain reads";
            let mut row = self.row(&rounds, limit, Yardstick::GbPerS, &about);
            if has_fio {
                row.add_other(&rounds, 2, "fio");
            }
            report.rows.push(row.should_reach(0.9));
        }
        Ok(())
    }

    fn removes(&self, report: &mut BucketReport) -> Result<(), Failure> {
        let site = Site::new(self.folder.as_deref())?;
        let mut ours = Removes::new(&site)?;
        // What a batch takes in the log.
        let bytes = (32 + 40 * BATCH).next_multiple_of(4 * KIB) as usize;
        let mut limit = PlainWrites::new(&site.path("plain"), bytes, 1, BATCH, 0)?;
        let rounds = self.measure(&mut ours, &mut limit, None)?;
        let about = About {
            case: Case::Remove,
            op: "remove",
            block_bytes: 40,
            batch: BATCH,
            threads: 1,
        };
        let limit = "a plain write of as much and a sync";
        let row = self.row(&rounds, limit, Yardstick::OpsPerS, &about);
        // While it waits for the disk it takes no time of a processor.
        let rate = 1e6 / row.ours.cpu_us_per_op.max(f64::MIN_POSITIVE);
        let beside = Figure::new("removals beside the sync", rate, "/s");
        let beside = beside.should_be(Goal::at_least(200_000.0));
        report.figures.push(self.figure(Case::Remove, beside));
        report.rows.push(row);
        Ok(())
    }

    fn restarts(&self, report: &mut BucketReport) -> Result<(), Failure> {
        let site = Site::new(self.folder.as_deref())?;
        let mut ours = Restarts::new(&site, self.records)?;
        let mut limit = PlainIndexes::new(&site.path("storage"), self.records)?;
        let rounds = self.measure(&mut ours, &mut limit, None)?;
        let about = About {
            case: Case::Restart,
            op: "start",
            block_bytes: 200,
            batch: self.records,
            threads: 1,
        };
        let limit = "plain reads of the same indexes";
        let row = self.row(&rounds, limit, Yardstick::OpsPerS, &about);
        let millions = self.records as f64 / 1e6;
        let took = Figure::new(
            format!("start with {} records", crate::output::count(self.records)),
            row.ours.p50_us / 1e6,
            "s",
        );
        let took = took.should_be(Goal::at_most(2.0 * millions));
        let index = Figure::new("index of a record", ours.index_bytes, "bytes");
        let index = index.should_be(Goal::at_most(64.0));
        for figure in [took, index] {
            report.figures.push(self.figure(Case::Restart, figure));
        }
        report.rows.push(row);
        Ok(())
    }

    fn collects(&self, report: &mut BucketReport) -> Result<(), Failure> {
        let value_bytes = 128 * KIB;
        let data = if self.quick { 128 * MIB } else { 1024 * MIB };
        let site = Site::new(self.folder.as_deref())?;
        let mut config = BucketConfig::default();
        // Small ones, so that some are through in a turn.
        config.bucket_bytes = 8 * MIB;
        let storage = site.storage(config)?;
        let contents = Contents::new(value_bytes as usize, 8);
        let count = data / value_bytes;
        fill(&storage, count, 32, &contents)?;
        let life = AtomicU64::new(2);
        let mut ours = Reading::new(&storage, &contents, count, &life, true);
        let mut limit = Reading::new(&storage, &contents, count, &life, false);
        let rounds = self.measure(&mut ours, &mut limit, None)?;
        let about = About {
            case: Case::Gc,
            op: "get beside a collection",
            block_bytes: value_bytes,
            batch: 1,
            threads: 1,
        };
        let limit = "the same without a collection";
        let row = self.row(&rounds, limit, Yardstick::P50Us, &about);
        let (moved, time) = ours.moved;
        let rate = moved as f64 / 1e6 / time.as_secs_f64().max(f64::MIN_POSITIVE);
        // It reads as much as it writes, and its budget is of both.
        let budget = GcConfig::default().bytes_per_second as f64 / 2e6;
        let moved = Figure::new("copied by the collection beside gets", rate, "MB/s");
        let moved = moved.should_be(Goal::at_least(0.5 * budget));
        report.figures.push(self.figure(Case::Gc, moved));
        report.rows.push(row.should_reach(1.0 / 1.1));
        Ok(())
    }
}
