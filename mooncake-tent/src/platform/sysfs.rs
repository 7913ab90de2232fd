//! Reads a machine from sysfs.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{CpuSet, Nic, NicKind, NumaNode, PciPath, Topology};

/// What `type` says of the interface that a machine has to itself.
const LOOPBACK: &str = "772";

impl Topology {
    /// What the system says of this machine.
    ///
    /// # Errors
    ///
    /// There is no sysfs, or what it says of NUMA nodes cannot be read or understood. What it does not
    /// say of a device is unknown.
    pub fn probe() -> io::Result<Self> {
        Self::probe_at(Path::new("/sys"))
    }

    /// The same, from a copy of sysfs.
    ///
    /// # Errors
    ///
    /// As for [`probe`](Self::probe).
    pub fn probe_at(sysfs: &Path) -> io::Result<Self> {
        let mut topology = Self {
            nodes: nodes(sysfs)?,
            ..Self::default()
        };
        let class = |name| entries(&sysfs.join("class").join(name));
        topology
            .nics
            .extend(class("infiniband")?.iter().map(|path| rdma(path)));
        topology
            .nics
            .extend(class("ubcore")?.iter().map(|path| ub(path)));
        topology
            .nics
            .extend(class("net")?.iter().filter_map(|path| interface(path)));
        topology
            .nics
            .sort_by_cached_key(|nic| (nic.kind, natural(&nic.name)));
        if let [node] = &topology.nodes[..] {
            // There is no other one that it could be.
            topology
                .nics
                .iter_mut()
                .for_each(|nic| nic.numa_node = Some(node.id));
        }
        topology.rank();
        Ok(topology)
    }
}

/// The nodes; on a system that knows of none, one with all CPUs.
fn nodes(sysfs: &Path) -> io::Result<Vec<NumaNode>> {
    let system = sysfs.join("devices/system");
    fs::metadata(&system).map_err(|error| at(&system, &error))?;
    let mut found = Vec::new();
    for path in entries(&system.join("node"))? {
        let id = name_of(&path)
            .strip_prefix("node")
            .and_then(|id| id.parse().ok());
        if let Some(id) = id {
            found.push((id, path));
        }
    }
    found.sort();
    let ids: Vec<u32> = found.iter().map(|(id, _)| *id).collect();
    let mut nodes = Vec::new();
    for (id, path) in found {
        let mut node = NumaNode::new(id);
        node.cpus = cpus(&path.join("cpulist"))?;
        node.memory_bytes = text(&path.join("meminfo")).and_then(|text| total(&text));
        let file = path.join("distance");
        let distances = text(&file).unwrap_or_default();
        let distances: Option<Vec<u32>> = distances
            .split_whitespace()
            .map(|far| far.parse().ok())
            .collect();
        let distances = distances.ok_or_else(|| misread(&file, "no list of distances"))?;
        if !distances.is_empty() && distances.len() != ids.len() {
            let what = format!("{} distances to {} nodes", distances.len(), ids.len());
            return Err(misread(&file, &what));
        }
        node.distances = ids.iter().copied().zip(distances).collect();
        nodes.push(node);
    }
    if nodes.is_empty() {
        let mut node = NumaNode::new(0);
        node.cpus = cpus(&system.join("cpu/online"))?;
        nodes.push(node);
    }
    Ok(nodes)
}

fn cpus(file: &Path) -> io::Result<CpuSet> {
    let list = text(file).unwrap_or_default();
    list.parse().map_err(|what: String| misread(file, &what))
}

/// `Node 0 MemTotal:  6121244 kB`
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    let kib = line.strip_suffix("kB")?.split_whitespace().next_back()?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

fn rdma(path: &Path) -> Nic {
    let mut nic = Nic::new(name_of(path), NicKind::Rdma);
    place(&mut nic, path);
    let ports = entries(&path.join("ports")).unwrap_or_default();
    let states: Vec<_> = ports
        .iter()
        .filter_map(|port| text(&port.join("state")))
        .collect();
    nic.up = (!states.is_empty()).then(|| states.iter().any(|state| state.contains("ACTIVE")));
    let rates = ports.iter().filter_map(|port| text(&port.join("rate")));
    nic.bits_per_second = rates.filter_map(|rate| gigabits(&rate)).max();
    // One in software says whose frames it sends; one in hardware is also the interface.
    let interfaces = entries(&path.join("device/net")).unwrap_or_default();
    let own = interfaces.first().map(|path| name_of(path));
    nic.interface = own.or_else(|| text(&path.join("parent")));
    nic
}

fn ub(path: &Path) -> Nic {
    let mut nic = Nic::new(name_of(path), NicKind::Ub);
    place(&mut nic, path);
    nic
}

/// `None`: it does not lead out of the machine.
fn interface(path: &Path) -> Option<Nic> {
    let mut nic = Nic::new(name_of(path), NicKind::Tcp);
    nic.up = match text(&path.join("operstate")).as_deref() {
        Some("up") => Some(true),
        Some("down" | "lowerlayerdown" | "notpresent") => Some(false),
        _ => None,
    };
    let loopback = text(&path.join("type")).as_deref() == Some(LOOPBACK);
    let made_up = !path.join("device").exists();
    if loopback || made_up && nic.up != Some(true) {
        return None;
    }
    place(&mut nic, path);
    // In megabits; -1, or no number at all, where nobody knows.
    let speed = text(&path.join("speed")).and_then(|speed| speed.parse::<u64>().ok());
    nic.bits_per_second = speed.and_then(|speed| speed.checked_mul(1_000_000));
    Some(nic)
}

/// Where the device is plugged in.
fn place(nic: &mut Nic, path: &Path) {
    let device = fs::canonicalize(path.join("device")).or_else(|_| fs::canonicalize(path));
    let Ok(device) = device else { return };
    nic.pci = PciPath::within(&device);
    nic.pci_bus_id = nic.pci.as_ref().map(|pci| pci.address().to_owned());
    // That of a virtual device is said by the one that it sits on. -1: the firmware does not say.
    let node = device
        .ancestors()
        .find_map(|path| text(&path.join("numa_node")));
    nic.numa_node = node.and_then(|node| node.parse().ok());
}

/// `100 Gb/sec (4X EDR)`
fn gigabits(rate: &str) -> Option<u64> {
    let (number, unit) = rate.split_once(' ')?;
    let number: f64 = number.parse().ok()?;
    (unit.starts_with("Gb/sec") && number.is_finite() && number > 0.0)
        .then_some((number * 1e9) as u64)
}

/// What a folder holds; nothing if there is no such folder.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| at(folder, &error))?,
    };
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| at(folder, &error))?;
    paths.sort();
    Ok(paths)
}

/// What a file says, if it says anything.
fn text(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn misread(file: &Path, what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{}: {what}", file.display()),
    )
}

/// Orders `mlx5_10` behind `mlx5_9`.
fn natural(name: &str) -> (String, u64, String) {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let number = name[stem.len()..].parse().unwrap_or(0);
    (stem.to_owned(), number, name.to_owned())
}

#[cfg(test)]
mod tests;
