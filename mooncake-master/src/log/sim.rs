//! A disk that loses power: what was not made durable is lost, kept or torn, as chance has it.

use std::{collections::BTreeMap, io, sync::Arc};

use parking_lot::Mutex;

use super::files::{Files, Out};

#[derive(Clone, Debug, Default)]
struct Inode {
    durable: Vec<u8>,
    now: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Naming {
    Set(String, usize),
    Remove(String),
    Rename(String, String),
}

#[derive(Debug, Default)]
struct Disk {
    inodes: Vec<Inode>,
    durable: BTreeMap<String, usize>,
    now: BTreeMap<String, usize>,
    /// Since the directory was made durable.
    pending: Vec<Naming>,
    /// Writes, syncs, renames and the like until power is lost.
    left: Option<u64>,
    done: u64,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct SimFiles(Arc<Mutex<Disk>>);

fn lost() -> io::Error {
    io::Error::other("power is lost")
}

impl Disk {
    /// One step; an error: power is lost before it is done.
    fn step(&mut self) -> io::Result<()> {
        self.done += 1;
        match &mut self.left {
            Some(0) => Err(lost()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn inode(&self, name: &str) -> io::Result<usize> {
        let found = self.now.get(name).copied();
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))
    }
}

fn apply(names: &mut BTreeMap<String, usize>, naming: &Naming) {
    match naming {
        Naming::Set(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        Naming::Remove(name) => {
            names.remove(name);
        }
        Naming::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
    }
}

impl SimFiles {
    /// Loses power after so many steps.
    pub(super) fn lose_power_after(&self, steps: u64) {
        self.0.lock().left = Some(steps);
    }

    pub(super) fn has_power(&self) -> bool {
        self.0.lock().left != Some(0)
    }

    /// Steps so far.
    pub(super) fn steps(&self) -> u64 {
        self.0.lock().done
    }

    /// The disk after power is back; `draw` decides what became of that which was not durable.
    pub(super) fn after_loss(&self, mut draw: impl FnMut(u64) -> u64) -> Self {
        let disk = self.0.lock();
        let mut names = disk.durable.clone();
        let kept = draw(disk.pending.len() as u64 + 1) as usize;
        for naming in &disk.pending[..kept] {
            apply(&mut names, naming);
        }
        let mut inodes = disk.inodes.clone();
        for inode in &mut inodes {
            let durable = inode.durable.len();
            // A file only grows; a cut is durable at once.
            let grown = inode.now.len() - durable;
            let kept = draw(grown as u64 + 1) as usize;
            inode.now.truncate(durable + kept);
            if kept > 0 && draw(2) == 0 {
                // A part of it never reached the disk, though what follows it did.
                let hole = durable + draw(kept as u64) as usize;
                let end = (hole + 1 + draw(64) as usize).min(inode.now.len());
                inode.now[hole..end].fill(0);
            }
            inode.durable = inode.now.clone();
        }
        Self(Arc::new(Mutex::new(Disk {
            inodes,
            durable: names.clone(),
            now: names,
            ..Disk::default()
        })))
    }

    /// Changes a byte.
    pub(super) fn damage(&self, name: &str, at: usize) {
        let mut disk = self.0.lock();
        let inode = disk.inode(name).unwrap();
        disk.inodes[inode].now[at] ^= 0x5a;
    }

    pub(super) fn write(&self, name: &str, bytes: Vec<u8>) {
        let mut disk = self.0.lock();
        let inode = disk.inode(name).unwrap();
        disk.inodes[inode].now = bytes;
    }
}

#[derive(Debug)]
struct SimOut {
    disk: Arc<Mutex<Disk>>,
    inode: usize,
}

impl Files for SimFiles {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().now.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let disk = self.0.lock();
        let inode = disk.inode(name)?;
        Ok(disk.inodes[inode].now.clone())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Out>> {
        let mut disk = self.0.lock();
        disk.step()?;
        let inode = disk.inodes.len();
        disk.inodes.push(Inode::default());
        disk.now.insert(name.to_owned(), inode);
        disk.pending.push(Naming::Set(name.to_owned(), inode));
        Ok(Box::new(SimOut {
            disk: Arc::clone(&self.0),
            inode,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.step()?;
        let naming = Naming::Rename(from.to_owned(), to.to_owned());
        apply(&mut disk.now, &naming);
        disk.pending.push(naming);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.step()?;
        disk.inode(name)?;
        let naming = Naming::Remove(name.to_owned());
        apply(&mut disk.now, &naming);
        disk.pending.push(naming);
        Ok(())
    }

    fn cut(&self, name: &str, len: u64) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.step()?;
        let at = disk.inode(name)?;
        let inode = &mut disk.inodes[at];
        inode.now.truncate(len as usize);
        inode.durable = inode.now.clone();
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.step()?;
        disk.durable = disk.now.clone();
        disk.pending.clear();
        Ok(())
    }
}

impl Out for SimOut {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk.lock();
        if let Err(error) = disk.step() {
            // Some of it may be on its way.
            let inode = &mut disk.inodes[self.inode];
            inode.now.extend(&bytes[..bytes.len() / 2]);
            return Err(error);
        }
        disk.inodes[self.inode].now.extend(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.step()?;
        let inode = &mut disk.inodes[self.inode];
        inode.durable = inode.now.clone();
        Ok(())
    }
}
