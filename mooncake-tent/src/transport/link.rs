//! What a link implements, and what it is given.

use std::{
    any::Any,
    fmt,
    future::Future,
    net::{IpAddr, SocketAddr},
    ops::Range,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use super::{ArrivalBook, Op, Peer, TaskRef, Tasks};
use crate::{
    error::{Reason, Result},
    identity::{Generation, Incarnation, PeerId, RegistrationId},
    memory::{Access, BufferTable, LocalBuffer, LocalSlice},
    metrics::Served,
    segment::SegmentDescriptor,
    selector::LinkDevices,
    staging::Staging,
};

/// A future behind a pointer, as `dyn` traits return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One kind of link: TCP, shared memory, RDMA, UB. Crossed once per batch, or per
/// portion of a long one, never once per slice.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Names the link in descriptors, policies and metrics.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Opens its devices and starts to accept peers. After an error nothing of it is left, and it may
    /// be called again: [`Error::NotYet`](crate::Error::NotYet), and errors of the system that pass,
    /// are a reason to.
    fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>>;

    /// Where peers reach it, in its own form; `None` if it needs no address.
    fn endpoint(&self) -> Option<String>;

    /// After this no byte moves; what cannot be proven quiet stays quarantined, never freed.
    fn uninstall(&self, budget: Duration) -> BoxFuture<'_, Result<()>>;

    /// Prepares a buffer on every device of this link, or on none. A link that cannot carry such
    /// memory declines, which is no error.
    fn add_memory_buffer<'a>(
        &'a self,
        buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>>;

    /// Undoes [`add_memory_buffer`](Self::add_memory_buffer). The buffer is quiet.
    fn remove_memory_buffer(&self, id: RegistrationId) -> BoxFuture<'_, Result<()>>;

    /// Room for those tasks of one batch that this link carries.
    fn allocate_sub_batch(&self, capacity: usize) -> Result<Box<dyn SubBatch>>;

    /// Pairs of kinds of memory that it joins, here and there, for the selector: `*` in one stands for
    /// any number of letters, and `file` is a file segment.
    fn joins(&self) -> &[(&str, &str)] {
        &[("cpu", "cpu")]
    }

    /// What it will have for itself alone once it is installed, so that others which want the same
    /// are found before anything begins.
    fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }

    /// What it sends through. Without word of it, it cannot keep to a set of devices.
    fn devices(&self) -> LinkDevices<'_> {
        LinkDevices::Unchosen
    }

    /// This link can reach `peer`.
    fn reaches(&self, peer: &Peer) -> bool;

    /// Opens a segment that this link itself provides; `None` if `name` is not one of its names,
    /// which is decided without I/O. Each opening is an incarnation of its own.
    fn open<'a>(&'a self, _name: &'a str) -> Option<BoxFuture<'a, Result<Opened>>> {
        None
    }

    /// Lets go of what [`open`](Self::open) opened as `peer`, once its last task is quiet. Later
    /// tasks fail.
    fn close(&self, _peer: PeerId) {}

    /// Connects and warms what a first transfer to `peer` would need.
    fn warm_up<'a>(&'a self, peer: &'a Arc<Peer>, budget: Duration) -> BoxFuture<'a, Result<()>>;

    /// Ends with proof that nothing posted to `peer` before the call can land any more.
    fn fence(&self, peer: PeerId, budget: Duration) -> BoxFuture<'_, Result<()>>;

    /// Bytes per second, if measured.
    fn estimated_bandwidth(&self) -> Option<f64>;

    /// What it holds at this moment.
    fn gauges(&self) -> LinkGauges;
}

/// Something that only one can have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claim {
    /// Whoever comes to this address, over TCP; port 0 is any free one, which everybody may want.
    Address(SocketAddr),
    /// A device of this name.
    Device(String),
}

impl Claim {
    /// Nobody can have both.
    pub fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Address(one), Self::Address(other)) => {
                let (here, there) = (one.ip(), other.ip());
                // An unspecified address of IPv6 takes what comes over IPv4, too.
                let any =
                    |ip: IpAddr, of: IpAddr| ip.is_unspecified() && (ip.is_ipv6() || of.is_ipv4());
                let alike = here == there || any(here, there) || any(there, here);
                one.port() == other.port() && one.port() != 0 && alike
            }
            (one, other) => one == other,
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "the address {address}"),
            Self::Device(name) => write!(f, "the device {name}"),
        }
    }
}

/// Whether a link carries a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// It does.
    Attached,
    /// It does not, for this reason.
    Declined(&'static str),
}

/// A segment that a link provides itself, such as a file.
pub struct Opened {
    /// What it offers. Nobody else knows of it, so it is never learned anew.
    pub descriptor: SegmentDescriptor,
    /// Dropping it is as good as [`Transport::close`].
    pub keep: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Opened").field(&self.descriptor).finish()
    }
}

/// What a link holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkGauges {
    /// Connections with peers, whoever opened them, also while they are being made.
    pub connections: u64,
    /// Bytes that peers want moved out of or into our memory and that have not moved yet.
    pub peer_bytes_in_flight: u64,
    /// Bytes that peers have been granted to have under way to us at once; never more than what is
    /// configured.
    pub peer_credit_bytes: u64,
    /// Requests that they have been granted in the same way.
    pub peer_credit_requests: u64,
    /// Connections of ours whose next request waits until the peer grants it.
    pub waiting_for_credit: u64,
    /// Files that are open as segments, also while tasks keep one that was closed.
    pub files: u64,
    /// Buffers that the link has had pinned, counted for each device or queue of its own.
    pub pinned_buffers: u64,
    /// Slots of stage memory in which something is under way, be it for us or for peers, and those that
    /// are lent or not quiet yet.
    pub stage_slots: u64,
}

/// Tasks in flight on one link, usable from any thread. Dropping it frees it; its tasks go on.
pub trait SubBatch: fmt::Debug + Send + Sync {
    /// Takes all of `tasks`, or none. May run small work inline. Each task's cell is completed
    /// exactly once.
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()>;

    /// Asks for an early end, which still arrives through the task's cell.
    fn cancel_transfer_task(&self, task: TaskRef);

    /// Lets a thread that waits anyway do this sub-batch's share of the link's work, until
    /// something moved or the budget is over. `false`: others are at it, or nothing is left.
    fn drive(&self, budget: Duration) -> bool;

    /// Nobody will call [`drive`](Self::drive): the link's own threads take over.
    fn hand_over(&self);

    /// Forgets its tasks, all of which are quiet, to carry those of another batch. `false`: it cannot.
    fn recycle(&mut self) -> bool {
        false
    }
}

/// What a link can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// It reads from a peer's memory.
    pub reads: bool,
    /// It writes to a peer's memory.
    pub writes: bool,
    /// Submitted tasks can be cancelled.
    pub cancellation: bool,
    /// A peer's software applies and confirms each transfer.
    pub target_applies: bool,
    /// It works within one process only, by plain copies.
    pub within_process: bool,
    /// It works within one host only, without a network.
    pub same_host: bool,
    /// What is written must lie in a buffer that it carries, too.
    pub sources: bool,
    /// It keeps to what a write's [`Receipt`](super::Receipt) asks.
    pub receipts: bool,
    /// It has other links carry the bytes, and is taken only where none of them joins the two memories.
    pub indirect: bool,
}

impl Capabilities {
    /// Reads and writes, without more.
    pub const fn read_write() -> Self {
        Self {
            reads: true,
            writes: true,
            cancellation: false,
            target_applies: false,
            within_process: false,
            same_host: false,
            sources: false,
            receipts: false,
            indirect: false,
        }
    }
}

/// What a link gets from its engine.
#[derive(Clone, Debug)]
pub struct InstallContext {
    pub(crate) incarnation: Incarnation,
    pub(crate) tasks: Tasks,
    pub(crate) buffers: Arc<BufferTable>,
    pub(crate) arrivals: Arc<ArrivalBook>,
    /// Each link has its own.
    pub(crate) served: Arc<Served>,
    /// What stages transfers, once that is installed.
    pub(crate) staging: Arc<OnceLock<Arc<Staging>>>,
}

impl InstallContext {
    /// This life of the process.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Where it tells of writes of peers that want it.
    pub fn arrivals(&self) -> &Arc<ArrivalBook> {
        &self.arrivals
    }

    /// Where it counts what it does for peers.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// The cells of all tasks.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// The bytes `range` of a registration in ordinary memory, for a peer that asks to read or write
    /// them. They stay where they are for as long as the slice is held.
    ///
    /// # Errors
    ///
    /// The engine has no such registration in that generation and in ordinary memory, peers may not do that
    /// to it, or the range is empty or goes beyond it.
    pub fn admit(
        &self,
        op: Op,
        registration: RegistrationId,
        generation: Generation,
        range: Range<u64>,
    ) -> Result<LocalSlice, Reason> {
        let access = match op {
            Op::Read => Access::Read,
            Op::Write => Access::Write,
        };
        let admitted = self.buffers.admit(registration, generation, range, access);
        Ok(admitted?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_for_one_unless_its_port_is_any() {
        let excludes = |one: &str, other: &str| {
            let claim = |text: &str| Claim::Address(text.parse().unwrap());
            let (one, other) = (claim(one), claim(other));
            assert_eq!(one.excludes(&other), other.excludes(&one));
            one.excludes(&other)
        };
        for (one, other) in [
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("127.0.0.1:7", "0.0.0.0:7"),
            ("127.0.0.1:7", "[::]:7"),
            ("[::1]:7", "[::]:7"),
        ] {
            assert!(excludes(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("127.0.0.1:7", "127.0.0.1:8"),
            ("127.0.0.1:7", "127.0.0.2:7"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]:7", "0.0.0.0:7"),
        ] {
            assert!(!excludes(one, other), "{one} {other}");
        }
        let device = Claim::Device("a".to_owned());
        assert!(device.excludes(&device.clone()));
        assert!(!device.excludes(&Claim::Device("b".to_owned())));
        assert!(!device.excludes(&Claim::Address("127.0.0.1:7".parse().unwrap())));
    }
}
