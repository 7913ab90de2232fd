//! A child process of this same binary.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::output::Failure;

/// How long a process may take to end after it was told to.
const END_BUDGET: Duration = Duration::from_secs(5);

/// A child that reads lines and writes lines. It is killed when this is dropped, and it ends by
/// itself when its standard input does, so that it cannot outlive whoever started it.
#[derive(Debug)]
pub struct Process {
    what: String,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a master or node, which says in JSON that it is ready.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn server(what: &str, arguments: &[&str]) -> Result<Self, Failure> {
        let all = [arguments, &["--output=json", "--end-with-stdin"]].concat();
        Self::start(what, &all)
    }

    /// Starts this binary with these arguments and nothing of our settings but the logging.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn start(what: &str, arguments: &[&str]) -> Result<Self, Failure> {
        let failed = |error| Failure::new(format!("{what} could not be started")).because(error);
        let binary = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"MOONCAKE_") {
                command.env_remove(name);
            }
        }
        let log = std::env::var("MOONCAKE_LOG").unwrap_or_else(|_| "error".to_owned());
        let mut child = command
            .args(arguments)
            .env("MOONCAKE_LOG", log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let input = child.stdin.take().expect("it is piped");
        let output = child.stdout.take().expect("it is piped");
        Ok(Self {
            what: what.to_owned(),
            child,
            input,
            output: BufReader::new(output).lines(),
        })
    }

    /// What it is, for people.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it says that it is ready.
    ///
    /// # Errors
    ///
    /// It ends before, says why it cannot or something else, or takes too long.
    pub async fn ready<T: DeserializeOwned>(&mut self, budget: Duration) -> Result<T, Failure> {
        let said = tokio::time::timeout(budget, self.document()).await;
        let said = said
            .map_err(|_| Failure::new(format!("{} is not ready after {budget:?}", self.what)))??;
        if let Some(failure) = Failure::from_json(&said) {
            return Err(failure.of(&self.what));
        }
        let text = said.to_string();
        serde_json::from_value(said)
            .map_err(|error| Failure::new(format!("{} says {text}", self.what)).because(error))
    }

    /// Its next JSON document: a line, or an error, which takes several.
    async fn document(&mut self) -> Result<serde_json::Value, Failure> {
        let mut text = String::new();
        loop {
            text += &self.line().await?;
            match serde_json::from_str(&text) {
                Ok(document) => return Ok(document),
                Err(error) if error.is_eof() => text.push('\n'),
                Err(error) => {
                    let what = format!("{} says {text:?}", self.what);
                    return Err(Failure::new(what).because(error));
                }
            }
        }
    }

    /// Its next line.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub async fn line(&mut self) -> Result<String, Failure> {
        let line = self.output.next_line().await;
        let line = line.map_err(|error| {
            Failure::new(format!("{} cannot be read", self.what)).because(error)
        })?;
        match line {
            Some(line) => Ok(line),
            None => Err(Failure::new(format!(
                "{} has ended unexpectedly",
                self.what
            ))),
        }
    }

    /// Says a line to it.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub async fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let text = format!("{line}\n");
        let told = self.input.write_all(text.as_bytes()).await;
        told.map_err(|error| Failure::new(format!("{} does not listen", self.what)).because(error))
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // It may have ended just now.
            let _gone = kill_process(pid, Signal::TERM);
        }
    }

    /// Kills it, and waits until it is gone.
    pub async fn kill(&mut self) {
        // Killing fails only if it has ended.
        let _gone = self.child.kill().await;
    }

    /// Waits until it has ended; kills it if it takes too long.
    ///
    /// # Errors
    ///
    /// It had to be killed, or says that it did not end well.
    pub async fn ended(&mut self) -> Result<(), Failure> {
        let Ok(status) = tokio::time::timeout(END_BUDGET, self.child.wait()).await else {
            self.kill().await;
            return Err(Failure::new(format!(
                "{} did not end and was killed",
                self.what
            )));
        };
        let status = status
            .map_err(|error| Failure::new(format!("{} is lost", self.what)).because(error))?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::new(format!("{} ended badly: {status}", self.what)))
        }
    }
}
