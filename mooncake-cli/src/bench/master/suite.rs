//! All cases, and the table that they make.

use serde::Serialize;
use tokio::runtime::Handle;

use super::{
    case::Case,
    figure::{self, Figure, digits},
    keys::Keys,
    lifecycle, objects, rows,
};
use crate::{
    bench::{Row, Turns, cpp::Wheel},
    output::{Align, Failure, Output, Show, Table},
};

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Suite {
    /// In this order; none: all.
    pub cases: Vec<Case>,
    /// Leaves out what takes long.
    pub quick: bool,
    /// How the contenders of a row take turns.
    pub turns: Turns,
    /// Length of a key.
    pub key_bytes: usize,
    /// Another shape of the load than that of the case, which then has no bars.
    pub batch: Option<usize>,
    /// Likewise.
    pub depth: Option<usize>,
    /// Likewise.
    pub clients: Option<usize>,
    /// Objects whose memory is measured.
    pub objects: u64,
    /// Objects that are there when eviction starts.
    pub evictable: u64,
    /// The C++ store, where its master is to be measured as well.
    pub wheel: Option<Wheel>,
}

impl Suite {
    /// The least length of a key.
    pub const LEAST_KEY_BYTES: usize = Keys::LEAST_BYTES;
    /// The length of a key that vLLM makes.
    pub const USUAL_KEY_BYTES: usize = Keys::USUAL_BYTES;

    /// Measures, and tells `output` what it is at.
    ///
    /// # Errors
    ///
    /// Something cannot be measured.
    pub fn run(&self, runtime: &Handle, output: Output) -> Result<MasterReport, Failure> {
        let cases = match &self.cases[..] {
            [] => Case::all(self.quick),
            some => some.to_vec(),
        };
        let mut report = MasterReport::default();
        for case in cases {
            output.remark(format_args!("measuring {} …", case.name()));
            let figures = match case {
                Case::Eviction => objects::eviction(runtime, self)?,
                Case::Idle => runtime.block_on(lifecycle::idle())?,
                Case::Memory => objects::memory(runtime, self)?,
                Case::Start => runtime.block_on(lifecycle::start())?,
                _ => {
                    let shape = case.shape().expect("all others are loads");
                    let mut own = shape;
                    own.plan.batch = self.batch.unwrap_or(own.plan.batch);
                    own.plan.depth = self.depth.unwrap_or(own.plan.depth);
                    own.clients = self.clients.unwrap_or(own.clients);
                    if own.plan != shape.plan || own.clients != shape.clients {
                        (own.keys_per_s, own.master_us, own.both_us) = (None, None, None);
                    }
                    let (row, figures) = rows::measure(runtime, self, case, own)?;
                    report.rows.push(row);
                    figures
                }
            };
            let repeat = self.repeat(case);
            report
                .figures
                .extend(figures.into_iter().map(|figure| Figure {
                    repeat: repeat.clone(),
                    ..figure
                }));
        }
        Ok(report)
    }

    /// The command that repeats a case.
    pub(super) fn repeat(&self, case: Case) -> String {
        let mut command = format!("mooncake bench master --case {}", case.name());
        let seconds = self.turns.budget.as_secs_f64();
        match case {
            Case::Eviction => {
                command += &format!(" --evictable {} --seconds {seconds}", self.evictable);
            }
            Case::Idle | Case::Start => return command,
            Case::Memory => command += &format!(" --objects {}", self.objects),
            _ => command += &format!(" --rounds {} --seconds {seconds}", self.turns.rounds),
        }
        if self.key_bytes != Self::USUAL_KEY_BYTES {
            command += &format!(" --key-bytes {}", self.key_bytes);
        }
        let mut shape = vec![
            ("batch", self.batch),
            ("depth", self.depth),
            ("clients", self.clients),
        ];
        shape.retain(|_| case.shape().is_some());
        for (name, value) in shape {
            if let Some(value) = value {
                command += &format!(" --{name} {value}");
            }
        }
        command
    }
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MasterReport {
    /// The loads.
    pub rows: Vec<Row>,
    /// The figures that stand alone, and those of rows that have a bar.
    pub figures: Vec<Figure>,
}

impl MasterReport {
    /// Whether every figure that has a bar reaches it.
    #[must_use]
    pub fn all_met(&self) -> bool {
        self.figures.iter().all(|figure| figure.met != Some(false))
    }
}

impl Show for MasterReport {
    fn human(&self) -> String {
        let mut tables = Vec::new();
        if !self.rows.is_empty() {
            tables.push(self.loads());
        }
        if !self.figures.is_empty() {
            tables.push(figure::table(&self.figures));
        }
        tables.join("\n\n")
    }
}

impl MasterReport {
    fn loads(&self) -> String {
        use Align::{Left, Right};
        let mut columns = vec![
            ("over", Left),
            ("op", Left),
            ("key", Right),
            ("batch", Right),
            ("clients", Right),
            ("depth", Right),
            ("keys/s", Right),
            ("p50 µs", Right),
            ("p99 µs", Right),
            ("p999 µs", Right),
            ("master µs/key", Right),
            ("client µs/call", Right),
            ("limit", Left),
            ("keys/s", Right),
            ("p50 µs", Right),
            ("both µs/call", Right),
            ("ratio", Right),
        ];
        let mut systems: Vec<&str> = Vec::new();
        for other in self.rows.iter().flat_map(|row| &row.others) {
            if !systems.contains(&other.system.as_str()) {
                systems.push(&other.system);
            }
        }
        for system in &systems {
            columns.extend([(*system, Right), ("ours is", Right)]);
        }
        let mut table = Table::new(&columns);
        for row in &self.rows {
            let side = |of: fn(&rows::MasterSide) -> f64| {
                row.master
                    .as_ref()
                    .map_or_else(String::new, |side| digits(of(side)))
            };
            let mut cells = vec![
                row.transport.clone(),
                row.op.clone(),
                row.block_bytes.to_string(),
                row.batch.to_string(),
                row.threads.to_string(),
                row.master
                    .map_or_else(String::new, |side| side.depth.to_string()),
                digits(row.ours.ops_per_s),
                digits(row.ours.p50_us),
                digits(row.ours.p99_us),
                digits(row.ours.p999_us),
                side(|side| side.master_cpu_us_per_key),
                side(|side| side.client_cpu_us_per_call),
                row.limit.clone(),
                digits(row.limit_ops_per_s),
                digits(row.limit_p50_us),
                side(|side| side.limit_cpu_us_per_call),
                digits(row.ratio),
            ];
            for system in &systems {
                let other = row.others.iter().find(|other| other.system == *system);
                cells.push(other.map_or_else(String::new, |it| digits(it.ops_per_s)));
                cells.push(other.map_or_else(String::new, |it| format!("{:.1}x", it.ratio)));
            }
            table.row(cells);
        }
        table.text()
    }
}
