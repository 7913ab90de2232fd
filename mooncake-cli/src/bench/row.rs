//! A row of the table, and the table.

use serde::Serialize;

use super::{Figures, Rounds, master::MasterSide};
use crate::output::{Align, Show, Table};

/// By which figure a row is compared with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Yardstick {
    /// Payload per second.
    GbPerS,
    /// Operations per second.
    OpsPerS,
    /// The median latency.
    P50Us,
}

impl Yardstick {
    /// Above 1 where `ours` is better.
    #[must_use]
    pub fn compare(self, ours: &Figures, theirs: &Figures) -> f64 {
        let (better, worse) = match self {
            Self::GbPerS => (ours.gb_per_s, theirs.gb_per_s),
            Self::OpsPerS => (ours.ops_per_s, theirs.ops_per_s),
            Self::P50Us => (theirs.p50_us, ours.p50_us),
        };
        if worse > 0.0 { better / worse } else { 0.0 }
    }
}

/// What a row should reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// The least ratio that is good enough.
    pub least_ratio: f64,
    /// Whether it was reached.
    pub met: bool,
}

impl Bar {
    fn of(ratio: f64, least_ratio: f64) -> Self {
        Self {
            least_ratio,
            met: ratio >= least_ratio,
        }
    }
}

/// What a row should not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ceiling {
    /// The largest ratio that is good enough.
    pub most_ratio: f64,
    /// Whether it was kept.
    pub met: bool,
}

/// Another system in the same case, in the same rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Other {
    /// Which system: `cpp`, `redis`.
    pub system: String,
    /// Its payload, 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// Its operations per second.
    pub ops_per_s: f64,
    /// Its median latency in microseconds.
    pub p50_us: f64,
    /// Its processor time per 10⁹ bytes, of all sides.
    pub cpu_s_per_gb: f64,
    /// Ours compared with it, above 1 where ours is better.
    pub ratio: f64,
    /// What the ratio should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
}

/// One case, ours beside its limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Over what: `tcp`, `memory`, `session`, `unary`.
    pub transport: String,
    /// What is done: `read`, `write`, `get`, `exist` …
    pub op: String,
    /// Bytes of one operation; for a master, of a key.
    pub block_bytes: u64,
    /// Operations that are submitted together.
    pub batch: u64,
    /// Threads that call.
    pub threads: u64,
    /// Whether callers look instead of sleeping.
    pub poll: bool,
    /// What a client knows of keys before it reads them: `cached`, `fresh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup: Option<String>,
    /// Our figures.
    #[serde(flatten)]
    pub ours: Figures,
    /// What the limit is.
    pub limit: String,
    /// The limit's payload, 10⁹ bytes per second.
    pub limit_gb_per_s: f64,
    /// The limit's operations per second.
    pub limit_ops_per_s: f64,
    /// The limit's median latency in microseconds.
    pub limit_p50_us: f64,
    /// The limit's processor time per 10⁹ bytes, of all sides.
    pub limit_cpu_s_per_gb: f64,
    /// By which figure they are compared.
    pub ratio_of: Yardstick,
    /// Ours compared with the limit, above 1 where ours is better: the median of the rounds' ratios.
    pub ratio: f64,
    /// What the ratio should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    /// Our processor time per operation, of all sides, in multiples of the limit's: the median of the
    /// rounds' ratios.
    pub cpu_ratio: f64,
    /// What that ratio should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_bar: Option<Ceiling>,
    /// Other systems.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Other>,
    /// What a row of a master tells besides.
    #[serde(flatten)]
    pub master: Option<MasterSide>,
    /// The command that measures this row again; empty where there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub repeat: String,
}

impl Row {
    /// The row of contender 0, with contender 1 as its limit. The case itself is filled in by the
    /// caller.
    #[must_use]
    pub fn beside_limit(rounds: &Rounds, limit: &str, by: Yardstick) -> Self {
        let (ours, theirs) = (rounds.figures(0), rounds.figures(1));
        Self {
            transport: String::new(),
            op: String::new(),
            block_bytes: 0,
            batch: 1,
            threads: 1,
            poll: false,
            lookup: None,
            ours,
            limit: limit.to_owned(),
            limit_gb_per_s: theirs.gb_per_s,
            limit_ops_per_s: theirs.ops_per_s,
            limit_p50_us: theirs.p50_us,
            limit_cpu_s_per_gb: theirs.cpu_s_per_gb,
            ratio_of: by,
            ratio: rounds.ratio(0, 1, by),
            bar: None,
            cpu_ratio: rounds.cpu_ratio(0, 1),
            cpu_bar: None,
            others: Vec::new(),
            master: None,
            repeat: String::new(),
        }
    }

    /// Says what the ratio should be.
    #[must_use]
    pub fn should_reach(mut self, least_ratio: f64) -> Self {
        self.bar = Some(Bar::of(self.ratio, least_ratio));
        self
    }

    /// Says what the ratio to another system should be, if that has been added.
    pub fn should_beat(&mut self, system: &str, least_ratio: f64) {
        for other in &mut self.others {
            if other.system == system {
                other.bar = Some(Bar::of(other.ratio, least_ratio));
            }
        }
    }

    /// Says how much processor time it may take, in multiples of the limit's.
    #[must_use]
    pub fn should_take_at_most(mut self, most_ratio: f64) -> Self {
        let met = self.cpu_ratio <= most_ratio;
        self.cpu_bar = Some(Ceiling { most_ratio, met });
        self
    }

    /// Adds contender number `who` of the same rounds as another system.
    pub fn add_other(&mut self, rounds: &Rounds, who: usize, system: &str) {
        let theirs = rounds.figures(who);
        self.others.push(Other {
            system: system.to_owned(),
            gb_per_s: theirs.gb_per_s,
            ops_per_s: theirs.ops_per_s,
            p50_us: theirs.p50_us,
            cpu_s_per_gb: theirs.cpu_s_per_gb,
            ratio: rounds.ratio(0, who, self.ratio_of),
            bar: None,
        });
    }
}

/// All rows of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
}

impl Report {
    /// Whether every bar is reached, those beside other systems included.
    #[must_use]
    pub fn all_met(&self) -> bool {
        let bars = |row: &Row| {
            let others = row.others.iter().map(|other| other.bar);
            let mut bars = std::iter::once(row.bar).chain(others).flatten();
            bars.all(|bar| bar.met) && row.cpu_bar.is_none_or(|bar| bar.met)
        };
        self.rows.iter().all(bars)
    }
}

impl Show for Report {
    fn human(&self) -> String {
        use Align::{Left, Right};
        let mut systems: Vec<&str> = Vec::new();
        for other in self.rows.iter().flat_map(|row| &row.others) {
            if !systems.contains(&other.system.as_str()) {
                systems.push(&other.system);
            }
        }
        let mut columns = vec![
            ("over", Left),
            ("op", Left),
            ("bytes", Right),
            ("batch", Right),
            ("callers", Right),
            ("GB/s", Right),
            ("op/s", Right),
            ("p50 µs", Right),
            ("p99 µs", Right),
            ("s/GB", Right),
            ("limit", Left),
            ("GB/s", Right),
            ("op/s", Right),
            ("p50 µs", Right),
            ("s/GB", Right),
            ("ratio", Right),
            ("of", Left),
            ("bar", Right),
            ("", Left),
            ("CPU", Right),
            ("bar", Right),
            ("", Left),
        ];
        for system in &systems {
            columns.extend([(*system, Right), ("ours is", Right)]);
        }
        let mut table = Table::new(&columns);
        for row in &self.rows {
            table.row(row.cells(&systems));
        }
        table.text()
    }
}

impl Row {
    fn cells(&self, systems: &[&str]) -> Vec<String> {
        let ours = &self.ours;
        let mut cells = vec![
            self.transport.clone(),
            match &self.lookup {
                Some(lookup) => format!("{}, {lookup}", self.op),
                None => self.op.clone(),
            },
            self.block_bytes.to_string(),
            self.batch.to_string(),
            format!(
                "{} {}",
                self.threads,
                if self.poll { "poll" } else { "sleep" }
            ),
            digits(ours.gb_per_s),
            rate(ours.ops_per_s),
            digits(ours.p50_us),
            digits(ours.p99_us),
            digits(ours.cpu_s_per_gb),
            self.limit.clone(),
            digits(self.limit_gb_per_s),
            rate(self.limit_ops_per_s),
            digits(self.limit_p50_us),
            digits(self.limit_cpu_s_per_gb),
            format!("{:.2}", self.ratio),
            match self.ratio_of {
                Yardstick::GbPerS => "GB/s",
                Yardstick::OpsPerS => "op/s",
                Yardstick::P50Us => "p50",
            }
            .to_owned(),
            self.bar
                .map_or_else(String::new, |bar| format!("{:.2}", bar.least_ratio)),
            verdict(self.bar.map(|bar| bar.met)),
            digits(self.cpu_ratio),
            self.cpu_bar
                .map_or_else(String::new, |bar| format!("{:.2}", bar.most_ratio)),
            verdict(self.cpu_bar.map(|bar| bar.met)),
        ];
        for system in systems {
            let other = self.others.iter().find(|other| other.system == *system);
            let figure = |other: &Other| match self.ratio_of {
                Yardstick::GbPerS => digits(other.gb_per_s),
                Yardstick::OpsPerS => digits(other.ops_per_s),
                Yardstick::P50Us => digits(other.p50_us),
            };
            cells.push(other.map_or_else(String::new, figure));
            cells.push(other.map_or_else(String::new, |it| {
                let missed = it.bar.is_some_and(|bar| !bar.met);
                format!("{:.1}x{}", it.ratio, if missed { " NO" } else { "" })
            }));
        }
        cells
    }
}

fn verdict(met: Option<bool>) -> String {
    match met {
        None => "",
        Some(true) => "yes",
        Some(false) => "NO",
    }
    .to_owned()
}

/// Three significant digits and what they are multiplied with.
fn rate(number: f64) -> String {
    match number {
        n if n < 1e4 => digits(n),
        n if n < 1e5 => format!("{:.1}k", n / 1e3),
        n if n < 1e6 => format!("{:.0}k", n / 1e3),
        n => format!("{}M", digits(n / 1e6)),
    }
}

/// Three significant digits; nothing where there is nothing to tell.
fn digits(number: f64) -> String {
    match number {
        n if n <= 0.0 => "-".to_owned(),
        n if n < 10.0 => format!("{n:.2}"),
        n if n < 100.0 => format!("{n:.1}"),
        n => crate::output::count(n.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::{Contender, Sample, Turns};
    use crate::output::Failure;

    struct Steady(u64);

    impl Contender for Steady {
        fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
            let mut sample = Sample {
                operations: self.0,
                bytes: self.0 << 20,
                wall: budget,
                cpu: budget,
                ..Sample::default()
            };
            sample.latency.record(Duration::from_micros(1_000 / self.0));
            Ok(sample)
        }
    }

    #[test]
    fn a_row_tells_how_close_to_its_limit_it_is() {
        let turns = Turns {
            rounds: 3,
            budget: Duration::from_secs(1),
        };
        let (mut ours, mut limit, mut other) = (Steady(90), Steady(100), Steady(30));
        let rounds = turns
            .measure(&mut [&mut ours, &mut limit, &mut other])
            .unwrap();
        let mut row = Row::beside_limit(&rounds, "plain socket", Yardstick::GbPerS);
        row.add_other(&rounds, 2, "cpp");
        row.should_beat("cpp", 2.5);
        let row = row.should_reach(0.85).should_take_at_most(1.15);
        assert_eq!((row.ratio, row.others[0].ratio), (0.9, 3.0));
        assert!((row.cpu_ratio - 10.0 / 9.0).abs() < 1e-9);
        assert!(row.bar.unwrap().met && row.cpu_bar.unwrap().met);
        let costly = row.clone().should_take_at_most(1.1);
        assert!(!Report { rows: vec![costly] }.all_met());
        let mut report = Report { rows: vec![row] };
        assert!(report.all_met());
        report.rows[0].should_beat("cpp", 3.5);
        assert!(!report.all_met());
        let text = report.human();
        assert!(
            text.contains("plain socket") && text.contains("0.90"),
            "{text}"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][0]["ratio_of"], "gb_per_s");
        assert!(json["rows"][0]["limit_p50_us"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn rates_are_short() {
        let texts = [0.0, 9.5, 9_999.0, 67_264.0, 750_217.0, 1_096_877.0].map(rate);
        assert_eq!(texts, ["-", "9.50", "9,999", "67.3k", "750k", "1.10M"]);
    }

    #[test]
    fn latency_compares_the_other_way_round() {
        let figures = |p50_us| Figures {
            p50_us,
            ..Figures::default()
        };
        assert_eq!(
            Yardstick::P50Us.compare(&figures(10.0), &figures(20.0)),
            2.0
        );
        assert_eq!(Yardstick::P50Us.compare(&figures(0.0), &figures(20.0)), 0.0);
    }
}
