//! A client as a process of its own: requests come as lines on standard input, results go as lines
//! to standard output.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

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
pub async fn serve_lines(mut player: Player) -> Result<(), Failure> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut output = tokio::io::stdout();
    let closed = |error| Failure::new("standard input or output broke").because(error);
    while let Some(line) = lines.next_line().await.map_err(closed)? {
        let request: Request = serde_json::from_str(&line)
            .map_err(|error| Failure::new("a line is no request").because(error))?;
        let served = player.serve(&request).await;
        let mut text = serde_json::to_string(&served).expect("numbers and text have a JSON form");
        text.push('\n');
        output.write_all(text.as_bytes()).await.map_err(closed)?;
        output.flush().await.map_err(closed)?;
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
