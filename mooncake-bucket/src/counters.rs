//! What a storage has done since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// What a storage has done since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn counts(&self) -> Counts {
                Counts {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }

            pub(crate) fn add(counter: &AtomicU64, count: u64) {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    };
}

counters! {
    /// Records that were put.
    put_records,
    /// Of those, what they take with their headers.
    put_bytes,
    /// Records that were not put for want of room.
    refused_full,
    /// Reads that served a value, or part of one.
    gets,
    /// Bytes that they served.
    get_bytes,
    /// Reads of what is not here.
    misses,
    /// Reads that failed, by the disk or since a record was damaged.
    failed_reads,
    /// Records that were removed.
    removed,
    /// Batches of removals that had tombstones to be made durable.
    tombstone_batches,
    /// Buckets that were sealed.
    sealed,
    /// Buckets that could not be sealed.
    seal_failures,
    /// Buckets that were dropped since all in them was dead.
    retired_buckets,
    /// Buckets that were rewritten.
    compacted_buckets,
    /// Bytes of records that were copied for that.
    moved_bytes,
    /// Bytes of files that retiring and rewriting gave back, less what the copies take.
    reclaimed_bytes,
    /// Buckets that were evicted.
    evicted_buckets,
    /// Live records that went with them.
    evicted_records,
    /// Records that were damaged when they were to be copied, and went.
    lost_records,
    /// Reads that found the file of their bucket gone.
    vanished_reads,
    /// Comparisons of the books with the directory.
    audits,
    /// Sealed buckets that were not as the books said.
    audit_mismatches,
}
