//! What a directory holds when it is opened, and what becomes of it.

pub(crate) mod scan;
pub(crate) mod survey;
pub(crate) mod transition;
pub(crate) mod walk;
