//! What `mooncake bench store` measures: gets and puts of this store, beside their limit.
//!
//! Keys are walked in order, so that memory is cold. Between the timed parts whatever was read is
//! checked byte by byte and wiped, and whatever was put is read back, checked and removed.

mod case;
mod copy;
mod ours;
mod values;
mod worker;

pub use case::{Case, Lookup, Op, Placement, standard_suite};
pub use copy::Copying;
pub use ours::Ours;
pub use values::{ContentsFile, POISON, Values};
