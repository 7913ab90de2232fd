//! How an engine comes to be.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use super::{Conflict, Conflicts, TentEngine, TransportLoader, attempt::Attempts, tent::Parts};
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
    transport::{ArrivalBook, Claim, FAILOVERS, InstallContext, TaskSlab, Transport},
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
    install_budget: Duration,
}

/// How long links are waited for that cannot be installed just now.
const INSTALL: Duration = Duration::from_secs(2);
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
            install_budget: INSTALL,
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

    /// Adds a link if this machine has what it needs; [`TentEngine::absent_links`] says why not. Where
    /// the reason may pass, it comes later.
    pub fn transport_if_possible(mut self, link: impl Transport) -> Self {
        self.loader.want_if_possible(Arc::new(link));
        self
    }

    /// How long [`build`](Self::build) waits in all for links that cannot be installed for a reason
    /// that may pass, such as an address that somebody else still has; 2 s unless told otherwise, and
    /// a dozen attempts for each link at most. With none, each is tried once.
    pub fn install_budget(mut self, budget: Duration) -> Self {
        self.install_budget = budget;
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
    /// What it was told does not go together, a link cannot be installed, an address cannot be listened on, or the registry does not let
    /// us have the name. One that another process has is waited for as long as a lease takes to end.
    pub async fn build(mut self) -> Result<TentEngine> {
        // One that was added like any other link takes its place.
        let missing = || !self.loader.wants(loopback::NAME);
        let in_process = self.in_process.take();
        if let Some(in_process) = in_process.or_else(|| missing().then(InProcess::new)) {
            self.loader.want(Arc::new(in_process));
        }
        let conflicts = self.check()?;
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
            served: Arc::default(),
            staging: Arc::default(),
        };
        let links = self.loader.load(&context, self.install_budget).await?;
        let parts = Parts {
            name: name.clone(),
            place: place.clone(),
            machine: platform::machine(),
            patience: self.patience,
            notifications: self.notifications,
            attempts: self.attempts,
            context,
            links,
            conflicts,
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

    /// Finds all that does not go together; what is only doubtful is handed back.
    fn check(&self) -> Result<Conflicts> {
        let control = self.listen.map(Claim::Address);
        let control = control.map(|claim| ("the control service".to_owned(), claim));
        let mut conflicts = self
            .loader
            .conflicts(control.into_iter().collect(), &self.policies);
        conflicts.extend(self.contradictions().into_iter().map(Conflict::Settings));
        if self.attempts.failovers == 0
            && let Some(timeout) = self.attempts.timeout
        {
            conflicts.push(Conflict::NoEffect(format!(
                "an attempt may take {timeout:?}, and no other may follow it"
            )));
        }
        if conflicts.iter().any(Conflict::is_fatal) {
            conflicts.retain(Conflict::is_fatal);
            return Err(Error::Conflicts(Conflicts(conflicts)));
        }
        for conflict in &conflicts {
            tracing::warn!(%conflict, "this is not likely to be meant");
        }
        Ok(Conflicts(conflicts))
    }

    /// Settings that contradict each other or themselves.
    fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.listen.is_none()
            && let Some(advertise) = &self.advertise
        {
            found.push(format!(
                "{advertise} is advertised, and there is no control service"
            ));
        }
        let Some(name) = &self.segment_name else {
            return found;
        };
        let unspecified = self
            .listen
            .is_some_and(|listen| listen.ip().is_unspecified());
        found.extend(check_name(name).err());
        for (wrong, why) in [
            (self.registry.is_none(), "there is no registry to keep it"),
            (
                self.listen.is_none(),
                "nobody could open it without a control service",
            ),
            (
                unspecified && self.advertise.is_none(),
                "an address that others reach must be advertised",
            ),
            (
                self.lease < SHORTEST_LEASE,
                "its lease is too short, 100 ms is the least",
            ),
            (
                self.lease > LONGEST_LEASE,
                "its lease is too long, a day is the most",
            ),
        ] {
            if wrong {
                found.push(format!("the name {name:?}: {why}"));
            }
        }
        found
    }
}
