//! A client as a process of its own: requests come as lines on standard input, results go as lines
//! to standard output.

use std::io::{BufRead, Write};

use super::run::Serve;
use super::{Player, Served};
use crate::cluster::Process;
use crate::output::Failure;
use crate::trace::Request;

/// Serves the lines of standard input until it ends.
///
/// # Errors
///
/// A line is no request, or standard output takes no more.
pub fn serve_lines(mut player: Player) -> Result<(), Failure> {
    let closed = |error| Failure::new("standard input or output broke").because(error);
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line.map_err(closed)?)
            .map_err(|error| Failure::new("a line is no request").because(error))?;
        let served = player.serve(&request);
        let mut text = serde_json::to_string(&served).expect("numbers and text have a JSON form");
        text.push('\n');
        output.write_all(text.as_bytes()).map_err(closed)?;
        output.flush().map_err(closed)?;
    }
    Ok(())
}

impl Serve for Process {
    async fn serve(&mut self, request: &Request) -> Result<Served, Failure> {
        let line = serde_json::to_string(request).expect("numbers have a JSON form");
        self.tell(&line).await?;
        let line = self.line().await?;
        serde_json::from_str(&line)
            .map_err(|error| Failure::new(format!("{} says {line:?}", self.what())).because(error))
    }
}
