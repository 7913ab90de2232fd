//! How much memory this process could have.
//!
//! Touching more ends the process without a word, so it is asked before.

use std::fs;
use std::path::Path;

/// Bytes that are available, as far as this system tells.
pub(super) fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| of_meminfo(&text));
    let group = fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|text| of_groups(&text, Path::new("/sys/fs/cgroup")));
    machine.into_iter().chain(group).min()
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest limit of the control group that `text` names and of those around it.
fn of_groups(text: &str, root: &Path) -> Option<u64> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    root.join(path)
        .ancestors()
        .take_while(|group| group.starts_with(root))
        .filter_map(|group| fs::read_to_string(group.join("memory.max")).ok())
        // "max" is no limit.
        .filter_map(|limit| limit.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_counts() {
        assert_eq!(
            of_meminfo("MemTotal: 9 kB\nMemAvailable:   7 kB\n"),
            Some(7 << 10)
        );
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let group = "1:cpu:/x\n0::/a/b\n";
        assert_eq!(of_groups(group, root.path()), None);
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("a/memory.max"), "4096\n").unwrap();
        fs::write(root.path().join("memory.max"), "8192\n").unwrap();
        assert_eq!(of_groups(group, root.path()), Some(4096));
    }
}
