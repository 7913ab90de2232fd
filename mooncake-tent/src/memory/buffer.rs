//! A registered buffer, and the leases that keep it from being taken away under a transfer.

use std::{fmt, ops::Range, sync::Arc};

#[cfg(feature = "host")]
use super::{Mark, MarkRef};
use super::{Memory, Piece};
#[cfg(feature = "host")]
use crate::sync::Mutex;
use crate::{
    identity::{Generation, RegistrationId},
    selector::memory_kind,
    sync::{
        Notify,
        atomic::{AtomicU64, Ordering},
    },
};

/// What peers may do with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Nothing: it is a source or destination of our own transfers.
    Local,
    /// Read.
    PeersRead,
    /// Read and write.
    PeersReadWrite,
}

/// Memory that was given to the engine, with who may use it. While it is registered, peers may
/// change its bytes within what [`Permission`] allows.
pub struct LocalBuffer {
    id: RegistrationId,
    permission: Permission,
    location: String,
    /// It lies in plain memory of the host.
    plain: bool,
    /// Closed before the memory goes.
    #[cfg(feature = "host")]
    mark: Option<Marked>,
    memory: Memory,
    /// Generation in the upper half; [`CLOSED`] in bit 31; leases in the bits below.
    state: AtomicU64,
    quiet: Notify,
    /// A bit for the place of each link of the engine that carries it.
    links: AtomicU64,
    /// The same for those that were asked to.
    asked: AtomicU64,
}

/// What peers of this host look at, and the generation that it was last opened for.
#[cfg(feature = "host")]
#[derive(Debug)]
struct Marked {
    mark: Mark,
    opened: Mutex<Option<Generation>>,
}

const CLOSED: u64 = 1 << 31;
const LEASES: u64 = CLOSED - 1;

impl LocalBuffer {
    pub(crate) fn new(
        id: RegistrationId,
        memory: Memory,
        permission: Permission,
        location: String,
    ) -> Self {
        Self {
            id,
            permission,
            plain: memory_kind(&location) == memory_kind("*"),
            location,
            memory,
            state: AtomicU64::new(1 << 32),
            quiet: Notify::new(),
            #[cfg(feature = "host")]
            mark: None,
            links: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// Peers of this host look at `mark` from now on.
    #[cfg(feature = "host")]
    pub(super) fn with_mark(mut self, mark: Option<Mark>) -> Self {
        self.mark = mark.map(|mark| Marked {
            mark,
            opened: Mutex::new(None),
        });
        self.show();
        self
    }

    /// Peers of this host can look whether it is as it was lent.
    #[cfg(feature = "host")]
    pub(crate) fn has_mark(&self) -> bool {
        self.mark.is_some()
    }

    /// Where peers of this host look; `None`: nowhere, or it is not open in this generation.
    #[cfg(feature = "host")]
    pub(super) fn mark(&self, generation: Generation) -> Option<MarkRef> {
        let marked = self.mark.as_ref()?;
        self.show();
        let opened = marked.opened.lock();
        marked
            .mark
            .reference()
            .filter(|_| *opened == Some(generation))
    }

    /// Brings the mark to what the state says.
    #[cfg(not(feature = "host"))]
    fn show(&self) {}

    /// Brings the mark to what the state says.
    #[cfg(feature = "host")]
    fn show(&self) {
        let Some(marked) = &self.mark else { return };
        let mut opened = marked.opened.lock();
        let state = self.state.load(Ordering::Acquire);
        let now = (state & CLOSED == 0).then(|| generation_of(state));
        if *opened == now {
            return;
        }
        match now {
            Some(_) => marked.mark.open(),
            None => marked.mark.close(),
        }
        *opened = now;
    }

    /// It lies in plain memory of the host.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whoever gets `true` is the one to ask the link at this place whether it carries it.
    pub(crate) fn ask(&self, link: usize) -> bool {
        self.asked.fetch_or(1 << link, Ordering::AcqRel) >> link & 1 == 0
    }

    /// Nobody has asked the link at this place.
    pub(crate) fn is_unasked(&self, link: usize) -> bool {
        self.asked.load(Ordering::Acquire) >> link & 1 == 0
    }

    /// The link at this place of the engine's list carries it.
    pub(crate) fn attach(&self, link: usize) {
        self.links.fetch_or(1 << link, Ordering::AcqRel);
    }

    /// A bit for the place of each link that carries it.
    pub(crate) fn links(&self) -> u64 {
        self.links.load(Ordering::Acquire)
    }

    /// Its name within this process.
    pub fn id(&self) -> RegistrationId {
        self.id
    }

    /// Which life of the registration this is.
    pub fn generation(&self) -> Generation {
        generation_of(self.state.load(Ordering::Acquire))
    }

    /// What peers may do with it.
    pub fn permission(&self) -> Permission {
        self.permission
    }

    /// Where the memory is: `cpu:0`, or `*` for anywhere.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The bytes themselves.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Transfers that hold it now.
    pub fn leases(&self) -> u64 {
        self.state.load(Ordering::Acquire) & LEASES
    }

    /// Holds the buffer for a transfer, of `generation` if one is named.
    pub(crate) fn lease(
        self: &Arc<Self>,
        generation: Option<Generation>,
    ) -> Result<BufferLease, Generation> {
        // Acquire: whoever is let in sees what the registration set up.
        let taken = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
                let ours = generation_of(state);
                let open = state & CLOSED == 0 && generation.is_none_or(|asked| asked == ours);
                (open && state & LEASES < LEASES).then(|| state + 1)
            });
        match taken {
            Ok(_) => Ok(BufferLease(Held::Alone(Alone(Some(Arc::clone(self)))))),
            Err(state) => Err(generation_of(state)),
        }
    }

    /// Whether it would be leased now.
    #[cfg(feature = "tcp")]
    pub(super) fn is_open(&self, generation: Generation) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state & CLOSED == 0 && generation_of(state) == generation
    }

    /// No new leases from now on.
    pub(crate) fn close(&self) {
        let state = self.state.fetch_or(CLOSED, Ordering::AcqRel);
        self.show();
        if state & LEASES == 0 {
            self.quiet.notify_waiters();
        }
    }

    /// Ends once no transfer holds it; call after [`close`](Self::close).
    pub(crate) async fn until_quiet(&self) {
        loop {
            let notified = self.quiet.notified();
            if self.leases() == 0 {
                return;
            }
            notified.await;
        }
    }

    /// Opens the next generation of a buffer that is closed and quiet; of one that was opened
    /// meanwhile, says which generation that began.
    pub(crate) fn reopen(&self) -> Generation {
        let reopened = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
                (state & (CLOSED | LEASES) == CLOSED).then(|| ((state >> 32) + 1) << 32)
            });
        self.show();
        match reopened {
            Ok(state) => Generation(generation_of(state).0.wrapping_add(1)),
            Err(state) => generation_of(state),
        }
    }

    fn end_lease(&self) {
        // Release: our accesses happen before whoever sees the count fall.
        let state = self.state.fetch_sub(1, Ordering::AcqRel);
        if state & LEASES == 1 && state & CLOSED != 0 {
            self.quiet.notify_waiters();
        }
    }
}

fn generation_of(state: u64) -> Generation {
    Generation((state >> 32) as u32)
}

impl fmt::Debug for LocalBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBuffer")
            .field("id", &self.id)
            .field("generation", &self.generation())
            .field("permission", &self.permission)
            .field("location", &self.location)
            .field("memory", &self.memory)
            .field("leases", &self.leases())
            .finish_non_exhaustive()
    }
}

/// Keeps a buffer registered and its memory alive while a transfer uses it.
#[derive(Clone)]
pub struct BufferLease(Held);

/// The buffer's own count is a place where all threads meet. Who takes many leases in a row has them
/// share one.
#[derive(Clone)]
enum Held {
    Alone(Alone),
    #[cfg(feature = "tcp")]
    Together(Arc<Alone>),
}

/// One lease of the buffer's count; `None` while it rests.
struct Alone(Option<Arc<LocalBuffer>>);

impl Alone {
    fn buffer(&self) -> &Arc<LocalBuffer> {
        self.0.as_ref().expect("what rests is not lent")
    }
}

impl BufferLease {
    /// The buffer that is held.
    pub fn buffer(&self) -> &Arc<LocalBuffer> {
        match &self.0 {
            Held::Alone(alone) => alone.buffer(),
            #[cfg(feature = "tcp")]
            Held::Together(together) => together.buffer(),
        }
    }
}

impl Clone for Alone {
    fn clone(&self) -> Self {
        let buffer = self.buffer();
        // A lease that exists may be doubled even if the buffer was closed meanwhile.
        let state = buffer.state.fetch_add(1, Ordering::AcqRel);
        assert!(state & LEASES < LEASES, "2^31 leases on one buffer");
        Self(Some(Arc::clone(buffer)))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(buffer) = &self.0 {
            buffer.end_lease();
        }
    }
}

/// A lease that many share, whose place is used again for the next one.
#[derive(Default)]
#[cfg(feature = "tcp")]
pub(super) struct SharedLease(Option<Arc<Alone>>);

#[cfg(feature = "tcp")]
impl SharedLease {
    /// Shares `lease` from now on.
    pub(super) fn hold(&mut self, lease: BufferLease) {
        self.rest();
        match (lease.0, self.0.as_mut().and_then(Arc::get_mut)) {
            (Held::Alone(alone), Some(place)) => *place = alone,
            (Held::Alone(alone), None) => self.0 = Some(Arc::new(alone)),
            (Held::Together(together), _) => self.0 = Some(together),
        }
    }

    /// What is shared.
    pub(super) fn buffer(&self) -> Option<&Arc<LocalBuffer>> {
        self.0.as_ref()?.0.as_ref()
    }

    /// One more that has a share in it.
    pub(super) fn lend(&self) -> Option<BufferLease> {
        let shared = self.0.as_ref().filter(|shared| shared.0.is_some())?;
        Some(BufferLease(Held::Together(Arc::clone(shared))))
    }

    /// Shares nothing any more. It ends when those that have a share have gone.
    pub(super) fn rest(&mut self) {
        match self.0.as_mut().map(Arc::get_mut) {
            Some(Some(place)) => *place = Alone(None),
            Some(None) => self.0 = None,
            None => {}
        }
    }
}

impl fmt::Debug for BufferLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferLease({})", self.buffer().id)
    }
}

/// A range of a registered buffer, held for a transfer.
#[derive(Clone, Debug)]
pub struct LocalSlice {
    lease: BufferLease,
    range: Range<u64>,
}

impl LocalSlice {
    /// `None` if the range is empty or not within the buffer.
    pub(crate) fn new(lease: BufferLease, range: Range<u64>) -> Option<Self> {
        let within = range.start < range.end && range.end <= lease.buffer().memory.len() as u64;
        within.then_some(Self { lease, range })
    }

    /// Length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a slice has at least one byte")]
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The buffer that it is a part of.
    pub fn buffer(&self) -> &Arc<LocalBuffer> {
        self.lease.buffer()
    }

    /// The part of it that `range` names, counted from its own start.
    ///
    /// # Panics
    ///
    /// The part is empty or not within the slice.
    pub fn part(&self, range: Range<u64>) -> Self {
        assert!(range.end <= self.len(), "{range:?} of {} bytes", self.len());
        let part = Self::new(
            self.lease.clone(),
            self.range.start + range.start..self.range.start + range.end,
        );
        part.expect("a part of a slice lies within its buffer")
    }

    /// Where it begins in this process, for a device that reads or writes it.
    pub fn address(&self) -> u64 {
        self.buffer().memory().address() + self.range.start
    }

    /// Copies bytes out of it, from `offset` on; see [`Memory::read_at`].
    ///
    /// # Panics
    ///
    /// They are not all within the slice.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) {
        let start = self.within(offset, into.len());
        self.buffer().memory().read_at(start, into);
    }

    /// Copies bytes into it, from `offset` on; see [`Memory::write_at`].
    ///
    /// # Panics
    ///
    /// They are not all within the slice.
    pub fn write_at(&self, offset: u64, from: &[u8]) {
        let start = self.within(offset, from.len());
        self.buffer().memory().write_at(start, from);
    }

    fn within(&self, offset: u64, len: usize) -> u64 {
        let end = offset.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "{len} bytes from {offset} on, of {}",
            self.len()
        );
        self.range.start + offset
    }

    pub(crate) fn piece(&self) -> Piece {
        self.lease.buffer().memory.piece(self.range.clone())
    }

    /// CRC32C of its bytes behind those of which it is `so_far`.
    pub(crate) fn checksum(&self, so_far: u32) -> u32 {
        // Others may write there meanwhile, so it is counted from a copy.
        let mut copy = [0; 4 << 10];
        let (mut at, mut checksum) = (self.range.start, so_far);
        while at < self.range.end {
            let some = (self.range.end - at).min(copy.len() as u64);
            let copy = &mut copy[..some as usize];
            self.lease.buffer().memory.read_at(at, copy);
            checksum = crc32c::crc32c_append(checksum, copy);
            at += some;
        }
        checksum
    }

    /// Where it begins in its buffer.
    #[cfg(feature = "host")]
    pub(crate) fn offset(&self) -> u64 {
        self.range.start
    }

    /// The piece that `range` names, counted from its own start.
    #[cfg(feature = "host")]
    pub(crate) fn piece_of(&self, range: Range<u64>) -> Piece {
        assert!(range.end <= self.len(), "{range:?} of {} bytes", self.len());
        let range = self.range.start + range.start..self.range.start + range.end;
        self.lease.buffer().memory.piece(range)
    }
}

/// CRC32C of the bytes of all slices behind those of which it is `so_far`.
pub(crate) fn checksum(slices: &[LocalSlice], so_far: u32) -> u32 {
    slices
        .iter()
        .fold(so_far, |so_far, slice| slice.checksum(so_far))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer() -> Arc<LocalBuffer> {
        let memory = Memory::from_vec(vec![0; 100]).unwrap();
        Arc::new(LocalBuffer::new(
            RegistrationId(7),
            memory,
            Permission::PeersReadWrite,
            "*".to_owned(),
        ))
    }

    #[tokio::test]
    async fn law_03_a_buffer_opens_anew_only_after_its_leases_ended() {
        let buffer = buffer();
        let lease = buffer.lease(Some(Generation(1))).unwrap();
        let second = lease.clone();
        buffer.close();
        assert_eq!(buffer.lease(None).unwrap_err(), Generation(1));

        let waiter = Arc::clone(&buffer);
        let quiet = tokio::spawn(async move { waiter.until_quiet().await });
        drop(lease);
        tokio::task::yield_now().await;
        assert!(!quiet.is_finished());
        drop(second);
        quiet.await.unwrap();
        assert_eq!(buffer.reopen(), Generation(2));
        assert_eq!(buffer.reopen(), Generation(2), "another caller was faster");
        assert_eq!(
            buffer.lease(Some(Generation(1))).unwrap_err(),
            Generation(2)
        );
        assert!(buffer.lease(Some(Generation(2))).is_ok());
    }

    #[test]
    fn a_slice_is_never_empty_and_never_beyond_its_buffer() {
        let lease = buffer().lease(None).unwrap();
        assert!(LocalSlice::new(lease.clone(), 5..5).is_none());
        assert!(LocalSlice::new(lease.clone(), 99..101).is_none());
        assert_eq!(LocalSlice::new(lease, 99..100).unwrap().len(), 1);
    }

    #[test]
    fn a_slice_counts_from_its_own_start() {
        let slice = LocalSlice::new(buffer().lease(None).unwrap(), 10..14).unwrap();
        slice.write_at(1, b"abc");
        let memory = slice.buffer().memory();
        let mut around = [9; 5];
        memory.read_at(10, &mut around);
        assert_eq!(&around, b"\0abc\0");
        let mut read = [0; 2];
        slice.read_at(2, &mut read);
        assert_eq!(&read, b"bc");
        assert_eq!(slice.address(), memory.address() + 10);
    }

    #[test]
    #[should_panic(expected = "2 bytes from 3 on, of 4")]
    fn nothing_is_written_beyond_a_slice() {
        let slice = LocalSlice::new(buffer().lease(None).unwrap(), 10..14).unwrap();
        slice.write_at(3, b"ab");
    }

    #[test]
    fn a_checksum_is_that_of_all_pieces_in_a_row() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at * 7) as u8).collect();
        let wanted = crc32c::crc32c(&bytes[3..9_999]);
        let memory = Memory::from_vec(bytes).unwrap();
        let (id, location) = (RegistrationId(1), String::new());
        let buffer = LocalBuffer::new(id, memory, Permission::Local, location);
        let buffer = Arc::new(buffer);
        let slice = |range| LocalSlice::new(buffer.lease(None).unwrap(), range).unwrap();
        let pieces = [slice(3..4), slice(4..5_000), slice(5_000..9_999)];
        assert_eq!(checksum(&pieces, 0), wanted);
        assert_eq!(checksum(&[slice(3..9_999)], 0), wanted);
        // The value that everybody has for these nine digits.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }
}
