//! How an engine comes to be.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use super::{TentEngine, TransportLoader, attempt::Attempts, loader::Loaded, tent::Parts};
use crate::{
    admission::AdmissionConfig,
    control::ControlServer,
    error::{Error, Result},
    identity::Incarnation,
    loopback::{self, InProcess},
    memory::BufferTable,
    platform,
    registry::{Entry, Registry, Tenure, check_name},
    selector::Policies,
    transport::{ArrivalBook, FAILOVERS, InstallContext, TaskSlab, Transport},
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
    registry: Option<Arc<dyn Registry>>,
    segment_name: Option<String>,
    lease: Duration,
    notifications: usize,
    arrivals: usize,
    policies: Policies,
    attempts: Attempts,
    admission: Option<AdmissionConfig>,
}

/// How long a name stays in a registry after its owner is gone.
const LEASE: Duration = Duration::from_secs(5);
/// Shorter ones would be all about renewing them.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// Longer ones would be all but for ever.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

impl TentEngineBuilder {
    pub(super) fn new() -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            advertise: None,
            loader: TransportLoader::default(),
            in_process: None,
            patience: Duration::from_secs(30),
            registry: None,
            segment_name: None,
            lease: LEASE,
            notifications: 1024,
            arrivals: 4096,
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

    /// The `host:port` under which others reach the control service, and the name of the segment
    /// unless it has [another](Self::segment_name). Without it, the address that is listened on.
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

    /// Where names of segments are looked up that are no `host:port`.
    pub fn registry(mut self, registry: impl Registry) -> Self {
        self.registry = Some(Arc::new(registry));
        self
    }

    /// The name of this process's segment in the [registry](Self::registry), instead of the
    /// `host:port` of its control service: up to 200 bytes without colons, spaces and control
    /// characters.
    pub fn segment_name(mut self, name: impl Into<String>) -> Self {
        self.segment_name = Some(name.into());
        self
    }

    /// How long the name stays in the registry after this process is gone without a word; 5 s unless
    /// told otherwise, 100 ms at least and a day at most. It is claimed anew three times as often.
    pub fn registry_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How many notifications wait to be received; peers that send more are told that we are busy. 1024
    /// unless told otherwise.
    pub fn notification_room(mut self, notifications: usize) -> Self {
        self.notifications = notifications;
        self
    }

    /// How many writes whose writers want us to know wait to be [taken](crate::TransferEngine::receive_arrivals),
    /// under way or arrived; further ones are refused before a byte of them is applied. 4096 unless told
    /// otherwise.
    pub fn arrival_room(mut self, arrivals: usize) -> Self {
        self.arrivals = arrivals;
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
    /// A link cannot be installed, an address cannot be listened on, or the registry does not let
    /// us have the name. One that another process has is waited for as long as a lease takes to end.
    pub async fn build(mut self) -> Result<TentEngine> {
        self.check_name()?;
        let incarnation = Incarnation::random();
        let control = match self.listen {
            Some(listen) => Some(ControlServer::start(listen).await?),
            None => None,
        };
        let place = match (self.advertise, &control) {
            (Some(address), _) => Some(address),
            (None, control) => control.as_ref().map(|it| it.address().to_string()),
        };
        let own_name = self.segment_name.clone().or_else(|| place.clone());
        let name = own_name.unwrap_or_else(|| format!("unreachable-{incarnation}"));
        let context = InstallContext {
            incarnation,
            tasks: Arc::new(TaskSlab::with_failovers(self.attempts.failovers)),
            buffers: Arc::new(BufferTable::new()),
            arrivals: ArrivalBook::new(self.arrivals),
            staging: Arc::default(),
        };
        // One that was added like any other link takes its place.
        let missing = || !self.loader.wants(loopback::NAME);
        let in_process = self.in_process.or_else(|| missing().then(InProcess::new));
        if let Some(in_process) = in_process {
            self.loader.want(Arc::new(in_process));
        }
        let Loaded { links, absent } = self.loader.load(&context).await?;
        let parts = Parts {
            name: name.clone(),
            place: place.clone(),
            machine: platform::machine(),
            patience: self.patience,
            notifications: self.notifications,
            attempts: self.attempts,
            context,
            links,
            absent,
            control,
            registry: self.registry.clone(),
            tenure: OnceLock::new(),
        };
        let engine = TentEngine::assemble(parts, self.policies, self.admission);
        // Peers that find it are answered from here on (law 8).
        if let (Some(_), Some(registry), Some(control)) = (self.segment_name, self.registry, place)
        {
            let entry = Entry {
                control,
                incarnation,
            };
            engine.hold(Tenure::begin(registry, name, entry, self.lease).await?);
        }
        Ok(engine)
    }

    /// Whether there can be a name of its own.
    fn check_name(&self) -> Result<()> {
        let Some(name) = &self.segment_name else {
            return Ok(());
        };
        check_name(name).map_err(Error::Invalid)?;
        let invalid = |why: &str| Err(Error::Invalid(format!("the name {name:?}: {why}")));
        let unspecified = self
            .listen
            .is_some_and(|listen| listen.ip().is_unspecified());
        if self.registry.is_none() {
            invalid("there is no registry to keep it")
        } else if self.listen.is_none() {
            invalid("nobody could open it without a control service")
        } else if unspecified && self.advertise.is_none() {
            invalid("an address that others reach must be advertised")
        } else if self.lease < SHORTEST_LEASE {
            invalid("its lease is too short, 100 ms is the least")
        } else if self.lease > LONGEST_LEASE {
            invalid("its lease is too long, a day is the most")
        } else {
            Ok(())
        }
    }
}
