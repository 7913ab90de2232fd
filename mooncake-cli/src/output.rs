//! How the binary speaks: results on stdout, words on stderr, an exit code for scripts.

mod exit;
mod failure;
mod format;
mod key;
mod no;
mod progress;
mod table;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use indicatif::ProgressBar;
use serde::Serialize;

pub use exit::Exit;
pub use failure::Failure;
pub use format::{bits_per_s, bytes, count, gb_per_s, micros, percent, seconds};
pub use key::key;
pub use no::No;
pub use table::{Align, Table};

/// What results look like.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Format {
    /// Tables and sentences.
    #[default]
    Human,
    /// One JSON document, as `docs/json.md` describes it.
    Json,
}

/// A result that can be shown in every format.
pub trait Show: Serialize {
    /// The result for a person, without a line end after it.
    fn human(&self) -> String;
}

/// Where a command's results and words go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Output {
    format: Format,
}

impl Output {
    /// Shows results in `format`.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self { format }
    }

    /// The format of results.
    #[must_use]
    pub fn format(self) -> Format {
        self.format
    }

    /// Shows a result on stdout.
    ///
    /// # Errors
    ///
    /// When stdout refuses it. A reader that has gone away is no error: it has seen enough.
    pub fn result(self, result: &impl Show) -> Result<(), Failure> {
        let text = match self.format {
            Format::Human => result.human(),
            Format::Json => serde_json::to_string_pretty(result)
                .map_err(|error| Failure::new("the result has no JSON form").because(error))?,
        };
        tolerate(writeln!(io::stdout().lock(), "{text}"))
    }

    /// Tells a program that something has happened: one line of JSON on stdout. A person gets words
    /// from [`note`](Self::note).
    ///
    /// # Errors
    ///
    /// As for [`result`](Self::result).
    pub fn event(self, event: &impl Serialize) -> Result<(), Failure> {
        if self.format == Format::Human {
            return Ok(());
        }
        let text = serde_json::to_string(event)
            .map_err(|error| Failure::new("the event has no JSON form").because(error))?;
        tolerate(writeln!(io::stdout().lock(), "{text}"))
    }

    /// Says that the answer is no, and why.
    ///
    /// # Errors
    ///
    /// As for [`result`](Self::result).
    pub fn no(self, no: &No) -> Result<Exit, Failure> {
        match self.format {
            Format::Human => self.note(no.human()),
            Format::Json => self.result(no)?,
        }
        Ok(Exit::No)
    }

    /// Says something on stderr.
    pub fn note(self, words: impl Display) {
        // Words are a courtesy: a closed stderr must not end the work.
        let _ = writeln!(io::stderr().lock(), "{words}");
    }

    /// Says on stderr what a program finds in the results: only to people.
    pub fn remark(self, words: impl Display) {
        if self.format == Format::Human {
            self.note(words);
        }
    }

    /// Says why a command failed: on stderr, or as a JSON document on stdout.
    pub fn failure(self, failure: &Failure) {
        let _ = match self.format {
            Format::Human => writeln!(io::stderr().lock(), "{}", failure.human()),
            Format::Json => writeln!(io::stdout().lock(), "{:#}", failure.json()),
        };
    }

    /// A bar on stderr for `length` steps of something; hidden where nobody watches.
    #[must_use]
    pub fn progress(self, length: u64, what: &'static str) -> ProgressBar {
        let watched = self.format == Format::Human && io::stderr().is_terminal();
        progress::bar(length, what, watched)
    }
}

/// Treats a reader that has gone away as one that is content.
///
/// # Errors
///
/// Any other reason why stdout took no more.
pub fn tolerate(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new("stdout cannot be written").because(error))
        }
        _ => Ok(()),
    }
}
