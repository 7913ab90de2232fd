//! Installs links into an engine.

use std::{sync::Arc, time::Duration};

use crate::{
    error::{Error, Result},
    transport::{InstallContext, Transport},
};

/// Buffers have a bit for each.
const MOST: usize = u64::BITS as usize;

/// The links that an engine shall have.
#[derive(Debug, Default)]
pub(crate) struct TransportLoader {
    wanted: Vec<Arc<dyn Transport>>,
    /// Names of those without which an engine does as well.
    optional: Vec<&'static str>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) links: Vec<Arc<dyn Transport>>,
    /// Optional ones that could not be installed, and why.
    pub(crate) absent: Vec<(&'static str, String)>,
}

impl TransportLoader {
    pub(crate) fn want(&mut self, link: Arc<dyn Transport>) {
        self.wanted.push(link);
    }

    /// As [`want`](Self::want), if the machine lets it.
    pub(crate) fn want_if_possible(&mut self, link: Arc<dyn Transport>) {
        self.optional.push(link.name());
        self.wanted.push(link);
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.wanted.iter().any(|link| link.name() == name)
    }

    /// Installs all of them but optional ones that the machine does not let; or none.
    pub(crate) async fn load(self, context: &InstallContext) -> Result<Loaded> {
        let mut absent = Vec::new();
        if self.wanted.len() > MOST {
            return Err(Error::Busy {
                what: "the list of links",
                limit: MOST,
            });
        }
        for (place, link) in self.wanted.iter().enumerate() {
            let twice = self.wanted[..place]
                .iter()
                .any(|other| other.name() == link.name());
            let installed = if twice {
                Err(Error::Install {
                    link: link.name(),
                    message: "it was asked for twice".to_owned(),
                })
            } else {
                link.install(context.clone()).await
            };
            if let Err(error) = &installed
                && !twice
                && self.optional.contains(&link.name())
            {
                tracing::info!(link = link.name(), %error, "this machine has no such link");
                absent.push((link.name(), error.to_string()));
                continue;
            }
            if let Err(error) = installed {
                for link in &self.wanted[..place] {
                    if let Err(error) = link.uninstall(Duration::from_secs(1)).await {
                        tracing::warn!(link = link.name(), %error, "a link does not go away");
                    }
                }
                return Err(error);
            }
        }
        let missing =
            |link: &Arc<dyn Transport>| absent.iter().any(|(name, _)| *name == link.name());
        let links = self.wanted.into_iter().filter(|link| !missing(link));
        Ok(Loaded {
            links: links.collect(),
            absent,
        })
    }
}
