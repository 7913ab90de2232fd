//! Counts the memory that a thread holds.

#![expect(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes held now; memory of other threads that this one frees takes it below 0.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// What `f` returns, and the most bytes that it held at once.
pub(crate) fn peak<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = f();
    let most = PEAK.get() - before;
    (result, usize::try_from(most).unwrap_or(0))
}

fn count(bytes: isize) {
    HELD.set(HELD.get() + bytes);
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: all is left to the system's allocator; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above; `at` came from there.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as above; `at` came from there.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_was_held_is_told() {
        let (_, most) = peak(|| {
            drop(vec![0_u8; 3_000]);
            drop(vec![0_u8; 5_000]);
        });
        assert_eq!(most, 5_000);
    }
}
