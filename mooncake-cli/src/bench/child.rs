//! A process that answers a line of JSON with a line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::output::Failure;

/// How long it may take to end once nobody speaks to it any more.
const END_BUDGET: Duration = Duration::from_secs(3);

/// A child process that ends when its standard input does, which is when this is dropped.
#[derive(Debug)]
pub(super) struct LineChild {
    what: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl LineChild {
    /// Starts it, and returns the first object that it says.
    pub(super) fn start(what: &str, command: &mut Command) -> Result<(Self, Value), Failure> {
        let failed = |error| Failure::new(format!("{what} could not be started")).because(error);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut child = Self {
            what: what.to_owned(),
            child,
            input,
            output,
        };
        let said = child.answer()?;
        Ok((child, said))
    }

    /// Says `request` to it, and returns what it answers.
    pub(super) fn ask(&mut self, request: &Value) -> Result<Value, Failure> {
        self.tell(request)?;
        self.answer()
    }

    /// Says `request` to it, whose answer is asked for later.
    pub(super) fn tell(&mut self, request: &Value) -> Result<(), Failure> {
        let lost = |error| Failure::new(format!("{} does not listen", self.what)).because(error);
        let input = self.input.as_mut().expect("it is open until the drop");
        input
            .write_all(format!("{request}\n").as_bytes())
            .map_err(lost)
    }

    /// What it says next.
    pub(super) fn answer(&mut self) -> Result<Value, Failure> {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).map_err(|error| {
                Failure::new(format!("{} cannot be read", self.what)).because(error)
            })?;
            if read == 0 {
                return Err(Failure::new(format!(
                    "{} has ended unexpectedly",
                    self.what
                )));
            }
            // Libraries write to standard output as they like.
            if !line.starts_with('{') {
                continue;
            }
            let said: Value = serde_json::from_str(&line).map_err(|error| {
                Failure::new(format!("{} says {line:?}", self.what)).because(error)
            })?;
            return match said.get("error") {
                Some(error) => {
                    let error = error.as_str().unwrap_or("something that is no text");
                    Err(Failure::new(format!("{} fails", self.what)).cause(error))
                }
                None => Ok(said),
            };
        }
    }
}

impl Drop for LineChild {
    fn drop(&mut self) {
        drop(self.input.take());
        let end = Instant::now() + END_BUDGET;
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // It fails only if the process has ended.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
