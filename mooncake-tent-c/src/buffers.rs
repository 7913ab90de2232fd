//! Registered memory by its address.

use std::{
    collections::BTreeMap,
    sync::Weak,
    thread,
    time::{Duration, Instant},
};

use mooncake_tent::{Buffer, LocalSlice, Permission};
use parking_lot::Mutex;

use crate::failure::{Failure, Result};

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) size: u64,
    pub(crate) permission: Permission,
    /// `None`: it is no buffer any more, but transfers hold it.
    pub(crate) buffer: Option<Buffer>,
    /// Lives as long as the memory may be touched.
    pub(crate) touched: Weak<()>,
    /// It is ours to free.
    pub(crate) owned: bool,
    /// So often it was registered.
    pub(crate) count: u64,
}

/// What has to be done about an entry.
#[derive(Debug)]
pub(crate) enum Leave {
    /// It was registered more than once.
    Stays,
    Unregister(Buffer, Life),
    Wait(Life),
}

/// One registration of some memory, which another may follow at the same address.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) address: u64,
    size: u64,
    pub(crate) touched: Weak<()>,
}

#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Registered>);

#[derive(Debug, Default)]
struct Registered {
    entries: BTreeMap<(u64, u64), Entry>,
    /// No entry is larger.
    largest: u64,
}

impl Buffers {
    pub(crate) fn add(&self, address: u64, entry: Entry) {
        let mut registered = self.0.lock();
        registered.largest = registered.largest.max(entry.size);
        registered.entries.insert((address, entry.size), entry);
    }

    /// `true`: exactly that was registered before, and counts once more.
    pub(crate) fn again(&self, address: u64, size: u64, permission: Permission) -> Result<bool> {
        let mut registered = self.0.lock();
        let Some(entry) = registered.entries.get_mut(&(address, size)) else {
            return Ok(false);
        };
        if entry.buffer.is_none() {
            return Err(Failure::new(
                "transfers of its former registration still hold it",
            ));
        }
        if entry.permission != permission || entry.owned {
            let why = "it is registered already, and for something else";
            return Err(Failure::new(why));
        }
        entry.count += 1;
        Ok(true)
    }

    /// The bytes from `address` on, all of one buffer.
    pub(crate) fn slice(&self, address: u64, length: u64) -> Result<LocalSlice> {
        let registered = self.0.lock();
        let before = registered.entries.range(..=(address, u64::MAX)).rev();
        for ((base, size), entry) in before {
            let offset = address - base;
            if offset >= registered.largest {
                break;
            }
            let end = offset.checked_add(length);
            if let Some(buffer) = &entry.buffer
                && end.is_some_and(|end| end <= *size)
            {
                return Ok(buffer.slice(offset..offset + length)?);
            }
        }
        Err(Failure::new(format!(
            "the {length} bytes from {address:#x} on are not in registered memory"
        )))
    }

    /// Begins to unregister what is at `address`, of that size or of any if it is 0.
    pub(crate) fn leave(&self, address: u64, size: u64, owned: bool) -> Result<Leave> {
        let mut registered = self.0.lock();
        let key = match size {
            0 => {
                let sizes = (address, 0)..=(address, u64::MAX);
                registered.entries.range(sizes).next().map(|(key, _)| *key)
            }
            _ => Some((address, size)),
        };
        let unknown = || Failure::new(format!("nothing is registered at {address:#x} like that"));
        let key = key.ok_or_else(unknown)?;
        let entry = registered.entries.get_mut(&key).ok_or_else(unknown)?;
        if entry.owned != owned {
            return Err(Failure::new(match owned {
                true => "it was registered, not allocated: unregister it",
                false => "it was allocated: free it",
            }));
        }
        if entry.count > 1 {
            entry.count -= 1;
            return Ok(Leave::Stays);
        }
        let touched = Weak::clone(&entry.touched);
        let life = Life {
            address,
            size: key.1,
            touched,
        };
        Ok(match entry.buffer.take() {
            Some(buffer) => Leave::Unregister(buffer, life),
            None => Leave::Wait(life),
        })
    }

    /// It has left. Others may have been given memory at the same address meanwhile.
    pub(crate) fn forget(&self, life: &Life) {
        let mut registered = self.0.lock();
        let key = (life.address, life.size);
        let same = |entry: &Entry| Weak::ptr_eq(&entry.touched, &life.touched);
        if registered.entries.get(&key).is_some_and(same) {
            registered.entries.remove(&key);
        }
    }

    /// Unregisters everything, and says what may still be touched.
    pub(crate) fn clear(&self) -> Vec<Life> {
        let entries = std::mem::take(&mut self.0.lock().entries);
        let life = |((address, size), entry): ((u64, u64), Entry)| Life {
            address,
            size,
            touched: entry.touched,
        };
        entries.into_iter().map(life).collect()
    }
}

/// `false`: it may still be touched when the budget is over.
pub(crate) fn wait_until_untouched(touched: &Weak<()>, budget: Duration) -> bool {
    let start = Instant::now();
    while touched.strong_count() > 0 {
        if start.elapsed() >= budget {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}
