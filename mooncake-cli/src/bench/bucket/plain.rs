//! The limit of what is written: plain files that grow, with as many syncs.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::site::disk;
use crate::bench::{Contender, Sample, own_cpu};
use crate::output::Failure;

/// When a new file is begun, as a storage begins a new bucket.
const FILE_BYTES: u64 = 256 << 20;
/// How many are kept.
const KEPT: usize = 3;

/// Writes blocks one after the other and makes some of them durable at once.
#[derive(Debug)]
pub(super) struct PlainWrites {
    folder: PathBuf,
    block: Vec<u8>,
    /// Blocks that share a sync.
    group: u64,
    /// Operations that a block stands for.
    operations: u64,
    payload_bytes: u64,
    files: VecDeque<PathBuf>,
    next: u64,
    file: Option<(File, u64)>,
}

impl PlainWrites {
    /// Groups of blocks, each of which stands for so many operations with so much payload.
    pub(super) fn new(
        folder: &Path,
        block_bytes: usize,
        group: u64,
        operations: u64,
        payload_bytes: u64,
    ) -> Result<Self, Failure> {
        std::fs::create_dir_all(folder).map_err(disk)?;
        Ok(Self {
            folder: folder.to_path_buf(),
            block: vec![0x5a; block_bytes],
            group,
            operations,
            payload_bytes,
            files: VecDeque::new(),
            next: 0,
            file: None,
        })
    }

    fn write_group(&mut self) -> io::Result<()> {
        let full = self
            .file
            .as_ref()
            .is_none_or(|(_, at)| *at + self.block.len() as u64 * self.group > FILE_BYTES);
        if full {
            self.begin_file()?;
        }
        let (file, at) = self.file.as_mut().expect("it was just begun");
        for _ in 0..self.group {
            file.write_all_at(&self.block, *at)?;
            *at += self.block.len() as u64;
        }
        file.sync_data()
    }

    fn begin_file(&mut self) -> io::Result<()> {
        let path = self.folder.join(self.next.to_string());
        self.next += 1;
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).open(&path)?;
        self.files.push_back(path);
        if self.files.len() > KEPT
            && let Some(oldest) = self.files.pop_front()
        {
            std::fs::remove_file(oldest)?;
        }
        File::open(&self.folder)?.sync_all()?;
        self.file = Some((file, 0));
        Ok(())
    }
}

impl Contender for PlainWrites {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        let (cpu, start) = (own_cpu(), Instant::now());
        let mut last = start;
        while last - start < budget {
            self.write_group().map_err(disk)?;
            let now = Instant::now();
            sample.latency.record(now - last);
            sample.operations += self.group * self.operations;
            sample.bytes += self.group * self.payload_bytes;
            last = now;
        }
        sample.wall = last - start;
        sample.cpu = own_cpu() - cpu;
        Ok(sample)
    }
}
