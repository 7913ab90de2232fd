//! The link for memory that the engine did not allocate: the kernel copies it from process to process
//! (`process_vm_readv`, "cross memory attach").
//!
//! The kernel allows that between processes of one user that may trace each other. Where Yama
//! restricts tracing, a process names the peer that may read it; the kernel keeps one such name, so
//! that of several peers the latest wins, and the others are refused with that reason.

mod kernel;

use kernel::Attached;

use crate::host::{HostLink, host_transport};

/// Moves bytes between processes of one host by the kernel's copies.
pub struct CmaTransport(HostLink<Attached>);

host_transport!(CmaTransport, Attached);
