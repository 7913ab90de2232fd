//! A file that blocks are read from and written to.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use tempfile::NamedTempFile;

use super::contents::{Place, check_and_wipe, corrupt, fill, wipe};
use super::walk::Walked;
use crate::output::Failure;

/// It goes when it is dropped.
#[derive(Debug)]
pub(super) struct BenchFile {
    file: NamedTempFile,
    len: u64,
}

impl BenchFile {
    /// A file of `len` bytes in `folder`, or where the system has temporary ones.
    pub(super) fn make(folder: Option<&Path>, len: u64) -> Result<Self, Failure> {
        let made = match folder {
            Some(folder) => NamedTempFile::new_in(folder),
            None => NamedTempFile::new(),
        };
        let sized = made.and_then(|file| file.as_file().set_len(len).map(|()| file));
        let file = sized.map_err(|error| {
            let failure = Failure::new(format!("no file of {len} bytes can be made"));
            failure
                .because(error)
                .remedy("--folder with a place that has room")
        })?;
        Ok(Self { file, len })
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Blocks are taken from here, or arrive here.
    pub(super) fn prepare(&self, is_source: bool, spoil: bool) -> Result<(), Failure> {
        let mut place = self.file.as_file();
        if is_source {
            fill(place, self.len);
        } else {
            wipe(&mut place, 0, self.len);
        }
        if is_source && spoil {
            corrupt(&mut place, 0);
        }
        self.settle()
    }

    /// Checks that the last transfers have arrived, and wipes where they did.
    pub(super) fn check(&self, all: Vec<Walked>, whose: &str) -> Result<(), Failure> {
        let mut place = self.file.as_file();
        for walked in all {
            check_and_wipe(&mut place, walked, whose)?;
        }
        self.settle()
    }

    /// Leaves nothing to the page cache, so that whoever is measured next finds it as the last did.
    fn settle(&self) -> Result<(), Failure> {
        let file = self.file.as_file();
        let settled = file.sync_data().and_then(|()| {
            fadvise(file, 0, None, Advice::DontNeed)?;
            Ok(())
        });
        settled.map_err(|error| Failure::new("the file does not reach the disk").because(error))
    }
}

/// A disk that fails here is nothing that could be measured.
impl Place for &File {
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        self.read_exact_at(into, at).expect("the file can be read");
    }

    fn copy_in(&mut self, at: u64, from: &[u8]) {
        self.write_all_at(from, at).expect("the disk has room");
    }
}
