//! What the files take that are no buckets.

use std::{collections::BTreeMap, io};

use parking_lot::Mutex;

use crate::{
    disk::{self, Disk, DiskFile},
    format::file_name::FileName,
};

/// Bytes of control files and logs, by file.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    files: Mutex<BTreeMap<FileName, u64>>,
    /// Unfinished ones that the disk did not let be removed, by what they were to be.
    unfinished: Mutex<BTreeMap<FileName, u64>>,
}

impl Controls {
    /// Puts `content` under `name`, so that after any crash there is either what was there or all of this. The books say
    /// what there is even if that fails halfway.
    pub(crate) fn replace(
        &self,
        disk: &dyn Disk,
        name: FileName,
        content: &[u8],
    ) -> io::Result<()> {
        let done = disk::replace(disk, &name.text(), content);
        if done.is_ok() {
            self.set(name, content.len() as u64);
            self.unfinished.lock().remove(&name);
        } else {
            self.look(disk, name);
        }
        done
    }

    /// After something failed: as the directory has it.
    pub(crate) fn look(&self, disk: &dyn Disk, name: FileName) {
        let length = |text: &str| match disk.open(text).and_then(|file| file.len()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            length => length,
        };
        let text = name.text();
        if let Ok(bytes) = length(&text) {
            self.set(name, bytes);
        }
        match length(&disk::temporary(&text)) {
            Ok(bytes) if bytes > 0 => {
                self.unfinished.lock().insert(name, bytes);
            }
            Ok(_) => {
                self.unfinished.lock().remove(&name);
            }
            // Nobody knows.
            Err(_) => {}
        }
    }

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
        let files: u64 = self.files.lock().values().sum();
        files + self.unfinished.lock().values().sum::<u64>()
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
