//! What C hands in and takes out. Only a caller in C makes these, and owes what the header says of
//! them: pointers are NULL or good for what they are said to point to, until the function returns.

#![expect(unsafe_code, reason = "pointers of C")]

use std::{
    ffi::{CStr, c_char},
    ptr, slice,
};

use crate::failure::{Failure, Result};

/// A text that ends with a zero byte, or NULL.
#[derive(Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// `None` for NULL.
    pub(crate) fn get(&self) -> Result<Option<&str>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: a text of the caller's, see the module.
        let text = unsafe { CStr::from_ptr(self.0) };
        let text = text.to_str();
        text.map(Some)
            .map_err(|_| Failure::new("a text is not UTF-8"))
    }

    pub(crate) fn required(&self, what: &str) -> Result<&str> {
        self.get()?.ok_or_else(|| null(what))
    }
}

/// Several of a kind, or NULL.
#[derive(Debug)]
#[repr(transparent)]
pub struct Array<T>(*const T);

impl<T> Array<T> {
    pub(crate) fn of(&self, count: usize, what: &str) -> Result<&[T]> {
        match (self.0.is_null(), count) {
            (_, 0) => Ok(&[]),
            (true, _) => Err(null(what)),
            // SAFETY: as many of them as the caller says, see the module.
            (false, _) => Ok(unsafe { slice::from_raw_parts(self.0, count) }),
        }
    }

    /// `None` for NULL.
    pub(crate) fn if_any(&self, count: usize) -> Option<&[T]> {
        self.of(count, "").ok().filter(|_| !self.0.is_null())
    }
}

/// Room for several of a kind, or NULL.
#[derive(Debug)]
#[repr(transparent)]
pub struct Room<T>(*mut T);

impl<T: Copy> Room<T> {
    /// Fills the first places, of `count`.
    pub(crate) fn fill(&mut self, count: usize, with: &[T], what: &str) -> Result<()> {
        if with.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(null(what));
        }
        if with.len() > count {
            let needed = with.len();
            return Err(Failure::new(format!(
                "{what} has {count} places of {needed}"
            )));
        }
        // SAFETY: there is room for `count`, see the module, and nobody else's values are in it.
        unsafe { ptr::copy_nonoverlapping(with.as_ptr(), self.0, with.len()) };
        Ok(())
    }
}

impl Room<c_char> {
    /// With the zero byte at its end.
    pub(crate) fn put(&mut self, len: usize, text: &str, what: &str) -> Result<()> {
        let bytes: Vec<c_char> = text
            .bytes()
            .chain([0])
            .map(|byte| c_char::from_le_bytes([byte]))
            .collect();
        self.fill(len, &bytes, what)
    }
}

/// Gives `list` away; NULL if it is empty.
pub(crate) fn lend<T>(list: Vec<T>) -> *mut T {
    match list.is_empty() {
        true => ptr::null_mut(),
        false => Box::into_raw(list.into_boxed_slice()).cast(),
    }
}

/// Takes back what was [lent](lend), and drops it.
pub(crate) fn take_back<T>(list: *mut T, count: usize) {
    if !list.is_null() && count > 0 {
        let list = ptr::slice_from_raw_parts_mut(list, count);
        // SAFETY: the caller hands back what it was lent, once.
        drop(unsafe { Box::from_raw(list) });
    }
}

pub(crate) fn null(what: &str) -> Failure {
    Failure::new(format!("{what} is NULL"))
}
