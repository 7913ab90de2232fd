//! Another process of this host, and whether it is still the same one.

#![expect(
    unsafe_code,
    reason = "credentials of a peer that may have no number here"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
    time::{ClockId, clock_gettime},
};

/// A process that lived so short a time ago is taken to be alive.
const LATELY: u64 = 2_000_000;

/// A process at the other end of a socket, held so that its number is not mistaken for that of a later
/// one. It counts as alive while it keeps the socket, which closes when it executes another program.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    uid: u32,
    handle: OwnedFd,
    socket: Arc<OwnedFd>,
    /// When it was last seen alive, in nanoseconds; never, once it was not.
    seen: AtomicU64,
}

const GONE: u64 = u64::MAX;

impl Process {
    /// Who is at the other end of a socket.
    pub(super) fn behind(socket: &Arc<OwnedFd>) -> io::Result<Self> {
        let (pid, uid) = credentials(socket)?;
        let pid = Pid::from_raw(pid).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the peer lives in another namespace of processes",
            )
        })?;
        Ok(Self {
            pid,
            uid,
            handle: pidfd_open(pid, PidfdFlags::empty())?,
            socket: Arc::clone(socket),
            seen: AtomicU64::new(now()),
        })
    }

    /// Its number.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whose it is.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// It was alive a moment ago.
    pub(super) fn is_alive(&self) -> bool {
        let seen = self.seen.load(Ordering::Relaxed);
        if seen == GONE {
            return false;
        }
        now().saturating_sub(seen) < LATELY || self.is_alive_now()
    }

    /// It is alive, so its number was its own all the time.
    pub(crate) fn is_alive_now(&self) -> bool {
        if self.seen.load(Ordering::Relaxed) == GONE {
            return false;
        }
        let now = now();
        // Of the socket only its end is reported.
        let mut ended = [
            PollFd::new(&self.handle, PollFlags::IN),
            PollFd::new(&*self.socket, PollFlags::empty()),
        ];
        let looked = poll(&mut ended, Some(&Timespec::default()));
        let alive = !matches!(looked, Ok(n) if n > 0);
        self.seen
            .store(if alive { now } else { GONE }, Ordering::Relaxed);
        alive
    }
}

/// A clock that only the kernel's ticks move, since it is read twice for each copy.
fn now() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// Number, which is 0 for one that has none in our namespace, and user.
pub(super) fn credentials(socket: impl AsFd) -> io::Result<(i32, u32)> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `found`, and the length to `len`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    match done {
        0 => Ok((found.pid, found.uid)),
        _ => Err(io::Error::last_os_error()),
    }
}
