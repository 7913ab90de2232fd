//! Memory of another process, read by the kernel.

#![expect(
    unsafe_code,
    reason = "the kernel copies to a raw piece of leased memory"
)]

use std::{
    fs, io,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::process::{PTracer, getpid, set_ptracer};

use crate::{
    host::{Lent, Medium, Process},
    memory::{Memory, Piece},
};

/// By the kernel's copies.
#[derive(Debug)]
pub(crate) struct Attached;

/// Where memory lies in its process.
#[derive(Debug)]
pub(crate) struct Range {
    address: u64,
}

impl Medium for Attached {
    const NAME: &'static str = "cma";

    type View = Range;

    fn accepts(_memory: &Memory) -> Result<(), &'static str> {
        Ok(())
    }

    fn file(_memory: &Memory) -> io::Result<Option<BorrowedFd<'_>>> {
        Ok(None)
    }

    fn view(lent: Lent, _file: Option<OwnedFd>, owner: &Process) -> io::Result<Range> {
        if lent.length == 0 || lent.address.checked_add(lent.length).is_none() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let range = Range {
            address: lent.address,
        };
        // Whether the kernel lets us is known only by trying.
        let scratch = Memory::from_vec(vec![0])?;
        Self::copy(&range, owner, 0, scratch.piece(0..1))?;
        Ok(range)
    }

    fn admit(reader: &Process) -> io::Result<()> {
        let own = reader.pid() == getpid();
        if !own && is_restricted() {
            set_ptracer(PTracer::ProcessID(reader.pid()))?;
        }
        Ok(())
    }

    fn copy(view: &Range, owner: &Process, from: u64, into: Piece) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let address = view.address + from + done as u64;
            let read = read(owner, address, into.skip(done)).map_err(|error| match error {
                error if error.raw_os_error() == Some(libc::EPERM) => io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!(
                        "the kernel does not let us read process {}: other user, not dumpable, or \
                         restricted by Yama",
                        owner.pid().as_raw_nonzero()
                    ),
                ),
                error => error,
            })?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += read;
        }
        // If it lives still, its number was its own all the time.
        match owner.is_alive_now() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Yama lets only those read us whom we name.
fn is_restricted() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.is_ok_and(|scope| scope.trim() == "1")
}

fn read(owner: &Process, address: u64, into: Piece) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: into.as_ptr().cast(),
        iov_len: into.len(),
    };
    let address = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidData)?;
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: into.len(),
    };
    let pid = owner.pid().as_raw_nonzero().get();
    // SAFETY: the local piece is live and this long; the remote range is the kernel's to check.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}
