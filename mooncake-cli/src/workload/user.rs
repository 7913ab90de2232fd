//! One user: a conversation after the other, and the time in between.

use super::draw::{Draw, Quantiles};

/// Tokens of the system prompts that users share, most used first.
const SYSTEM_PROMPTS: [u64; 6] = [1_650, 640, 2_900, 4_480, 310, 7_200];
/// A conversation that would need a longer prompt ends.
const MOST_TOKENS: u64 = 120_000;
/// How long a model takes for a token of its answer.
const TOKEN_MS: u64 = 20;

/// How often a user asks in one conversation: many ask once, few go on for long.
const TURNS: Quantiles = Quantiles(&[(0, 1), (680, 2), (870, 3), (970, 4), (1_000, 7)]);
/// Tokens of a question. Now and then somebody pastes a document.
const QUESTION_TOKENS: Quantiles = Quantiles(&[
    (0, 12),
    (300, 200),
    (600, 1_200),
    (800, 4_000),
    (930, 9_000),
    (990, 16_000),
    (1_000, 32_000),
]);
/// Tokens of an answer.
const ANSWER_TOKENS: Quantiles =
    Quantiles(&[(0, 1), (250, 90), (600, 350), (900, 700), (1_000, 2_000)]);
/// Milliseconds between an answer and the next question.
const THINK_MS: Quantiles =
    Quantiles(&[(0, 1_500), (500, 18_000), (900, 90_000), (1_000, 400_000)]);

/// One question, with all that stands before it in its prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Which system prompt the conversation starts with.
    pub(super) system: usize,
    /// How many tokens of the prompt that is.
    pub(super) system_length: u64,
    /// Which conversation, among all users.
    pub(super) conversation: u64,
    pub(super) input_length: u64,
    pub(super) output_length: u64,
}

/// A user and the state of the conversation that it is in.
#[derive(Debug)]
pub(super) struct User {
    draw: Draw,
    turns_left: u64,
    last: Option<Turn>,
}

impl User {
    pub(super) fn new(draw: Draw) -> Self {
        Self {
            draw,
            turns_left: 0,
            last: None,
        }
    }

    /// The user's next question, and after how many milliseconds the one after it comes.
    pub(super) fn ask(&mut self, conversations: &mut u64) -> (Turn, u64) {
        let question = QUESTION_TOKENS.draw(&mut self.draw);
        let going_on = self.last.take().filter(|last| {
            self.turns_left > 0 && last.input_length + last.output_length + question <= MOST_TOKENS
        });
        let mut turn = going_on.unwrap_or_else(|| self.start(conversations));
        turn.input_length += turn.output_length + question;
        turn.output_length = ANSWER_TOKENS.draw(&mut self.draw);
        self.turns_left = self.turns_left.saturating_sub(1);
        self.last = Some(turn);
        (
            turn,
            turn.output_length * TOKEN_MS + THINK_MS.draw(&mut self.draw),
        )
    }

    /// A conversation in which nothing was asked yet.
    fn start(&mut self, conversations: &mut u64) -> Turn {
        self.turns_left = TURNS.draw(&mut self.draw);
        let conversation = *conversations;
        *conversations += 1;
        // The smaller of two draws makes early prompts the popular ones.
        let most = SYSTEM_PROMPTS.len() as u64;
        let system = self.draw.below(most).min(self.draw.below(most)) as usize;
        let system_length = SYSTEM_PROMPTS[system];
        Turn {
            system,
            system_length,
            conversation,
            input_length: system_length,
            output_length: 0,
        }
    }
}
