//! Makes up traces: users that hold conversations with a model.
//!
//! Each user starts a conversation with one of a few system prompts that all users share, asks, waits
//! for the answer, thinks and asks again; every prompt carries the whole conversation so far. The
//! same [`Shape`] gives the same requests on every machine: all draws are integer arithmetic.
//!
//! ```
//! use mooncake_cli::trace::Ideal;
//! use mooncake_cli::workload::{Shape, Workload};
//! let mut ideal = Ideal::default();
//! for request in Workload::new(Shape { requests: 500, ..Shape::default() }) {
//!     ideal.observe(&request);
//! }
//! assert!((0.3..0.6).contains(&ideal.ratio_blocks()));
//! ```

mod blocks;
mod draw;
mod user;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use blocks::Blocks;
use draw::Draw;
use user::User;

use crate::trace::Request;

/// What to make up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// How many requests.
    pub requests: u64,
    /// How many users talk at the same time.
    pub users: u32,
    /// Where the draws start; equal seeds give equal traces.
    pub seed: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            requests: 1_000,
            users: 40,
            seed: 1,
        }
    }
}

/// An iterator over made-up requests, in order of arrival.
#[derive(Debug)]
pub struct Workload {
    left: u64,
    users: Vec<User>,
    /// (when, which user) of each user's next request.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    blocks: Blocks,
    conversations: u64,
}

impl Workload {
    /// Starts the workload of `shape`; without users it is empty.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let mut draw = Draw::new(shape.seed);
        let (mut users, mut due) = (Vec::new(), BinaryHeap::new());
        for at in 0..shape.users as usize {
            // Users come in over the first minutes, the first of them at once.
            let arrival = if at == 0 { 0 } else { draw.below(120_000) };
            users.push(User::new(Draw::new(draw.next())));
            due.push(Reverse((arrival, at)));
        }
        Self {
            left: shape.requests,
            users,
            due,
            blocks: Blocks::default(),
            conversations: 0,
        }
    }
}

impl Iterator for Workload {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        self.left = self.left.checked_sub(1)?;
        let Reverse((now, at)) = self.due.pop()?;
        let (turn, next_in) = self.users[at].ask(&mut self.conversations);
        self.due.push(Reverse((now + next_in, at)));
        Some(Request {
            timestamp: now,
            input_length: turn.input_length,
            output_length: turn.output_length,
            hash_ids: self.blocks.of(&turn),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::trace::Ideal;

    fn shapes() -> impl Strategy<Value = Shape> {
        (0..400u64, 0..60u32, any::<u64>()).prop_map(|(requests, users, seed)| Shape {
            requests,
            users,
            seed,
        })
    }

    proptest! {
        #[test]
        fn an_id_stands_for_its_whole_prefix(shape in shapes()) {
            let mut before = HashMap::new();
            for request in Workload::new(shape) {
                let mut parent = None;
                for id in request.hash_ids {
                    prop_assert_eq!(*before.entry(id).or_insert(parent), parent);
                    parent = Some(id);
                }
            }
        }

        #[test]
        fn ids_are_dense_in_order_of_first_use(shape in shapes()) {
            let mut next = 0;
            for id in Workload::new(shape).flat_map(|request| request.hash_ids) {
                prop_assert!(id <= next);
                next = next.max(id + 1);
            }
        }

        #[test]
        fn time_never_runs_back_and_lengths_fit_the_blocks(shape in shapes()) {
            let mut last = 0;
            for request in Workload::new(shape) {
                prop_assert!(request.timestamp >= last);
                prop_assert!(request.input_length > 0 && request.output_length > 0);
                prop_assert_eq!(request.hash_ids.len() as u64, Request::blocks_for(request.input_length));
                last = request.timestamp;
            }
        }

        #[test]
        fn a_seed_gives_one_trace(shape in shapes()) {
            let expected = if shape.users == 0 { 0 } else { shape.requests };
            let requests: Vec<_> = Workload::new(shape).collect();
            prop_assert_eq!(requests.len() as u64, expected);
            prop_assert!(requests.into_iter().eq(Workload::new(shape)));
        }
    }

    #[test]
    fn every_seed_hits_between_three_and_six_tenths() {
        for (seed, requests) in
            (0..100).flat_map(|seed| [(seed, 500), (seed, 1_000), (seed, 5_000)])
        {
            let mut ideal = Ideal::default();
            for request in Workload::new(Shape {
                seed,
                requests,
                ..Shape::default()
            }) {
                ideal.observe(&request);
            }
            let ratio = ideal.ratio_blocks();
            assert!(
                (0.30..=0.60).contains(&ratio),
                "seed {seed}, {requests} requests: {ratio:.3}"
            );
        }
    }

    /// Guards the promise that a seed keeps its meaning from version to version.
    #[test]
    fn the_default_trace_begins_as_it_always_did() {
        let sum = Workload::new(Shape::default())
            .flat_map(|request| {
                [
                    request.timestamp,
                    request.input_length,
                    request.output_length,
                ]
            })
            .fold(0u64, |sum, value| sum.wrapping_mul(31).wrapping_add(value));
        assert_eq!(sum, 6_818_896_496_759_461_503);
    }
}
