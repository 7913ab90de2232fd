//! How memory is allocated.

use std::fmt;

/// What memory shall be like. Nothing is given up quietly: what cannot be had is an error, unless the
/// caller says what to do without it.
///
/// ```
/// use mooncake_tent::{HugePages, Memory, MemoryOptions};
///
/// let options = MemoryOptions::new(1 << 20)
///     .huge_pages_if_any(HugePages::TwoMiB)
///     .prefault();
/// let memory = Memory::allocate_with(&options)?;
/// assert_eq!(memory.len(), 1 << 20);
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct MemoryOptions {
    pub(super) len: usize,
    pub(super) huge: Option<HugePages>,
    pub(super) or_ordinary: bool,
    pub(super) node: Option<u32>,
    pub(super) prefault: bool,
}

impl MemoryOptions {
    /// Zeroed memory of `len` bytes, wherever there is some, of ordinary pages that come when they
    /// are touched.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            huge: None,
            or_ordinary: false,
            node: None,
            prefault: false,
        }
    }

    /// Of huge pages, which the operator has set aside beforehand.
    pub fn huge_pages(mut self, size: HugePages) -> Self {
        (self.huge, self.or_ordinary) = (Some(size), false);
        self
    }

    /// Of huge pages if enough of them are free, else of ordinary ones.
    pub fn huge_pages_if_any(mut self, size: HugePages) -> Self {
        (self.huge, self.or_ordinary) = (Some(size), true);
        self
    }

    /// In this NUMA node and no other.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.node = Some(node);
        self
    }

    /// Touch every page at once, so that no transfer pays for it.
    pub fn prefault(mut self) -> Self {
        self.prefault = true;
        self
    }
}

/// The size of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// 2 MiB.
    TwoMiB,
    /// 1 GiB.
    OneGiB,
}

impl HugePages {
    /// Length of a page in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::TwoMiB => 2 << 20,
            Self::OneGiB => 1 << 30,
        }
    }

    /// Pages of the system that nobody uses, if it has pages of this size at all.
    pub(super) fn free(self) -> Option<u64> {
        let folder = format!(
            "/sys/kernel/mm/hugepages/hugepages-{}kB",
            self.bytes() >> 10
        );
        let free = std::fs::read_to_string(format!("{folder}/free_hugepages")).ok()?;
        free.trim().parse().ok()
    }
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TwoMiB => "2 MiB",
            Self::OneGiB => "1 GiB",
        })
    }
}
