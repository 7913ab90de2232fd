//! The test is the kernel.

use std::sync::Arc;

use smallvec::SmallVec;

use super::*;
use crate::{
    error::{Applied, Retry},
    file::{
        FileSegment,
        job::{Progress, tell},
        open::OpenFile,
    },
    identity::{Generation, RegistrationId},
    memory::{BufferTable, LocalBuffer, LocalSlice, Permission},
    transport::{BatchState, Outcome, Peer, TaskSlab, TaskSpec, Tasks},
};

const LEN: usize = 64 << 10;
const PART: u64 = 8 << 10;
const ALL: usize = usize::MAX;

/// A book, a file and some memory. The test is the kernel.
struct Ground {
    book: Book,
    tasks: Tasks,
    batch: Arc<BatchState>,
    buffer: Arc<LocalBuffer>,
    file: Arc<OpenFile>,
    _folder: tempfile::TempDir,
}

fn ground(direct: bool) -> Ground {
    let folder = tempfile::tempdir().unwrap();
    let mut segment = FileSegment::new(folder.path().join("file")).create(LEN as u64);
    segment.direct = direct;
    let memory = Memory::allocate(2 * LEN).unwrap();
    let table = BufferTable::new();
    Ground {
        book: Book::new(PART),
        tasks: Arc::new(TaskSlab::new()),
        batch: Arc::default(),
        buffer: table.prepare(memory, Permission::Local, String::new()),
        file: Arc::new(OpenFile::open(&segment, &Arc::default()).unwrap()),
        _folder: folder,
    }
}

impl Ground {
    fn add(&mut self, op: Op, from: u64, length: u64, deadline: Option<Instant>) -> TaskRef {
        let lease = self.buffer.lease(None).unwrap();
        let local = LocalSlice::new(lease, from..from + length).unwrap();
        let local: SmallVec<[LocalSlice; 1]> = SmallVec::from_buf([local]);
        let mut refs = Vec::new();
        self.tasks.take(&self.batch, 1, &mut refs).unwrap();
        let spec = TaskSpec {
            op,
            local: local.clone(),
            peer: Arc::new(Peer::new(self.file.id(), Vec::new())),
            registration: RegistrationId(1),
            generation: Generation(1),
            offset: 0,
            length,
            deadline,
            receipt: crate::transport::Receipt::default(),
            qos: crate::qos::Qos::new(),
            terms: None,
            origin: None,
            meter: crate::metrics::MeterId::NONE,
        };
        self.tasks.begin(&self.batch, &refs, [(spec, false)]);
        let job = Job {
            task: refs[0],
            op,
            file: Arc::clone(&self.file),
            local,
            offset: 0,
            length,
            deadline,
            progress: Progress::default(),
        };
        self.told(|book, notes| book.add(job, notes));
        refs[0]
    }

    fn told(&mut self, change: impl FnOnce(&mut Book, &mut Notes)) {
        let mut notes = Notes::new();
        change(&mut self.book, &mut notes);
        let over = tell(&self.tasks, notes);
        self.book.told(over);
    }

    fn launch(&mut self) -> Vec<Launch> {
        std::iter::from_fn(|| self.book.launch(ALL)).collect()
    }

    fn land(&mut self, launch: &Launch, result: Result<usize, Errno>) {
        self.told(|book, notes| book.land(launch.id, result, notes));
    }

    fn whole(&mut self, launch: &Launch) {
        self.land(launch, Ok(launch.piece.len()));
    }

    fn recalls(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.book.recall()).collect()
    }
}

#[test]
fn a_task_is_done_when_its_last_part_is_and_its_memory_is_free_then() {
    let mut ground = ground(false);
    let task = ground.add(Op::Read, 0, 3 * PART + 5, None);
    let parts = ground.launch();
    let lengths: Vec<_> = parts.iter().map(|part| part.piece.len() as u64).collect();
    assert_eq!(lengths, [PART, PART, PART, 5]);
    for part in parts.iter().rev() {
        assert_eq!(ground.tasks.outcome(task), None);
        assert!(ground.buffer.leases() > 0);
        ground.whole(part);
    }
    let bytes = 3 * PART + 5;
    assert_eq!(
        ground.tasks.outcome(task),
        Some(Outcome::Completed { bytes })
    );
    assert_eq!((ground.buffer.leases(), ground.book.len()), (0, 0));
    // What comes twice finds nothing.
    ground.whole(&parts[0]);
}

#[test]
fn no_more_parts_are_under_way_than_there_may_be() {
    let mut ground = ground(false);
    ground.add(Op::Read, 0, 4 * PART, None);
    ground.add(Op::Read, 0, 4 * PART, None);
    let mut flying: VecDeque<_> = std::iter::from_fn(|| ground.book.launch(3)).collect();
    assert_eq!(flying.len(), 3);
    let mut begun = 3;
    while let Some(first) = flying.pop_front() {
        ground.whole(&first);
        let next = ground.book.launch(3);
        begun += usize::from(next.is_some());
        flying.extend(next);
        assert!(ground.book.launch(3).is_none());
    }
    assert_eq!(begun, 8);
    assert!(ground.batch.is_quiescent());
}

#[test]
fn law_01_what_was_moved_in_part_goes_on_where_it_stopped() {
    let mut ground = ground(false);
    let task = ground.add(Op::Write, 0, PART, None);
    let mut at = 0;
    for moved in [1_u64, 4095, 1000, 1] {
        let [part] = &ground.launch()[..] else {
            panic!("one part at a time")
        };
        assert_eq!((part.at, part.piece.len() as u64), (at, PART - at));
        at += moved;
        ground.land(part, Ok(moved as usize));
    }
    assert_eq!(ground.tasks.outcome(task), None);
    let rest = ground.launch();
    ground.whole(&rest[0]);
    assert!(ground.tasks.outcome(task).unwrap().is_completed());
    assert_eq!(ground.book.counts.short, 4);
}

#[test]
fn law_01_a_file_that_ends_early_fails_the_task_with_offset_and_length() {
    let mut ground = ground(false);
    let task = ground.add(Op::Read, 0, 2 * PART, None);
    let parts = ground.launch();
    ground.whole(&parts[0]);
    ground.land(&parts[1], Ok(3));
    let rest = ground.launch();
    ground.land(&rest[0], Ok(0));
    let outcome = ground.tasks.outcome(task).unwrap();
    let error = outcome.error().unwrap();
    assert_eq!(error.progress.unwrap().bytes, PART + 3);
    assert_eq!((error.retry, error.quiescent), (Retry::AfterRefresh, true));
    let text = error.to_string();
    let (end, left) = (PART + 3, PART - 3);
    assert!(text.contains(&format!("ends at {end}")), "{text}");
    assert!(text.contains(&format!("{left} bytes at {end}")), "{text}");
}

#[test]
fn what_the_kernel_ends_by_itself_is_begun_anew() {
    let mut ground = ground(false);
    let task = ground.add(Op::Read, 0, 10, None);
    for errno in [Errno::CANCELED, Errno::INTR, Errno::AGAIN] {
        let part = ground.launch();
        ground.land(&part[0], Err(errno));
        assert_eq!(ground.tasks.outcome(task), None, "{errno}");
    }
    let part = ground.launch();
    ground.whole(&part[0]);
    assert!(ground.tasks.outcome(task).unwrap().is_completed());
    assert_eq!(ground.book.counts.repeated, 3);
}

#[test]
fn what_cannot_go_past_the_page_cache_goes_through_it() {
    let mut ground = ground(true);
    if !ground.file.is_direct() {
        return; // Its file system has no direct way at all.
    }
    let task = ground.add(Op::Read, 0, PART, None);
    let direct = ground.launch();
    ground.land(&direct[0], Err(Errno::INVAL));
    let cached = ground.launch();
    assert_ne!(direct[0].descriptor, cached[0].descriptor);
    ground.whole(&cached[0]);
    assert!(ground.tasks.outcome(task).unwrap().is_completed());
    // Through it the same refusal is final.
    let task = ground.add(Op::Read, 0, 10, None);
    let cached = ground.launch();
    ground.land(&cached[0], Err(Errno::INVAL));
    assert!(matches!(
        ground.tasks.outcome(task),
        Some(Outcome::Failed(_))
    ));
}

#[test]
fn what_is_staged_arrives_and_only_so_many_stages_are_used() {
    let mut ground = ground(true);
    if !ground.file.is_direct() {
        return; // Its file system has no direct way at all.
    }
    for _ in 0..6 {
        ground.add(Op::Read, 7, 8 * PART, None);
    }
    let parts = ground.launch();
    assert_eq!(ground.book.counts.staged, MOST_STAGES as u64);
    assert_eq!(ground.book.counts.cached, 48 - MOST_STAGES as u64);
    for part in &parts {
        part.piece.copy_from(
            Memory::from_vec(vec![9; part.piece.len()])
                .unwrap()
                .piece(0..part.piece.len() as u64),
        );
        ground.whole(part);
    }
    assert!(ground.batch.is_quiescent());
    assert_eq!(
        (ground.book.stages_out, ground.book.stages.len()),
        (0, KEPT_STAGES)
    );
    let mut bytes = vec![0; 2 * LEN];
    ground.buffer.memory().read_at(0, &mut bytes);
    assert!(bytes[..7].iter().all(|byte| *byte == 0));
    assert!(
        bytes[7..7 + 8 * PART as usize]
            .iter()
            .all(|byte| *byte == 9)
    );
    assert!(bytes[7 + 8 * PART as usize..].iter().all(|byte| *byte == 0));
}

#[test]
fn law_03_a_cancelled_task_ends_when_its_last_part_is_given_back() {
    let mut ground = ground(false);
    let task = ground.add(Op::Read, 0, 3 * PART, None);
    let never_begun = ground.add(Op::Read, 0, PART, None);
    let parts: Vec<_> = std::iter::from_fn(|| ground.book.launch(2)).collect();
    ground.told(|book, notes| book.cancel(never_begun, notes));
    let outcome = ground.tasks.outcome(never_begun).unwrap();
    assert!(outcome.is_cancelled());
    assert_eq!(outcome.error().unwrap().applied, Applied::Nothing);

    ground.told(|book, notes| book.cancel(task, notes));
    let mut recalls = ground.recalls();
    recalls.sort_unstable();
    assert_eq!(
        recalls,
        parts.iter().map(|part| part.id).collect::<Vec<_>>()
    );
    assert!(ground.launch().is_empty(), "nothing more of it is begun");
    ground.land(&parts[0], Err(Errno::CANCELED));
    assert_eq!(ground.tasks.outcome(task), None);
    assert!(ground.buffer.leases() > 0, "the kernel may write there");
    ground.whole(&parts[1]);
    let outcome = ground.tasks.outcome(task).unwrap();
    assert!(outcome.is_cancelled());
    let error = outcome.error().unwrap();
    assert_eq!((error.quiescent, error.applied), (true, Applied::Unknown));
    assert_eq!(error.progress.unwrap().bytes, PART);
    assert_eq!(ground.buffer.leases(), 0);
    // Once more, and of one that is over.
    ground.told(|book, notes| book.cancel(task, notes));
    assert!(ground.recalls().is_empty());
}

#[test]
fn law_02_who_cancels_what_is_done_hears_that_it_is() {
    let mut ground = ground(false);
    let task = ground.add(Op::Write, 0, PART, None);
    let part = ground.launch();
    ground.told(|book, notes| book.cancel(task, notes));
    ground.whole(&part[0]);
    assert!(ground.tasks.outcome(task).unwrap().is_completed());
}

#[test]
fn law_09_what_is_overdue_ends_and_is_loud_while_the_kernel_keeps_it() {
    let mut ground = ground(false);
    let start = Instant::now();
    let deadline = start + Duration::from_secs(5);
    let later = deadline + Duration::from_secs(60);
    let begun = ground.add(Op::Read, 0, PART, Some(deadline));
    let part = ground.launch();
    let waiting = ground.add(Op::Read, 0, PART, Some(deadline));
    let patient = ground.add(Op::Read, 0, PART, Some(later));
    assert_eq!(ground.book.next_deadline(), Some(deadline));
    ground.told(|book, notes| book.expire(deadline - Duration::from_micros(1), notes));
    assert_eq!(ground.tasks.outcome(waiting), None);

    ground.told(|book, notes| book.expire(deadline, notes));
    assert!(ground.tasks.outcome(waiting).unwrap().is_timed_out());
    assert_eq!(ground.recalls(), [part[0].id]);
    assert_eq!(
        ground.tasks.outcome(begun),
        None,
        "it may be given back yet"
    );
    assert_eq!(ground.book.next_deadline(), Some(deadline + GRACE));

    ground.told(|book, notes| book.expire(deadline + GRACE, notes));
    let outcome = ground.tasks.outcome(begun).unwrap();
    assert!(outcome.is_timed_out());
    assert!(!outcome.error().unwrap().quiescent);
    assert!(!ground.tasks.is_quiescent(begun));
    assert!(ground.buffer.leases() > 0, "the kernel may write there");
    assert_eq!(ground.book.next_deadline(), Some(later));

    ground.land(&part[0], Err(Errno::CANCELED));
    assert!(ground.tasks.is_quiescent(begun));
    assert_eq!(ground.tasks.outcome(patient), None);
    assert_eq!(ground.book.len(), 1);
}

#[test]
fn law_03_after_a_fence_nothing_of_the_file_is_begun_and_others_go_on() {
    let mut ground = ground(false);
    let mine = ground.add(Op::Write, 0, 2 * PART, None);
    let fenced = ground.file.id();
    let other = self::ground(false).file;
    let first = std::mem::replace(&mut ground.file, other);
    let theirs = ground.add(Op::Write, 0, PART, None);
    let part = ground.book.launch(1).unwrap();
    ground.told(|book, notes| book.fence(fenced, notes));
    assert!(ground.book.is_busy(Some(fenced)));
    ground.land(&part, Err(Errno::CANCELED));
    assert!(!ground.book.is_busy(Some(fenced)) && ground.book.is_busy(None));
    let Some(Outcome::Failed(error)) = ground.tasks.outcome(mine) else {
        panic!("it was not cancelled by its caller");
    };
    assert!(error.to_string().contains("fenced"), "{error}");
    let part = ground.launch();
    assert_eq!(part[0].descriptor, ground.file.descriptors()[0]);
    ground.whole(&part[0]);
    assert!(ground.tasks.outcome(theirs).unwrap().is_completed());
    drop(first);
}

#[test]
fn law_02_a_closed_book_ends_what_it_has_and_what_comes() {
    let mut ground = ground(false);
    let before = ground.add(Op::Read, 0, PART, None);
    ground.told(Book::close);
    let after = ground.add(Op::Read, 0, PART, None);
    for task in [before, after] {
        let outcome = ground.tasks.outcome(task).unwrap();
        assert_eq!(outcome.error().unwrap().reason, Reason::Stopped);
    }
    assert!(ground.batch.is_quiescent());
    assert_eq!(ground.buffer.leases(), 0);
}

#[test]
fn a_disk_that_is_full_is_worth_a_retry_later_and_a_broken_one_is_not() {
    let mut ground = ground(false);
    for (errno, later) in [(Errno::NOSPC, true), (Errno::IO, false)] {
        let task = ground.add(Op::Write, 0, PART, None);
        let part = ground.launch();
        ground.land(&part[0], Err(errno));
        let outcome = ground.tasks.outcome(task).unwrap();
        let error = outcome.error().unwrap();
        assert_eq!(matches!(error.retry, Retry::Later(_)), later, "{error}");
        assert!(error.to_string().contains("8192 bytes at 0"), "{error}");
    }
}

#[test]
fn law_03_a_file_is_busy_until_the_last_end_was_told() {
    let mut ground = ground(false);
    let task = ground.add(Op::Write, 0, PART, None);
    let part = ground.launch();
    let peer = Some(ground.file.id());
    let mut notes = Notes::new();
    ground.book.land(part[0].id, Ok(PART as usize), &mut notes);
    assert_eq!(ground.book.len(), 0);
    assert!(ground.book.is_busy(peer), "nobody knows that it is quiet");
    let over = tell(&ground.tasks, notes);
    assert!(ground.tasks.is_quiescent(task));
    ground.book.told(over);
    assert!(!ground.book.is_busy(peer));
}
