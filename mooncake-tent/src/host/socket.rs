//! Packets over Unix sockets, with or without a file.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    },
};

const BACKLOG: i32 = 256;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(socket)
}

/// Listens under a name of the abstract namespace, which is free again when the socket is closed.
pub(super) fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects at once or not at all.
pub(super) fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

/// The next connection, if one waits.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::accept_with(listener, flags)?)
}

/// Sends one packet, or fails with [`io::ErrorKind::WouldBlock`].
pub(super) fn send(
    socket: impl AsFd,
    packet: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let files = file.as_slice();
    if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
        unreachable!("there is room for one file");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(packet)], &mut beside, flags)
    })?;
    debug_assert_eq!(sent, packet.len(), "packets are sent whole");
    Ok(())
}

/// Takes one packet, and the file that came with it. 0 bytes: the peer has closed.
pub(super) fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        let into = &mut [IoSliceMut::new(into)];
        rustix::net::recvmsg(&socket, into, &mut beside, flags)
    })?;
    let files = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let file = files.last();
    Ok((received.bytes, file))
}

/// Sleeps until the socket is ready, for `most` at most; `false`: it was not.
pub(super) fn wait(socket: impl AsFd, events: PollFlags, most: Duration) -> bool {
    let timeout = Timespec::try_from(most.min(Duration::from_secs(3600))).expect("it is short");
    let mut sockets = [PollFd::new(&socket, events)];
    matches!(poll(&mut sockets, Some(&timeout)), Ok(n) if n > 0)
}

/// As [`receive`], waiting until `end`.
pub(super) fn receive_until(
    socket: impl AsFd,
    into: &mut [u8],
    end: Instant,
) -> io::Result<(usize, Option<OwnedFd>)> {
    loop {
        match receive(&socket, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        wait(&socket, PollFlags::IN, left);
    }
}

/// The host's monotonic clock, which all its processes share.
pub(super) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// An instant of this process on that clock; 0: never.
pub(super) fn on_clock(deadline: Option<Instant>) -> u64 {
    deadline.map_or(0, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        now().saturating_add(left).max(1)
    })
}
