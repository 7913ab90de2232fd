//! Keeps a name claimed for as long as an engine lives.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

use super::{Claim, Claimed, Entry, Registry, within};
use crate::error::{Error, Result};

/// It is claimed so many times within one lease.
const CLAIMS_A_LEASE: u32 = 3;
/// How long the first answer may take at least.
const FIRST: Duration = Duration::from_secs(2);
/// How soon a name that another one holds is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// A name that is being claimed. When this is dropped, the lease ends by itself.
#[derive(Debug)]
pub(crate) struct Tenure {
    post: Arc<Post>,
    stop: watch::Sender<bool>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Post {
    registry: Arc<dyn Registry>,
    name: String,
    entry: Entry,
    ttl: Duration,
}

impl Tenure {
    /// Claims the name. Whoever has it may be a former life of us that did not say good-bye, so
    /// there is one lease's time for it to go.
    pub(crate) async fn begin(
        registry: Arc<dyn Registry>,
        name: String,
        entry: Entry,
        ttl: Duration,
    ) -> Result<Self> {
        let post = Arc::new(Post {
            registry,
            name,
            entry,
            ttl,
        });
        // Registries that count seconds keep it a little longer.
        let end = Instant::now() + ttl + ttl / 2 + Duration::from_secs(1);
        while let Claimed::HeldBy(holder) = post.take(ttl.max(FIRST)).await? {
            if Instant::now() > end {
                return Err(Error::NameTaken {
                    name: post.name.clone(),
                    holder: holder.control,
                });
            }
            tokio::time::sleep(AGAIN.min(ttl)).await;
        }
        let (stop, stopped) = watch::channel(false);
        let keeper = tokio::spawn(Arc::clone(&post).keep(stopped));
        Ok(Self {
            post,
            stop,
            keeper: Mutex::new(Some(keeper)),
        })
    }

    /// Gives the name back.
    pub(crate) async fn end(&self, budget: Duration) -> Result<()> {
        let half = budget / 2;
        self.stop.send_replace(true);
        let keeper = self.keeper.lock().take();
        if let Some(mut keeper) = keeper
            && tokio::time::timeout(half, &mut keeper).await.is_err()
        {
            keeper.abort();
        }
        let Post {
            registry,
            name,
            entry,
            ..
        } = &*self.post;
        within(&**registry, name, half, registry.withdraw(name, entry)).await
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.lock().take() {
            keeper.abort();
        }
    }
}

impl Post {
    /// Claims it for the first time.
    async fn take(&self, budget: Duration) -> Result<Claimed> {
        let claimed = self.claim_instead_of(None, budget).await?;
        match &claimed {
            // We listen where it says it does: it is gone. Whoever says so later has taken it from us, and
            // may do so again for ever if we took it back.
            Claimed::HeldBy(former) if former.control == self.entry.control => {
                self.claim_instead_of(Some(former), budget).await
            }
            _ => Ok(claimed),
        }
    }

    async fn claim_instead_of(&self, gone: Option<&Entry>, budget: Duration) -> Result<Claimed> {
        let claim = Claim {
            name: &self.name,
            entry: &self.entry,
            ttl: self.ttl,
            replaces: gone,
        };
        let registry = &*self.registry;
        within(registry, &self.name, budget, registry.claim(claim)).await
    }

    async fn keep(self: Arc<Self>, mut stopped: watch::Receiver<bool>) {
        let every = self.ttl / CLAIMS_A_LEASE;
        let mut well = true;
        loop {
            let stop = stopped.wait_for(|stop| *stop);
            if tokio::time::timeout(every, stop).await.is_ok() {
                return;
            }
            let name = &self.name;
            let trouble = match self.claim_instead_of(None, every).await {
                Ok(Claimed::Granted) => None,
                Ok(Claimed::HeldBy(other)) => Some(format!("{} has it now", other.control)),
                Err(error) => Some(error.to_string()),
            };
            match (well, &trouble) {
                (true, Some(trouble)) => tracing::warn!(name, %trouble, "a name is not ours"),
                (false, None) => tracing::info!(name, "a name is ours again"),
                _ => {}
            }
            well = trouble.is_none();
        }
    }
}
