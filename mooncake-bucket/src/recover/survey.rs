//! Which files are there.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    disk::{Disk, Found, read_all},
    error::OpenError,
    format::{
        Flaw,
        control::Control,
        file_name::FileName,
        head::{self, Head},
    },
};

/// The files of a directory, by what they are.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) identity: Option<[u8; 16]>,
    /// Below which all numbers may have been used.
    pub(crate) below: u32,
    /// Open or sealed buckets and what they take.
    pub(crate) buckets: BTreeMap<u32, (FileName, u64)>,
    pub(crate) targets: BTreeSet<u32>,
    pub(crate) transitions: BTreeSet<u32>,
    pub(crate) logs: Vec<u32>,
    /// Control files and logs, and what they take.
    pub(crate) controls: Vec<(FileName, u64)>,
    pub(crate) temporary: Vec<String>,
    pub(crate) foreign: Vec<String>,
    pub(crate) quarantined_files: u64,
    pub(crate) quarantined_bytes: u64,
    /// Of all files of ours, but the lock and those.
    pub(crate) file_bytes: u64,
    pub(crate) allocated_bytes: u64,
}

impl Survey {
    pub(crate) fn new(disk: &dyn Disk) -> Result<Self, OpenError> {
        let mut survey = Self {
            below: 1,
            ..Self::default()
        };
        let found = disk
            .list()
            .map_err(OpenError::io("listing the directory"))?;
        for file in found {
            survey.add(disk, file)?;
        }
        Ok(survey)
    }

    fn add(&mut self, disk: &dyn Disk, file: Found) -> Result<(), OpenError> {
        let Some(name) = FileName::parse(&file.name).filter(|_| file.is_file) else {
            self.foreign.push(file.name);
            return Ok(());
        };
        if !matches!(name, FileName::Lock | FileName::Quarantined) {
            self.file_bytes += file.bytes;
            self.allocated_bytes += file.allocated_bytes;
        }
        match name {
            FileName::Open(id) | FileName::Sealed(id) => {
                self.used(id);
                // One name follows the other: a disk that lost half of a rename has both of one file.
                let known = self.buckets.entry(id).or_insert((name, file.bytes));
                if matches!(name, FileName::Sealed(_)) {
                    *known = (name, file.bytes);
                }
            }
            FileName::Target(id) => {
                self.used(id);
                self.targets.insert(id);
            }
            FileName::Transition(id) => {
                self.used(id);
                self.transitions.insert(id);
                self.controls.push((name, file.bytes));
            }
            FileName::Tombstones(id) => {
                self.used(id);
                self.logs.push(id);
                self.controls.push((name, file.bytes));
            }
            FileName::Identity => {
                let Control::Identity { storage, .. } = read_control(disk, name)? else {
                    return Err(damaged(name, Flaw::Header));
                };
                self.identity = Some(storage);
                self.controls.push((name, file.bytes));
            }
            FileName::Ids => {
                let Control::Ids { below } = read_control(disk, name)? else {
                    return Err(damaged(name, Flaw::Header));
                };
                self.below = self.below.max(below);
                self.controls.push((name, file.bytes));
            }
            FileName::Temporary => self.temporary.push(file.name),
            FileName::Quarantined => {
                // Its number was used as well.
                let id = u32::from_str_radix(file.name.get(..8).unwrap_or(""), 16);
                if let Ok(id) = id {
                    self.used(id);
                }
                self.quarantined_files += 1;
                self.quarantined_bytes += file.bytes;
            }
            FileName::Lock => {}
        }
        Ok(())
    }

    fn used(&mut self, id: u32) {
        self.below = self.below.max(id.saturating_add(1));
    }

    /// Whether this was a storage once.
    pub(crate) fn has_ours(&self) -> bool {
        !self.buckets.is_empty() || !self.logs.is_empty() || !self.targets.is_empty()
    }

    /// The identity that the buckets agree on.
    pub(crate) fn identity_of_buckets(&self, disk: &dyn Disk) -> Option<[u8; 16]> {
        let heads = self.buckets.values().filter_map(|(name, _)| {
            let file = disk.open(&name.text()).ok()?;
            let block = crate::disk::read_exact(&*file, 0, crate::format::BLOCK as usize).ok()?;
            Head::decode(&block, head::BUCKET).ok()
        });
        let storages: BTreeSet<_> = heads.map(|head| head.storage).collect();
        let mut storages = storages.into_iter();
        storages.next().filter(|_| storages.next().is_none())
    }
}

pub(crate) fn read_control(disk: &dyn Disk, name: FileName) -> Result<Control, OpenError> {
    let text = name.text();
    let bytes = read_all(disk, &text).map_err(OpenError::io(format!("reading {text}")))?;
    Control::decode(&bytes).map_err(|flaw| damaged(name, flaw))
}

pub(crate) fn damaged(name: FileName, flaw: Flaw) -> OpenError {
    OpenError::Damaged {
        file: name.text(),
        flaw,
    }
}
