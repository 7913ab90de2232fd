//! The shared-memory link: processes of one host map each other's memory.
//!
//! It carries what was allocated by [`Memory::allocate`](crate::Memory::allocate), which lies in an
//! anonymous file that a peer of the same user gets over a Unix socket and maps for reading. Nobody
//! ever maps memory of another process for writing: the target copies what is written to it.

mod copy;
mod mapping;

use mapping::Mapped;

use crate::host::{HostLink, host_transport};

/// Moves bytes between processes of one host through mappings of their memory.
///
/// ```
/// use std::time::Duration;
/// use mooncake_tent::{
///     Memory, Permission, RegisterOptions, RemoteRange, Request, ShmTransport, TentEngine,
///     TransferEngine,
/// };
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let build = || TentEngine::builder().transport(ShmTransport::default()).build();
/// let (owner, reader) = (build().await?, build().await?);
/// let offered = Memory::allocate(4096)?;
/// offered.write_at(0, b"shared");
/// let options = RegisterOptions::new(Permission::PeersRead);
/// let offered = owner.register_memory(offered, options).await?;
/// let options = RegisterOptions::new(Permission::Local);
/// let local = reader.register_memory(Memory::allocate(6)?, options).await?;
///
/// let segment = reader.open_segment(owner.segment_name(), Duration::from_secs(1)).await?;
/// let at = RemoteRange::Address(offered.memory().address());
/// let mut batch = reader.allocate_batch(1);
/// reader.submit_transfer(&mut batch, vec![Request::read(local.all()?, &segment, at)])?;
/// assert!(batch.wait(Duration::from_secs(1)));
/// let mut read = [0; 6];
/// local.memory().read_at(0, &mut read);
/// assert_eq!(&read, b"shared");
/// # Ok(()) }
/// ```
pub struct ShmTransport(HostLink<Mapped>);

host_transport!(ShmTransport, Mapped);
