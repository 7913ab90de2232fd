//! Several reads at once, on rings of the kernel's.

#![expect(
    unsafe_code,
    reason = "the kernel writes to memory that a request names while we do something else"
)]

use std::{collections::VecDeque, io, os::fd::AsRawFd, ptr::NonNull, time::Duration};

use io_uring::{IoUring, Probe, opcode, squeue, types::Fd};
use parking_lot::Mutex;

use super::{
    Read,
    direct::{Shape, aligned},
};

/// Reads that are under way at once, on one ring.
const DEPTH: usize = 32;
/// Reads that have landed and are looked at before others are begun.
const AT_ONCE: usize = 4;
/// What each may stage in memory that the kernel has pinned.
const STAGE: usize = 128 << 10;
/// Rings that are kept; more are made when more callers read at once.
const KEPT: usize = 8;

/// Told of each read that has ended.
type Landed<'a> = &'a mut dyn FnMut(usize, &mut Read<'_>);

/// Rings that nobody uses now. Each is one caller's for the time of its reads, so none waits for another.
#[derive(Debug)]
pub(super) struct Rings {
    idle: Mutex<Vec<Ring>>,
}

impl Rings {
    /// An error: the kernel has no rings for us, or none that can read.
    pub(super) fn new() -> io::Result<Self> {
        let ring = Ring::new()?;
        Ok(Self {
            idle: Mutex::new(vec![ring]),
        })
    }

    /// Carries out all reads; `false`: none, since there is no ring.
    pub(super) fn read(&self, reads: &mut [Read<'_>], landed: Landed<'_>) -> bool {
        let idle = self.idle.lock().pop();
        let Some(mut ring) = idle.or_else(|| Ring::new().ok()) else {
            return false;
        };
        ring.read(reads, landed);
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(ring);
        }
        true
    }
}

/// A ring, and memory for what cannot go where it belongs at once.
struct Ring {
    /// First, so that it is gone before the memory is.
    ring: IoUring,
    /// The kernel writes to it behind our back: it is touched through `base` alone.
    _memory: Vec<u8>,
    base: NonNull<u8>,
    /// The memory is known to the kernel.
    pinned: bool,
    /// Places of the memory and of `iovecs` that no read has.
    free: Vec<usize>,
    iovecs: Box<[[libc::iovec; 2]]>,
    flights: Vec<Option<Flight>>,
}

// SAFETY: `base` is of memory that the ring owns, and the pointers in `iovecs` are of reads that are under way, of
// which there are none between two calls.
unsafe impl Send for Ring {}

/// A read that is under way.
struct Flight {
    read: usize,
    shape: Shape,
    /// Its stage, if it is too long for the ring's.
    own: Option<Vec<u8>>,
    stage: NonNull<u8>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring(pinned: {})", self.pinned)
    }
}

impl Ring {
    fn new() -> io::Result<Self> {
        let ring = IoUring::new(DEPTH as u32)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Readv::CODE, opcode::ReadFixed::CODE];
        if !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring has no reads",
            ));
        }
        let mut memory = Vec::new();
        let base = NonNull::from(aligned(&mut memory, DEPTH * STAGE)).cast::<u8>();
        let whole = libc::iovec {
            iov_base: base.as_ptr().cast(),
            iov_len: DEPTH * STAGE,
        };
        // SAFETY: the memory is this ring's, is never moved or freed before it, and is touched by us only when no
        // read has its place.
        let pinned = unsafe { ring.submitter().register_buffers(&[whole]) };
        if let Err(error) = &pinned {
            tracing::debug!(%error, "the kernel does not pin memory for reads");
        }
        let none = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Ok(Self {
            ring,
            _memory: memory,
            base,
            pinned: pinned.is_ok(),
            free: (0..DEPTH).collect(),
            iovecs: vec![[none; 2]; DEPTH].into_boxed_slice(),
            flights: (0..DEPTH).map(|_| None).collect(),
        })
    }

    fn read(&mut self, reads: &mut [Read<'_>], landed: Landed<'_>) {
        let files: Vec<_> = reads
            .iter()
            .map(|read| {
                let file = read.file.descriptor();
                file.map(|(file, blocks)| (Fd(file.as_raw_fd()), blocks))
            })
            .collect();
        // Whatever happens to us, the kernel has done with our memory before it is anybody else's.
        let quiet = Quiet(self);
        let ring = &mut *quiet.0;
        let (mut left, mut done) = (
            Vec::with_capacity(reads.len()),
            VecDeque::with_capacity(DEPTH),
        );
        let mut next = 0;
        loop {
            let before = next;
            while next < reads.len()
                && let Some(place) = ring.free.pop()
            {
                let read = &mut reads[next];
                if !files[next].is_some_and(|file| ring.begin(place, next, file, read)) {
                    ring.free.push(place);
                    left.push(next);
                }
                next += 1;
            }
            if ring.free.len() == DEPTH && done.is_empty() {
                break;
            }
            // Those that wait are begun before anybody looks at those that have landed, and again after a few of these:
            // checking many takes as long as the disk needs for all that it has.
            if done.is_empty() {
                ring.submit(1);
            } else if next > before {
                ring.submit(0);
            }
            for number in done.drain(..done.len().min(AT_ONCE)) {
                landed(number, &mut reads[number]);
            }
            ring.land(reads, &mut done, &mut left);
        }
        for number in left {
            // Short, at the end of the file, refused, or none of the kernel's: plain calls find out.
            let read = &mut reads[number];
            read.carry_out();
            landed(number, read);
        }
    }

    /// Hands over what was put in, and waits until as many have landed.
    fn submit(&self, wait: usize) {
        // What fails here is tried again.
        if let Err(error) = self.ring.submit_and_wait(wait)
            && error.kind() != io::ErrorKind::Interrupted
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// `false`: the ring takes nothing.
    fn begin(
        &mut self,
        place: usize,
        number: usize,
        file: (Fd, bool),
        read: &mut Read<'_>,
    ) -> bool {
        let (descriptor, blocks) = file;
        let shape = Shape::new(read.at, read.first, read.second, blocks);
        let fits = shape.staged <= STAGE;
        let mut own = (!fits).then(Vec::new);
        let stage = match &mut own {
            Some(own) => NonNull::from(aligned(own, shape.staged)).cast(),
            // SAFETY: there is a stage for each place.
            None => unsafe { self.base.add(place * STAGE) },
        };
        let request = if shape.straight && !read.second.is_empty() {
            self.iovecs[place] = [
                libc::iovec {
                    iov_base: stage.as_ptr().cast(),
                    iov_len: shape.staged,
                },
                libc::iovec {
                    iov_base: read.second.as_mut_ptr().cast(),
                    iov_len: read.second.len(),
                },
            ];
            opcode::Readv::new(descriptor, self.iovecs[place].as_ptr(), 2)
                .offset(shape.begin)
                .build()
        } else {
            let length = u32::try_from(shape.staged).unwrap_or(u32::MAX);
            let (into, at) = (stage.as_ptr(), shape.begin);
            if fits && self.pinned {
                opcode::ReadFixed::new(descriptor, into, length, 0)
                    .offset(at)
                    .build()
            } else {
                opcode::Read::new(descriptor, into, length)
                    .offset(at)
                    .build()
            }
        };
        self.flights[place] = Some(Flight {
            read: number,
            shape,
            own,
            stage,
        });
        if self.push(&request.user_data(place as u64)) {
            return true;
        }
        self.flights[place] = None;
        false
    }

    fn push(&mut self, request: &squeue::Entry) -> bool {
        let mut queue = self.ring.submission();
        // SAFETY: the file and the memory that the request names are borrowed by `read`, or belong to this ring or to
        // the flight. `read` does not end, nor is it unwound, before all requests have landed: `Quiet` waits for them.
        unsafe { queue.push(request) }.is_ok()
    }

    fn land(&mut self, reads: &mut [Read<'_>], done: &mut VecDeque<usize>, left: &mut Vec<usize>) {
        for entry in self.ring.completion() {
            let place = entry.user_data() as usize;
            let Some(flight) = self.flights.get_mut(place).and_then(Option::take) else {
                continue;
            };
            self.free.push(place);
            let read = &mut reads[flight.read];
            let Shape {
                skip,
                straight,
                staged,
                ..
            } = flight.shape;
            let whole = staged + if straight { read.second.len() } else { 0 };
            if !usize::try_from(entry.result()).is_ok_and(|moved| moved == whole) {
                left.push(flight.read);
                continue;
            }
            // SAFETY: it has landed, so the kernel is done with these bytes, all of which it has written; the flight
            // or the ring owns them.
            let stage = unsafe { std::slice::from_raw_parts(flight.stage.as_ptr(), staged) };
            let front = skip + read.first.len();
            read.first.copy_from_slice(&stage[skip..front]);
            if !straight {
                let length = read.second.len();
                read.second.copy_from_slice(&stage[front..front + length]);
            }
            read.read = Ok(read.first.len() + read.second.len());
            done.push_back(flight.read);
            drop(flight.own);
        }
    }
}

/// A ring in use; when this goes, nothing of it is under way.
struct Quiet<'a>(&'a mut Ring);

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        while self.0.free.len() < DEPTH {
            self.0.submit(1);
            let Ring {
                ring,
                flights,
                free,
                ..
            } = &mut *self.0;
            for entry in ring.completion() {
                let place = entry.user_data() as usize;
                if flights.get_mut(place).and_then(Option::take).is_some() {
                    free.push(place);
                }
            }
        }
    }
}
