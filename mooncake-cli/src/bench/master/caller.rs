//! A client: a thread with a runtime and a session, or a connection, of its own.

use std::{
    sync::mpsc as results,
    thread::{Builder, JoinHandle},
    time::Duration,
};

use mooncake_store::master::{ConnectOptions, Hello, MasterClient};
use tokio::sync::mpsc;

use super::{
    load::{self, Until},
    plan::{Plan, Source},
    unary,
};
use crate::{bench::Sample, output::Failure};

/// How a client reaches the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    /// The pipelined stream.
    Session,
    /// A call each.
    Unary,
}

type Result<T> = std::result::Result<T, Failure>;

/// A client that loads the master when it is told to. In between it only pings.
#[derive(Debug)]
pub(super) struct Caller {
    /// `None`: it is told to end.
    budgets: Option<mpsc::UnboundedSender<Duration>>,
    samples: results::Receiver<Result<Sample>>,
    thread: Option<JoinHandle<()>>,
}

impl Caller {
    /// Connects to the master at `address`.
    ///
    /// # Errors
    ///
    /// Nobody answers there.
    pub(super) fn start(address: &str, wire: Wire, plan: Plan, source: Source) -> Result<Self> {
        let (budgets, told) = mpsc::unbounded_channel();
        let (results, samples) = results::channel();
        let address = address.to_owned();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let served = runtime
                .map_err(|error| Failure::new("no runtime could be made").because(error))
                .and_then(|runtime| {
                    runtime.block_on(serve(&address, wire, plan, source, told, &results))
                });
            if let Err(failure) = served {
                // Nobody waits if the measurement is over.
                let _ = results.send(Err(failure));
            }
        };
        let thread = Builder::new().name("client".into()).spawn(work);
        let thread =
            thread.map_err(|error| Failure::new("no thread could be started").because(error))?;
        let caller = Self {
            budgets: Some(budgets),
            samples,
            thread: Some(thread),
        };
        caller.wait()?;
        Ok(caller)
    }

    /// Lets it load the master for about this long; [`wait`](Self::wait) tells what came of it.
    pub(super) fn begin(&self, budget: Duration) {
        if let Some(budgets) = &self.budgets {
            // A client that has ended says so when it is waited for.
            let _ = budgets.send(budget);
        }
    }

    /// What it has done since it was told to begin.
    ///
    /// # Errors
    ///
    /// It failed.
    pub(super) fn wait(&self) -> Result<Sample> {
        let lost = |_| Failure::new("a client has ended unexpectedly");
        self.samples.recv().map_err(lost)?
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.budgets = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was shown.
            let _ = thread.join();
        }
    }
}

async fn serve(
    address: &str,
    wire: Wire,
    plan: Plan,
    mut source: Source,
    mut told: mpsc::UnboundedReceiver<Duration>,
    results: &results::Sender<Result<Sample>>,
) -> Result<()> {
    let say = |what| results.send(what).is_ok();
    match wire {
        Wire::Session => {
            let client = session(address, "client").await?;
            say(Ok(Sample::default()));
            while let Some(budget) = told.recv().await {
                let until = Until::Elapsed(budget);
                say(load::run(&client, plan, &mut source, until).await);
            }
            client.goodbye(true, GOODBYE).await;
        }
        Wire::Unary => {
            let client = unary::connect(address).await?;
            say(Ok(Sample::default()));
            while let Some(budget) = told.recv().await {
                say(unary::run(&client, plan, &mut source, budget).await);
            }
        }
    }
    Ok(())
}

/// How long a client may take to take leave.
const GOODBYE: Duration = Duration::from_secs(1);

/// Opens a session with the master.
///
/// # Errors
///
/// Nobody answers.
pub(super) async fn session(address: &str, name: &str) -> Result<MasterClient> {
    let client_incarnation = rand::random::<u64>() | 1;
    let hello = Hello {
        client_incarnation,
        tenant: String::new(),
        name: name.to_owned(),
    };
    let client = MasterClient::connect(address, hello, ConnectOptions::default()).await;
    client.map_err(|error| Failure::new("the master cannot be reached").because(error))
}
