//! What a command tells a script.

use std::process::ExitCode;

/// How a command ended, when it did not fail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    /// Yes, it is so, or it is done: 0.
    Yes,
    /// No, it is not so, or it is not there: 1.
    No,
    /// It failed, and the result says how: 2.
    Failed,
}

impl Exit {
    /// The code of a command that failed.
    pub const FAILURE: u8 = 2;
}

impl From<bool> for Exit {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Yes => 0,
            Exit::No => 1,
            Exit::Failed => Exit::FAILURE,
        })
    }
}
