//! What a holder has done, for its pages.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        /// What a holder has done since it was started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct HolderCounts {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(super) fn counts(&self) -> HolderCounts {
                HolderCounts {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }
        }

        impl HolderCounts {
            /// Each with its name and what it counts.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),*), self.$name),)*].into_iter()
            }
        }
    };
}

counts! {
    /// Objects that were copied to the disk, durably.
    offloaded_objects,
    /// Their bytes.
    offloaded_bytes,
    /// Objects that were not, for a reason that the master was told.
    refused_offloads,
    /// Objects that were removed while they were on their way to the disk.
    revoked_offloads,
    /// Remove tasks whose tombstones are durable.
    remove_tasks,
    /// Times that the storage was mounted and reconciled.
    mounts,
    /// Objects on the disk that the master did not know, and that were removed for that.
    strangers,
    /// Objects that gave way to others.
    evicted_objects,
    /// Parts of values that were read for others.
    reads,
    /// Their bytes.
    read_bytes,
    /// Parts of values that could not be read.
    failed_reads,
    /// Requests of readers that were refused since too much waited already.
    busy_reads,
    /// Records that were found damaged, or gone, when they were read.
    lost_records,
    /// Losses that were not told, since too many waited: the next reader finds them again.
    unnoted_losses,
    /// Time that readers' requests waited for room, in microseconds.
    read_queue_us,
    /// Time that their reads took, in microseconds.
    read_disk_us,
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
