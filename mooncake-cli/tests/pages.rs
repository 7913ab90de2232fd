//! The pages in `docs/` say what the code does.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod page;

use std::collections::BTreeSet;

use mooncake_cli::bench::bucket::BucketReport;
use mooncake_cli::bench::cpp::CppReplay;
use mooncake_cli::bench::master::{Figure, Goal};
use mooncake_cli::bench::transfer::{LinkShare, RoleReport, RoleRow};
use mooncake_cli::bench::{Bar, Figures, Other, Report, Row, Yardstick};
use mooncake_cli::commands::bucket::Whose;
use mooncake_cli::commands::bucket::adopt::Adopted;
use mooncake_cli::commands::bucket::compact::Compacted;
use mooncake_cli::commands::bucket::dump::{Dump, DumpedBucket, DumpedRecord, DumpedTombstone};
use mooncake_cli::commands::bucket::ls::{ListedRecord, RecordListing};
use mooncake_cli::commands::bucket::stat::{BucketRow, StorageStat};
use mooncake_cli::commands::bucket::verify::{DamagedFile, DamagedRecord, Verified};
use mooncake_cli::commands::get::GetResult;
use mooncake_cli::commands::locate::{Place, Places};
use mooncake_cli::commands::ls::{Listed, Listing};
use mooncake_cli::commands::master::ReadyMaster;
use mooncake_cli::commands::metadata::ReadyMetadata;
use mooncake_cli::commands::node::ReadyNode;
use mooncake_cli::commands::put::PutResult;
use mooncake_cli::commands::rm::{Removal, Removals, RemovedAll};
use mooncake_cli::commands::serve::Ready;
use mooncake_cli::commands::stat::ObjectStat;
use mooncake_cli::commands::topology::{
    MemoryRow, NicDistance, NicRow, NodeDistance, NodeRow, TopologyReport,
};
use mooncake_cli::commands::trace::TraceStats;
use mooncake_cli::commands::transfer::{
    Asked, Direction, ExcludedRow, Explanation, PolicyRow, RankedLink, RankedRow, StepRow,
    TraceReport,
};
use mooncake_cli::config::{self, Flags, MasterSettings, Sources};
use mooncake_cli::output::{Failure, No};
use mooncake_cli::report::{DiskSummary, NodeSummary, StorageSummary, Summary};
use mooncake_cli::trace::Ideal;
use mooncake_tent::admission::Contracts;
use mooncake_tent::platform::Topology;
use mooncake_tent::selector::Policies;
use page::{doc, fields, listed};
use serde::Serialize;
use serde_json::json;

#[test]
fn the_configuration_page_is_made_from_the_settings() {
    let Some(path) = doc("configuration.md") else {
        return;
    };
    if std::env::var_os("MOONCAKE_BLESS").is_some() {
        std::fs::write(&path, config::page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == config::page(),
        "{} is out of date: MOONCAKE_BLESS=1 cargo test -p mooncake-cli --test pages",
        path.display()
    );
}

fn check(form: &str, value: &impl Serialize) {
    let Some(path) = doc("json.md") else { return };
    let page = std::fs::read_to_string(path).unwrap();
    let mut found = BTreeSet::new();
    fields(&serde_json::to_value(value).unwrap(), "", &mut found);
    assert_eq!(listed(&page, form), found, "docs/json.md, {form}");
}

#[test]
fn runs_have_the_fields_of_the_page() {
    check(
        "demo, bench replay",
        &Summary {
            nodes: vec![NodeSummary::default()],
            disks: Some(DiskSummary {
                storages: vec![StorageSummary::default()],
                ..DiskSummary::default()
            }),
            cpp: Some(CppReplay::default()),
            ..Summary::default()
        },
    );
}

#[test]
fn measured_rows_have_the_fields_of_the_page() {
    let bar = || {
        Some(Bar {
            least_ratio: 0.85,
            met: true,
        })
    };
    let other = || Other {
        system: "cpp".to_owned(),
        gb_per_s: 1.0,
        ops_per_s: 1.0,
        p50_us: 1.0,
        cpu_s_per_gb: 1.0,
        ratio: 1.0,
        bar: bar(),
    };
    let row = Row {
        transport: "tcp".to_owned(),
        op: "get".to_owned(),
        block_bytes: 1,
        batch: 1,
        threads: 1,
        poll: false,
        lookup: Some("fresh".to_owned()),
        ours: Figures::default(),
        limit: "1 round trip".to_owned(),
        limit_gb_per_s: 1.0,
        limit_ops_per_s: 1.0,
        limit_p50_us: 1.0,
        limit_cpu_s_per_gb: 1.0,
        ratio_of: Yardstick::P50Us,
        ratio: 1.0,
        bar: bar(),
        cpu_ratio: 1.0,
        cpu_bar: None,
        others: vec![other()],
        master: None,
        repeat: "mooncake bench store".to_owned(),
    };
    check(
        "bench store",
        &Report {
            rows: vec![row.clone()],
        },
    );
    let row = Row {
        lookup: None,
        others: Vec::new(),
        ..row
    };
    let mut fio = other();
    fio.bar = None;
    let measured = Row {
        others: vec![fio],
        ..row.clone()
    };
    let figure = Figure::new("a", 1.0, "s").should_be(Goal::at_most(2.0));
    check(
        "bench bucket",
        &BucketReport {
            rows: vec![measured],
            figures: vec![figure],
        },
    );
    let row = row.should_take_at_most(1.15);
    check("bench transfer", &Report { rows: vec![row] });
    let row = RoleRow {
        block_bytes: 1,
        batch: 1,
        threads: 1,
        gb_per_s: 1.0,
        avg_inst_gb_per_s: 1.0,
        avg_lat_us: 1.0,
        avg_tx_us: 1.0,
        p99_tx_us: 1.0,
        p999_tx_us: 1.0,
        cpu_s_per_gb: 1.0,
        failed: 0,
        longest_stall_ms: 1.0,
        checked_bytes: 1,
        shares: vec![LinkShare {
            link: "tcp",
            peer: None,
            share: 1.0,
        }],
    };
    let report = RoleReport {
        rows: vec![row],
        skipped: 0,
    };
    check("bench transfer as an initiator", &report);
}

#[test]
fn objects_have_the_fields_of_the_page() {
    let key = || "k".to_owned();
    check(
        "put",
        &PutResult {
            key: key(),
            bytes: 1,
            seconds: 1.0,
        },
    );
    check(
        "get",
        &GetResult {
            key: key(),
            to: key(),
            bytes: 1,
            seconds: 1.0,
        },
    );
    check(
        "ls",
        &Listing {
            objects: vec![Listed {
                key: key(),
                key_hex: key(),
                bytes: 1,
                replicas: 1,
            }],
            more: false,
        },
    );
    check(
        "stat",
        &ObjectStat {
            key: key(),
            tenant: key(),
            bytes: 1,
            epoch: 1,
            sequence: 1,
            writing: false,
            replicas: 1,
            leases: 0,
            idle_seconds: 0.0,
        },
    );
    let place = Place {
        kind: "memory",
        node: key(),
        address: key(),
        offset: 0,
        bytes: 1,
    };
    check(
        "where",
        &Places {
            key: key(),
            replicas: vec![place],
        },
    );
    check("rm --all", &RemovedAll { removed: 1 });
    check(
        "rm",
        &Removals {
            keys: vec![Removal {
                key: key(),
                removed: true,
                error: None,
            }],
        },
    );
}

#[test]
fn directories_of_buckets_have_the_fields_of_the_page() {
    let text = || "a".to_owned();
    let whose = || Whose {
        tenant: Some(text()),
        key: Some(text()),
        key_hex: Some(text()),
        epoch: 1,
        sequence: 1,
    };
    let bucket = || BucketRow {
        bucket: text(),
        sealed: true,
        created_s: 1,
        file_bytes: 1,
        live_bytes: 1,
        dead_bytes: 1,
        live_records: 1,
        dead_records: 1,
        broken_records: 1,
        flaw: None,
    };
    check(
        "bucket stat",
        &StorageStat {
            directory: text(),
            storage: text(),
            created_s: None,
            holder: None,
            holder_known: true,
            live_bytes: 1,
            dead_bytes: 1,
            overhead_bytes: 1,
            file_bytes: 1,
            allocated_bytes: 1,
            live_records: 1,
            dead_records: 1,
            broken_records: 1,
            tombstones: 1,
            torn_logs: 1,
            damaged_logs: 1,
            damaged_buckets: 1,
            gone_buckets: 1,
            transitions: 1,
            quarantined_files: 1,
            quarantined_bytes: 1,
            foreign_files: 1,
            buckets: vec![bucket()],
        },
    );
    check(
        "bucket adopt",
        &Adopted {
            directory: text(),
            storage: text(),
            live_records: 1,
            master: text(),
        },
    );
    check(
        "bucket ls",
        &RecordListing {
            records: vec![ListedRecord {
                whose: whose(),
                bytes: 1,
                bucket: text(),
            }],
            ..RecordListing::default()
        },
    );
    check(
        "bucket verify",
        &Verified {
            damaged: vec![DamagedRecord {
                whose: whose(),
                bucket: text(),
                at: 1,
                flaw: text(),
            }],
            files: vec![DamagedFile {
                file: text(),
                flaw: text(),
            }],
            ..Verified::default()
        },
    );
    check("bucket compact", &Compacted::default());
    check(
        "bucket dump",
        &Dump {
            storage: text(),
            buckets: vec![DumpedBucket {
                bucket: bucket(),
                records: vec![DumpedRecord {
                    at: 1,
                    span_bytes: 1,
                    value_at: 1,
                    bytes: 1,
                    state: "live",
                    whose: whose(),
                    hash: text(),
                    flaw: None,
                }],
                error: None,
            }],
            tombstones: vec![DumpedTombstone {
                log: text(),
                hash: text(),
                epoch: 1,
                sequence: 1,
                bucket: None,
                at: None,
            }],
        },
    );
}

#[test]
fn roles_have_the_fields_of_the_page() {
    let text = || "a".to_owned();
    check(
        "master",
        &Ready {
            ready: ReadyMaster {
                address: text(),
                admin_address: text(),
            },
        },
    );
    check(
        "metadata",
        &Ready {
            ready: ReadyMetadata {
                url: text(),
                admin_address: text(),
            },
        },
    );
    check(
        "node",
        &Ready {
            ready: ReadyNode {
                name: text(),
                segment: text(),
                segment_id: text(),
                bytes: 1,
                admin_address: text(),
            },
        },
    );
}

#[test]
fn a_no_has_the_fields_of_the_page() {
    check("No", &No::new("k", "no such object"));
}

#[test]
fn traces_have_the_fields_of_the_page() {
    check(
        "trace generate, trace stats",
        &TraceStats::new("f", Ideal::default()),
    );
}

#[test]
fn machines_have_the_fields_of_the_page() {
    let text = || "a".to_owned();
    let node = NodeRow {
        id: 0,
        cpus: text(),
        cpu_count: 1,
        memory_bytes: None,
        distances: vec![NodeDistance {
            node: 0,
            distance: 10,
        }],
    };
    let nic = NicRow {
        name: text(),
        kind: "tcp",
        pci_bus_id: None,
        pci_path: None,
        numa_node: None,
        up: None,
        bits_per_second: None,
        interface: None,
        distances: vec![NicDistance {
            nic: text(),
            class: "SYS",
        }],
    };
    let memory = MemoryRow {
        location: text(),
        kind: "host",
        numa_node: None,
        rank0: vec![text()],
        rank1: Vec::new(),
        rank2: Vec::new(),
    };
    check(
        "topology",
        &TopologyReport {
            nodes: vec![node],
            nics: vec![nic],
            memories: vec![memory],
            priority_matrix: [("LOCATION".to_owned(), Default::default())].into(),
            map: None,
        },
    );
}

#[test]
fn explanations_have_the_fields_of_the_page() {
    let text = || "a".to_owned();
    let request = Asked {
        op: Direction::Read,
        bytes: 1,
        segment: "memory",
        same_machine: false,
        local: text(),
        remote: text(),
        priority: "high",
        intent: "MIGRATION",
        tenant: None,
        policy: None,
        hint: None,
        hint_is_hard: false,
        devices: None,
    };
    check(
        "transfer explain",
        &Explanation {
            request,
            policies: vec![PolicyRow {
                policy: text(),
                applies: true,
                why: text(),
            }],
            ranked: vec![RankedRow {
                link: text(),
                estimate_us: None,
                devices: None,
                why: vec![text()],
            }],
            excluded: vec![ExcludedRow {
                link: text(),
                why: text(),
            }],
            pool: None,
            service_level: None,
            traffic_class: None,
        },
    );
}

#[test]
fn followed_transfers_have_the_fields_of_the_page() {
    let links = vec![RankedLink {
        link: "tcp".to_owned(),
        place: Some(1),
        why: String::new(),
    }];
    let step = StepRow {
        at_us: 1.0,
        step: "ranked",
        link: Some("tcp"),
        detail: String::new(),
        links: Some(links),
    };
    check(
        "transfer trace",
        &TraceReport {
            target: "127.0.0.1:1".to_owned(),
            op: Direction::Write,
            bytes: 1,
            outcome: "completed",
            steps: vec![step],
        },
    );
}

#[test]
fn policies_have_the_fields_of_the_page() {
    let Some(path) = doc("transfer.md") else {
        return;
    };
    let page = std::fs::read_to_string(path).unwrap();
    // Who is told that a field is unknown is told all that there are.
    let refused = Policies::from_json(r#"[{"nothing": 0}]"#).unwrap_err();
    let known = refused.to_string();
    let known: BTreeSet<_> = known
        .split('`')
        .skip(3)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    assert_eq!(listed(&page, "Policies"), known, "docs/transfer.md");
}

#[test]
fn descriptions_on_the_page_are_understood() {
    let Some(path) = doc("transfer.md") else {
        return;
    };
    let page = std::fs::read_to_string(path).unwrap();
    let (_, section) = page.split_once("## Descriptions of machines").unwrap();
    let blocks: Vec<_> = section.split("```json\n").skip(1).collect();
    assert_eq!(blocks.len(), 2, "one for each form");
    for block in blocks {
        let text = &block[..block.find("```").unwrap()];
        assert!(!Topology::from_json(text).unwrap().nics.is_empty());
    }
}

#[test]
fn contracts_on_the_page_are_understood_and_have_its_fields() {
    let Some(path) = doc("transfer.md") else {
        return;
    };
    let page = std::fs::read_to_string(path).unwrap();
    let (_, section) = page.split_once("## Contracts").unwrap();
    let (_, block) = section.split_once("```json\n").unwrap();
    let (text, rest) = block.split_once("```").unwrap();
    Contracts::from_json(text).unwrap();
    for wrong in [
        r#"{"nothing": 0}"#,
        r#"{"version": 1, "defaults": {"nothing": 0}}"#,
    ] {
        // Who is told that a field is unknown is told all that there are.
        let refused = Contracts::from_json(wrong).unwrap_err().to_string();
        let known: Vec<_> = refused.split('`').skip(3).step_by(2).collect();
        assert!(known.len() > 2, "{refused}");
        for field in known {
            assert!(rest.contains(&format!("| `{field}` |")), "{field}");
        }
    }
}

#[test]
fn errors_have_the_fields_of_the_page() {
    check("Errors", &Failure::new("a").json());
}

#[test]
fn settings_have_the_fields_of_the_page() {
    let effective = Sources::default()
        .settle(&Flags::<MasterSettings>::default())
        .unwrap();
    check(
        "config show",
        &json!({"ROLE": {"SETTING": &effective.values[0]}}),
    );
}

/// The names of all tests below `folder`; those of the conformance suite are functions that tests
/// call.
fn functions(folder: &std::path::Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let suite = path.iter().any(|part| part == "conformance");
            let text = std::fs::read_to_string(path).unwrap();
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                    is_test = true;
                }
                let Some((_, rest)) = line.split_once("fn ").filter(|(before, _)| {
                    matches!(before.trim(), "" | "async" | "pub" | "pub async")
                }) else {
                    continue;
                };
                if std::mem::take(&mut is_test) || suite {
                    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                    into.insert(rest[..end.unwrap_or(rest.len())].to_owned());
                }
            }
        }
    }
}

#[test]
fn every_guarantee_names_a_test_that_exists() {
    let Some(path) = doc("guarantees.md") else {
        return;
    };
    let mut known = BTreeSet::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("mooncake-") {
            functions(&path, &mut known);
        }
    }
    let page = std::fs::read_to_string(path).unwrap();
    let named: Vec<_> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.contains('_'))
        .collect();
    assert!(named.len() > 30, "the page names its tests");
    for name in named {
        assert!(known.contains(name), "there is no test {name}");
    }
}
