//! A link that does with each task what the test says, and moves no byte by itself.
#![allow(dead_code, reason = "each test needs another part")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

pub(crate) mod pair;

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, OnceLock, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mooncake_tent::{
    Error, LocalBuffer, PeerId, RegistrationId, Result, Stage,
    selector::LinkDevices,
    transport::{
        Attachment, BoxFuture, Capabilities, Claim, InstallContext, LinkGauges, Outcome, Peer,
        SubBatch, TaskRef, TaskSpec, Tasks, Transport,
    },
};

/// What becomes of a task.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// It is done at once.
    Complete,
    /// It ends like this, and is quiet or not.
    End(Outcome, bool),
    /// Nothing is heard of it, but a wish to cancel it is granted.
    Hold,
    /// The whole submission is refused.
    Refuse,
}

/// What becomes of a buffer.
type Answer = dyn Fn() -> Result<Attachment> + Send + Sync;

type Script = dyn Fn(&TaskSpec, usize) -> Act + Send + Sync;

struct Shared {
    name: &'static str,
    devices: Vec<&'static str>,
    needs_no_device: bool,
    script: RwLock<Box<Script>>,
    tasks: OnceLock<Tasks>,
    came: Mutex<Vec<(TaskRef, TaskSpec)>>,
    deaf: AtomicBool,
    fenced: Mutex<Vec<PeerId>>,
    /// What becomes of each installation; none left: it works.
    installs: Mutex<VecDeque<Result<()>>>,
    installed: AtomicUsize,
    uninstalled: AtomicUsize,
    claims: Vec<Claim>,
    /// Buffers that it was given, and those that it has still.
    given: Mutex<Vec<RegistrationId>>,
    held: Mutex<Vec<RegistrationId>>,
    answer: RwLock<Box<Answer>>,
    /// Tasks that it has and does nothing for.
    holding: Mutex<Vec<TaskRef>>,
}

/// A handle on it: the engine has another.
#[derive(Clone)]
pub(crate) struct Scripted(Arc<Shared>);

impl Scripted {
    /// Completes every task, and has no device that one could name.
    pub(crate) fn new(name: &'static str) -> Self {
        Self::with(name, Vec::new(), true, Vec::new())
    }

    /// As `new`, and it wants something for itself.
    pub(crate) fn claiming(name: &'static str, claims: &[Claim]) -> Self {
        Self::with(name, Vec::new(), true, claims.to_vec())
    }

    /// Completes every task, through these devices; without any it does not say.
    pub(crate) fn over(name: &'static str, devices: &[&'static str]) -> Self {
        Self::with(name, devices.to_vec(), false, Vec::new())
    }

    fn with(
        name: &'static str,
        devices: Vec<&'static str>,
        needs_no_device: bool,
        claims: Vec<Claim>,
    ) -> Self {
        Self(Arc::new(Shared {
            name,
            devices,
            needs_no_device,
            script: RwLock::new(Box::new(|_, _| Act::Complete)),
            tasks: OnceLock::new(),
            came: Mutex::default(),
            deaf: AtomicBool::new(false),
            fenced: Mutex::default(),
            installs: Mutex::default(),
            installed: AtomicUsize::new(0),
            uninstalled: AtomicUsize::new(0),
            claims,
            given: Mutex::default(),
            held: Mutex::default(),
            answer: RwLock::new(Box::new(|| Ok(Attachment::Attached))),
            holding: Mutex::default(),
        }))
    }

    /// Decides about each task from now on, by what it asks and how many came before it.
    pub(crate) fn does(&self, script: impl Fn(&TaskSpec, usize) -> Act + Send + Sync + 'static) {
        *self.0.script.write().unwrap() = Box::new(script);
    }

    /// Answers so from now on when it is given a buffer.
    pub(crate) fn takes(&self, answer: impl Fn() -> Result<Attachment> + Send + Sync + 'static) {
        *self.0.answer.write().unwrap() = Box::new(answer);
    }

    /// The next installations end like this, and those that follow work.
    pub(crate) fn installs_like(&self, ends: impl IntoIterator<Item = Result<()>>) {
        self.0.installs.lock().unwrap().extend(ends);
    }

    /// How often somebody tried to install it.
    pub(crate) fn installations(&self) -> usize {
        self.0.installed.load(Ordering::SeqCst)
    }

    /// How often it was told to go.
    pub(crate) fn uninstallations(&self) -> usize {
        self.0.uninstalled.load(Ordering::SeqCst)
    }

    /// Buffers that it was given, one by one.
    pub(crate) fn given(&self) -> Vec<RegistrationId> {
        self.0.given.lock().unwrap().clone()
    }

    /// Those that it has still.
    pub(crate) fn held(&self) -> Vec<RegistrationId> {
        self.0.held.lock().unwrap().clone()
    }

    /// What came, in order.
    pub(crate) fn came(&self) -> Vec<TaskSpec> {
        let came = self.0.came.lock().unwrap();
        came.iter().map(|(_, spec)| spec.clone()).collect()
    }

    /// How many came.
    pub(crate) fn count(&self) -> usize {
        self.0.came.lock().unwrap().len()
    }

    /// Who was fenced, in order.
    pub(crate) fn fenced(&self) -> Vec<PeerId> {
        self.0.fenced.lock().unwrap().clone()
    }

    /// From now on it does not hear wishes to cancel.
    pub(crate) fn ignores_cancel(&self) {
        self.0.deaf.store(true, Ordering::SeqCst);
    }

    /// A task that was held ends now.
    pub(crate) fn end(&self, number: usize, end: Outcome, quiet: bool) {
        let (task, _) = self.0.came.lock().unwrap()[number];
        self.tasks().finish(task, end, quiet);
    }

    /// As `end`, with all its bytes moved.
    pub(crate) fn complete(&self, number: usize) {
        let bytes = self.came()[number].length;
        self.end(number, Outcome::Completed { bytes }, true);
    }

    /// A task that ended is quiet now.
    pub(crate) fn settle(&self, number: usize) {
        let (task, _) = self.0.came.lock().unwrap()[number];
        self.tasks().settle(task);
    }

    fn tasks(&self) -> &Tasks {
        self.0.tasks.get().expect("it is installed")
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scripted").field(&self.0.name).finish()
    }
}

impl Transport for Scripted {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::read_write()
    }

    fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        self.0.installed.fetch_add(1, Ordering::SeqCst);
        let end = self.0.installs.lock().unwrap().pop_front();
        let end = end.unwrap_or(Ok(()));
        if end.is_ok() {
            let _first = self.0.tasks.set(Arc::clone(engine.tasks()));
        }
        Box::pin(async { end })
    }

    fn claims(&self) -> Vec<Claim> {
        self.0.claims.clone()
    }

    fn endpoint(&self) -> Option<String> {
        None
    }

    fn uninstall(&self, _budget: Duration) -> BoxFuture<'_, Result<()>> {
        self.0.uninstalled.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(()) })
    }

    fn add_memory_buffer<'a>(
        &'a self,
        buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>> {
        assert!(self.0.tasks.get().is_some(), "it is not installed");
        Box::pin(async {
            self.0.given.lock().unwrap().push(buffer.id());
            tokio::task::yield_now().await;
            let answer = self.0.answer.read().unwrap()();
            if matches!(answer, Ok(Attachment::Attached)) {
                self.0.held.lock().unwrap().push(buffer.id());
            }
            answer
        })
    }

    fn remove_memory_buffer(&self, id: RegistrationId) -> BoxFuture<'_, Result<()>> {
        self.0.held.lock().unwrap().retain(|held| *held != id);
        Box::pin(async { Ok(()) })
    }

    fn allocate_sub_batch(&self, _capacity: usize) -> Result<Box<dyn SubBatch>> {
        Ok(Box::new(self.clone()))
    }

    fn devices(&self) -> LinkDevices<'_> {
        match (&*self.0.devices, self.0.needs_no_device) {
            ([], true) => LinkDevices::NotNeeded,
            ([], false) => LinkDevices::Unchosen,
            (names, _) => LinkDevices::Named(names),
        }
    }

    fn reaches(&self, _peer: &Peer) -> bool {
        true
    }

    fn warm_up<'a>(&'a self, _peer: &'a Arc<Peer>, _budget: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn fence(&self, peer: PeerId, _budget: Duration) -> BoxFuture<'_, Result<()>> {
        self.0.fenced.lock().unwrap().push(peer);
        Box::pin(async { Ok(()) })
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        None
    }

    fn gauges(&self) -> LinkGauges {
        LinkGauges::default()
    }
}

impl SubBatch for Scripted {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()> {
        for task in tasks {
            let Some(spec) = self.tasks().spec(*task) else {
                continue;
            };
            let number = {
                let mut came = self.0.came.lock().unwrap();
                let mut kept = spec.clone();
                kept.local.clear();
                came.push((*task, kept));
                came.len() - 1
            };
            let act = self.0.script.read().unwrap()(&spec, number);
            let bytes = spec.length;
            drop(spec);
            match act {
                Act::Complete => {
                    self.tasks()
                        .finish(*task, Outcome::Completed { bytes }, true);
                }
                Act::End(end, quiet) => self.tasks().finish(*task, end, quiet),
                Act::Hold => self.0.holding.lock().unwrap().push(*task),
                Act::Refuse => {
                    return Err(Error::Busy {
                        what: "the link",
                        limit: 0,
                    });
                }
            }
        }
        Ok(())
    }

    fn cancel_transfer_task(&self, task: TaskRef) {
        // Before that it does not know of it.
        let ours = self.0.holding.lock().unwrap().contains(&task);
        if ours
            && !self.0.deaf.load(Ordering::SeqCst)
            && let Some(spec) = self.tasks().spec(task)
        {
            let end = Outcome::cancelled(Stage::Move, spec.peer.id());
            self.tasks().finish(task, end, true);
        }
    }

    fn drive(&self, _budget: Duration) -> bool {
        false
    }

    fn hand_over(&self) {}
}
