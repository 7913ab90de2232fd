//! What links between processes of one host share: sessions over Unix sockets, in which a process
//! lends what it has registered, and asks others to fetch what it wants to write to them.
//!
//! A *read* is a copy by the reader, who looks at the registration's mark before and after it. A
//! *write* is a copy by the target, out of memory that the writer offers: so whoever owns memory is
//! the only one that writes there, and its answer proves that the copy has ended. How bytes are
//! reached, by a shared mapping or by the kernel, is the [`Medium`].
//!
//! An owner whose process ended without a word is read from for some milliseconds more: its memory is
//! as it left it, and the mark says so. The kernel's copies notice at once.

mod config;
mod keeper;
mod link;
mod medium;
mod place;
mod process;
mod server;
mod session;
mod socket;
mod sources;
mod sub_batch;
mod wire;
mod work;
mod writes;

pub use config::HostConfig;
pub(crate) use link::{HostLink, host_transport};
pub(crate) use medium::{Lent, Medium};
pub(crate) use process::Process;
