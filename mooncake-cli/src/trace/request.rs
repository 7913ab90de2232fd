//! One line of a trace.

use serde::{Deserialize, Serialize};

/// How many tokens a block of a trace stands for.
pub const BLOCK_TOKENS: u64 = 512;

/// One request of a trace.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Request {
    /// When it arrives, in milliseconds since the start of the trace.
    pub timestamp: u64,
    /// Tokens of the prompt.
    pub input_length: u64,
    /// Tokens of the answer.
    pub output_length: u64,
    /// The blocks of the prompt, in order.
    pub hash_ids: Vec<u64>,
}

impl Request {
    /// How many blocks a prompt of `input_length` tokens has.
    #[must_use]
    pub fn blocks_for(input_length: u64) -> u64 {
        input_length.div_ceil(BLOCK_TOKENS)
    }

    /// How many tokens the first `blocks` blocks hold; the last one may be partial.
    #[must_use]
    pub fn tokens_of(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(BLOCK_TOKENS).min(self.input_length)
    }
}
