//! What threads can do to each other here, in every order: see [`crate::sync`].
//!
//! `RUSTFLAGS="--cfg mooncake_loom" cargo test -p mooncake-tent --lib loom`

#![expect(
    unsafe_code,
    reason = "memory without content, to see who touches it when"
)]

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{cell::UnsafeCell, model, thread};
use smallvec::{SmallVec, smallvec};

use crate::{
    engine::Batch,
    error::{Applied, Reason, Stage, TransferError},
    identity::{Generation, Incarnation, PeerId, RegistrationId},
    memory::{LocalBuffer, LocalSlice, Memory, Permission},
    transport::{BatchState, Op, Outcome, Peer, TaskRef, TaskSlab, TaskSpec, Tasks},
};

const LENGTH: u64 = 10;
const COMPLETED: Outcome = Outcome::Completed { bytes: LENGTH };

fn peer() -> PeerId {
    PeerId::from_u64(1).unwrap()
}

fn cancelled() -> Outcome {
    Outcome::cancelled(Stage::Move, peer())
}

/// Bytes that a link moves and a caller uses. Two accesses that no order separates end the model.
#[derive(Default)]
struct Payload(UnsafeCell<()>);

// SAFETY: there is nothing in it; loom checks that accesses are ordered.
unsafe impl Sync for Payload {}

impl Payload {
    fn touch(&self) {
        self.0.with_mut(|_| ());
    }
}

/// Waits for `future`; a wake-up that is lost is a deadlock, which ends the model.
fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn spec(local: SmallVec<[LocalSlice; 1]>) -> TaskSpec {
    let life = Incarnation::from_u64(1).unwrap();
    TaskSpec {
        op: Op::Read,
        local,
        peer: Arc::new(Peer::new(life, Vec::new())),
        registration: RegistrationId(1),
        generation: Generation(1),
        offset: 0,
        length: LENGTH,
        deadline: None,
        receipt: crate::transport::Receipt::default(),
        qos: crate::qos::Qos::new(),
        terms: None,
        origin: None,
        meter: crate::metrics::MeterId::NONE,
    }
}

/// One more task of `batch`.
fn add(tasks: &Tasks, batch: &Arc<BatchState>) -> TaskRef {
    let mut refs = Vec::new();
    tasks.take(batch, 1, &mut refs).unwrap();
    tasks.begin(batch, &refs, [(spec(SmallVec::new()), false)]);
    refs[0]
}

fn one_task() -> (Tasks, Arc<BatchState>, TaskRef) {
    let (tasks, batch) = (Arc::new(TaskSlab::new()), Arc::default());
    let task = add(&tasks, &batch);
    (tasks, batch, task)
}

fn buffer() -> Arc<LocalBuffer> {
    let memory = Memory::from_vec(vec![0; LENGTH as usize]).unwrap();
    let (id, location) = (RegistrationId(1), String::new());
    Arc::new(LocalBuffer::new(id, memory, Permission::Local, location))
}

#[test]
fn law_02_of_completion_and_cancel_one_becomes_the_outcome() {
    model(|| {
        let (tasks, batch, task) = one_task();
        let ends = [COMPLETED, cancelled()].map(|end| {
            let tasks = Arc::clone(&tasks);
            thread::spawn(move || tasks.finish(task, end, true))
        });
        let seen = tasks.outcome(task);
        for end in ends {
            end.join().unwrap();
        }
        let end = tasks.outcome(task);
        assert!(end.is_some() && (seen.is_none() || seen == end));
        assert!(batch.is_terminal() && batch.is_quiescent());
    });
}

#[test]
fn a_reference_that_is_stale_does_not_reach_the_next_task_of_its_cell() {
    model(|| {
        let (tasks, batch, old) = one_task();
        tasks.finish(old, COMPLETED, true);
        let late = {
            let tasks = Arc::clone(&tasks);
            thread::spawn(move || {
                tasks.split(old, 5);
                tasks.finish(old, cancelled(), true);
                tasks.settle(old);
                tasks.release(&[old]);
            })
        };
        tasks.release(&[old]);
        let next = add(&tasks, &batch);
        late.join().unwrap();
        assert_eq!(tasks.outcome(next), None);
        assert!(!batch.is_terminal() && !tasks.is_quiescent(next));
        tasks.finish(next, COMPLETED, true);
        assert_eq!(tasks.outcome(next), Some(COMPLETED));
        assert!(batch.is_quiescent());
    });
}

#[test]
fn a_cell_is_freed_once_whether_its_batch_or_its_bytes_end_first() {
    model(|| {
        let (tasks, batch, task) = one_task();
        let link = {
            let tasks = Arc::clone(&tasks);
            thread::spawn(move || {
                tasks.finish(task, cancelled(), false);
                tasks.settle(task);
            })
        };
        tasks.release(&[task]);
        link.join().unwrap();
        assert!(tasks.is_empty() && batch.is_quiescent());
        assert_ne!(add(&tasks, &batch), add(&tasks, &batch));
    });
}

#[test]
fn law_01_who_sees_that_all_have_ended_sees_their_bytes() {
    model(|| {
        let tasks = Arc::new(TaskSlab::new());
        let batch = Arc::<BatchState>::default();
        let payloads = [(); 2].map(|()| Arc::new(Payload::default()));
        let refs = [(); 2].map(|()| add(&tasks, &batch));
        let links = [0, 1].map(|at| {
            let (tasks, payload) = (Arc::clone(&tasks), Arc::clone(&payloads[at]));
            thread::spawn(move || {
                payload.touch();
                tasks.finish(refs[at], COMPLETED, true);
            })
        });
        if batch.is_terminal() {
            payloads.iter().for_each(|payload| payload.touch());
            assert!(
                refs.iter()
                    .all(|task| tasks.outcome(*task) == Some(COMPLETED))
            );
        }
        for link in links {
            link.join().unwrap();
        }
        assert!(batch.is_terminal());
    });
}

#[test]
fn law_03_who_sees_quiet_sees_the_outcome_and_no_byte_moves_after_it() {
    model(|| {
        let tasks = Arc::new(TaskSlab::new());
        let batch = Arc::<BatchState>::default();
        let (buffer, payload) = (buffer(), Arc::new(Payload::default()));
        let local = LocalSlice::new(buffer.lease(None).unwrap(), 0..LENGTH).unwrap();
        let mut refs = Vec::new();
        tasks.take(&batch, 1, &mut refs).unwrap();
        tasks.begin(&batch, &refs, [(spec(smallvec![local]), false)]);
        let task = refs[0];
        let link = {
            let (tasks, payload) = (Arc::clone(&tasks), Arc::clone(&payload));
            thread::spawn(move || {
                let broken = Reason::Broken("".into());
                let error = TransferError::unstarted(broken, Stage::Post, None).underway(false);
                assert_eq!(error.applied, Applied::Unknown);
                tasks.finish(task, Outcome::Failed(error), false);
                // What was sent before lands.
                payload.touch();
                tasks.settle(task);
            })
        };
        if batch.is_quiescent() {
            payload.touch();
            assert!(tasks.outcome(task).is_some() && batch.is_terminal());
            assert_eq!(buffer.leases(), 0);
        }
        link.join().unwrap();
        assert!(batch.is_quiescent());
    });
}

#[test]
fn who_waits_for_a_batch_is_woken_when_its_last_task_ends() {
    model(|| {
        let tasks = Arc::new(TaskSlab::new());
        let mut batch = Batch::new(Arc::clone(&tasks), &Arc::default(), 2);
        let state = Arc::clone(batch.state());
        for _ in 0..2 {
            let task = add(&tasks, &state);
            batch.opened().1.push(task);
            let tasks = Arc::clone(&tasks);
            thread::spawn(move || tasks.finish(task, COMPLETED, true));
        }
        wait(batch.terminal());
        assert_eq!(batch.outcome(0), Some(COMPLETED));
        assert_eq!(batch.outcome(1), Some(COMPLETED));
    });
}

#[test]
fn who_waits_for_quiet_is_woken_after_the_end_and_then_once_more() {
    model(|| {
        let tasks = Arc::new(TaskSlab::new());
        let mut batch = Batch::new(Arc::clone(&tasks), &Arc::default(), 1);
        let task = add(&tasks, &Arc::clone(batch.state()));
        batch.opened().1.push(task);
        thread::spawn(move || {
            tasks.finish(task, Outcome::timed_out(Stage::Move, peer()), false);
            tasks.settle(task);
        });
        wait(batch.terminal());
        assert!(batch.outcome(0).is_some_and(|end| end.is_timed_out()));
        wait(batch.quiescent());
        assert!(batch.is_task_quiescent(0));
    });
}

#[test]
fn law_03_a_buffer_is_taken_back_after_its_last_lease_and_lent_no_more() {
    model(|| {
        let (buffer, payload) = (buffer(), Arc::new(Payload::default()));
        let transfer = {
            let (buffer, payload) = (Arc::clone(&buffer), Arc::clone(&payload));
            thread::spawn(move || {
                if let Ok(lease) = buffer.lease(Some(Generation(1))) {
                    let part = lease.clone();
                    drop(lease);
                    payload.touch();
                    drop(part);
                }
            })
        };
        buffer.close();
        wait(buffer.until_quiet());
        payload.touch();
        assert_eq!(buffer.reopen(), Generation(2));
        transfer.join().unwrap();
        assert_eq!(buffer.leases(), 0);
        assert!(buffer.lease(Some(Generation(1))).is_err());
    });
}
