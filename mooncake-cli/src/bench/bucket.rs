//! What `mooncake bench bucket` measures: an object log in a directory, each part beside what the same
//! disk does with plain files in the same rounds.

mod case;
mod collect;
mod fio;
mod get;
mod plain;
mod put;
mod remove;
mod restart;
mod ring;
mod site;
mod suite;

pub use case::Case;
pub use suite::{BucketReport, Suite};
