//! Memory that one case after the other uses, since the first touch of fresh memory is slow.

use std::sync::{Arc, Mutex, PoisonError};

use super::contents::{fill, wipe};

/// Regions that nobody uses now.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool(Arc<Mutex<Vec<Vec<u8>>>>);

impl Pool {
    pub(super) fn take(&self, len: u64) -> Region {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free.iter().position(|bytes| bytes.len() as u64 == len);
        let bytes = found.map_or_else(|| vec![0; len as usize], |at| free.swap_remove(at));
        Region {
            bytes,
            pool: self.clone(),
        }
    }
}

/// Memory that goes back to its pool.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) bytes: Vec<u8>,
    pool: Pool,
}

impl Region {
    /// Blocks are taken from here, or arrive here.
    pub(super) fn prepare(&mut self, is_source: bool) {
        let len = self.bytes.len() as u64;
        if is_source {
            fill(self.bytes.as_mut_slice(), len);
        } else {
            wipe(&mut self.bytes.as_mut_slice(), 0, len);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut free = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(bytes);
    }
}
