//! Counts what moving bytes allocates once the engine is warm.
#![cfg(feature = "tcp")]
#![expect(unsafe_code, reason = "an allocator that counts")]

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use mooncake_tent::{Permission, Request, TransferEngine};

struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn note() {
    if COUNTS.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: it passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: our caller keeps the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: u64 = 4 << 10;
const WARM: usize = 100;
const COUNTED: usize = 400;

/// Allocations of batches of reads and writes, but for the list of requests, which is the caller's.
async fn allocations(batch: u64) -> u64 {
    let target = common::engine().await;
    let initiator = common::engine().await;
    let len = (BLOCK * batch) as usize;
    let remote = common::buffer(&target, len, Permission::PeersReadWrite).await;
    let local = common::buffer(&initiator, len, Permission::Local).await;
    let segment = common::open(&initiator, &target).await;
    let requests = |write: bool| -> Vec<Request> {
        let one = |i| {
            let slice = local
                .slice(i * BLOCK..(i + 1) * BLOCK)
                .expect("it is within the buffer");
            let at = common::place(&remote, i * BLOCK);
            match write {
                true => Request::write(slice, &segment, at),
                false => Request::read(slice, &segment, at),
            }
        };
        (0..batch).map(one).collect()
    };
    // Whoever ends a batch may hold on to it for a moment, so a warm engine has had several at a time.
    let together = [false, true, false, true].map(|write| {
        let mut batch = initiator.allocate_batch(batch as usize);
        let submitted = initiator.submit_transfer(&mut batch, requests(write));
        assert!(submitted.is_ok(), "{submitted:?}");
        batch
    });
    for batch in together {
        assert!(batch.wait(common::BUDGET), "law 2: every task ends");
    }
    ALLOCATIONS.store(0, Ordering::Relaxed);
    for round in 0..WARM + COUNTED {
        let requests = requests(round % 2 == 0);
        COUNTS.store(round >= WARM, Ordering::Relaxed);
        let mut batch = initiator.allocate_batch(requests.len());
        let submitted = initiator.submit_transfer(&mut batch, requests);
        assert!(submitted.is_ok(), "{submitted:?}");
        assert!(batch.wait(common::BUDGET), "law 2: every task ends");
        let completed = |i| batch.outcome(i).is_some_and(|end| end.is_completed());
        assert!((0..batch.len()).all(completed));
        drop(batch);
        COUNTS.store(false, Ordering::Relaxed);
    }
    ALLOCATIONS.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_engine_allocates_nothing_for_what_it_moves() {
    for batch in [1, 16, 128] {
        let allocations = allocations(batch).await;
        println!("{allocations} in {COUNTED} batches of {batch}");
        // A task's cell may hold its batch's memory for a moment longer than the batch lives.
        assert!(
            allocations <= COUNTED as u64 / 50,
            "{allocations} allocations in {COUNTED} batches of {batch}"
        );
    }
}
