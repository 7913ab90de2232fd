//! What the initiator of a session has offered to be written from.

use std::{io, os::fd::OwnedFd};

use rustc_hash::FxHashMap;

use super::{
    Lent, Medium, Process,
    wire::{Status, Write},
};
use crate::{
    identity::RegistrationId,
    memory::{LocalSlice, Piece},
};

/// Memory that one peer may offer at a time.
const MOST: usize = 4096;

/// Offered memory, by its name at the initiator.
#[derive(Debug)]
pub(super) struct Sources<M: Medium>(FxHashMap<RegistrationId, Source<M>>);

#[derive(Debug)]
struct Source<M: Medium> {
    view: M::View,
    length: u64,
}

impl<M: Medium> Sources<M> {
    pub(super) fn new() -> Self {
        Self(FxHashMap::default())
    }

    /// What cannot be reached is not there when a write names it.
    pub(super) fn offer(
        &mut self,
        source: RegistrationId,
        lent: Lent,
        file: Option<OwnedFd>,
        owner: &Process,
    ) {
        if self.0.len() >= MOST {
            // The initiator is told when it names one that is gone, and offers it anew.
            self.0.clear();
        }
        match M::view(lent, file, owner) {
            Ok(view) => {
                let length = lent.length;
                self.0.insert(source, Source { view, length });
            }
            Err(error) => {
                tracing::warn!(link = M::NAME, %source, %error, "offered memory is out of reach");
            }
        }
    }

    pub(super) fn forget(&mut self, source: RegistrationId) {
        self.0.remove(&source);
    }

    /// Whether what `write` reads from is there.
    pub(super) fn check(&self, write: &Write) -> Result<(), Status> {
        self.find(write).map(|_| ())
    }

    fn find(&self, write: &Write) -> Result<&Source<M>, Status> {
        let source = self.0.get(&write.source).ok_or(Status::UnknownSource)?;
        let end = write.from.checked_add(write.length);
        match end.is_none_or(|end| end > source.length) {
            true => Err(Status::OutOfBounds),
            false => Ok(source),
        }
    }

    /// Copies what `write` asks for into `destination`, in pieces between which `goes_on` is asked.
    pub(super) fn fetch(
        &self,
        write: &Write,
        destination: &LocalSlice,
        owner: &Process,
        chunk: u64,
        goes_on: impl Fn() -> bool,
    ) -> Status {
        let source = match self.find(write) {
            Ok(source) => source,
            Err(status) => return status,
        };
        let chunk = chunk.max(1);
        let mut done = 0;
        while done < write.length {
            if done > 0 && !goes_on() {
                return Status::Interrupted;
            }
            let next = (done + chunk).min(write.length);
            let into: Piece = destination.part(done..next).piece();
            if let Err(error) = M::copy(&source.view, owner, write.from + done, into) {
                return refused(done, &error);
            }
            done = next;
        }
        Status::Done
    }
}

fn refused(done: u64, error: &io::Error) -> Status {
    tracing::debug!(done, %error, "offered memory cannot be read");
    Status::Unreadable
}
