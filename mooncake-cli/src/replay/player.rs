//! One client that serves requests of a trace.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mooncake_store::core::PutOptions;
use mooncake_store::{BlockingClient, ErrorCode, Fault, GetInto, PutFrom, StoreError};
use mooncake_tent::Buffer;
use serde::{Deserialize, Serialize};

use crate::pattern;
use crate::trace::Request;

/// Serves one request after the other, with memory of its own for the blocks.
#[derive(Debug)]
pub struct Player {
    client: BlockingClient,
    /// Makes the keys of this run differ from those of others.
    run: String,
    block_bytes: u64,
    batch: usize,
    source: Buffer,
    target: Buffer,
    /// A block, where its bytes are made and checked.
    block: Vec<u8>,
}

/// What serving a request came to.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Blocks that were read, from the first one on.
    pub hit: u64,
    /// Blocks that were read and had a wrong byte or length.
    pub byte_errors: u64,
    /// Blocks that the store had, but that could not be read where they should be.
    pub unreadable: u64,
    /// Operations on blocks that failed.
    pub errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// Bytes read.
    pub bytes_get: u64,
    /// Bytes stored.
    pub bytes_put: u64,
    /// How long each call that read took, in microseconds.
    pub get_us: Vec<u64>,
    /// How long each call that stored took, in microseconds.
    pub put_us: Vec<u64>,
}

impl Player {
    /// A player whose calls carry up to `batch` blocks.
    ///
    /// # Errors
    ///
    /// There is no memory for that.
    pub fn new(
        client: BlockingClient,
        run: &str,
        block_bytes: u64,
        batch: u32,
    ) -> Result<Self, StoreError> {
        let bytes = block_bytes as usize * batch as usize;
        Ok(Self {
            source: client.allocate(bytes)?,
            target: client.allocate(bytes)?,
            client,
            run: run.to_owned(),
            block_bytes,
            batch: batch as usize,
            block: vec![0; block_bytes as usize],
        })
    }

    /// Reads the longest prefix of the request's blocks that the store has, and stores the rest.
    pub fn serve(&mut self, request: &Request) -> Served {
        let mut served = Served::default();
        let present = self.longest_prefix(&request.hash_ids, &mut served);
        let (prefix, rest) = request.hash_ids.split_at(present);
        let mut read = vec![false; prefix.len()];
        // The end of a prefix goes first: it is of no use without its beginning, so it should be
        // the first to be forgotten.
        for start in (0..prefix.len()).step_by(self.batch).rev() {
            let end = prefix.len().min(start + self.batch);
            self.get(&prefix[start..end], &mut read[start..end], &mut served);
        }
        served.hit = read.iter().take_while(|read| **read).count() as u64;
        let mut seen = HashSet::new();
        let lost = prefix
            .iter()
            .zip(&read)
            .filter(|(_, read)| !**read)
            .map(|(id, _)| id);
        let missing: Vec<_> = lost
            .chain(rest)
            .copied()
            .filter(|id| seen.insert(*id))
            .collect();
        for ids in missing.rchunks(self.batch) {
            self.put(ids, &mut served);
        }
        served
    }

    fn key(&self, id: u64) -> Bytes {
        Bytes::from(format!("{}/{id}", self.run))
    }

    fn longest_prefix(&self, ids: &[u64], served: &mut Served) -> usize {
        let keys = ids.iter().map(|id| self.key(*id)).collect();
        let mut present = 0;
        for result in self.client.exist(keys) {
            match result {
                Ok(existence) if existence.exists => present += 1,
                Ok(_) => break,
                Err(fault) => {
                    served.failed(&fault);
                    break;
                }
            }
        }
        present
    }

    fn place(&self, index: usize) -> std::ops::Range<u64> {
        let start = index as u64 * self.block_bytes;
        start..start + self.block_bytes
    }

    fn get(&mut self, ids: &[u64], read: &mut [bool], served: &mut Served) {
        let items = ids
            .iter()
            .enumerate()
            .map(|(index, id)| {
                let into = self.target.slice(self.place(index));
                GetInto::new(self.key(*id), into.expect("places lie within the buffer"))
            })
            .collect();
        let start = Instant::now();
        let results = self.client.get_into(items);
        served.get_us.push(micros(start.elapsed()));
        let quiet = all_quiet(&results);
        for (index, result) in results.into_iter().enumerate() {
            match result {
                Ok(got) => {
                    served.bytes_get += got.length;
                    let offset = self.place(index).start;
                    self.target.memory().read_at(offset, &mut self.block);
                    let whole = got.length == self.block_bytes;
                    if whole && pattern::verify(ids[index], &self.block).is_ok() {
                        read[index] = true;
                    } else {
                        served.byte_errors += 1;
                    }
                }
                // It was forgotten since it was looked up: a miss.
                Err(fault) if fault.code == ErrorCode::ObjectNotFound => {}
                // Its node may be dead, which the store will know in a while: a miss as well.
                Err(fault)
                    if matches!(
                        fault.code,
                        ErrorCode::TransferFailed | ErrorCode::LeaseExpired
                    ) =>
                {
                    served.unreadable += 1;
                }
                Err(fault) => served.failed(&fault),
            }
        }
        if !quiet {
            // What still moves must not land among the blocks of the next call.
            replace(&self.client, &mut self.target, served);
        }
    }

    fn put(&mut self, ids: &[u64], served: &mut Served) {
        for (index, id) in ids.iter().enumerate() {
            pattern::fill(*id, &mut self.block);
            self.source
                .memory()
                .write_at(self.place(index).start, &self.block);
        }
        let items = ids
            .iter()
            .enumerate()
            .map(|(index, id)| {
                let from = self.source.slice(self.place(index));
                PutFrom::new(self.key(*id), from.expect("places lie within the buffer"))
            })
            .collect();
        let start = Instant::now();
        let results = self.client.put_from(items, PutOptions::default());
        served.put_us.push(micros(start.elapsed()));
        let quiet = all_quiet(&results);
        for result in results {
            match result {
                Ok(_) => served.bytes_put += self.block_bytes,
                // Another client was faster.
                Err(fault)
                    if matches!(
                        fault.code,
                        ErrorCode::ObjectAlreadyExists | ErrorCode::PutInProgress
                    ) => {}
                Err(fault) => served.failed(&fault),
            }
        }
        if !quiet {
            replace(&self.client, &mut self.source, served);
        }
    }
}

fn all_quiet<T>(results: &[Result<T, Fault>]) -> bool {
    let quiet = |result: &Result<T, Fault>| result.as_ref().map_or_else(|f| f.quiescent, |_| true);
    results.iter().all(quiet)
}

/// Takes new memory; the engine frees the old one when it is quiet.
fn replace(client: &BlockingClient, buffer: &mut Buffer, served: &mut Served) {
    match client.allocate(buffer.len() as usize) {
        Ok(new) => *buffer = new,
        Err(error) => served.failed(&error.into()),
    }
}

impl Served {
    fn failed(&mut self, fault: &Fault) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| fault.to_string());
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}
