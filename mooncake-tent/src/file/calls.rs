//! Plain reads and writes of raw memory.

#![expect(
    unsafe_code,
    reason = "the kernel copies to and from raw pieces of leased memory"
)]

use rustix::io::Errno;

use super::book::Launch;
use crate::transport::Op;

/// Does what a ring would do, on the calling thread.
pub(super) fn carry_out(launch: &Launch) -> Result<usize, Errno> {
    let Launch {
        op,
        descriptor,
        piece,
        at,
        ..
    } = launch;
    let (address, length) = (piece.as_ptr().cast(), piece.len());
    let at = libc::off_t::try_from(*at).map_err(|_| Errno::OVERFLOW)?;
    let moved = match op {
        // SAFETY: the piece is live memory of this length and the descriptor is open: the book that
        // made the launch holds both until it is told that the part has landed.
        Op::Read => unsafe { libc::pread(*descriptor, address, length, at) },
        // SAFETY: as above.
        Op::Write => unsafe { libc::pwrite(*descriptor, address.cast_const(), length, at) },
    };
    usize::try_from(moved).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
