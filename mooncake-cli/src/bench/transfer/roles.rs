//! Targets and initiators that people start by themselves, on one machine or several.
//!
//! Flags, cases and columns are those of `tebench`, the tool of the engine in C++, so that outputs can
//! be laid side by side. What failed does not end a run: it is counted, and so is the longest time in
//! which nothing came through, so a run shows what a fault in its middle costs.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use mooncake_tent::{
    Buffer, CmaTransport, Permission, RemoteRange, Request, Segment, ShmTransport, TcpConfig,
    TcpTransport, TentEngine, TentEngineBuilder, TransferEngine,
};
use serde::Serialize;
use tokio::runtime::Handle;

use super::super::own_cpu;
use super::contents::{arrived, fill, wipe};
use super::engine::{register, unusable};
use super::shares::{LinkShare, carried, links, shares};
use crate::latency::Latency;
use crate::output::{Align, Failure, Show, Table};

/// How long an operation may take before it counts as failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// So much is written or read at once to prepare or check a target.
const STRIDE: u64 = 1 << 20;

/// Over which links an initiator may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Links {
    /// The best that there is.
    #[default]
    All,
    /// TCP.
    Tcp,
    /// Memory that both processes have.
    Shm,
    /// The kernel's copies between processes.
    Cma,
}

/// What initiators do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// From the target to us.
    Read,
    /// From us to the target.
    Write,
    /// In turns.
    Mix,
}

/// An engine that offers nothing and goes over these links.
pub(super) fn initiating(links: Links) -> TentEngineBuilder {
    let mut tcp = TcpConfig::default();
    tcp.listen = None;
    let mut builder = TentEngine::builder().without_control();
    if matches!(links, Links::All | Links::Shm) {
        builder = builder.transport_if_possible(ShmTransport::default());
    }
    if matches!(links, Links::All | Links::Cma) {
        builder = builder.transport_if_possible(CmaTransport::default());
    }
    if matches!(links, Links::All | Links::Tcp) {
        builder = builder.transport(TcpTransport::new(tcp));
    }
    builder
}

/// Memory that is offered to initiators.
#[derive(Debug)]
pub struct Target {
    engine: TentEngine,
    _memory: Buffer,
}

impl Target {
    /// Offers `bytes`, found at `listen`. Its data connections are accepted at the same address.
    ///
    /// # Errors
    ///
    /// It cannot listen there, or there is not so much memory.
    pub async fn start(listen: SocketAddr, bytes: u64) -> Result<Self, Failure> {
        let mut tcp = TcpConfig::default();
        tcp.listen = Some(SocketAddr::new(listen.ip(), 0));
        let engine = TentEngine::builder()
            .listen(listen)
            .transport_if_possible(ShmTransport::default())
            .transport_if_possible(CmaTransport::default())
            .transport(TcpTransport::new(tcp))
            .build()
            .await
            .map_err(unusable)?;
        let memory = register(&engine, bytes, Permission::PeersReadWrite).await?;
        fill(memory.memory(), bytes);
        Ok(Self {
            engine,
            _memory: memory,
        })
    }

    /// Under which name initiators find it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.engine.segment_name()
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// Transfers have not ended within the budget.
    pub async fn stop(self, budget: Duration) -> Result<(), Failure> {
        self.engine.shutdown(budget).await.map_err(unusable)
    }
}

/// What initiators run: all combinations in which doubling leads from the first to the last.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Bytes of a block.
    pub blocks: Vec<u64>,
    /// Blocks that are submitted together.
    pub batches: Vec<u64>,
    /// Threads that call.
    pub threads: Vec<u64>,
    /// What they do.
    pub work: Work,
    /// Of each case.
    pub duration: Duration,
    /// Between the starts of two batches of one thread.
    pub interval: Duration,
    /// After which a request is given up.
    pub deadline: Option<Duration>,
    /// Whether bytes are checked.
    pub verify: bool,
}

/// Numbers from `start` on, each double the one before, up to `most`.
#[must_use]
pub fn doublings(start: u64, most: u64) -> Vec<u64> {
    std::iter::successors(Some(start), |number| number.checked_mul(2))
        .take_while(|number| *number <= most)
        .collect()
}

/// A case, in the columns of `tebench` and a few more.
#[derive(Clone, Debug, Serialize)]
pub struct RoleRow {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks of a batch.
    pub batch: u64,
    /// Threads that called.
    pub threads: u64,
    /// Of all threads together.
    pub gb_per_s: f64,
    /// The mean of what each batch had for itself.
    pub avg_inst_gb_per_s: f64,
    /// Wall time for each batch of a thread.
    pub avg_lat_us: f64,
    /// From the submission of a batch to its end.
    pub avg_tx_us: f64,
    /// 99 of 100 took no longer.
    pub p99_tx_us: f64,
    /// 999 of 1,000 took no longer.
    pub p999_tx_us: f64,
    /// Processor time of the initiator for 10⁹ bytes.
    pub cpu_s_per_gb: f64,
    /// Batches of which some block did not arrive.
    pub failed: u64,
    /// The longest time in which a thread saw no batch come through, in milliseconds.
    pub longest_stall_ms: f64,
    /// Bytes that were looked at, all of them right: where the last that went there came through.
    pub checked_bytes: u64,
    /// What went over each link to each target, the most first.
    pub shares: Vec<LinkShare>,
}

/// All cases of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RoleReport {
    /// In the order in which they ran.
    pub rows: Vec<RoleRow>,
    /// Cases that have no room in the memory of both sides.
    pub skipped: u64,
}

impl Show for RoleReport {
    fn human(&self) -> String {
        let columns = [
            "BlkSize (B)",
            "Batch",
            "BW (GB/s)",
            "Avg Inst GB/s",
            "Avg Lat (us)",
            "Avg Tx (us)",
            "P99 Tx (us)",
            "P999 Tx (us)",
            "Threads",
            "CPU (s/GB)",
            "Failed",
            "Stall (ms)",
            "Links",
        ];
        let mut table = Table::new(&columns.map(|name| (name, Align::Right)));
        for row in &self.rows {
            let one = |number: f64| format!("{number:.1}");
            table.row([
                row.block_bytes.to_string(),
                row.batch.to_string(),
                format!("{:.2}", row.gb_per_s),
                format!("{:.2}", row.avg_inst_gb_per_s),
                one(row.avg_lat_us),
                one(row.avg_tx_us),
                one(row.p99_tx_us),
                one(row.p999_tx_us),
                row.threads.to_string(),
                format!("{:.2}", row.cpu_s_per_gb),
                row.failed.to_string(),
                one(row.longest_stall_ms),
                links(&row.shares),
            ]);
        }
        let mut text = table.text();
        if self.skipped > 0 {
            text += &format!(
                "\n{} cases have no room in the memory of both sides",
                self.skipped
            );
        }
        text
    }
}

/// Who reads from targets and writes to them.
#[derive(Debug)]
pub struct Initiator {
    engine: TentEngine,
    local: Buffer,
    targets: Vec<Reached>,
    /// What each side has.
    bytes: u64,
}

#[derive(Debug)]
struct Reached {
    segment: Segment,
    address: u64,
}

/// What one thread did.
#[derive(Debug, Default)]
struct Tally {
    latency: Latency,
    /// Of batches that came through.
    batches: u64,
    failed: u64,
    tx: Duration,
    inst_gb_per_s: f64,
    longest_stall: Duration,
    /// Of each region, and each place of a batch in it: whether the last that went there came through.
    arrived: Vec<Vec<bool>>,
}

/// A part of the memory that a thread has, on both sides.
#[derive(Clone, Copy, Debug)]
struct Region {
    write: bool,
    start: u64,
    block: u64,
    batch: u64,
    /// Batches that lie side by side.
    places: u64,
}

/// Of one thread.
type Regions = Vec<Region>;

impl Region {
    fn len(self) -> u64 {
        self.places * self.batch * self.block
    }

    fn offset(self, number: u64, block: u64) -> u64 {
        self.start + (number % self.places * self.batch + block) * self.block
    }
}

impl Initiator {
    /// Connects to the segments of `targets`, of which threads take one each in turn.
    ///
    /// # Errors
    ///
    /// One of them does not answer or offers no memory.
    pub async fn start(targets: &[String], links: Links, bytes: u64) -> Result<Self, Failure> {
        let engine = initiating(links).build().await.map_err(unusable)?;
        let mut reached = Vec::with_capacity(targets.len());
        let mut least = bytes;
        for name in targets {
            let segment = engine.open_segment(name, PATIENCE).await.map_err(|error| {
                Failure::new(format!("the target {name} cannot be reached")).because(error)
            })?;
            let buffers = segment.descriptor();
            let largest = buffers.buffers().max_by_key(|buffer| buffer.length);
            let largest =
                largest.ok_or_else(|| Failure::new(format!("{name} offers no memory")))?;
            least = least.min(largest.length);
            reached.push(Reached {
                address: largest.address,
                segment,
            });
        }
        Ok(Self {
            local: register(&engine, least, Permission::Local).await?,
            bytes: least,
            targets: reached,
            engine,
        })
    }

    /// Runs all cases, one after the other. `ran` is told each. Not for async code, which it would
    /// block.
    ///
    /// # Errors
    ///
    /// A byte did not arrive.
    pub fn run(&self, grid: &Grid, mut ran: impl FnMut(&RoleRow)) -> Result<RoleReport, Failure> {
        let mut report = RoleReport::default();
        for &block in &grid.blocks {
            for &batch in &grid.batches {
                for &threads in &grid.threads {
                    let Some(threads) = self.threads(grid.work, block, batch, threads) else {
                        report.skipped += 1;
                        continue;
                    };
                    let row = self.case(grid, &threads)?;
                    ran(&row);
                    report.rows.push(row);
                }
            }
        }
        Ok(report)
    }

    /// The regions of each thread: one that it works in, or one to read and one to write. `None`: they
    /// have no room.
    fn threads(&self, work: Work, block: u64, batch: u64, threads: u64) -> Option<Vec<Regions>> {
        let directions: &[bool] = match work {
            Work::Read => &[false],
            Work::Write => &[true],
            Work::Mix => &[false, true],
        };
        let each = self.bytes / threads.max(1) / directions.len() as u64;
        let places = each.checked_div(block.checked_mul(batch)?)?;
        let regions = |thread| {
            let directions = directions.iter().zip(thread * directions.len() as u64..);
            directions.map(|(write, number)| Region {
                write: *write,
                start: number * each,
                block,
                batch,
                places,
            })
        };
        (places > 0).then(|| {
            (0..threads)
                .map(|thread| regions(thread).collect())
                .collect()
        })
    }

    fn case(&self, grid: &Grid, threads: &[Regions]) -> Result<RoleRow, Failure> {
        self.prepare(grid.verify, threads)?;
        let gate = Barrier::new(threads.len());
        let before = carried(&self.engine);
        let cpu = own_cpu();
        let start = Instant::now();
        let ended: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> = threads
                .iter()
                .enumerate()
                .map(|(thread, regions)| {
                    let gate = &gate;
                    scope.spawn(move || {
                        gate.wait();
                        self.call(grid, thread, regions)
                    })
                })
                .collect();
            started
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        let (wall, cpu) = (start.elapsed(), own_cpu() - cpu);
        let shares = shares(&before, carried(&self.engine));
        let lost = |_| Failure::new("a caller's thread panicked");
        let tallies = ended
            .into_iter()
            .map(|ended| ended.map_err(lost))
            .collect::<Result<Vec<_>, _>>()?;
        let checked = match grid.verify {
            true => self.check(threads, &tallies)?,
            false => 0,
        };
        Ok(row(threads, &tallies, (wall, cpu), (checked, shares)))
    }

    /// One thread's work, in each of its regions in turn.
    fn call(&self, grid: &Grid, thread: usize, regions: &[Region]) -> Tally {
        let nothing = |region: &Region| vec![false; region.places as usize];
        let mut tally = Tally {
            arrived: regions.iter().map(nothing).collect(),
            ..Tally::default()
        };
        let start = Instant::now();
        let mut through = start;
        let mut turn = 0;
        while start.elapsed() < grid.duration || turn == 0 {
            let begun = Instant::now();
            let which = (turn % regions.len() as u64) as usize;
            let (region, number) = (regions[which], turn / regions.len() as u64);
            let came = self.batch(grid.deadline, thread, region, number);
            let now = Instant::now();
            tally.arrived[which][(number % region.places) as usize] = came;
            if came {
                let took = now - begun;
                tally.batches += 1;
                tally.tx += took;
                tally.latency.record(took);
                let bytes = (region.block * region.batch) as f64;
                tally.inst_gb_per_s += bytes / took.as_secs_f64().max(1e-9) / 1e9;
                tally.longest_stall = tally.longest_stall.max(now - through);
                through = now;
            } else {
                tally.failed += 1;
                // Whatever fails at once is not tried as fast as it fails.
                thread::sleep(Duration::from_millis(1));
            }
            turn += 1;
            thread::sleep(grid.interval.saturating_sub(begun.elapsed()));
        }
        tally.longest_stall = tally.longest_stall.max(through.elapsed());
        tally
    }

    /// `true`: all of it came through.
    fn batch(
        &self,
        deadline: Option<Duration>,
        thread: usize,
        region: Region,
        number: u64,
    ) -> bool {
        let requests: mooncake_tent::Result<Vec<_>> = (0..region.batch)
            .map(|block| {
                let offset = region.offset(number, block);
                let request = self.request(thread, offset, region)?;
                Ok(match deadline {
                    Some(deadline) => request.deadline(Instant::now() + deadline),
                    None => request,
                })
            })
            .collect();
        let Ok(requests) = requests else {
            return false;
        };
        let mut batch = self.engine.allocate_batch(requests.len());
        if self.engine.submit_transfer(&mut batch, requests).is_err() {
            return false;
        }
        let completed = |task| batch.outcome(task).is_some_and(|end| end.is_completed());
        if !batch.wait(PATIENCE) {
            batch.cancel_all();
            batch.wait(PATIENCE);
        }
        (0..batch.len()).all(completed)
    }

    fn request(
        &self,
        thread: usize,
        offset: u64,
        Region { write, block, .. }: Region,
    ) -> mooncake_tent::Result<Request> {
        let target = &self.targets[thread % self.targets.len()];
        let local = self.local.slice(offset..offset + block)?;
        let place = RemoteRange::Address(target.address + offset);
        Ok(match write {
            true => Request::write(local, &target.segment, place),
            false => Request::read(local, &target.segment, place),
        })
    }

    /// What is moved is there, and where it will arrive nothing is yet.
    fn prepare(&self, verify: bool, threads: &[Regions]) -> Result<(), Failure> {
        let mut memory = self.local.memory();
        if verify {
            wipe(&mut memory, 0, self.bytes);
            self.all_written(threads, true)?;
        }
        fill(memory, self.bytes);
        for region in threads.iter().flatten().filter(|region| !region.write) {
            wipe(&mut memory, region.start, region.len());
        }
        Ok(())
    }

    /// Writes all that is written in a case, or reads it.
    fn all_written(&self, threads: &[Regions], write: bool) -> Result<(), Failure> {
        for (thread, regions) in threads.iter().enumerate() {
            for region in regions.iter().filter(|region| region.write) {
                for at in (0..region.len()).step_by(STRIDE as usize) {
                    let stride = Region {
                        write,
                        start: region.start + at,
                        block: STRIDE.min(region.len() - at),
                        batch: 1,
                        places: 1,
                    };
                    if !self.batch(None, thread, stride, 0) {
                        return Err(Failure::new("a target cannot be prepared or checked"));
                    }
                }
            }
        }
        Ok(())
    }

    /// How many bytes arrived, all of them right. What failed may be because the target has gone, which
    /// is then not asked.
    fn check(&self, threads: &[Regions], tallies: &[Tally]) -> Result<u64, Failure> {
        let mut memory = self.local.memory();
        for region in threads.iter().flatten().filter(|region| region.write) {
            wipe(&mut memory, region.start, region.len());
        }
        let faults = tallies.iter().any(|tally| tally.failed > 0);
        match self.all_written(threads, false) {
            Err(_) if faults => return Ok(0),
            read => read?,
        }
        let mut checked = 0;
        for (regions, tally) in threads.iter().zip(tallies) {
            for (region, came) in regions.iter().zip(&tally.arrived) {
                let came = came.iter().zip(0..).filter(|(came, _)| **came);
                for (_, place) in came {
                    let (at, len) = (region.offset(place, 0), region.batch * region.block);
                    arrived(&memory, at, len, "what was moved")?;
                    checked += len;
                }
            }
        }
        // As the next who reads expects it, also where nothing was written.
        fill(memory, self.bytes);
        match self.all_written(threads, true) {
            Err(_) if faults => Ok(checked),
            written => written.map(|()| checked),
        }
    }
}

fn row(
    threads: &[Regions],
    tallies: &[Tally],
    (wall, cpu): (Duration, Duration),
    (checked_bytes, shares): (u64, Vec<LinkShare>),
) -> RoleRow {
    let Region { block, batch, .. } = threads[0][0];
    let mut latency = Latency::default();
    tallies
        .iter()
        .for_each(|tally| latency.merge(&tally.latency));
    let batches: u64 = tallies.iter().map(|tally| tally.batches).sum();
    let gb = (batches * batch * block) as f64 / 1e9;
    let each = |sum: f64| sum / batches.max(1) as f64;
    let tx: f64 = tallies.iter().map(|tally| tally.tx.as_secs_f64()).sum();
    let stalls = tallies.iter().map(|tally| tally.longest_stall);
    RoleRow {
        block_bytes: block,
        batch,
        threads: threads.len() as u64,
        gb_per_s: gb / wall.as_secs_f64(),
        avg_inst_gb_per_s: each(tallies.iter().map(|tally| tally.inst_gb_per_s).sum()),
        avg_lat_us: each(wall.as_secs_f64() * threads.len() as f64 * 1e6),
        avg_tx_us: each(tx * 1e6),
        p99_tx_us: latency.quantile_us(0.99),
        p999_tx_us: latency.quantile_us(0.999),
        cpu_s_per_gb: if gb > 0.0 {
            cpu.as_secs_f64() / gb
        } else {
            0.0
        },
        failed: tallies.iter().map(|tally| tally.failed).sum(),
        longest_stall_ms: stalls.max().unwrap_or_default().as_secs_f64() * 1e3,
        checked_bytes,
        shares,
    }
}

/// Runs `work` of an initiator on a thread that may block.
///
/// # Errors
///
/// Those of the work, or that it was cut off.
pub async fn initiate(
    initiator: Initiator,
    grid: Grid,
    ran: impl FnMut(&RoleRow) + Send + 'static,
) -> Result<RoleReport, Failure> {
    let work = move || initiator.run(&grid, ran);
    let ended = Handle::current().spawn_blocking(work).await;
    ended.unwrap_or_else(|error| Err(Failure::new("the measurement was cut off").because(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_from_the_first_to_the_last() {
        assert_eq!(doublings(3, 12), [3, 6, 12]);
        assert_eq!(doublings(4, 4), [4]);
        assert_eq!(doublings(5, 4), [0; 0]);
    }
}
