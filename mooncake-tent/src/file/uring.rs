//! Tasks on a ring. Whoever waits for one takes completions out for all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    FileConfig, FileCounts,
    book::Book,
    carrier::Carrier,
    job::{Job, Notes, tell},
    memories::{MOST, Memories},
    open::OpenFile,
    ring::{Entrance, Exit, Landed, Ring},
    watch::Watch,
};
use crate::{
    identity::{PeerId, RegistrationId},
    memory::LocalBuffer,
    transport::{TaskRef, Tasks},
};

/// Files that a ring knows by heart.
pub(super) const FILES: u32 = 256;
const MOMENT: Duration = Duration::from_micros(200);
/// Whoever waits looks up so often, whatever happens.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub(super) struct RingCarrier {
    ring: Ring,
    tasks: Tasks,
    depth: usize,
    book: Mutex<Book>,
    entrance: Mutex<Entrance>,
    exit: Mutex<Outlet>,
    /// Somebody waits for completions.
    driven: AtomicBool,
    watch: Arc<Watch>,
    /// Its own among the rings.
    number: usize,
    memories: Memories,
    knows_files: bool,
}

/// Where what has landed comes out of the ring.
#[derive(Debug)]
struct Outlet {
    exit: Exit,
    landed: Vec<Landed>,
}

impl RingCarrier {
    pub(super) fn new(
        number: usize,
        config: &FileConfig,
        part_bytes: u64,
        tasks: &Tasks,
        watch: &Arc<Watch>,
    ) -> std::io::Result<Self> {
        let depth = config.depth.clamp(1, 4096);
        let (ring, entrance, exit) = Ring::new(2 * depth)?;
        let (knows_files, knows_memory) = ring.prepare_tables(2 * FILES, MOST);
        Ok(Self {
            ring,
            tasks: Arc::clone(tasks),
            depth,
            book: Mutex::new(Book::new(part_bytes)),
            entrance: Mutex::new(entrance),
            exit: Mutex::new(Outlet {
                exit,
                landed: Vec::new(),
            }),
            driven: AtomicBool::new(false),
            watch: Arc::clone(watch),
            number,
            memories: Memories::new(knows_memory && config.register_memory),
            knows_files,
        })
    }

    pub(super) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Somebody waits for completions and takes them out.
    pub(super) fn is_driven(&self) -> bool {
        self.driven.load(Ordering::SeqCst)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.book.lock().next_deadline()
    }

    /// Takes out what has landed and begins what waits, unless somebody is at it.
    pub(super) fn serve(&self) {
        let mut notes = Notes::new();
        if let Some(mut outlet) = self.exit.try_lock() {
            self.land(&mut outlet, &mut notes);
        }
        self.expire(&mut notes);
        self.after(notes);
    }

    fn land(&self, outlet: &mut Outlet, notes: &mut Notes) -> bool {
        let Outlet { exit, landed } = outlet;
        self.ring.reap(exit, landed);
        if landed.is_empty() {
            return false;
        }
        let mut book = self.book.lock();
        for Landed { id, result } in landed.drain(..) {
            book.land(id, result, notes);
        }
        true
    }

    fn expire(&self, notes: &mut Notes) {
        self.book.lock().expire(Instant::now(), notes);
    }

    /// Says what became of tasks, and begins what there is room for. No lock is held.
    fn after(&self, notes: Notes) {
        if !notes.is_empty() {
            let over = tell(&self.tasks, notes);
            self.book.lock().told(over);
        }
        self.pump();
    }

    fn pump(&self) {
        while self.book.lock().is_ready(self.depth) {
            // Whoever is at it looks again when it is through.
            let Some(mut entrance) = self.entrance.try_lock() else {
                return;
            };
            self.fill(&mut entrance);
            if let Err(error) = self.ring.submit(&mut entrance) {
                // What was put in stays there until somebody looks next, or its deadline.
                tracing::debug!(%error, "the ring takes nothing now");
                return;
            }
        }
    }

    fn fill(&self, entrance: &mut Entrance) {
        let mut room = self.ring.entries() - self.ring.waiting(entrance);
        let mut book = self.book.lock();
        while room > 0
            && let Some(id) = book.recall()
        {
            if !self.ring.recall(entrance, id) {
                return book.recall_later(id);
            }
            room -= 1;
        }
        while room > 0
            && let Some(launch) = book.launch(self.depth)
        {
            let memory = launch.memory.and_then(|id| self.memories.place(id));
            book.counts.registered += u64::from(memory.is_some());
            let put = self.ring.push(entrance, &launch, memory);
            assert!(put, "there was room");
            room -= 1;
        }
    }

    /// Has the kernel look at what it did not take before.
    fn urge(&self) {
        if let Some(mut entrance) = self.entrance.try_lock()
            && self.ring.waiting(&mut entrance) > 0
            && let Err(error) = self.ring.submit(&mut entrance)
        {
            tracing::debug!(%error, "the ring takes nothing now");
        }
        // Who found us at it has left it to us.
        self.pump();
    }

    /// Has whoever waits for completions look up.
    fn disturb(&self) {
        if let Some(mut entrance) = self.entrance.try_lock()
            && self.ring.wake(&mut entrance)
            && let Err(error) = self.ring.submit(&mut entrance)
        {
            tracing::debug!(%error, "the ring takes nothing now");
        }
        self.pump();
    }

    /// Ends jobs early, as `how` says.
    fn end(&self, how: impl FnOnce(&mut Book, &mut Notes)) {
        let mut notes = Notes::new();
        how(&mut self.book.lock(), &mut notes);
        let ended = !notes.is_empty();
        self.after(notes);
        if ended && self.is_driven() {
            // Whoever waits for a task that was never begun must not wait for others.
            self.disturb();
        }
    }
}

impl Carrier for RingCarrier {
    fn post(&self, jobs: &mut Vec<Job>) {
        let mut notes = Notes::new();
        {
            let mut book = self.book.lock();
            for job in jobs.drain(..) {
                book.add(job, &mut notes);
            }
        }
        self.after(notes);
        // What the page cache had has landed already.
        let mut notes = Notes::new();
        if let Some(mut outlet) = self.exit.try_lock() {
            self.land(&mut outlet, &mut notes);
        }
        if !notes.is_empty() {
            self.after(notes);
        }
    }

    fn cancel(&self, task: TaskRef) {
        self.end(|book, notes| book.cancel(task, notes));
    }

    fn drive(&self, budget: Duration) -> bool {
        if self.is_driven() {
            return false;
        }
        // Whoever has it without waiting there is through in a moment.
        let Some(mut outlet) = self.exit.try_lock_for(MOMENT) else {
            return false;
        };
        let deadline = {
            let book = self.book.lock();
            if book.len() == 0 {
                return false;
            }
            book.next_deadline()
        };
        let mut notes = Notes::new();
        if !self.land(&mut outlet, &mut notes) {
            self.urge();
            let most = budget.min(LONGEST_WAIT);
            let most = deadline.map_or(most, |deadline| {
                most.min(deadline.saturating_duration_since(Instant::now()))
            });
            self.driven.store(true, Ordering::SeqCst);
            self.ring.wait(&mut outlet.exit, most);
            self.driven.store(false, Ordering::SeqCst);
            self.land(&mut outlet, &mut notes);
        }
        drop(outlet);
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.expire(&mut notes);
        }
        self.after(notes);
        true
    }

    fn hand_over(&self) {
        if self.is_busy(None) {
            self.watch.watch(self.number);
        }
    }

    fn fence(&self, peer: PeerId) {
        self.end(|book, notes| book.fence(peer, notes));
    }

    fn close(&self) {
        self.end(Book::close);
    }

    fn is_busy(&self, peer: Option<PeerId>) -> bool {
        self.book.lock().is_busy(peer)
    }

    fn open(&self, place: u32, file: &OpenFile) -> bool {
        self.knows_files && self.ring.set_files(2 * place, &file.descriptors()).is_ok()
    }

    fn forget_file(&self, place: u32) {
        if self.knows_files
            && let Err(error) = self.ring.set_files(2 * place, &[-1, -1])
        {
            tracing::warn!(%error, "a ring keeps a file open");
        }
    }

    fn register(&self, buffer: &Arc<LocalBuffer>) {
        if !self.memories.pin(&self.ring, buffer) {
            self.book.lock().counts.unregistered += 1;
        }
    }

    fn unregister(&self, id: RegistrationId) {
        self.memories.unpin(&self.ring, id);
    }

    fn registered(&self) -> u64 {
        self.memories.len(&self.ring)
    }

    fn counts(&self) -> FileCounts {
        self.book.lock().counts
    }
}

impl Drop for RingCarrier {
    fn drop(&mut self) {
        let book = self.book.get_mut();
        if book.len() > 0 {
            // The kernel may still write there: the memory is never freed (law 3).
            tracing::error!(tasks = book.len(), "file tasks are still under way");
            std::mem::forget(std::mem::replace(book, Book::new(0)));
        }
    }
}
