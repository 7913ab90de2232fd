//! Which NUMA node the pages of a mapping come from.

#![expect(unsafe_code, reason = "rustix has no call for it")]

use std::{io, ptr::NonNull};

use libc::{c_long, c_ulong};

/// Nodes that the kernel's mask may have.
const NODES: usize = 1024;
const BITS: usize = c_ulong::BITS as usize;

/// Lets the pages of a mapping come from `node` and no other. Pages that were touched stay where they
/// are.
///
/// # Safety
///
/// The range is a mapping of the caller's, and starts with a page.
pub(super) unsafe fn bind(base: NonNull<u8>, len: usize, node: u32) -> io::Result<()> {
    let mut mask = [0 as c_ulong; NODES / BITS];
    let bit = node as usize;
    let Some(word) = mask.get_mut(bit / BITS) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    *word |= 1 << (bit % BITS);
    // SAFETY: the mask lives through the call, which reads one bit less than it is told, and changes
    // only where later pages of a range come from that the caller vouches for.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            base.as_ptr(),
            len,
            libc::MPOL_BIND as c_long,
            mask.as_ptr(),
            (NODES + 1) as c_ulong,
            0 as c_long,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The node that the page at `at` is in. Touches it.
///
/// # Safety
///
/// The address is in a mapping of the caller's.
#[cfg(test)]
pub(super) unsafe fn node_of(at: NonNull<u8>) -> io::Result<i32> {
    // `MPOL_F_NODE | MPOL_F_ADDR` of linux/mempolicy.h.
    let flags: c_long = 1 | 2;
    let mut node: libc::c_int = -1;
    let no_mask = std::ptr::null_mut::<c_ulong>();
    // SAFETY: the call writes one number, into `node`.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            no_mask,
            0 as c_ulong,
            at.as_ptr(),
            flags,
        )
    };
    if done == 0 {
        Ok(node)
    } else {
        Err(io::Error::last_os_error())
    }
}
