//! A machine as tables and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use mooncake_tent::platform::{Distance, MemoryPlace, Nic, NumaNode, Topology};

use crate::output::{Align, Show, Table, bits_per_s, bytes};

/// What the machine is made of.
#[derive(Clone, Debug, Serialize)]
pub struct TopologyReport {
    /// Its NUMA nodes.
    pub nodes: Vec<NodeRow>,
    /// Its network devices.
    pub nics: Vec<NicRow>,
    /// Where memory may be, and which devices suit it.
    pub memories: Vec<MemoryRow>,
    /// The same as people write it: preferred and available devices for each location.
    pub priority_matrix: BTreeMap<String, [Vec<String>; 2]>,
    /// The drawing that people see instead of tables.
    #[serde(skip)]
    pub map: Option<String>,
}

/// A NUMA node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRow {
    /// Its number.
    pub id: u32,
    /// The numbers of its CPUs, such as `0-15,32-47`.
    pub cpus: String,
    /// How many they are.
    pub cpu_count: usize,
    /// Its memory.
    pub memory_bytes: Option<u64>,
    /// How far it is to each node.
    pub distances: Vec<NodeDistance>,
}

/// How far it is to a node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeDistance {
    /// The node.
    pub node: u32,
    /// 10 is local, 20 twice as far.
    pub distance: u32,
}

/// A network device.
#[derive(Clone, Debug, Serialize)]
pub struct NicRow {
    /// Its name.
    pub name: String,
    /// What speaks to it: `rdma`, `ub`, `tcp` or `unknown`.
    pub kind: &'static str,
    /// Its PCI address.
    pub pci_bus_id: Option<String>,
    /// The way to it from the host bridge.
    pub pci_path: Option<Vec<String>>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// Whether it has a connection.
    pub up: Option<bool>,
    /// How fast that is.
    pub bits_per_second: Option<u64>,
    /// The network interface that an RDMA device sends through.
    pub interface: Option<String>,
    /// How far it is to each of the others.
    pub distances: Vec<NicDistance>,
}

/// How far it is to a device.
#[derive(Clone, Debug, Serialize)]
pub struct NicDistance {
    /// The device.
    pub nic: String,
    /// `X`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`, or `?` when it is not known.
    pub class: &'static str,
}

/// A place where memory may be.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryRow {
    /// Its name as a location: `cpu:0`, or `*` for memory anywhere.
    pub location: String,
    /// What kind of memory: `host`, `cuda`, `rocm`, `ascend` or `unknown`.
    pub kind: &'static str,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// The devices that suit it best.
    pub rank0: Vec<String>,
    /// Those between.
    pub rank1: Vec<String>,
    /// Those that suit it least.
    pub rank2: Vec<String>,
}

impl TopologyReport {
    /// What `topology` says, shown to people as `map` where there is one.
    pub fn new(topology: &Topology, map: Option<String>) -> Self {
        let matrix = topology.priority_matrix();
        let rows = matrix.rows().map(|(location, preferred, available)| {
            (
                location.to_owned(),
                [preferred.to_vec(), available.to_vec()],
            )
        });
        let nics = 0..topology.nics.len();
        Self {
            nodes: topology.nodes.iter().map(NodeRow::from).collect(),
            nics: nics.map(|place| NicRow::new(topology, place)).collect(),
            memories: topology
                .memories
                .iter()
                .map(|memory| MemoryRow::new(topology, memory))
                .collect(),
            priority_matrix: rows.collect(),
            map,
        }
    }
}

impl From<&NumaNode> for NodeRow {
    fn from(node: &NumaNode) -> Self {
        let distances = node.distances.iter();
        Self {
            id: node.id,
            cpus: node.cpus.to_string(),
            cpu_count: node.cpus.len(),
            memory_bytes: node.memory_bytes,
            distances: distances
                .map(|(node, distance)| NodeDistance {
                    node: *node,
                    distance: *distance,
                })
                .collect(),
        }
    }
}

impl NicRow {
    fn new(topology: &Topology, place: usize) -> Self {
        let Nic {
            name,
            kind,
            pci_bus_id,
            pci,
            numa_node,
            up,
            bits_per_second,
            interface,
            ..
        } = topology.nics[place].clone();
        let others = (0..topology.nics.len()).filter(|other| *other != place);
        Self {
            name,
            kind: kind.name(),
            pci_bus_id,
            pci_path: pci.map(|path| path.parts().map(str::to_owned).collect()),
            numa_node,
            up,
            bits_per_second,
            interface,
            distances: others
                .map(|other| NicDistance {
                    nic: topology.nics[other].name.clone(),
                    class: topology.distance(place, other).name(),
                })
                .collect(),
        }
    }
}

impl MemoryRow {
    fn new(topology: &Topology, memory: &MemoryPlace) -> Self {
        let names = |tier: &Vec<usize>| {
            let nics = tier.iter().map(|place| topology.nics[*place].name.clone());
            nics.collect()
        };
        let [rank0, rank1, rank2] = &memory.tiers;
        Self {
            location: memory.location.clone(),
            kind: memory.kind.name(),
            numa_node: memory.numa_node,
            rank0: names(rank0),
            rank1: names(rank1),
            rank2: names(rank2),
        }
    }
}

impl Show for TopologyReport {
    fn human(&self) -> String {
        if let Some(map) = &self.map {
            return map.clone();
        }
        let tables = [
            nodes(&self.nodes),
            nics(&self.nics),
            memories(&self.memories),
            distances(&self.nics),
        ];
        let tables: Vec<_> = tables.into_iter().flatten().collect();
        tables.join("\n\n")
    }
}

/// What is not known.
const UNKNOWN: &str = "?";

/// Something that is perhaps known.
fn perhaps(what: Option<impl ToString>) -> String {
    what.map_or_else(|| UNKNOWN.to_owned(), |what| what.to_string())
}

fn nodes(rows: &[NodeRow]) -> Option<String> {
    let others: Vec<_> = rows.iter().map(|row| format!("to {}", row.id)).collect();
    let mut columns = vec![
        ("node", Align::Right),
        ("CPUs", Align::Left),
        ("memory", Align::Right),
    ];
    columns.extend(others.iter().map(|other| (other.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    for row in rows {
        let cpus = match row.cpu_count {
            0 => "none".to_owned(),
            count => format!("{} ({count})", row.cpus),
        };
        let mut cells = vec![
            row.id.to_string(),
            cpus,
            perhaps(row.memory_bytes.map(bytes)),
        ];
        cells.extend(rows.iter().map(|other| {
            let mut distances = row.distances.iter();
            let found = distances.find(|distance| distance.node == other.id);
            perhaps(found.map(|distance| distance.distance))
        }));
        table.row(cells);
    }
    (!rows.is_empty()).then(|| table.text())
}

fn nics(rows: &[NicRow]) -> Option<String> {
    let columns = [
        ("device", Align::Left),
        ("kind", Align::Left),
        ("node", Align::Right),
        ("PCI", Align::Left),
        ("state", Align::Left),
        ("speed", Align::Right),
        ("interface", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for row in rows {
        table.row([
            row.name.clone(),
            row.kind.to_owned(),
            perhaps(row.numa_node),
            row.pci_bus_id.clone().unwrap_or_default(),
            state(row.up).to_owned(),
            perhaps(row.bits_per_second.map(bits_per_s)),
            row.interface.clone().unwrap_or_default(),
        ]);
    }
    if rows.is_empty() {
        return Some("there is no such network device".to_owned());
    }
    Some(table.text())
}

/// Whether a device has a connection, in a word.
pub(super) fn state(up: Option<bool>) -> &'static str {
    match up {
        Some(true) => "up",
        Some(false) => "down",
        None => UNKNOWN,
    }
}

fn memories(rows: &[MemoryRow]) -> Option<String> {
    let columns = [
        ("memory", Align::Left),
        ("best", Align::Left),
        ("then", Align::Left),
        ("last", Align::Left),
    ];
    let mut table = Table::new(&columns);
    let list = |names: &[String]| match names {
        [] => "-".to_owned(),
        names => names.join(" "),
    };
    for row in rows {
        table.row([
            row.location.clone(),
            list(&row.rank0),
            list(&row.rank1),
            list(&row.rank2),
        ]);
    }
    let any = rows
        .iter()
        .any(|row| !(row.rank0.is_empty() && row.rank1.is_empty() && row.rank2.is_empty()));
    any.then(|| table.text())
}

/// How far it is from each device to each, and what the classes mean that are there.
fn distances(rows: &[NicRow]) -> Option<String> {
    if rows.len() < 2 {
        return None;
    }
    let mut columns = vec![("from, to", Align::Left)];
    columns.extend(rows.iter().map(|row| (row.name.as_str(), Align::Left)));
    let mut table = Table::new(&columns);
    for row in rows {
        let mut cells = vec![row.name.clone()];
        cells.extend(rows.iter().map(|other| {
            let mut distances = row.distances.iter();
            let found = distances.find(|distance| distance.nic == other.name);
            found.map_or("-", |distance| distance.class).to_owned()
        }));
        table.row(cells);
    }
    let meanings = [
        (Distance::Same, "one device under two names"),
        (Distance::Switch, "over one switch, or on one card"),
        (Distance::Switches, "over several switches"),
        (Distance::HostBridge, "over a host bridge"),
        (Distance::Node, "within a NUMA node"),
        (Distance::System, "between NUMA nodes"),
        (Distance::Unknown, "not known"),
    ];
    let met = |class: &str| {
        let mut all = rows.iter().flat_map(|row| &row.distances);
        all.any(|distance| distance.class == class)
    };
    let legend: Vec<_> = meanings
        .into_iter()
        .filter(|(class, _)| met(class.name()))
        .map(|(class, meaning)| format!("{:<4}  {meaning}", class.name()))
        .collect();
    Some(format!("{}\n\n{}", table.text(), legend.join("\n")))
}
