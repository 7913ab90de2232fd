//! What becomes of an error on its way to C.

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// A reason in words.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Of entry `number` of several.
    pub(crate) fn of(self, number: usize) -> Self {
        Self(format!("entry {number}: {}", self.0))
    }
}

impl From<mooncake_tent::Error> for Failure {
    fn from(error: mooncake_tent::Error) -> Self {
        Self(error.to_string())
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs what a function does. A failure is kept for the thread, and becomes `otherwise`.
pub(crate) fn answer<T>(otherwise: T, run: impl FnOnce() -> Result<T>) -> T {
    let ran = catch_unwind(AssertUnwindSafe(run));
    let ran = ran.unwrap_or_else(|_| Err(Failure::new("a bug in the library: it panicked")));
    match ran {
        Ok(answer) => {
            keep("");
            answer
        }
        Err(Failure(why)) => {
            keep(&why);
            otherwise
        }
    }
}

/// As [`answer`], of functions that return 0 or -1.
pub(crate) fn call(run: impl FnOnce() -> Result<()>) -> c_int {
    answer(-1, || run().map(|()| 0))
}

fn keep(why: &str) {
    let why: Vec<u8> = why.bytes().filter(|byte| *byte != 0).collect();
    let why = CString::new(why).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = why);
}

/// Of the calling thread.
pub(crate) fn last() -> *const c_char {
    LAST.with_borrow(|last| CStr::as_ptr(last))
}
