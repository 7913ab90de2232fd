//! Gives blocks their ids.

use std::collections::HashMap;

use super::user::Turn;
use crate::trace::{BLOCK_TOKENS, Request};

/// What a block holds, its prefix included.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Content {
    /// Tokens of a conversation up to `end`; text only ever grows, so its end says what it is.
    Conversation { conversation: u64, end: u64 },
    /// Tokens up to `end` of a system prompt, and nothing else.
    System { system: usize, end: u64 },
}

/// The ids of all blocks so far: dense, from 0, in order of first use.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    ids: HashMap<Content, u64>,
}

impl Blocks {
    /// The blocks of `turn`'s prompt.
    pub(super) fn of(&mut self, turn: &Turn) -> Vec<u64> {
        (1..=Request::blocks_for(turn.input_length))
            .map(|block| {
                let end = (block * BLOCK_TOKENS).min(turn.input_length);
                let content = if end <= turn.system_length {
                    Content::System {
                        system: turn.system,
                        end,
                    }
                } else {
                    Content::Conversation {
                        conversation: turn.conversation,
                        end,
                    }
                };
                let next = self.ids.len() as u64;
                *self.ids.entry(content).or_insert(next)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(conversation: u64, input_length: u64) -> Turn {
        Turn {
            system: 0,
            system_length: 1_300,
            conversation,
            input_length,
            output_length: 1,
        }
    }

    #[test]
    fn conversations_share_whole_blocks_of_their_system_prompt_only() {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.of(&turn(0, 1_600)), [0, 1, 2, 3]);
        assert_eq!(blocks.of(&turn(1, 1_600)), [0, 1, 4, 5]);
    }

    #[test]
    fn a_partial_block_that_grows_is_another_block() {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.of(&turn(0, 1_700)), [0, 1, 2, 3]);
        assert_eq!(blocks.of(&turn(0, 2_100)), [0, 1, 2, 4, 5]);
        assert_eq!(blocks.of(&turn(0, 1_700)), [0, 1, 2, 3]);
    }
}
