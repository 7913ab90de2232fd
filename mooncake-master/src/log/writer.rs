//! How a directory grows: groups, new files, checkpoints.

use std::sync::Arc;

use super::{
    Files, LogError, Recovered,
    codec::encode,
    files::Out,
    frame::{Header, Kind, group},
    recover::{UNFINISHED, checkpoint_name, log_name},
};
use crate::state::Record;

/// Writes the log of one life.
#[derive(Debug)]
pub(crate) struct Writer {
    files: Arc<dyn Files>,
    epoch: u64,
    /// Of the file that is written.
    number: u64,
    out: Box<dyn Out>,
    groups: u64,
    /// In the file.
    pub(super) bytes: u64,
}

impl Writer {
    /// Begins a new life, which is known as such from here on.
    pub(crate) fn begin(
        files: Arc<dyn Files>,
        recovered: &Recovered,
        epoch: u64,
    ) -> Result<Self, LogError> {
        debug_assert!(epoch > recovered.epoch, "each life has a greater epoch");
        let number = recovered.last + 1;
        let (out, bytes) = prepare(&*files, epoch, number)?;
        name(&*files, number)?;
        Ok(Self {
            files,
            epoch,
            number,
            out,
            groups: 0,
            bytes,
        })
    }

    /// Makes records durable, all or none.
    pub(super) fn commit(&mut self, records: &[u8]) -> Result<(), LogError> {
        let bytes = group(self.number, self.groups, records);
        let name = log_name(self.number);
        self.out
            .append(&bytes)
            .map_err(LogError::io("write", &name))?;
        self.out.sync().map_err(LogError::io("sync", &name))?;
        self.groups += 1;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Makes a new file ready. If that fails, the one that is written is as good as before.
    pub(super) fn prepare(&self) -> Result<Prepared, LogError> {
        let number = self.number + 1;
        let prepared = prepare(&*self.files, self.epoch, number);
        if prepared.is_err() {
            // Likewise: the next start removes it otherwise.
            let _ = self.files.remove(&(log_name(number) + UNFINISHED));
        }
        prepared
    }

    /// Goes on in it; its number. A checkpoint that begins after it knows all before it.
    pub(super) fn rotate(&mut self, (out, bytes): Prepared) -> Result<u64, LogError> {
        let number = self.number + 1;
        name(&*self.files, number)?;
        (self.out, self.bytes) = (out, bytes);
        (self.number, self.groups) = (number, 0);
        Ok(number)
    }
}

/// A file that has its header, and how long that is.
pub(super) type Prepared = (Box<dyn Out>, u64);

fn prepare(files: &dyn Files, epoch: u64, number: u64) -> Result<Prepared, LogError> {
    let header = Header {
        kind: Kind::Log,
        number,
        epoch,
    };
    let bytes = header.encode();
    let unfinished = log_name(number) + UNFINISHED;
    let created = files.create(&unfinished);
    let mut out = created.map_err(LogError::io("make", &unfinished))?;
    out.append(&bytes)
        .map_err(LogError::io("write", &unfinished))?;
    out.sync().map_err(LogError::io("sync", &unfinished))?;
    Ok((out, bytes.len() as u64))
}

/// It gets its name when its header is durable: no loss of power leaves half of one.
fn name(files: &dyn Files, number: u64) -> Result<(), LogError> {
    let name = log_name(number);
    let unfinished = name.clone() + UNFINISHED;
    files
        .rename(&unfinished, &name)
        .map_err(LogError::io("rename", &unfinished))?;
    files
        .sync()
        .map_err(LogError::io("sync the directory of", &name))
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    files: Arc<dyn Files>,
    number: u64,
    out: Box<dyn Out>,
    groups: u64,
    bytes: u64,
}

impl Checkpoint {
    /// Begins one, of what is known from log file `number` on.
    pub(super) fn begin(files: Arc<dyn Files>, epoch: u64, number: u64) -> Result<Self, LogError> {
        let name = checkpoint_name(number) + UNFINISHED;
        let header = Header {
            kind: Kind::Checkpoint,
            number,
            epoch,
        };
        let mut out = files.create(&name).map_err(LogError::io("make", &name))?;
        let bytes = header.encode();
        out.append(&bytes).map_err(LogError::io("write", &name))?;
        Ok(Self {
            files,
            number,
            out,
            groups: 0,
            bytes: bytes.len() as u64,
        })
    }

    pub(crate) fn add(&mut self, records: &[Record]) -> Result<(), LogError> {
        let mut bytes = Vec::new();
        for record in records {
            encode(record, &mut bytes);
        }
        if !bytes.is_empty() {
            self.group(&bytes)?;
        }
        Ok(())
    }

    fn group(&mut self, records: &[u8]) -> Result<(), LogError> {
        let bytes = group(self.number, self.groups, records);
        let name = checkpoint_name(self.number);
        self.out
            .append(&bytes)
            .map_err(LogError::io("write", &name))?;
        self.groups += 1;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// It will never count.
    pub(super) fn give_up(&self) {
        let name = checkpoint_name(self.number) + UNFINISHED;
        // The next start removes it otherwise.
        if let Err(error) = self.files.remove(&name) {
            tracing::debug!(%error, name, "what was written of a checkpoint stays until then");
        }
    }

    /// Lets it count. What was told before must be durable in the log; what it replaces goes. Its
    /// bytes.
    pub(crate) fn finish(mut self) -> Result<u64, LogError> {
        let name = checkpoint_name(self.number);
        let unfinished = name.clone() + UNFINISHED;
        let written = self.group(&[]).and_then(|()| {
            self.out.sync().map_err(LogError::io("sync", &unfinished))?;
            let rename = self.files.rename(&unfinished, &name);
            rename.map_err(LogError::io("rename", &unfinished))
        });
        if let Err(error) = written {
            self.give_up();
            return Err(error);
        }
        self.files
            .sync()
            .map_err(LogError::io("sync the directory of", &name))?;
        let names = self
            .files
            .list()
            .map_err(LogError::io("list the files beside", &name))?;
        let number_of = |other: &str| {
            let digits = other
                .strip_prefix("log-")
                .or_else(|| other.strip_prefix("checkpoint-"))?;
            u64::from_str_radix(digits, 16).ok()
        };
        for other in names {
            if number_of(&other).is_some_and(|number| number < self.number) {
                self.files
                    .remove(&other)
                    .map_err(LogError::io("remove", &other))?;
            }
        }
        Ok(self.bytes)
    }
}
