//! Settings of the TCP link.

use std::{net::SocketAddr, time::Duration};

/// Settings of the TCP link, with the defaults that suit most machines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// Where lanes of peers are accepted; port 0 takes a free one. `None`: nowhere, for a process
    /// that only reaches out.
    pub listen: Option<SocketAddr>,
    /// The address that peers are told; `None`: the one that is listened on.
    pub advertise: Option<String>,
    /// Connections to each peer. Two fill two cores; more only divide the work.
    pub lanes_per_peer: usize,
    /// Threads that serve lanes for which nobody waits, or more of them than the waiting thread can.
    pub threads: usize,
    /// Lanes that are accepted from one peer.
    pub lanes_accepted_per_peer: usize,
    /// Lanes that are accepted in all; further ones are told that we are busy.
    pub lanes_accepted: usize,
    /// Connections that have just come and not said hello yet; further ones wait until these have, so
    /// that many peers that come together are served one after the other.
    pub hellos_at_once: usize,
    /// All payload and what is said about it goes with a CRC32C, which the other side compares before
    /// anything is called complete. Costs a pass over the bytes on each side.
    pub checksums: bool,
    /// A request is cut above this many bytes, so that its parts share the lanes.
    pub slice_bytes: u64,
    /// Requests under way on one lane.
    pub window: usize,
    /// Bytes of them, so that what a lane has not begun can still go to another. More than what is
    /// on the way at any moment brings nothing.
    pub window_bytes: u64,
    /// Bytes that peers may have under way to us at once, all together: of writes that are not
    /// applied and of reads that are not sent. Half of them are set aside, in equal parts, one for each lane that is
    /// accepted; the other half is lent to those that have something to do. Fewer lanes are accepted
    /// if the part of each would be less than 16 KiB.
    pub credit_bytes: u64,
    /// Requests that peers may have under way to us at once, shared in the same way.
    pub credit_requests: u64,
    /// How long a connection and its hello may take. The bytes of a write land at most so much
    /// later than its deadline, beside what the clocks of both sides drift apart.
    pub connect_timeout: Duration,
    /// How long a message may take from its first byte on, beside the time that its payload takes at
    /// 1 MiB/s. Whoever is slower loses the lane.
    pub message_timeout: Duration,
    /// An idle connection is replaced after so long, so that the clocks by which its two sides count
    /// deadlines cannot drift far apart.
    pub lane_life: Duration,
    /// How long a thread looks for bytes before it sleeps, where looking has paid off.
    pub spin: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            advertise: None,
            lanes_per_peer: 2,
            threads: 2,
            lanes_accepted_per_peer: 16,
            lanes_accepted: 1024,
            hellos_at_once: 64,
            checksums: false,
            slice_bytes: 1 << 20,
            window: 1024,
            window_bytes: 4 << 20,
            credit_bytes: 256 << 20,
            credit_requests: 256 << 10,
            connect_timeout: Duration::from_secs(1),
            message_timeout: Duration::from_secs(20),
            lane_life: Duration::from_secs(600),
            spin: Duration::from_micros(50),
        }
    }
}

impl TcpConfig {
    /// How much later than its deadline the bytes of a write may land at most: the way of the hello
    /// and what two clocks drift apart in a lane's life.
    pub(super) fn late(&self) -> Duration {
        self.connect_timeout.saturating_add(self.lane_life / 1_000)
    }
}
