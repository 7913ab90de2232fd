//! The log of what is dead. Whoever waits for a tombstone shares the sync with all others who do.

use std::{io, sync::Arc};

use parking_lot::{Condvar, Mutex};

use crate::{
    control::Controls,
    disk::{Disk, DiskFile},
    error::copy,
    format::{
        BLOCK, Flaw,
        file_name::FileName,
        head::{self, Head},
        tombstone::{self, Tombstone},
    },
    ids::{Ids, random},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct TombstoneLog {
    storage: [u8; 16],
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What is to be written.
    waiting: Vec<Tombstone>,
    /// How many were ever added.
    added: u64,
    /// Of those, how many are durable.
    durable: u64,
    writing: bool,
    /// Tries that failed, and up to where the last of them would have come.
    failures: u64,
    failure: Option<(u64, io::Error)>,
    log: Option<Log>,
    /// What all logs took when they were last rewritten.
    trimmed_bytes: u64,
}

#[derive(Debug)]
struct Log {
    number: u32,
    stamp: u64,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    frames: u64,
}

/// What the log writes with.
pub(crate) struct Pen<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) ids: &'a Ids,
    pub(crate) controls: &'a Controls,
}

impl TombstoneLog {
    pub(crate) fn new(storage: [u8; 16]) -> Self {
        Self {
            storage,
            state: Mutex::default(),
            done: Condvar::new(),
        }
    }

    /// Adds what must be durable before anything is removed or reclaimed, but not now.
    pub(crate) fn note(&self, tombstone: Tombstone) {
        let mut state = self.state.lock();
        state.waiting.push(tombstone);
        state.added += 1;
    }

    /// Whether that is so of all that is not durable, and not just being made so.
    pub(crate) fn all_waiting(&self, is_so: impl Fn(&Tombstone) -> bool) -> bool {
        // Records are locked before the log, so nothing is asked about them with it locked.
        let waiting = {
            let state = self.state.lock();
            (!state.writing).then(|| state.waiting.clone())
        };
        waiting.is_some_and(|waiting| waiting.iter().all(is_so))
    }

    /// Returns once `tombstones`, and all that were added before, are durable.
    pub(crate) fn commit(&self, tombstones: &[Tombstone], pen: &Pen<'_>) -> io::Result<()> {
        let mut state = self.state.lock();
        state.waiting.extend_from_slice(tombstones);
        state.added += tombstones.len() as u64;
        let ticket = state.added;
        // What failed before is tried again.
        let failures = state.failures;
        loop {
            if state.durable >= ticket {
                return Ok(());
            }
            if state.failures > failures
                && let Some((upto, error)) = &state.failure
                && *upto >= ticket
            {
                return Err(copy(error));
            }
            if state.writing {
                self.done.wait(&mut state);
                continue;
            }
            state.writing = true;
            let count = state.waiting.len().min(tombstone::MOST);
            let batch: Vec<_> = state.waiting.drain(..count).collect();
            let log = state.log.take();
            drop(state);
            let written = self.write(&batch, log, pen);
            state = self.state.lock();
            state.writing = false;
            match written {
                Ok(log) => {
                    state.durable += count as u64;
                    state.log = Some(log);
                }
                Err(error) => {
                    // The next try begins a new file: in this one nobody knows what there is.
                    let rest = std::mem::replace(&mut state.waiting, batch);
                    state.waiting.extend(rest);
                    state.failures += 1;
                    state.failure = Some((state.durable + count as u64, error));
                    if state.durable + (count as u64) < ticket {
                        let (_, error) = state.failure.as_ref().expect("it was just put there");
                        let error = copy(error);
                        self.done.notify_all();
                        return Err(error);
                    }
                }
            }
            self.done.notify_all();
        }
    }

    fn write(&self, batch: &[Tombstone], log: Option<Log>, pen: &Pen<'_>) -> io::Result<Log> {
        let Some(mut log) = log else {
            return self.begin(batch, pen);
        };
        let frame = tombstone::encode(batch, log.stamp, log.frames);
        let name = FileName::Tombstones(log.number);
        // It counts from here on, whether or not it arrives.
        let bytes = log.bytes + frame.len() as u64;
        pen.controls.set(name, bytes);
        let written = log
            .file
            .write_at(log.bytes, &[&frame])
            .and_then(|()| log.file.sync());
        if let Err(error) = written {
            pen.controls.measure(name, &*log.file);
            return Err(error);
        }
        log.bytes = bytes;
        log.frames += 1;
        Ok(log)
    }

    /// A new log that begins with `tombstones`.
    fn begin(&self, tombstones: &[Tombstone], pen: &Pen<'_>) -> io::Result<Log> {
        let number = pen.ids.take(pen.disk, pen.controls)?;
        let frames = tombstones.chunks(tombstone::MOST);
        let count = frames.len() as u64;
        let frame_bytes = frames
            .clone()
            .map(|frame| tombstone::frame_bytes(frame.len()));
        let head = Head {
            storage: self.storage,
            id: number,
            stamp: random()?,
            born: BLOCK + frame_bytes.sum::<u64>(),
        };
        let mut content = head.encode(head::LOG);
        for (number, frame) in frames.enumerate() {
            content.extend(tombstone::encode(frame, head.stamp, number as u64));
        }
        let name = FileName::Tombstones(number);
        pen.controls.replace(pen.disk, name, &content)?;
        Ok(Log {
            number,
            stamp: head.stamp,
            file: pen.disk.open(&name.text())?,
            bytes: content.len() as u64,
            frames: count,
        })
    }

    /// Puts `keep` in place of what all logs say, which are `old`. Nobody else uses the log meanwhile.
    pub(crate) fn rewrite(&self, keep: &[Tombstone], old: &[u32], pen: &Pen<'_>) -> io::Result<()> {
        let log = if keep.is_empty() {
            None
        } else {
            Some(self.begin(keep, pen)?)
        };
        for number in old {
            let name = FileName::Tombstones(*number);
            pen.disk.remove(&name.text())?;
            pen.controls.set(name, 0);
        }
        if !old.is_empty() {
            pen.disk.sync()?;
        }
        self.state.lock().log = log;
        Ok(())
    }

    /// Whether all logs together have so many bytes, and have grown since they were last rewritten: what is as long for
    /// good reason is not rewritten again and again.
    pub(crate) fn is_worth_trimming(&self, worth_bytes: u64, pen: &Pen<'_>) -> bool {
        let bytes = pen.controls.log_bytes();
        bytes > 0 && bytes >= worth_bytes && bytes >= 2 * self.state.lock().trimmed_bytes
    }

    /// Drops tombstones that are not needed from the logs.
    pub(crate) fn trim(&self, gone: impl Fn(&Tombstone) -> bool, pen: &Pen<'_>) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.writing {
            self.done.wait(&mut state);
        }
        state.writing = true;
        state.log = None;
        drop(state);
        let numbers = pen.controls.logs();
        let trimmed = numbers
            .iter()
            .map(|number| read_log(pen.disk, *number, self.storage))
            .collect::<io::Result<Vec<_>>>()
            .map(|logs| {
                let mut all = logs.concat();
                all.retain(|stone| !gone(stone));
                all.sort_unstable();
                all.dedup();
                all
            });
        let done = trimmed.and_then(|keep| self.rewrite(&keep, &numbers, pen));
        let mut state = self.state.lock();
        state.writing = false;
        if done.is_ok() {
            state.trimmed_bytes = pen.controls.log_bytes();
        }
        // After a failure a new log is begun: the old ones say only what is true, as many of them as are left.
        self.done.notify_all();
        done
    }
}

/// What a log says, as far as it can be read.
#[derive(Debug)]
pub(crate) struct LogRead {
    pub(crate) stones: Vec<Tombstone>,
    /// Its last frame is not whole. Of a frame that was appended a crash may have left anything, since it was never
    /// acknowledged. (A last frame that was whole and then went bad looks the same as one that never was.)
    pub(crate) torn: bool,
    /// Something else is wrong: what else it said nobody knows.
    pub(crate) flaw: Option<Flaw>,
}

/// Reads a log. Behind what is damaged it goes on with the next whole frame.
pub(crate) fn scan_log(disk: &dyn Disk, number: u32, storage: [u8; 16]) -> io::Result<LogRead> {
    let bytes = crate::disk::read_all(disk, &FileName::Tombstones(number).text())?;
    let mut read = LogRead {
        stones: Vec::new(),
        torn: false,
        flaw: None,
    };
    let head = match Head::decode(&bytes, head::LOG) {
        Ok(head) if head.storage == storage && head.id == number => head,
        Ok(_) => {
            read.flaw = Some(Flaw::Place);
            return Ok(read);
        }
        Err(flaw) => {
            read.flaw = Some(flaw);
            return Ok(read);
        }
    };
    let (mut at, mut frames) = (BLOCK as usize, 0);
    while at < bytes.len() || (at as u64) < head.born {
        let rest = bytes.get(at..).unwrap_or_default();
        let flaw = match tombstone::decode(rest, head.stamp) {
            Ok((number, entries, length)) if number == frames => {
                read.stones.extend(entries);
                at += length as usize;
                frames += 1;
                continue;
            }
            Ok(_) => Flaw::Place,
            Err(flaw) => flaw,
        };
        // Frames are appended one at a time: one behind this says that this one was whole once.
        let mut behind = (at + BLOCK as usize..bytes.len()).step_by(BLOCK as usize);
        let later = behind.find_map(|at| {
            let (number, _, _) = tombstone::decode(&bytes[at..], head.stamp).ok()?;
            (number > frames).then_some((at, number))
        });
        match later {
            Some((later, number)) => {
                read.flaw.get_or_insert(flaw);
                (at, frames) = (later, number);
            }
            None if (at as u64) < head.born => {
                read.flaw.get_or_insert(flaw);
                break;
            }
            None => {
                tracing::warn!(log = number, %flaw, "the last frame of a log of tombstones is not whole");
                read.torn = true;
                break;
            }
        }
    }
    Ok(read)
}

/// The tombstones of a log; what is wrong with it, but for a torn end, is an error of invalid data.
fn read_log(disk: &dyn Disk, number: u32, storage: [u8; 16]) -> io::Result<Vec<Tombstone>> {
    let read = scan_log(disk, number, storage)?;
    match read.flaw {
        Some(flaw) => Err(io::Error::new(io::ErrorKind::InvalidData, flaw)),
        None => Ok(read.stones),
    }
}
