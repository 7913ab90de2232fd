//! The structures of the header.

use std::ffi::{c_char, c_int, c_void};

use mooncake_tent::{Notification, Permission, Priority};

use crate::failure::{Failure, Result};

/// `tent_request_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Request {
    pub(crate) opcode: c_int,
    pub(crate) source: *mut c_void,
    pub(crate) target_id: u64,
    pub(crate) target_offset: u64,
    pub(crate) length: u64,
    pub(crate) priority: c_int,
    pub(crate) transport_hint: c_int,
}

/// `tent_status_t`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Status {
    pub(crate) status: c_int,
    pub(crate) transferred_bytes: u64,
}

/// `tent_buffer_info_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BufferInfo {
    pub(crate) base: u64,
    pub(crate) length: u64,
    pub(crate) location: [c_char; LOCATION],
}

/// `tent_segment_info_t`
#[derive(Debug)]
#[repr(C)]
pub struct SegmentInfo {
    pub(crate) kind: c_int,
    pub(crate) num_buffers: c_int,
    pub(crate) buffers: *mut BufferInfo,
}

/// `tent_memory_options_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemoryOptions {
    pub(crate) location: [c_char; LOCATION],
    pub(crate) permission: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) shm_path: [c_char; 256],
    pub(crate) shm_offset: usize,
    pub(crate) internal: c_int,
}

/// `tent_notifi_record_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NotifiRecord {
    pub(crate) handle: u64,
    pub(crate) name: [c_char; NAME],
    pub(crate) msg: [c_char; MESSAGE],
}

/// `tent_notifi_info_t`
#[derive(Debug)]
#[repr(C)]
pub struct NotifiInfo {
    pub(crate) num_records: c_int,
    pub(crate) records: *mut NotifiRecord,
}

const LOCATION: usize = 64;
const NAME: usize = 256;
const MESSAGE: usize = 4096;

/// A notification that fits into a record, so that nothing is cut off at the other end.
pub(crate) fn notification(name: &str, message: &str) -> Result<Notification> {
    for (what, text, room) in [("name", name, NAME), ("message", message, MESSAGE)] {
        if text.len() >= room {
            let (len, most) = (text.len(), room - 1);
            let why = format!("the {what} has {len} bytes, {most} at most");
            return Err(Failure::new(why));
        }
    }
    Ok(Notification::new(name, message))
}

impl NotifiRecord {
    /// Senders that are no programs in C may have longer ones, of which the end is cut off.
    pub(crate) fn new(handle: u64, notification: &Notification) -> Self {
        Self {
            handle,
            name: chars(notification.name.as_bytes()),
            msg: chars(&notification.message),
        }
    }
}

/// A text in a field, with a zero byte at its end.
fn chars<const N: usize>(bytes: &[u8]) -> [c_char; N] {
    let mut text = [0; N];
    for (place, byte) in text[..N - 1].iter_mut().zip(bytes) {
        *place = c_char::from_le_bytes([*byte]);
    }
    text
}

pub(crate) const TYPE_MEMORY: c_int = 0;
pub(crate) const TYPE_FILE: c_int = 1;

pub(crate) const WAITING: c_int = 0;
pub(crate) const PENDING: c_int = 1;
pub(crate) const CANCELED: c_int = 3;
pub(crate) const COMPLETED: c_int = 4;
pub(crate) const TIMEOUT: c_int = 5;
pub(crate) const FAILED: c_int = 6;

pub(crate) const GLOBAL_READ_WRITE: c_int = 2;

/// What peers may do, of the header's `PERM_` constants.
pub(crate) fn permission(number: c_int) -> Result<Permission> {
    match number {
        0 => Ok(Permission::Local),
        1 => Ok(Permission::PeersRead),
        GLOBAL_READ_WRITE => Ok(Permission::PeersReadWrite),
        other => Err(Failure::new(format!("there is no permission {other}"))),
    }
}

/// Of the header's `PRIORITY_` constants.
pub(crate) fn priority(number: c_int) -> Result<Priority> {
    match number {
        0 => Ok(Priority::High),
        1 => Ok(Priority::Medium),
        2 => Ok(Priority::Low),
        other => Err(Failure::new(format!("there is no priority {other}"))),
    }
}

/// The link that a `TRANSPORT_` constant names; `None`: any.
pub(crate) fn transport(number: c_int) -> Result<Option<&'static str>> {
    const NAMES: [&str; 13] = [
        "",
        "rdma",
        "mnnvl",
        "shm",
        "nvlink",
        "gds",
        "io_uring",
        "tcp",
        "ascend",
        "sunrise_link",
        "tpu",
        "ub",
        "mpcomm",
    ];
    let name = usize::try_from(number).ok().and_then(|at| NAMES.get(at));
    match name {
        Some(&"") => Ok(None),
        Some(name) => Ok(Some(name)),
        None => Err(Failure::new(format!("there is no transport {number}"))),
    }
}

impl BufferInfo {
    pub(crate) fn new(base: u64, length: u64, location: &str) -> Self {
        Self {
            base,
            length,
            location: chars(location.as_bytes()),
        }
    }
}

impl MemoryOptions {
    pub(crate) const ANY: Self = Self {
        location: [0; LOCATION],
        permission: GLOBAL_READ_WRITE,
        transport_type: 0,
        shm_path: [0; 256],
        shm_offset: 0,
        internal: 0,
    };

    pub(crate) fn with(permission: c_int) -> Self {
        Self {
            permission,
            ..Self::ANY
        }
    }

    pub(crate) fn location(&self) -> Result<String> {
        match text(&self.location)? {
            empty if empty.is_empty() => Ok("*".to_owned()),
            location => Ok(location),
        }
    }

    /// What peers may do.
    pub(crate) fn permission(&self) -> Result<Permission> {
        if self.transport_type != 0 {
            let why =
                "memory cannot be tied to one transport: transport_type must be TRANSPORT_UNSPEC";
            return Err(Failure::new(why));
        }
        if !text(&self.shm_path)?.is_empty() || self.shm_offset != 0 {
            let why = "shared memory has no name here: shm_path and shm_offset must be empty";
            return Err(Failure::new(why));
        }
        match self.internal {
            0 => permission(self.permission),
            _ => Ok(Permission::Local),
        }
    }

    /// As [`location`](Self::location), of a text.
    pub(crate) fn at(location: &str) -> Self {
        let text = BufferInfo::new(0, 0, location).location;
        Self {
            location: text,
            ..Self::ANY
        }
    }
}

fn text(chars: &[c_char]) -> Result<String> {
    let bytes = chars.iter().map(|char| char.to_le_bytes()[0]);
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8(bytes).map_err(|_| Failure::new("a text is not UTF-8"))
}

/// How the structures lie, in the words of the program that prints how C sees them.
#[doc(hidden)]
#[must_use]
pub fn layout() -> String {
    use std::mem::{offset_of, size_of};
    format!(
        "request {} {} {} {} {}\nstatus {} {}\nbuffer {} {}\nsegment {} {} {}\nrecord {} {} {}\ninfo {} {}\noptions {} {} {} {} {} {}\n",
        size_of::<Request>(),
        offset_of!(Request, source),
        offset_of!(Request, length),
        offset_of!(Request, priority),
        offset_of!(Request, transport_hint),
        size_of::<Status>(),
        offset_of!(Status, transferred_bytes),
        size_of::<BufferInfo>(),
        offset_of!(BufferInfo, location),
        size_of::<SegmentInfo>(),
        offset_of!(SegmentInfo, num_buffers),
        offset_of!(SegmentInfo, buffers),
        size_of::<NotifiRecord>(),
        offset_of!(NotifiRecord, name),
        offset_of!(NotifiRecord, msg),
        size_of::<NotifiInfo>(),
        offset_of!(NotifiInfo, records),
        size_of::<MemoryOptions>(),
        offset_of!(MemoryOptions, permission),
        offset_of!(MemoryOptions, transport_type),
        offset_of!(MemoryOptions, shm_path),
        offset_of!(MemoryOptions, shm_offset),
        offset_of!(MemoryOptions, internal),
    )
}
