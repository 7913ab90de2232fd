//! Machines that are made up.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::platform::Distance;

/// A folder that looks like sysfs.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, path: &str, content: &str) -> &Self {
        let file = self.root().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{content}\n")).unwrap();
        self
    }

    fn node(&self, id: u32, cpus: &str, distances: &str) -> &Self {
        let folder = format!("devices/system/node/node{id}");
        self.file(&format!("{folder}/cpulist"), cpus)
            .file(&format!("{folder}/distance"), distances)
            .file(
                &format!("{folder}/meminfo"),
                &format!("Node {id} MemTotal:       1024 kB"),
            )
    }

    /// A device of a class, in the folder of what it sits on, with the links that sysfs has.
    fn device(&self, class: &str, on: &str, name: &str) -> &Self {
        let own = self.root().join("devices").join(on).join(class).join(name);
        fs::create_dir_all(&own).unwrap();
        if !on.starts_with("virtual") {
            symlink("../..", own.join("device")).unwrap();
        }
        let listed = self.root().join("class").join(class);
        fs::create_dir_all(&listed).unwrap();
        symlink(own, listed.join(name)).unwrap();
        self
    }

    fn rdma(&self, on: &str, name: &str, state: &str, rate: &str) -> &Self {
        let port = format!("devices/{on}/infiniband/{name}/ports/1");
        self.device("infiniband", on, name)
            .file(&format!("{port}/state"), state)
            .file(&format!("{port}/rate"), rate)
    }

    fn interface(&self, on: &str, name: &str, kind: &str, state: &str, speed: &str) -> &Self {
        let own = format!("devices/{on}/net/{name}");
        self.device("net", on, name)
            .file(&format!("{own}/type"), kind)
            .file(&format!("{own}/operstate"), state)
            .file(&format!("{own}/speed"), speed)
    }

    fn probe(&self) -> Topology {
        Topology::probe_at(self.root()).unwrap()
    }
}

const PORT_0: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";
const PORT_1: &str = "pci0000:80/0000:80:01.0/0000:81:00.0";
const PORT_2: &str = "pci0000:80/0000:80:01.0/0000:81:00.1";

/// Two nodes and memory without CPUs, two RDMA devices, of which one is down, and sockets.
fn two_sockets() -> Machine {
    let machine = Machine::new();
    machine
        .node(0, "0-3,8-11", "10 21 24")
        .node(1, "4-7,12-15", "21 10 14")
        .node(2, "", "24 14 10")
        .file("devices/system/node/possible", "0-7")
        .file(&format!("devices/{PORT_0}/numa_node"), "0")
        .file(&format!("devices/{PORT_1}/numa_node"), "1")
        .file(&format!("devices/{PORT_2}/numa_node"), "1")
        .rdma(PORT_1, "mlx5_10", "4: ACTIVE", "200 Gb/sec (4X HDR)")
        .rdma(PORT_0, "mlx5_9", "1: DOWN", "2.5 Gb/sec (1X SDR)")
        .interface(PORT_1, "ens1", "1", "up", "200000")
        .interface(PORT_2, "ens2", "1", "down", "-1")
        .interface("virtual", "lo", "772", "unknown", "")
        .interface("virtual", "ifb0", "1", "down", "")
        .interface("virtual", "bond0", "1", "up", "100000");
    machine
}

#[test]
fn nodes_have_their_cpus_memory_and_distances() {
    let topology = two_sockets().probe();
    let node = &topology.nodes[0];
    assert_eq!((node.id, node.cpus.to_string().as_str()), (0, "0-3,8-11"));
    assert_eq!(node.memory_bytes, Some(1 << 20));
    let distances: Vec<_> = node.distances.clone().into_iter().collect();
    assert_eq!(distances, [(0, 10), (1, 21), (2, 24)]);
    assert!(
        topology.nodes[2].cpus.is_empty(),
        "memory alone is a node, too"
    );
}

#[test]
fn nodes_that_are_missing_between_others_shift_no_distance() {
    let machine = Machine::new();
    machine.node(0, "0", "10 31").node(4, "1", "31 10");
    let topology = machine.probe();
    let far = |node: usize, to| topology.nodes[node].distances.get(&to).copied();
    assert_eq!(
        (far(0, 4), far(1, 4), far(0, 1)),
        (Some(31), Some(10), None)
    );
}

#[test]
fn devices_are_found_with_their_place_state_and_speed() {
    let topology = two_sockets().probe();
    let found: Vec<_> = topology
        .nics
        .iter()
        .map(|nic| (nic.name.as_str(), nic.kind, nic.numa_node, nic.up))
        .collect();
    assert_eq!(
        found,
        [
            ("mlx5_9", NicKind::Rdma, Some(0), Some(false)),
            ("mlx5_10", NicKind::Rdma, Some(1), Some(true)),
            ("bond0", NicKind::Tcp, None, Some(true)),
            ("ens1", NicKind::Tcp, Some(1), Some(true)),
            ("ens2", NicKind::Tcp, Some(1), Some(false)),
        ],
        "what leads nowhere is left out"
    );
    let [slow, fast, bond, ..] = &topology.nics[..] else {
        unreachable!()
    };
    assert_eq!(slow.bits_per_second, Some(2_500_000_000));
    assert_eq!(fast.bits_per_second, Some(200_000_000_000));
    assert_eq!(fast.interface.as_deref(), Some("ens1"));
    assert_eq!(fast.pci_bus_id.as_deref(), Some("0000:81:00.0"));
    assert_eq!(bond.pci, None);
    assert_eq!(topology.nics[4].bits_per_second, None);
}

#[test]
fn distances_between_devices_follow_their_places() {
    let topology = two_sockets().probe();
    let [mlx5_9, mlx5_10, bond0, ens1, ens2] = [0, 1, 2, 3, 4];
    assert_eq!(topology.distance(mlx5_10, ens1), Distance::Same);
    assert_eq!(topology.distance(mlx5_10, ens2), Distance::Switch);
    assert_eq!(topology.distance(mlx5_9, mlx5_10), Distance::System);
    assert_eq!(topology.distance(bond0, ens1), Distance::Unknown);
    assert_eq!(topology.distance(bond0, bond0), Distance::Same);
}

#[test]
fn near_devices_suit_memory_best_and_law_12_unknown_ones_lie_between() {
    let topology = two_sockets().probe();
    assert_eq!(
        topology.tiers("cpu:0"),
        Some(&[vec![0], vec![2], vec![1, 3, 4]])
    );
    assert_eq!(
        topology.tiers("cpu:1"),
        Some(&[vec![1, 3, 4], vec![2], vec![0]])
    );
    // From the memory without CPUs, node 1 is nearer than node 0.
    assert_eq!(
        topology.tiers("cpu:2"),
        Some(&[vec![], vec![2], vec![1, 3, 4, 0]])
    );
    assert_eq!(
        topology.tiers("cuda:0"),
        Some(&[vec![0, 1, 2, 3, 4], vec![], vec![]])
    );
    let rdma = topology.filtered(|nic| nic.kind == NicKind::Rdma);
    assert_eq!(rdma.tiers("cpu:1"), Some(&[vec![1], vec![], vec![0]]));
}

#[test]
fn a_device_in_software_is_known_but_its_place_is_not() {
    let machine = Machine::new();
    machine
        .node(0, "0-1", "10 20")
        .node(1, "2-3", "20 10")
        .rdma("virtual", "rxe0", "4: ACTIVE", "10 Gb/sec (4X)")
        .file("devices/virtual/infiniband/rxe0/parent", "ens3");
    let [nic] = &machine.probe().nics[..] else {
        panic!("one device")
    };
    assert_eq!((&nic.pci, nic.numa_node, nic.up), (&None, None, Some(true)));
    assert_eq!(nic.interface.as_deref(), Some("ens3"));
}

#[test]
fn a_device_below_another_one_has_the_place_of_that() {
    let machine = Machine::new();
    machine
        .node(0, "0", "10 20")
        .node(1, "1", "20 10")
        .file("devices/pci0000:00/0000:00:03.0/numa_node", "-1")
        .interface("pci0000:00/0000:00:03.0/virtio2", "eth0", "1", "up", "-1");
    let [nic] = &machine.probe().nics[..] else {
        panic!("one device")
    };
    assert_eq!(nic.pci_bus_id.as_deref(), Some("0000:00:03.0"));
    assert_eq!(nic.numa_node, None, "the firmware does not say");
}

#[test]
fn on_a_machine_with_one_node_everything_is_in_that_node() {
    let machine = Machine::new();
    machine
        .node(0, "0", "10")
        .rdma("virtual", "rxe0", "4: ACTIVE", "10 Gb/sec (4X)");
    let topology = machine.probe();
    assert_eq!(topology.nics[0].numa_node, Some(0));
    assert_eq!(topology.tiers("cpu:0"), Some(&[vec![0], vec![], vec![]]));
}

#[test]
fn without_sysfs_nothing_is_made_up() {
    let error = Topology::probe_at(Machine::new().root()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_system_without_nodes_is_one() {
    let machine = Machine::new();
    machine.file("devices/system/cpu/online", "0-5");
    let topology = machine.probe();
    assert_eq!(topology.nodes.len(), 1);
    assert_eq!(topology.nodes[0].cpus.len(), 6);
    assert!(topology.nics.is_empty());
}

#[test]
fn what_cannot_be_understood_of_nodes_is_an_error_that_names_the_file() {
    for (cpus, distances, says) in [
        ("0-", "10", "node0/cpulist: \"0-\" is no list of CPUs"),
        ("0", "ten", "node0/distance: no list of distances"),
        ("0", "10 20", "node0/distance: 2 distances to 1 nodes"),
    ] {
        let machine = Machine::new();
        machine.node(0, cpus, distances);
        let error = Topology::probe_at(machine.root()).unwrap_err().to_string();
        assert!(error.ends_with(says), "{error}");
    }
}

#[test]
fn this_machine_has_a_node_with_the_cpu_that_we_run_on() {
    let topology = Topology::probe().unwrap();
    assert!(topology.nodes.iter().any(|node| !node.cpus.is_empty()));
    assert!(topology.tiers("*").is_some());
}
