//! What the roles that serve have in common: they say when they are ready, and end when told to.

use std::io;
use std::time::Duration;

use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::output::Failure;

/// How long the end may take.
pub(super) const END_BUDGET: Duration = Duration::from_secs(4);

/// Tells a program that a role serves.
#[derive(Clone, Debug, Serialize)]
pub struct Ready<T> {
    /// The role, and where it is found.
    pub ready: T,
}

/// When to end.
#[derive(Debug)]
pub(super) struct Stop {
    terminate: Signal,
    interrupt: Signal,
    stdin: Option<oneshot::Receiver<()>>,
}

impl Stop {
    /// From now on signals end the role, and no longer the process at once. Call it within a tokio
    /// runtime.
    pub(super) fn listen(with_stdin: bool) -> Result<Self, Failure> {
        let failed = |error| Failure::new("signals cannot be caught").because(error);
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            stdin: with_stdin.then(stdin_ends),
        })
    }

    /// Waits, and says what came.
    pub(super) async fn wait(&mut self) -> &'static str {
        let stdin = async {
            match &mut self.stdin {
                Some(ended) => drop(ended.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = stdin => "end of input",
        }
    }
}

/// Reports once standard input is at its end, or broken.
fn stdin_ends() -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    // A thread of its own: it may well be blocked when the process ends.
    std::thread::spawn(move || {
        // Broken is as good as ended, and the role may have ended before.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = ended.send(());
    });
    end
}

/// What to try when an address that `flag` names cannot be listened on.
pub(super) fn listen_remedy(kind: io::ErrorKind, flag: &str) -> String {
    match kind {
        io::ErrorKind::AddrInUse => format!(
            "stop whoever listens there, or take another port with {flag} (0 takes a free one)"
        ),
        io::ErrorKind::PermissionDenied => format!("a port above 1023, with {flag}"),
        _ => format!("an address of this machine, with {flag}"),
    }
}
