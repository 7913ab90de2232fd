//! A machine as a drawing.

use std::collections::BTreeSet;

use mooncake_tent::platform::{Nic, NumaNode, Topology};

use super::report::state;
use crate::output::{Align, Table, bits_per_s, bytes};

/// A point of the drawing, and what hangs on it.
#[derive(Debug, Default)]
struct Branch {
    name: String,
    /// What else is said of it.
    notes: Vec<String>,
    branches: Vec<Self>,
}

/// Nodes with what is plugged in there, and how far these are from each other.
pub(super) fn draw(topology: &Topology) -> String {
    let mut root = Branch::named("machine");
    let known = topology.nodes.iter().map(|node| node.id);
    let said = topology.nics.iter().filter_map(|nic| nic.numa_node);
    for id in known.chain(said).collect::<BTreeSet<_>>() {
        let mut branch = match topology.nodes.iter().find(|node| node.id == id) {
            Some(node) => of_node(node),
            None => Branch::named(format!("node {id}")),
        };
        branch.plug_in(&topology.nics, Some(id));
        root.branches.push(branch);
    }
    let mut elsewhere = Branch::named("node unknown");
    elsewhere.plug_in(&topology.nics, None);
    if !elsewhere.branches.is_empty() {
        root.branches.push(elsewhere);
    }
    let mut text = String::new();
    root.draw(&mut text, "", "");
    if let Some(distances) = distances(&topology.nodes) {
        text += "\n";
        text += &distances;
    }
    text.trim_end().to_owned()
}

fn of_node(node: &NumaNode) -> Branch {
    let mut branch = Branch::named(format!("node {}", node.id));
    branch.notes.push(match node.cpus.len() {
        0 => "no CPUs".to_owned(),
        1 => format!("CPU {}", node.cpus),
        _ => format!("CPUs {}", node.cpus),
    });
    branch.notes.extend(node.memory_bytes.map(bytes));
    branch
}

impl Branch {
    fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Adds the devices of a node where they are plugged in.
    fn plug_in(&mut self, nics: &[Nic], node: Option<u32>) {
        for nic in nics.iter().filter(|nic| nic.numa_node == node) {
            let mut at = &mut *self;
            match (&nic.pci, &nic.pci_bus_id) {
                (Some(path), _) => {
                    for part in path.parts() {
                        at = at.branch(part);
                    }
                }
                (None, Some(address)) => at = at.branch(address),
                (None, None) => at = at.branch(&nic.name),
            }
            at.notes.push(describe(nic));
        }
    }

    /// The branch of this name, which grows if there is none.
    fn branch(&mut self, name: &str) -> &mut Self {
        let found = self.branches.iter().position(|branch| branch.name == name);
        let place = found.unwrap_or_else(|| {
            self.branches.push(Self::named(name));
            self.branches.len() - 1
        });
        &mut self.branches[place]
    }

    /// Draws it with `stem` before its name and `below` before what hangs on it.
    fn draw(&self, text: &mut String, stem: &str, below: &str) {
        let notes = match self.notes.as_slice() {
            [] => String::new(),
            notes => format!("  {}", notes.join(", ")),
        };
        *text += &format!("{stem}{}{notes}\n", self.name);
        let mut rest = self.branches.iter().peekable();
        while let Some(branch) = rest.next() {
            let (fork, under) = match rest.peek() {
                Some(_) => ("├─ ", "│  "),
                None => ("└─ ", "   "),
            };
            branch.draw(text, &format!("{below}{fork}"), &format!("{below}{under}"));
        }
    }
}

/// `mlx5_0 (rdma, up, 200 Gb/s)`, or only what is known of it.
fn describe(nic: &Nic) -> String {
    let mut facts = vec![nic.kind.name().to_owned()];
    facts.extend(nic.up.map(|up| state(Some(up)).to_owned()));
    facts.extend(nic.bits_per_second.map(bits_per_s));
    let facts = facts.join(", ");
    let over = nic.interface.as_deref().filter(|_| nic.pci.is_none());
    match (nic.pci.is_none() && nic.pci_bus_id.is_none(), over) {
        (true, Some(interface)) => format!("({facts}, over {interface})"),
        (true, None) => format!("({facts})"),
        (false, _) => format!("{} ({facts})", nic.name),
    }
}

/// How far nodes are from each other, if there are several.
fn distances(nodes: &[NumaNode]) -> Option<String> {
    if nodes.len() < 2 {
        return None;
    }
    let names: Vec<_> = nodes
        .iter()
        .map(|node| format!("node {}", node.id))
        .collect();
    let mut columns = vec![("from, to", Align::Left)];
    columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    for (node, name) in nodes.iter().zip(&names) {
        let mut cells = vec![name.clone()];
        cells.extend(nodes.iter().map(|other| {
            let distance = node.distances.get(&other.id);
            distance.map_or_else(|| "?".to_owned(), u32::to_string)
        }));
        table.row(cells);
    }
    Some(table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_drawn_as_far_as_it_goes() {
        let text = r#"{"nics": [
            {"name": "mlx5_0", "type": "rdma", "pci_bus_id": "0000:81:00.0", "numa_node": 1},
            {"name": "mlx5_1", "type": "rdma", "pci_bus_id": "0000:81:00.0", "numa_node": 1},
            {"name": "eth0", "type": "tcp"}
        ], "mems": []}"#;
        let drawn = draw(&Topology::from_json(text).unwrap());
        let expected = "\
machine
├─ node 1
│  └─ 0000:81:00.0  mlx5_0 (rdma), mlx5_1 (rdma)
└─ node unknown
   └─ eth0  (tcp)";
        assert_eq!(drawn, expected);
    }
}
