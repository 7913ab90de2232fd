//! Descriptions of machines.

use mooncake_tent::platform::{PriorityMatrix, Topology, TopologyError};

use crate::{
    Target,
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "topology",
    run,
    words: &[
        b"{\"nics\": [",
        b"], \"mems\": [",
        b"{\"name\": \"a\", \"type\": 0}",
        b"\"pci_bus_id\": \"0000:81:00.0\"",
        b"\"type\": \"ub\"",
        b"\"numa_node\": -1",
        b"\"device_attrs\": {\"a\": \"b\"}",
        b"\"device_list\": {\"rank0\": [0], \"rank2\": [1]}",
        b"\"cpu:0\": [[\"a\"], [\"b\"]]",
        b"\"*\"",
        b"null",
        b"18446744073709551615",
        b", ",
    ],
};

fn run(bytes: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return 0;
    };
    let matrix = PriorityMatrix::from_json(text).ok();
    let topology = match Topology::from_json(text) {
        Ok(topology) => topology,
        // What is quoted may have quotes itself, so only what comes before it tells kinds apart.
        Err(TopologyError::Json(message)) => {
            return shape(message.split(['"', '`']).next().map(words));
        }
        Err(error) => return shape(std::mem::discriminant(&error)),
    };
    let again = Topology::from_json(&topology.to_json());
    assert_eq!(
        again.as_ref(),
        Ok(&topology),
        "what we write is what we read"
    );

    let count = topology.nics.len();
    let mut sizes = Vec::new();
    for place in &topology.memories {
        let mut ranked: Vec<_> = place.tiers.iter().flatten().copied().collect();
        assert!(ranked.iter().all(|nic| *nic < count));
        ranked.sort_unstable();
        ranked.dedup();
        let length: usize = place.tiers.iter().map(Vec::len).sum();
        assert_eq!(ranked.len(), length, "each device once");
        sizes.push(length.min(2));
    }
    let own = topology.priority_matrix();
    let written = PriorityMatrix::from_json(&own.to_json());
    assert_eq!(written.as_ref(), Ok(&own));
    if let Some(matrix) = &matrix
        && !text.contains("nics")
        && !text.contains("mems")
    {
        assert_eq!(matrix, &own, "it is read alike by either way in");
    }
    let laid = topology.clone().with_priority_matrix(&own);
    let laid = laid.expect("it names the machine's own devices");
    assert_eq!(laid.priority_matrix(), own);
    let none = topology.filtered(|_| false);
    assert!(
        none.memories
            .iter()
            .all(|place| place.tiers.iter().all(Vec::is_empty))
    );
    sizes.truncate(3);
    shape((sizes, count.min(3), matrix.is_some()))
}
