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
}

impl TransportLoader {
    pub(crate) fn want(&mut self, link: Arc<dyn Transport>) {
        self.wanted.push(link);
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.wanted.iter().any(|link| link.name() == name)
    }

    /// Installs all of them, or none.
    pub(crate) async fn load(self, context: &InstallContext) -> Result<Vec<Arc<dyn Transport>>> {
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
            if let Err(error) = installed {
                for link in &self.wanted[..place] {
                    if let Err(error) = link.uninstall(Duration::from_secs(1)).await {
                        tracing::warn!(link = link.name(), %error, "a link does not go away");
                    }
                }
                return Err(error);
            }
        }
        Ok(self.wanted)
    }
}
