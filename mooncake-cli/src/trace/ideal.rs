//! What a cache that never forgets would hit.

use std::collections::HashSet;

use serde::Serialize;

use super::Request;

/// How many blocks of `request`, from the first one on, `present` has. It is asked no further than
/// the first block that is missing: KV cache is only of use as a prefix.
pub fn prefix_hit(request: &Request, mut present: impl FnMut(u64) -> bool) -> u64 {
    request
        .hash_ids
        .iter()
        .take_while(|id| present(**id))
        .count() as u64
}

/// Counts prefix hits of an infinite cache that sees requests in order.
///
/// No cache hits more: what a run over the same trace reached is judged against this.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ideal {
    /// Requests seen.
    pub requests: u64,
    /// Arrival of the last one, in milliseconds.
    pub duration_ms: u64,
    /// Tokens of all prompts.
    pub tokens_input: u64,
    /// Tokens of all answers.
    pub tokens_output: u64,
    /// Blocks of all prompts.
    pub blocks_total: u64,
    /// Different blocks among them.
    pub blocks_distinct: u64,
    /// Blocks that are part of a prefix seen before.
    pub blocks_hit: u64,
    /// Tokens in these.
    pub tokens_hit: u64,
    /// Blocks of the longest prompt.
    pub blocks_longest: u64,
    #[serde(skip)]
    seen: HashSet<u64>,
}

impl Ideal {
    /// Counts `request`, and returns how many of its blocks the cache had.
    pub fn observe(&mut self, request: &Request) -> u64 {
        let hit = prefix_hit(request, |id| self.seen.contains(&id));
        let blocks = request.hash_ids.len() as u64;
        self.seen.extend(&request.hash_ids);
        self.requests += 1;
        self.duration_ms = self.duration_ms.max(request.timestamp);
        self.tokens_input = self.tokens_input.saturating_add(request.input_length);
        self.tokens_output = self.tokens_output.saturating_add(request.output_length);
        self.blocks_total += blocks;
        self.blocks_distinct = self.seen.len() as u64;
        self.blocks_hit += hit;
        self.tokens_hit = self.tokens_hit.saturating_add(request.tokens_of(hit));
        self.blocks_longest = self.blocks_longest.max(blocks);
        hit
    }

    /// Blocks hit of all blocks; 0 of nothing.
    #[must_use]
    pub fn ratio_blocks(&self) -> f64 {
        ratio(self.blocks_hit, self.blocks_total)
    }

    /// Tokens hit of all tokens of prompts; 0 of nothing.
    #[must_use]
    pub fn ratio_tokens(&self) -> f64 {
        ratio(self.tokens_hit, self.tokens_input)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(input_length: u64, hash_ids: &[u64]) -> Request {
        Request {
            timestamp: 7,
            input_length,
            output_length: 1,
            hash_ids: hash_ids.to_vec(),
        }
    }

    #[test]
    fn a_hit_stops_at_the_first_missing_block() {
        let mut ideal = Ideal::default();
        assert_eq!(ideal.observe(&request(1500, &[0, 1, 2])), 0);
        assert_eq!(ideal.observe(&request(2000, &[0, 9, 2, 1])), 1);
        assert_eq!(
            (ideal.blocks_total, ideal.blocks_distinct, ideal.blocks_hit),
            (7, 4, 1)
        );
    }

    #[test]
    fn a_partial_last_block_counts_its_own_tokens() {
        let mut ideal = Ideal::default();
        ideal.observe(&request(600, &[0, 1]));
        ideal.observe(&request(600, &[0, 1]));
        assert_eq!(
            (ideal.blocks_hit, ideal.tokens_hit, ideal.tokens_input),
            (2, 600, 1200)
        );
        assert!((ideal.ratio_tokens() - 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_request_does_not_hit_its_own_blocks() {
        assert_eq!(Ideal::default().observe(&request(1024, &[4, 4])), 0);
    }

    #[test]
    fn nothing_has_a_ratio_of_zero() {
        assert!(Ideal::default().ratio_blocks() == 0.0);
    }
}
