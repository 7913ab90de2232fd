//! The thread that makes records durable, many at once, while steps go on.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::{Condvar, Mutex};
use tokio::{runtime::Handle, sync::watch};

use super::{Checkpoint, Files, LogError, Recovered, Writer, codec::encode};
use crate::state::{Record, Survey};

/// A checkpoint is due when the log has so many bytes, and as many as the last one.
const LEAST_BYTES: u64 = 16 << 20;
/// Objects that a checkpoint looks at before others have their turn.
const PART: u32 = 512;

/// When so many bytes wait for the disk, what would add to them is told to come later.
const MOST_WAITING: usize = 64 << 20;

/// How far the log has come.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// All up to this number are durable.
    durable: u64,
    failed: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Of the last record among them, or before them.
    number: u64,
    rotate: bool,
    stop: bool,
}

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    more: Condvar,
    progress: watch::Sender<Progress>,
    /// Of the log file that was begun last.
    rotated: watch::Sender<Option<u64>>,
    sizes: Mutex<Sizes>,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    log: u64,
    checkpoint: u64,
    checkpointing: bool,
}

/// A log that is being written. Dropped, it makes durable what was appended.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    files: Arc<dyn Files>,
    epoch: u64,
    pub(crate) runtime: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The directory is this log's.
    open: Mutex<bool>,
}

impl Log {
    /// Begins the log of a life. Called within a runtime, in which those wait who are to be answered.
    pub(crate) fn start(
        files: Arc<dyn Files>,
        recovered: &Recovered,
        epoch: u64,
    ) -> Result<Self, LogError> {
        let writer = Writer::begin(Arc::clone(&files), recovered, epoch)?;
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            more: Condvar::new(),
            progress: watch::Sender::new(Progress::default()),
            rotated: watch::Sender::new(None),
            sizes: Mutex::new(Sizes {
                log: recovered.log_bytes,
                checkpoint: recovered.checkpoint_bytes,
                checkpointing: false,
            }),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("mooncake-log".to_owned())
            .spawn(move || of_thread.run(writer))
            .map_err(LogError::io("start the thread of", "the log"))?;
        Ok(Self {
            shared,
            files,
            epoch,
            runtime: Handle::current(),
            thread: Mutex::new(Some(thread)),
            open: Mutex::new(true),
        })
    }

    /// Takes records in, in the order of calls; the number that is to become durable.
    pub(crate) fn append<'a>(&self, records: impl Iterator<Item = &'a Record>) -> u64 {
        let mut waiting = self.shared.waiting.lock();
        let failed = self.shared.progress.borrow().failed;
        for record in records {
            // Nobody will be told that it is durable.
            if !failed {
                encode(record, &mut waiting.bytes);
            }
            waiting.number += 1;
        }
        self.shared.more.notify_one();
        waiting.number
    }

    /// The number of what was appended last, if it is not durable yet; else 0.
    pub(crate) fn tail(&self) -> u64 {
        let number = self.shared.waiting.lock().number;
        match self.shared.progress.borrow().durable >= number {
            true => 0,
            false => number,
        }
    }

    /// Bytes that wait for the disk, if these are more than should.
    pub(crate) fn behind(&self) -> Option<u64> {
        let waiting = self.shared.waiting.lock().bytes.len();
        (waiting > MOST_WAITING).then_some(waiting as u64)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.shared.progress.borrow().failed
    }

    /// All up to this number is durable.
    pub(crate) fn is_durable(&self, number: u64) -> bool {
        self.shared.progress.borrow().durable >= number
    }

    /// Waits until all up to this number is durable; `false`: it will never be.
    pub(crate) async fn durable(&self, number: u64) -> bool {
        let mut progress = self.shared.progress.subscribe();
        let over = progress.wait_for(|now| now.durable >= number || now.failed);
        over.await.is_ok_and(|now| now.durable >= number)
    }

    /// Makes durable what was appended, and no more from then on: others may use the directory.
    pub(crate) fn close(&self) {
        self.shared.waiting.lock().stop = true;
        self.shared.more.notify_one();
        // A checkpoint that is about to count does so before.
        *self.open.lock() = false;
        if let Some(thread) = self.thread.lock().take() {
            // What it had to say it has logged.
            let _ = thread.join();
            self.shared.progress.send_modify(|now| now.failed = true);
            self.files.unlock();
        }
    }

    /// A checkpoint would make the next start faster. Whoever is told so must [write](Self::checkpoint)
    /// one.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let mut sizes = self.shared.sizes.lock();
        let due = sizes.log > LEAST_BYTES.max(sizes.checkpoint);
        let begins = due && !sizes.checkpointing && !self.has_failed();
        sizes.checkpointing |= begins;
        begins
    }

    /// Writes a checkpoint of what `survey` tells, part by part. Blocks.
    pub(crate) fn checkpoint(
        &self,
        survey: impl FnMut(Survey, u32, &mut Vec<Record>) -> Survey,
    ) -> Result<(), LogError> {
        let written = self.write_checkpoint(survey);
        self.shared.sizes.lock().checkpointing = false;
        written
    }

    fn write_checkpoint(
        &self,
        mut survey: impl FnMut(Survey, u32, &mut Vec<Record>) -> Survey,
    ) -> Result<(), LogError> {
        let mut rotated = self.shared.rotated.subscribe();
        rotated.mark_unchanged();
        self.shared.waiting.lock().rotate = true;
        self.shared.more.notify_one();
        let begun = self.runtime.block_on(async {
            let mut progress = self.shared.progress.subscribe();
            tokio::select! {
                changed = rotated.changed() => changed.ok().and_then(|()| *rotated.borrow()),
                _ = progress.wait_for(|now| now.failed) => None,
            }
        });
        let Some(number) = begun else {
            return Ok(());
        };
        let files = Arc::clone(&self.files);
        let mut checkpoint = Checkpoint::begin(files, self.epoch, number)?;
        let (mut at, mut records) = (Survey::Begin, Vec::new());
        while at != Survey::End {
            at = survey(at, PART, &mut records);
            if let Err(error) = checkpoint.add(&records) {
                checkpoint.give_up();
                return Err(error);
            }
            records.clear();
        }
        // It may show what was told meanwhile.
        let tail = self.tail();
        if !self.runtime.block_on(self.durable(tail)) {
            checkpoint.give_up();
            return Ok(());
        }
        // Once the log is closed the directory is another's.
        let open = self.open.lock();
        if !*open {
            return Ok(());
        }
        let bytes = checkpoint.finish()?;
        let mut sizes = self.shared.sizes.lock();
        sizes.checkpoint = bytes;
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

/// Sees to it that all know when the thread has ended.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.progress.send_modify(|now| now.failed = true);
        }
    }
}

impl Shared {
    fn run(&self, mut writer: Writer) {
        // Also after a panic: nobody waits for what will never be durable.
        let _ended = Ended(self);
        while let Some(result) = self.turn(&mut writer) {
            if let Err(error) = result {
                let chain = std::error::Error::source(&error);
                let because = chain.map(ToString::to_string).unwrap_or_default();
                tracing::error!(%error, because, "what must be remembered is refused from now on");
                self.progress.send_modify(|now| now.failed = true);
                self.waiting.lock().bytes = Vec::new();
                return;
            }
        }
    }

    /// Makes durable what waits, or begins a new file; `None`: there is nothing, and will be nothing.
    fn turn(&self, writer: &mut Writer) -> Option<Result<(), LogError>> {
        let (bytes, number, rotate) = {
            let mut waiting = self.waiting.lock();
            while waiting.bytes.is_empty() && !waiting.rotate {
                if waiting.stop {
                    return None;
                }
                self.more.wait(&mut waiting);
            }
            let rotate = std::mem::take(&mut waiting.rotate);
            (std::mem::take(&mut waiting.bytes), waiting.number, rotate)
        };
        if !bytes.is_empty() {
            if let Err(error) = writer.commit(&bytes) {
                return Some(Err(error));
            }
            self.sizes.lock().log += bytes.len() as u64;
            self.progress.send_modify(|now| now.durable = number);
        }
        if rotate {
            let next = match writer.prepare() {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(%error, "there is no checkpoint for now: the log goes on");
                    // It is tried again when as much has come as before.
                    self.sizes.lock().log = 0;
                    self.rotated.send_replace(None);
                    return Some(Ok(()));
                }
            };
            let begun = match writer.rotate(next) {
                Ok(begun) => begun,
                Err(error) => return Some(Err(error)),
            };
            self.sizes.lock().log = 0;
            self.rotated.send_replace(Some(begun));
        }
        Some(Ok(()))
    }
}
