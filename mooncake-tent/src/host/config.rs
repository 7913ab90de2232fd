//! What can be set on links between processes of one host.

use std::time::Duration;

/// How [`ShmTransport`](crate::ShmTransport) and [`CmaTransport`](crate::CmaTransport) work.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostConfig {
    /// Users besides our own whose processes may reach us, and whom we reach. They can read all of a
    /// buffer that was lent to them, or from which something was written to them, whatever its
    /// permission, and with shared memory for as long as they keep the file.
    pub users: Vec<u32>,
    /// Reads up to so many bytes are done by whoever submits them.
    pub inline_bytes: u64,
    /// Bytes that are copied before it is looked again whether they are still wanted.
    pub chunk_bytes: u64,
    /// Threads that copy what nobody waits for.
    pub threads: usize,
    /// Writes that a peer has at a time; further ones wait here.
    pub window: usize,
    /// How long a peer may take to say how a registration is reached.
    pub lend_timeout: Duration,
    /// How long is looked for an answer before sleeping.
    pub spin: Duration,
    /// Processes that may have a session with us at a time.
    pub peers: usize,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            users: Vec::new(),
            inline_bytes: 256 << 10,
            chunk_bytes: 1 << 20,
            threads: 1,
            window: 128,
            lend_timeout: Duration::from_secs(1),
            spin: Duration::from_micros(50),
            peers: 1024,
        }
    }
}
