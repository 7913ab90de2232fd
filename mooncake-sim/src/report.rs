//! What happened in a run, counted.

use std::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How a run went, or many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Report {
            $($(#[$doc])* pub $name: usize,)*
        }

        impl Report {
            /// Each count with its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, usize)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        impl AddAssign for Report {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Operations that ended.
    finished,
    /// Keys that were put.
    puts,
    /// Of these, with two replicas or more.
    replicated_puts,
    /// Of these, in memory of the writer's own, in one step.
    placed_puts,
    /// Of these, that replaced another version.
    placed_upserts,
    /// Of puts, those that went another way after they were written in memory of the writer's own.
    misplaced_puts,
    /// Grants of such memory.
    grants,
    /// Grants that went back.
    returned_grants,
    /// Grants that were asked back because space was short.
    reclaims,
    /// Keys that were read.
    gets,
    /// Of these, from a replica after another one had failed.
    failovers,
    /// Reads of what a lease still kept, without asking again.
    kept_reads,
    /// Of these, of keys whose remove had not come to the reader's ears.
    stale_reads,
    /// Keys that were removed, or were not there.
    removes,
    /// Keys that were replaced.
    upserts,
    /// Of puts, those that found space after they had waited for it.
    waited_puts,
    /// Of puts, those that succeeded elsewhere.
    moved_puts,
    /// Answers that came later.
    deferred,
    /// Of these, to clients that asked again, on another stream.
    deferred_again,
    /// Barriers that readers held up, and their callers saw the end of.
    barriers,
    /// Removals of all that ended well.
    removed_all,
    /// Objects that they removed.
    removed_together,
    /// Objects that `exist` promised to keep.
    reservations,
    /// Reads of these within the promise.
    held_reads,
    /// Clients that left.
    goodbyes,
    /// Of these, those that were quiet.
    quiet_goodbyes,
    /// Of these, those after which the master had nothing to hold back for anybody.
    clean_goodbyes,
    /// Steps of the world.
    steps,
    /// Objects that made room for others.
    evicted,
    /// Of these, while readers had leases on others.
    evicted_beside_leases,
    /// Puts that found no space.
    no_space,
    /// Puts that were told to wait for leases and writers.
    busy,
    /// Puts that were taken over, or that nobody ended.
    abandoned_puts,
    /// Of these, those that another put took over.
    taken_over,
    /// Ends of puts that came too late.
    revoked_puts,
    /// Leases that ended in the middle of a read.
    leases_over,
    /// Removes and losses that readers were told of.
    invalidations,
    /// Of the keys that were read, those that had lost a replica with its node.
    outlived_nodes,
    /// Clients and nodes that the master gave up.
    expired_clients,
    /// Streams that the master took up again.
    resumed,
    /// Streams that the master ended.
    fenced,
    /// Frames that came after their budget.
    late_frames,
    /// Transfers that named a dead life.
    stale,
    /// Streams that broke.
    cuts,
    /// Streams that swallowed what was sent.
    mutes,
    /// Processes that stood still.
    pauses,
    /// Clients that crashed.
    client_crashes,
    /// Nodes that crashed.
    node_crashes,
    /// Masters that crashed.
    master_crashes,
}
