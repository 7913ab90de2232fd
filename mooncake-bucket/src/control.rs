//! What the files take that are no buckets.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::{disk::DiskFile, format::file_name::FileName};

/// Bytes of control files and logs, by file.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    files: Mutex<BTreeMap<FileName, u64>>,
}

impl Controls {
    /// 0: it is gone.
    pub(crate) fn set(&self, name: FileName, bytes: u64) {
        let mut files = self.files.lock();
        if bytes == 0 {
            files.remove(&name);
        } else {
            files.insert(name, bytes);
        }
    }

    /// After something failed: as the file itself has it.
    pub(crate) fn measure(&self, name: FileName, file: &dyn DiskFile) {
        if let Ok(bytes) = file.len() {
            self.set(name, bytes);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.lock().values().sum()
    }

    pub(crate) fn logs(&self) -> Vec<u32> {
        let files = self.files.lock();
        let logs = files.keys().filter_map(|name| match name {
            FileName::Tombstones(number) => Some(*number),
            _ => None,
        });
        logs.collect()
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        let files = self.files.lock();
        let logs = files
            .iter()
            .filter(|(name, _)| matches!(name, FileName::Tombstones(_)));
        logs.map(|(_, bytes)| bytes).sum()
    }
}
