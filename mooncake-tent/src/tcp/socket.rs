//! Vectored sends and receives between a socket and registered memory.

#![expect(
    unsafe_code,
    reason = "the kernel copies to and from raw pieces of leased memory"
)]

use std::{
    io::{self, Read},
    mem::MaybeUninit,
    net::{SocketAddr, TcpStream},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

use crate::memory::Piece;

/// Most pieces of one system call.
pub(super) const MOST_PIECES: usize = 256;

/// How often something slow looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(20);

const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const VANISHED: Duration = Duration::from_secs(25);
const LONGEST_POLL: Duration = Duration::from_secs(3600);

/// Connects until `end`, unless `gives_up` says otherwise.
pub(super) fn connect(
    address: SocketAddr,
    end: Instant,
    gives_up: impl Fn() -> bool,
) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let look = Timespec::try_from(LOOK).expect("it is short");
    while poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&look)) != Ok(1) {
        still_wanted(end, &gives_up)?;
    }
    sockopt::socket_error(&socket)??;
    let socket = TcpStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Reads all of `into` until `end`, unless `gives_up` says otherwise.
pub(super) fn read_whole(
    mut socket: &TcpStream,
    mut into: &mut [u8],
    end: Instant,
    gives_up: impl Fn() -> bool,
) -> io::Result<()> {
    socket.set_read_timeout(Some(LOOK))?;
    while !into.is_empty() {
        match socket.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => into = &mut into[read..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if !into.is_empty() {
            still_wanted(end, &gives_up)?;
        }
    }
    Ok(())
}

/// Has the system look whether the other side still exists, so that one that vanished without a word
/// is noticed within 30 s, be the connection idle or not.
pub(super) fn notice_vanished_peer(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    // It ends the connection at the first probe after it.
    sockopt::set_tcp_user_timeout(socket, VANISHED.as_millis() as u32)?;
    Ok(())
}

/// Waits until the socket can be read, or `end`.
pub(super) fn readable_before(socket: &TcpStream, end: Instant) -> io::Result<()> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = Timespec::try_from(left.min(LONGEST_POLL)).expect("it is short");
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn still_wanted(end: Instant, gives_up: impl Fn() -> bool) -> io::Result<()> {
    if gives_up() {
        return Err(io::Error::other("it is not wanted any more"));
    }
    if Instant::now() >= end {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(())
}

/// Pieces of memory for one vectored call.
pub(super) struct IoPieces {
    /// The first `count` are set.
    vectors: [MaybeUninit<libc::iovec>; MOST_PIECES],
    count: usize,
    bytes: usize,
}

impl IoPieces {
    pub(super) fn new() -> Self {
        Self {
            vectors: [const { MaybeUninit::uninit() }; MOST_PIECES],
            count: 0,
            bytes: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == MOST_PIECES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds leased memory; `false` when there is no room for more.
    pub(super) fn push(&mut self, piece: Piece) -> bool {
        self.push_raw(piece.as_ptr(), piece.len())
    }

    fn push_raw(&mut self, base: *mut u8, len: usize) -> bool {
        if self.is_full() {
            return false;
        }
        if len > 0 {
            self.vectors[self.count].write(libc::iovec {
                iov_base: base.cast(),
                iov_len: len,
            });
            self.count += 1;
            self.bytes += len;
        }
        true
    }
}

/// Whether a call may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Sleep,
    Try,
}

impl Mode {
    fn flag(self) -> libc::c_int {
        match self {
            Self::Sleep => 0,
            Self::Try => libc::MSG_DONTWAIT,
        }
    }
}

/// Bytes to send: private ones (headers) and leased ones, in order.
pub(super) struct Sending<'a> {
    pieces: IoPieces,
    // The private bytes are borrowed for as long as the kernel may read them.
    private: std::marker::PhantomData<&'a [u8]>,
}

impl<'a> Sending<'a> {
    pub(super) fn new() -> Self {
        Self {
            pieces: IoPieces::new(),
            private: std::marker::PhantomData,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.pieces.bytes()
    }

    pub(super) fn push_private(&mut self, bytes: &'a [u8]) -> bool {
        self.pieces.push_raw(bytes.as_ptr().cast_mut(), bytes.len())
    }

    pub(super) fn push_leased(&mut self, piece: Piece) -> bool {
        self.pieces.push(piece)
    }

    /// Sends some of it; returns how many bytes.
    pub(super) fn send(&self, socket: &TcpStream, mode: Mode) -> io::Result<usize> {
        let message = header(&self.pieces);
        retry(|| {
            // SAFETY: the vectors name private bytes that `self` borrows and leased memory whose
            // lease the caller holds; the kernel only reads them.
            unsafe {
                libc::sendmsg(
                    socket.as_raw_fd(),
                    &message,
                    libc::MSG_NOSIGNAL | mode.flag(),
                )
            }
        })
    }
}

/// Receives into `leased` first and what comes after it into `spill`; returns how many bytes.
pub(super) fn receive(
    socket: &TcpStream,
    leased: &mut IoPieces,
    spill: &mut [u8],
    mode: Mode,
) -> io::Result<usize> {
    // A full list of pieces simply leaves the spill out.
    leased.push_raw(spill.as_mut_ptr(), spill.len());
    let mut message = header(leased);
    retry(|| {
        // SAFETY: the vectors name leased memory whose lease the caller holds, and `spill`, which
        // is borrowed exclusively for this call.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, mode.flag()) }
    })
}

fn header(pieces: &IoPieces) -> libc::msghdr {
    // SAFETY: a message header of zeros is a valid one that names nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.vectors.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.count as _;
    message
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Ok(bytes);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_peer_that_vanishes_is_noticed_within_half_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        notice_vanished_peer(&socket).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        let timeout = sockopt::tcp_user_timeout(&socket).unwrap();
        let timeout = Duration::from_millis(timeout.into());
        let probes = sockopt::tcp_keepintvl(&socket).unwrap();
        assert!(sockopt::tcp_keepidle(&socket).unwrap() < timeout);
        assert!(timeout + probes <= Duration::from_secs(30));
    }
}
