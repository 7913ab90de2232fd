//! How an engine comes to be.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use super::{TentEngine, TransportLoader, attempt::Attempts, loader::Loaded, tent::Parts};
use crate::{
    admission::AdmissionConfig,
    control::ControlServer,
    error::Result,
    identity::Incarnation,
    loopback::{self, InProcess},
    memory::BufferTable,
    platform,
    selector::Policies,
    transport::{FAILOVERS, InstallContext, TaskSlab, Transport},
};

/// Collects what an engine shall be. See [`TentEngine::builder`].
#[derive(Debug)]
#[must_use]
pub struct TentEngineBuilder {
    listen: Option<SocketAddr>,
    advertise: Option<String>,
    loader: TransportLoader,
    in_process: Option<InProcess>,
    patience: Duration,
    policies: Policies,
    attempts: Attempts,
    admission: Option<AdmissionConfig>,
}

impl TentEngineBuilder {
    pub(super) fn new() -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            advertise: None,
            loader: TransportLoader::default(),
            in_process: None,
            patience: Duration::from_secs(30),
            policies: Policies::default(),
            attempts: Attempts {
                failovers: FAILOVERS,
                timeout: None,
            },
            admission: None,
        }
    }

    /// Where the control service listens; port 0, the default on loopback, takes a free one.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// No control service: nobody can open this process's segment.
    pub fn without_control(mut self) -> Self {
        self.listen = None;
        self
    }

    /// The `host:port` under which others reach the control service, and the name of the segment.
    /// Without it, the address that is listened on.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// Adds a link.
    pub fn transport(mut self, link: impl Transport) -> Self {
        self.loader.want(Arc::new(link));
        self
    }

    /// Adds a link if this machine has what it needs; [`TentEngine::absent_links`] says why not.
    pub fn transport_if_possible(mut self, link: impl Transport) -> Self {
        self.loader.want_if_possible(Arc::new(link));
        self
    }

    /// Shares the in-process link with another engine of this process.
    pub fn in_process(mut self, link: InProcess) -> Self {
        self.in_process = Some(link);
        self
    }

    /// How long a request may take that names no deadline of its own; 30 s unless told otherwise.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Which links may carry which requests; all may unless told otherwise.
    pub fn policies(mut self, policies: Policies) -> Self {
        self.policies = policies;
        self
    }

    /// How long a link may be at a task before another link gets it, where there is another. It is
    /// never more than what the request's deadline leaves. Without it, half of the time that is left;
    /// but four times as long as such a request was seen to take on the link, if that is more.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempts.timeout = Some(timeout);
        self
    }

    /// How often a task that failed, or was at a link for too long, goes to another link at most; 3
    /// unless told otherwise.
    pub fn max_failover_attempts(mut self, attempts: u8) -> Self {
        self.attempts.failovers = attempts;
        self
    }

    /// How much may be on its way at once and for whom, so that the rest waits in order of urgency.
    /// Without it, everything goes at once.
    pub fn admission(mut self, config: AdmissionConfig) -> Self {
        self.admission = Some(config);
        self
    }

    /// Installs the links and starts the control service. Call it within a tokio runtime, which
    /// carries control and nothing else.
    ///
    /// # Errors
    ///
    /// A link cannot be installed, or an address cannot be listened on.
    pub async fn build(mut self) -> Result<TentEngine> {
        let incarnation = Incarnation::random();
        let control = match self.listen {
            Some(listen) => Some(ControlServer::start(listen).await?),
            None => None,
        };
        let name = match (self.advertise, &control) {
            (Some(name), _) => name,
            (None, Some(control)) => control.address().to_string(),
            (None, None) => format!("unreachable-{incarnation}"),
        };
        let context = InstallContext {
            incarnation,
            tasks: Arc::new(TaskSlab::with_failovers(self.attempts.failovers)),
            buffers: Arc::new(BufferTable::new()),
        };
        // One that was added like any other link takes its place.
        let missing = || !self.loader.wants(loopback::NAME);
        let in_process = self.in_process.or_else(|| missing().then(InProcess::new));
        if let Some(in_process) = in_process {
            self.loader.want(Arc::new(in_process));
        }
        let Loaded { links, absent } = self.loader.load(&context).await?;
        let parts = Parts {
            name,
            machine: platform::machine(),
            patience: self.patience,
            attempts: self.attempts,
            context,
            links,
            absent,
            control,
        };
        Ok(TentEngine::assemble(parts, self.policies, self.admission))
    }
}
