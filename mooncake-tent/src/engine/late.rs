//! Links that come while the engine runs.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{
    retries::{Retries, may_pass},
    tent::Shared,
};
use crate::{
    memory::LocalBuffer,
    transport::{Attachment, InstallContext, Transport},
};

/// For a link that nobody needs any more, to go away.
const LEAVE: Duration = Duration::from_secs(1);
/// Until a buffer that is just being renewed is open again …
const RENEWAL: Duration = Duration::from_millis(5);
/// … as far as it is waited for: one whose renewal failed stays as it is.
const RENEWALS: usize = 200;

/// Tries the links that are absent for a reason that may pass, each by itself.
pub(super) fn try_again(shared: &Arc<Shared>, runtime: &Handle) {
    for place in shared.parts.links.retried() {
        runtime.spawn(until_installed(Arc::downgrade(shared), place));
    }
}

async fn until_installed(engine: Weak<Shared>, place: usize) {
    let mut retries = Retries::in_the_background();
    let mut pause = Duration::from_millis(100);
    loop {
        tokio::time::sleep(pause).await;
        let Some((link, context)) = engine.upgrade().and_then(|shared| {
            let links = &shared.parts.links;
            let goes_on = !links.are_closed();
            let context = || InstallContext {
                served: Arc::clone(links.served(place)),
                ..shared.parts.context.clone()
            };
            goes_on.then(|| (Arc::clone(&links[place]), context()))
        }) else {
            return;
        };
        let installed = link.install(context).await;
        let Some(shared) = engine.upgrade() else {
            if installed.is_ok() {
                leave(&link).await;
            }
            return;
        };
        let error = match installed {
            Ok(()) => return shared.comes(place).await,
            Err(error) => error,
        };
        let tried = (shared.parts.links).failed_again(place, &error, may_pass(&error));
        tracing::debug!(link = link.name(), %error, tried, "the link is still absent");
        match retries.next(&error, tried, Duration::ZERO) {
            Some(next) => pause = next,
            None => return,
        }
    }
}

/// Uninstalls a link that came too late.
async fn leave(link: &Arc<dyn Transport>) {
    if let Err(error) = link.uninstall(LEAVE).await {
        tracing::warn!(link = link.name(), %error, "a link does not go away");
    }
}

impl Shared {
    /// The link at this place was installed just now.
    async fn comes(&self, place: usize) {
        let links = &self.parts.links;
        let link = &links[place];
        if links.takes(place) {
            // Those that are registered from here on are given to it by whoever registers them.
            for buffer in self.parts.context.buffers.all() {
                self.give(&buffer, place).await;
            }
        }
        if !links.carries(place) {
            return leave(link).await;
        }
        self.describe_anew();
        tracing::info!(link = link.name(), "the link was installed after all");
    }

    /// Lets the link at this place have a registered buffer, unless it was asked already. One that it
    /// cannot take is carried by the others.
    pub(super) async fn give(&self, buffer: &Arc<LocalBuffer>, place: usize) {
        let table = &self.parts.context.buffers;
        // Held, it cannot be unregistered meanwhile.
        let mut lease = buffer.lease(None);
        for _ in 0..RENEWALS {
            if lease.is_ok() || self.parts.links.are_closed() || !table.contains(buffer.id()) {
                break;
            }
            tokio::time::sleep(RENEWAL).await;
            lease = buffer.lease(None);
        }
        let Ok(_lease) = lease else {
            tracing::warn!(id = %buffer.id(), "a late link is not given a buffer that takes no leases");
            return;
        };
        if !buffer.ask(place) {
            return;
        }
        let link = &self.parts.links[place];
        match link.add_memory_buffer(buffer).await {
            Ok(Attachment::Attached) => buffer.attach(place),
            Ok(Attachment::Declined(why)) => {
                tracing::debug!(link = link.name(), id = %buffer.id(), why, "a buffer was declined");
            }
            Err(error) => {
                tracing::warn!(link = link.name(), id = %buffer.id(), %error, "a late link has not taken a buffer");
            }
        }
    }
}
