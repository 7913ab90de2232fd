//! What a run over a trace came to.

use serde::Serialize;

use crate::bench::cpp::CppReplay;
use crate::output::{Align, Show, Table, bytes, count, gb_per_s, micros, percent, seconds};

/// The numbers of a run. The names are a contract with scripts: `docs/json.md` lists them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Requests that were run.
    pub requests: u64,
    /// Blocks of all prompts.
    pub blocks_total: u64,
    /// Blocks that the store had, from a prompt's first one on.
    pub blocks_hit: u64,
    /// `blocks_hit` of `blocks_total`.
    pub hit_ratio_blocks: f64,
    /// Tokens in blocks that were hit, of the tokens of all prompts.
    pub hit_ratio_tokens: f64,
    /// What a cache that never forgets would have hit, of `blocks_total`.
    pub ideal_ratio_blocks: f64,
    /// Blocks that were read and had a wrong byte or length. Anything but 0 is a bug.
    pub byte_errors: u64,
    /// Blocks that the store had but that could not be read from their node, which are misses.
    pub unreadable_blocks: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Bytes that were read.
    pub bytes_get: u64,
    /// Bytes that were written.
    pub bytes_put: u64,
    /// `bytes_get` by the time in which reads were under way, in 1,000,000,000 bytes a second.
    pub get_gb_per_s: f64,
    /// `bytes_put` likewise.
    pub put_gb_per_s: f64,
    /// Half of the reads took no longer than this, in microseconds.
    pub get_p50_us: u64,
    /// 99 of 100 reads took no longer than this, in microseconds.
    pub get_p99_us: u64,
    /// Half of the writes took no longer than this, in microseconds.
    pub put_p50_us: u64,
    /// 99 of 100 writes took no longer than this, in microseconds.
    pub put_p99_us: u64,
    /// Objects that had to make room.
    pub evicted_objects: u64,
    /// How long the run took.
    pub seconds: f64,
    /// The nodes at the end of the run.
    pub nodes: Vec<NodeSummary>,
    /// What disks did, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disks: Option<DiskSummary>,
    /// The same replay against the C++ store, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpp: Option<CppReplay>,
}

/// One node at the end of a run.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct NodeSummary {
    /// What the node calls itself.
    pub name: String,
    /// Memory that it lends.
    pub capacity_bytes: u64,
    /// Memory that objects take.
    pub used_bytes: u64,
    /// Objects that it holds.
    pub objects: u64,
}

/// What the disks of a run did.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct DiskSummary {
    /// Blocks that were read from disks.
    pub disk_blocks_hit: u64,
    /// Objects that were removed in mid run, all of which were on disks.
    pub removed_objects: u64,
    /// Those of them that could be read again. Anything but 0 is a bug.
    pub returned_objects: u64,
    /// Nodes that were killed and came back.
    pub restarted_nodes: u64,
    /// Whether master and disks count the same bytes once nothing is left to do.
    pub books_agree: bool,
    /// The disks at the end of the run.
    pub storages: Vec<StorageSummary>,
}

/// One disk at the end of a run.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct StorageSummary {
    /// Whose it is.
    pub node: String,
    /// Objects that can be read from it.
    pub objects: u64,
    /// Bytes of their values, as the master counts them.
    pub value_bytes: u64,
    /// The same, as the node counts them.
    pub held_bytes: u64,
    /// What its files take.
    pub file_bytes: u64,
}

impl Summary {
    /// Whether every byte was right and every operation succeeded. What failed while a node was dead is
    /// part of a run in which one is killed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let cpp = self.cpp.iter();
        let cpp = cpp.map(|cpp| cpp.byte_errors + cpp.errors).sum::<u64>();
        let errors = match &self.disks {
            Some(disks) => disks.returned_objects + u64::from(!disks.books_agree),
            None => self.errors,
        };
        self.byte_errors + errors + cpp == 0
    }

    fn disk_text(&self, disks: &DiskSummary) -> String {
        use Align::{Left, Right};
        let columns = [
            ("disk", Left),
            ("objects", Right),
            ("values", Right),
            ("on disk", Right),
            ("files", Right),
        ];
        let mut table = Table::new(&columns);
        for storage in &disks.storages {
            table.row([
                storage.node.clone(),
                count(storage.objects),
                bytes(storage.value_bytes),
                bytes(storage.held_bytes),
                bytes(storage.file_bytes),
            ]);
        }
        let came_back = match disks.returned_objects {
            0 => "none came back".to_owned(),
            back => format!("{} CAME BACK", count(back)),
        };
        let books = match disks.books_agree {
            true => "master and disks count the same bytes",
            false => "MASTER AND DISKS DO NOT COUNT THE SAME BYTES",
        };
        format!(
            "{} of the blocks that were hit came from disks\n{} objects were removed from disks, {came_back}\n\
             {} node was killed and came back; {books}\n\n{}",
            count(disks.disk_blocks_hit),
            count(disks.removed_objects),
            disks.restarted_nodes,
            table.text()
        )
    }

    fn verdict(&self) -> String {
        match (self.byte_errors, self.errors) {
            (0, 0) => "every byte was right, and no operation failed".to_owned(),
            (0, errors) => format!(
                "every byte was right, but {} operations failed",
                count(errors)
            ),
            (wrong, errors) => format!(
                "{} BLOCKS HAD WRONG BYTES, and {} operations failed",
                count(wrong),
                count(errors)
            ),
        }
    }

    /// Of what could be hit at all, how much was.
    fn of_ideal(&self) -> String {
        if self.ideal_ratio_blocks > 0.0 {
            percent(self.hit_ratio_blocks / self.ideal_ratio_blocks)
        } else {
            "-".to_owned()
        }
    }

    fn traffic(&self) -> String {
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("", Left),
            ("bytes", Right),
            ("rate", Right),
            ("p50", Right),
            ("p99", Right),
        ]);
        let mut row = |name: &str, moved, rate, p50, p99| {
            table.row([
                name.to_owned(),
                bytes(moved),
                gb_per_s(rate),
                micros(p50),
                micros(p99),
            ]);
        };
        row(
            "get",
            self.bytes_get,
            self.get_gb_per_s,
            self.get_p50_us,
            self.get_p99_us,
        );
        row(
            "put",
            self.bytes_put,
            self.put_gb_per_s,
            self.put_p50_us,
            self.put_p99_us,
        );
        table.text()
    }

    fn node_table(&self) -> String {
        use Align::{Left, Right};
        let columns = [
            ("node", Left),
            ("objects", Right),
            ("used", Right),
            ("of", Right),
            ("", Right),
        ];
        let mut table = Table::new(&columns);
        for node in &self.nodes {
            let share = if node.capacity_bytes == 0 {
                0.0
            } else {
                node.used_bytes as f64 / node.capacity_bytes as f64
            };
            table.row([
                node.name.clone(),
                count(node.objects),
                bytes(node.used_bytes),
                bytes(node.capacity_bytes),
                format!("{:.0} %", share * 100.0),
            ]);
        }
        table.text()
    }
}

impl Show for Summary {
    fn human(&self) -> String {
        let mut parts = vec![
            format!(
                "{} requests, {} blocks in {}\n{}",
                count(self.requests),
                count(self.blocks_total),
                seconds(self.seconds),
                self.verdict()
            ),
            format!(
                "hit    {} of blocks, {} of tokens\nideal  {} of blocks; {} of it was reached",
                percent(self.hit_ratio_blocks),
                percent(self.hit_ratio_tokens),
                percent(self.ideal_ratio_blocks),
                self.of_ideal()
            ),
            self.traffic(),
        ];
        if self.unreadable_blocks > 0 {
            parts.push(format!(
                "{} blocks could not be read from their node: misses",
                count(self.unreadable_blocks)
            ));
        }
        if self.evicted_objects > 0 {
            parts.push(format!(
                "{} objects were evicted to make room",
                count(self.evicted_objects)
            ));
        }
        if !self.nodes.is_empty() {
            parts.push(self.node_table());
        }
        if let Some(disks) = &self.disks {
            parts.push(self.disk_text(disks));
        }
        if let Some(cpp) = &self.cpp {
            parts.push(format!(
                "the C++ store took {}, {:.2} times as long; it had {} of blocks, {} wrong and {} failed",
                seconds(cpp.seconds),
                cpp.ratio,
                percent(cpp.blocks_hit as f64 / cpp.blocks_total.max(1) as f64),
                count(cpp.byte_errors),
                count(cpp.errors)
            ));
        }
        parts.join("\n\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Summary {
        Summary {
            requests: 12_031,
            blocks_total: 288_500,
            blocks_hit: 61_046,
            hit_ratio_blocks: 0.2116,
            hit_ratio_tokens: 0.2191,
            ideal_ratio_blocks: 0.366_41,
            bytes_get: 61_046 << 20,
            bytes_put: 227_454 << 20,
            get_gb_per_s: 6.21,
            put_gb_per_s: 3.4,
            get_p50_us: 310,
            get_p99_us: 2_150,
            put_p50_us: 520,
            put_p99_us: 3_900,
            evicted_objects: 172_790,
            seconds: 83.1,
            nodes: vec![
                NodeSummary {
                    name: "node-0".to_owned(),
                    capacity_bytes: 5 << 30,
                    used_bytes: 4 << 30,
                    objects: 4_096,
                },
                NodeSummary {
                    name: "node-1".to_owned(),
                    capacity_bytes: 5 << 30,
                    used_bytes: 9 << 29,
                    objects: 4_608,
                },
            ],
            ..Summary::default()
        }
    }

    const SHOWN: &str = "\
12,031 requests, 288,500 blocks in 83.1 s
every byte was right, and no operation failed

hit    21.16 % of blocks, 21.91 % of tokens
ideal  36.64 % of blocks; 57.75 % of it was reached

        bytes       rate     p50      p99
get  59.6 GiB  6.21 GB/s  310 µs  2.15 ms
put   222 GiB  3.40 GB/s  520 µs  3.90 ms

172,790 objects were evicted to make room

node    objects      used        of
node-0    4,096  4.00 GiB  5.00 GiB  80 %
node-1    4,608  4.50 GiB  5.00 GiB  90 %";

    #[test]
    fn a_summary_is_read_in_half_a_minute() {
        let shown = sample().human();
        assert!(
            shown.lines().all(|line| line.chars().count() <= 80),
            "{shown}"
        );
        assert_eq!(shown, SHOWN, "\n{shown}");
    }

    #[test]
    fn wrong_bytes_cannot_be_overlooked() {
        let summary = Summary {
            byte_errors: 1,
            ..sample()
        };
        assert!(summary.human().contains("1 BLOCKS HAD WRONG BYTES"));
        assert!(!summary.is_clean());
    }

    #[test]
    fn an_empty_run_divides_by_nothing() {
        assert!(!Summary::default().human().contains("NaN"));
    }
}
