//! How a node keeps objects on its disk.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use mooncake_bucket::{BucketConfig, Disk, Eviction, GcConfig};

/// Buckets are small beside the capacity, so that to evict one gives up little.
const BUCKETS: u64 = 32;
const SMALLEST_BUCKET: u64 = 64 << 10;

/// A directory of buckets that a node holds for the store, and how much of it the node uses.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StorageOptions {
    /// The directory; it is made if it is not there.
    pub path: PathBuf,
    /// The most that its files may have together.
    pub capacity_bytes: u64,
    /// From this share of the capacity on buckets are evicted, 0 to 1.
    pub high_watermark: f64,
    /// Down to this share.
    pub low_watermark: f64,
    /// Where readers are answered.
    pub listen: SocketAddr,
    /// Memory that values take on their way to the disk, about.
    pub offload_bytes: u64,
    /// Memory in which values wait for their readers. What does not fit is refused as busy.
    pub staging_bytes: u64,
    /// Threads that read; as many again write, remove and list.
    pub threads: usize,
    /// How the space of what was removed comes back.
    pub gc: GcConfig,
    /// How the directory is laid out. Capacity and eviction are the node's: it tells the master before a bucket goes.
    pub bucket: BucketConfig,
    /// In place of the operating system's directory.
    pub disk: Option<Arc<dyn Disk>>,
}

impl StorageOptions {
    /// This directory, of which the store may use so many bytes.
    pub fn new(path: impl Into<PathBuf>, capacity_bytes: u64) -> Self {
        Self {
            path: path.into(),
            capacity_bytes,
            high_watermark: 0.90,
            low_watermark: 0.85,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            offload_bytes: 64 << 20,
            staging_bytes: 256 << 20,
            threads: 4,
            gc: GcConfig::default(),
            bucket: BucketConfig::default(),
            disk: None,
        }
    }

    /// How the directory is opened. The buckets themselves never evict: nobody would tell the master.
    pub(super) fn bucket_config(&self) -> BucketConfig {
        let mut config = self.bucket.clone();
        config.capacity_bytes = u64::MAX;
        // A reserve makes them evict as a capacity does.
        config.reserve_bytes = 0;
        if config.eviction == Eviction::None {
            config.eviction = Eviction::CostAware;
        }
        let small = (self.capacity_bytes / BUCKETS).max(SMALLEST_BUCKET);
        config.bucket_bytes = config.bucket_bytes.min(small);
        config
    }
}
