//! Installs links into an engine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    conflicts::{self, Conflict},
    links::{AbsentLink, Links},
    retries::{Retries, may_pass},
};
use crate::{
    error::{Error, Result},
    selector::Policies,
    transport::{Claim, InstallContext, Transport},
};

/// Buffers have a bit for each.
const MOST: usize = u64::BITS as usize;

/// The links that an engine shall have.
#[derive(Debug, Default)]
pub(crate) struct TransportLoader {
    wanted: Vec<Wanted>,
}

#[derive(Debug)]
struct Wanted {
    link: Arc<dyn Transport>,
    /// An engine does as well without it.
    optional: bool,
}

impl TransportLoader {
    pub(crate) fn want(&mut self, link: Arc<dyn Transport>) {
        let optional = false;
        self.wanted.push(Wanted { link, optional });
    }

    /// As [`want`](Self::want), if the machine lets it.
    pub(crate) fn want_if_possible(&mut self, link: Arc<dyn Transport>) {
        let optional = true;
        self.wanted.push(Wanted { link, optional });
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.wanted.iter().any(|wanted| wanted.link.name() == name)
    }

    /// What does not go together among the links, with what the engine `claims` itself, and with its
    /// policies.
    pub(super) fn conflicts(
        &self,
        claims: Vec<(String, Claim)>,
        policies: &Policies,
    ) -> Vec<Conflict> {
        let links = self.wanted.iter().map(|wanted| Arc::clone(&wanted.link));
        conflicts::find(&links.collect::<Vec<_>>(), claims, policies)
    }

    /// Installs all of them but optional ones that the machine does not let; or none. What may pass is
    /// waited for within `budget`, which is for all of them; optional links get one attempt.
    pub(super) async fn load(self, context: &InstallContext, budget: Duration) -> Result<Links> {
        if self.wanted.len() > MOST {
            return Err(Error::Busy {
                what: "the list of links",
                limit: MOST,
            });
        }
        let begun = Instant::now();
        let mut absent = Vec::new();
        let served: Vec<_> = self.wanted.iter().map(|_| Arc::default()).collect();
        for (place, Wanted { link, optional }) in self.wanted.iter().enumerate() {
            let budget = match optional {
                true => Duration::ZERO,
                false => budget,
            };
            let context = InstallContext {
                served: Arc::clone(&served[place]),
                ..context.clone()
            };
            let Err(error) = install(link, &context, begun, budget).await else {
                continue;
            };
            if *optional {
                let retried = may_pass(&error);
                let name = link.name();
                tracing::info!(link = name, %error, retried, "this machine has no such link");
                let absence = AbsentLink {
                    name,
                    why: error.to_string(),
                    attempts: 1,
                    retried,
                };
                absent.push((place, absence));
                continue;
            }
            let missing = |place| absent.iter().any(|(other, _)| *other == place);
            for (place, Wanted { link, .. }) in self.wanted[..place].iter().enumerate() {
                if !missing(place)
                    && let Err(error) = link.uninstall(Duration::from_secs(1)).await
                {
                    tracing::warn!(link = link.name(), %error, "a link does not go away");
                }
            }
            return Err(error);
        }
        let all = self.wanted.into_iter().map(|wanted| wanted.link);
        Ok(Links::new(all.collect(), served, absent))
    }
}

/// Installs a link, until that works, nothing speaks for another attempt, or it is `budget` after
/// `begun`.
async fn install(
    link: &Arc<dyn Transport>,
    context: &InstallContext,
    begun: Instant,
    budget: Duration,
) -> Result<()> {
    let mut retries = Retries::while_waited_for(budget);
    for attempts in 1.. {
        let Err(error) = link.install(context.clone()).await else {
            break;
        };
        let Some(pause) = retries.next(&error, attempts, begun.elapsed()) else {
            return Err(match attempts {
                1 => error,
                _ => error.after_attempts(attempts, begun.elapsed()),
            });
        };
        tracing::info!(link = link.name(), %error, ?pause, "the link is tried again");
        tokio::time::sleep(pause).await;
    }
    Ok(())
}
