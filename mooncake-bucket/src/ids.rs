//! Numbers of buckets and logs, none of which is ever given out twice.

use std::io;

use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{
    control::Controls,
    disk::Disk,
    format::{control::Control, file_name::FileName},
};

/// So many are reserved at once.
const AHEAD: u32 = 256;

/// The next number, and below which all may have been used already.
#[derive(Debug)]
pub(crate) struct Ids {
    state: Mutex<(u32, u32)>,
}

impl Ids {
    /// `next` is greater than any that was used.
    pub(crate) fn new(next: u32) -> Self {
        Self {
            state: Mutex::new((next, next)),
        }
    }

    /// A number that nobody had.
    pub(crate) fn take(&self, disk: &dyn Disk, controls: &Controls) -> io::Result<u32> {
        // Only those wait who need one as well: a few an hour.
        let mut state = self.state.lock();
        let (next, reserved) = *state;
        let used_up = || io::Error::other("all numbers of buckets are used up");
        let after = next.checked_add(1).ok_or_else(used_up)?;
        if next == reserved {
            let below = next.checked_add(AHEAD).ok_or_else(used_up)?;
            let content = Control::Ids { below }.encode();
            controls.replace(disk, FileName::Ids, &content)?;
            state.1 = below;
        }
        state.0 = after;
        Ok(next)
    }
}

/// Eight bytes from the system.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += getrandom(&mut bytes[done..], GetRandomFlags::empty())?;
    }
    Ok(())
}
