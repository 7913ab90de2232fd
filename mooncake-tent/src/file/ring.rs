//! A ring of the kernel's: requests go in, completions come out.

#![expect(
    unsafe_code,
    reason = "the kernel reads and writes raw pieces of leased memory by itself"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    time::Duration,
};

use io_uring::{
    EnterFlags, IoUring, Probe, opcode, squeue,
    types::{Fd, Fixed, SubmitArgs, Timespec},
};
use rustix::io::Errno;

use super::book::Launch;
use crate::{memory::Memory, transport::Op};

/// Of the requests that call another one back.
const RECALL: u64 = u64::MAX;
/// Of the request that only wakes whoever waits.
const WAKE: u64 = u64::MAX - 1;
/// The most bytes that the kernel takes as one piece of registered memory.
const MOST_REGISTERED: usize = 1 << 30;

/// See the module.
pub(super) struct Ring {
    ring: IoUring,
    entries: usize,
}

/// Whoever has it puts requests in. There is one for each ring.
#[derive(Debug)]
pub(super) struct Entrance(());

/// Whoever has it takes completions out. There is one for each ring.
#[derive(Debug)]
pub(super) struct Exit(());

/// A part that the kernel has done with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landed {
    pub(super) id: u64,
    pub(super) result: Result<usize, Errno>,
}

impl Ring {
    /// A ring with room for so many requests at once and their cancellations.
    ///
    /// # Errors
    ///
    /// The kernel forbids rings, or lacks what we need of them.
    pub(super) fn new(entries: usize) -> io::Result<(Self, Entrance, Exit)> {
        let entries = entries.next_power_of_two() as u32;
        let build = |all: bool| {
            let mut builder = IoUring::builder();
            // A request and its cancellation each say something, and there is room to spare.
            builder.dontfork().setup_cqsize(4 * entries);
            if all {
                builder.setup_submit_all();
            }
            builder.build(entries)
        };
        let ring = match build(true) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => build(false),
            built => built,
        }?;
        let lacks = |what: &str| {
            let message = format!("the kernel's io_uring has no {what}");
            Err(io::Error::new(io::ErrorKind::Unsupported, message))
        };
        if !ring.params().is_feature_ext_arg() {
            return lacks("waits with an end");
        }
        if !ring.params().is_feature_nodrop() {
            return lacks("safe place for completions");
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::AsyncCancel::CODE,
            opcode::Nop::CODE,
        ];
        if !needed.iter().all(|code| probe.is_supported(*code)) {
            return lacks("reads, writes and cancellation");
        }
        let ring = Self {
            ring,
            entries: entries as usize,
        };
        Ok((ring, Entrance(()), Exit(())))
    }

    /// Requests that fit in before they are [submitted](Self::submit).
    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Puts a part in; `false`: there is no room before the next [submit](Self::submit).
    /// `memory` is where its memory is registered.
    pub(super) fn push(&self, at: &mut Entrance, launch: &Launch, memory: Option<u16>) -> bool {
        let (piece, offset) = (launch.piece, launch.at);
        let length = u32::try_from(piece.len()).expect("a part is small");
        let address = piece.as_ptr();
        macro_rules! request {
            ($fd:expr) => {
                match (launch.op, memory) {
                    (Op::Read, None) => opcode::Read::new($fd, address, length)
                        .offset(offset)
                        .build(),
                    (Op::Write, None) => opcode::Write::new($fd, address, length)
                        .offset(offset)
                        .build(),
                    (Op::Read, Some(memory)) => {
                        opcode::ReadFixed::new($fd, address, length, memory)
                            .offset(offset)
                            .build()
                    }
                    (Op::Write, Some(memory)) => {
                        opcode::WriteFixed::new($fd, address, length, memory)
                            .offset(offset)
                            .build()
                    }
                }
            };
        }
        let request = match launch.fixed {
            Some(place) => request!(Fixed(place)),
            None => request!(Fd(launch.descriptor)),
        };
        self.put(at, &request.user_data(launch.id))
    }

    /// Asks the kernel to end a part early, which it will have landed, one way or another, before its
    /// memory is free.
    pub(super) fn recall(&self, at: &mut Entrance, id: u64) -> bool {
        let request = opcode::AsyncCancel::new(id).build().user_data(RECALL);
        self.put(at, &request)
    }

    /// Whoever waits for completions gets one that means nothing.
    pub(super) fn wake(&self, at: &mut Entrance) -> bool {
        self.put(at, &opcode::Nop::new().build().user_data(WAKE))
    }

    fn put(&self, _at: &mut Entrance, request: &squeue::Entry) -> bool {
        // SAFETY: there is one `Entrance` for this ring, which the caller has for itself, so this is
        // the only view of its submission queue now.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: the file descriptor and the memory that the request names stay as they are until
        // it has completed: a `Launch` is made by a book alone, which holds both until it is told.
        unsafe { queue.push(request) }.is_ok()
    }

    /// Requests that the kernel has not taken yet.
    pub(super) fn waiting(&self, _at: &mut Entrance) -> usize {
        // SAFETY: as in `put`.
        let queue = unsafe { self.ring.submission_shared() };
        queue.len()
    }

    /// Hands what was put in to the kernel; what it does not take now stays in.
    pub(super) fn submit(&self, _at: &mut Entrance) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                submitted => return submitted.map(drop),
            }
        }
    }

    /// Waits until there is a completion, but not longer than `most`.
    pub(super) fn wait(&self, _at: &mut Exit, most: Duration) {
        let time = Timespec::from(most);
        let arguments = SubmitArgs::new().timespec(&time);
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // Whether something came, or not in time, or a signal: the caller looks.
        // SAFETY: nothing is submitted, and `arguments` is what the flags announce; it and the time
        // that it points to live until the call has returned.
        let _woken = unsafe {
            let submitter = self.ring.submitter();
            submitter.enter(0, 1, flags.bits(), Some(&arguments))
        };
    }

    /// Takes out what there is.
    pub(super) fn reap(&self, _at: &mut Exit, landed: &mut Vec<Landed>) {
        // SAFETY: there is one `Exit` for this ring, which the caller has for itself, so this is the
        // only view of its completion queue now.
        let queue = unsafe { self.ring.completion_shared() };
        for completion in queue {
            let id = completion.user_data();
            if id == RECALL || id == WAKE {
                continue;
            }
            let result = completion.result();
            let result = match usize::try_from(result) {
                Ok(moved) => Ok(moved),
                Err(_) => Err(Errno::from_raw_os_error(-result)),
            };
            landed.push(Landed { id, result });
        }
    }

    /// Makes tables for so many files and pieces of memory. `false`: the kernel has none of the
    /// second.
    pub(super) fn prepare_tables(&self, files: u32, memories: u32) -> (bool, bool) {
        let submitter = self.ring.submitter();
        (
            submitter.register_files_sparse(files).is_ok(),
            submitter.register_buffers_sparse(memories).is_ok(),
        )
    }

    /// Lets requests name files by their place in the table; -1 forgets one.
    pub(super) fn set_files(&self, place: u32, files: &[RawFd]) -> io::Result<()> {
        let submitter = self.ring.submitter();
        submitter.register_files_update(place, files).map(drop)
    }

    /// Pins memory, so that requests may name it by its place in the table.
    pub(super) fn set_memory(&self, place: u32, memory: &Memory) -> io::Result<()> {
        if memory.len() > MOST_REGISTERED {
            let message = format!("{} bytes are too many to be registered", memory.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let whole = libc::iovec {
            iov_base: memory.piece(0..memory.len() as u64).as_ptr().cast(),
            iov_len: memory.len(),
        };
        // SAFETY: the memory is mapped now. The kernel holds on to its pages, not to its address,
        // and no request names the place after the memory has gone.
        unsafe {
            let submitter = self.ring.submitter();
            submitter.register_buffers_update(place, &[whole], None)
        }
    }

    /// Forgets memory.
    pub(super) fn unset_memory(&self, place: u32) -> io::Result<()> {
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: no memory is named.
        unsafe {
            let submitter = self.ring.submitter();
            submitter.register_buffers_update(place, &[nothing], None)
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's own, which lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({} entries)", self.entries)
    }
}
