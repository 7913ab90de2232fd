//! A client as a process of its own: requests come as lines on standard input, results go as lines
//! to standard output.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::run::Serve;
use super::{Player, Served};
use crate::cluster::Process;
use crate::output::{Exit, Failure};
use crate::trace::Request;

/// Whoever is still at work so long after its input has ended has been left alone.
const GRACE: Duration = Duration::from_millis(500);

/// Serves the lines of standard input until it ends. If it ends in the middle of a request, so does
/// this process: nobody waits for what comes of it.
///
/// # Errors
///
/// A line is no request, or standard output takes no more.
pub fn serve_lines(mut player: Player) -> Result<(), Failure> {
    static BUSY: AtomicBool = AtomicBool::new(false);
    let closed = |error| Failure::new("standard input or output broke").because(error);
    let (sender, lines) = mpsc::channel();
    let read = move || {
        for line in std::io::stdin().lock().lines() {
            // Who listens no more has failed, and says so.
            if sender.send(line).is_err() {
                return;
            }
        }
        drop(sender);
        thread::sleep(GRACE);
        if BUSY.load(Ordering::Acquire) {
            std::process::exit(Exit::FAILURE.into());
        }
    };
    let reader = thread::Builder::new().name("requests".into());
    drop(reader.spawn(read).map_err(closed)?);
    let mut output = std::io::stdout().lock();
    for line in lines {
        let request: Request = serde_json::from_str(&line.map_err(closed)?)
            .map_err(|error| Failure::new("a line is no request").because(error))?;
        BUSY.store(true, Ordering::Release);
        let served = player.serve(&request);
        BUSY.store(false, Ordering::Release);
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
