//! The segments of other processes that this one has opened, by name.

use std::{
    collections::hash_map::Entry,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mooncake_proto::tent::{
    GetSegmentResponse, NotifyRequest, NotifyResponse, StageRequest, StageResponse,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::runtime::Handle;
use tonic::Streaming;

use super::{Fences, Segment, SegmentDescriptor, remote::OneOpening, watch::Follower};
use crate::{
    control::{ControlClient, Unanswered},
    error::{Error, Result},
    metrics::RefreshMetrics,
    platform::after,
    registry::{self, Registry},
};

/// How long finding an owner may take that is to be followed.
const WATCH_BUDGET: Duration = Duration::from_secs(1);

/// Fences of so many names are kept, whoever needs them.
const FENCES: usize = 1024;

/// Opens segments and keeps what is known of them fresh.
#[derive(Debug)]
pub(crate) struct SegmentManager {
    /// Its lock is taken before that of `places`.
    open: Mutex<FxHashMap<String, Open>>,
    /// Owners are not followed any more.
    stopped: AtomicBool,
    fences: Mutex<FxHashMap<String, Arc<Fences>>>,
    client: ControlClient,
    registry: Option<Arc<dyn Registry>>,
    /// Where the owners of names that are open were last found.
    places: Mutex<FxHashMap<String, String>>,
    runtime: Handle,
    refreshes: Mutex<RefreshMetrics>,
    me: Weak<Self>,
}

#[derive(Debug)]
struct Open {
    segment: Segment,
    /// Each that was handed out and may be in use.
    openings: Vec<OneOpening>,
    /// `None` once the engine is being shut down.
    _follower: Option<Follower>,
}

impl Open {
    fn opened_again(&mut self) -> Segment {
        if self.openings.len() == self.openings.capacity() {
            self.openings.retain(OneOpening::is_in_use);
        }
        let opened = self.segment.opened_again();
        self.openings.push(opened.as_opened());
        opened
    }

    fn is_in_use(&self) -> bool {
        self.openings.iter().any(OneOpening::is_in_use)
    }
}

impl SegmentManager {
    /// Names that are no addresses are looked up in `registry`. Call it within a tokio runtime, on
    /// which owners are followed.
    pub(crate) fn new(registry: Option<Arc<dyn Registry>>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            open: Mutex::default(),
            stopped: AtomicBool::new(false),
            fences: Mutex::default(),
            client: ControlClient::default(),
            registry,
            places: Mutex::default(),
            runtime: Handle::current(),
            refreshes: Mutex::default(),
            me: Weak::clone(me),
        })
    }

    /// Asks the segment's owner to take a notification.
    pub(crate) async fn notify(
        &self,
        segment: &Segment,
        request: NotifyRequest,
    ) -> Result<NotifyResponse, Unanswered> {
        let place = self.found(segment).await?;
        let answer = self.client.notify(&place, request).await;
        self.look_again_unless(answer.is_ok(), segment).await;
        answer
    }

    /// Asks the segment's owner for a step of a transfer that goes through its stage.
    pub(crate) async fn stage(
        &self,
        segment: &Segment,
        request: StageRequest,
    ) -> Result<StageResponse, Unanswered> {
        let place = self.found(segment).await?;
        let answer = self.client.stage(&place, request).await;
        self.look_again_unless(answer.is_ok(), segment).await;
        answer
    }

    /// Which life of the segment's owner answers now, raw.
    pub(crate) async fn probe(&self, segment: &Segment) -> Result<u64, Unanswered> {
        let place = self.found(segment).await?;
        let answer = self.client.probe(&place).await;
        self.look_again_unless(answer.is_ok(), segment).await;
        answer
    }

    /// The connection to the segment's owner may lead nowhere any more.
    pub(crate) fn forget_connection(&self, segment: &Segment) {
        if let Some(place) = self.last_place(segment) {
            self.client.forget(&place);
        }
    }

    async fn found(&self, segment: &Segment) -> Result<String, Unanswered> {
        match self.last_place(segment) {
            Some(place) => Ok(place),
            None => {
                let place = self.place(segment.name(), WATCH_BUDGET).await;
                place.map_err(|error| Unanswered::NotSent(error.to_string()))
            }
        }
    }

    /// An owner that does not answer may have moved, which the next one who asks should know.
    async fn look_again_unless(&self, answered: bool, segment: &Segment) {
        if !answered && !registry::is_address(segment.name()) {
            let _unknown = self.place(segment.name(), WATCH_BUDGET).await;
        }
    }

    /// The segment of this name, fetched from its owner unless it is open already.
    pub(crate) async fn open(&self, name: &str, budget: Duration) -> Result<Segment> {
        if let Some(open) = self.open.lock().get_mut(name) {
            return Ok(open.opened_again());
        }
        let end = after(budget);
        let place = self.place(name, budget).await?;
        let left = end.saturating_duration_since(Instant::now());
        let fetched = self.fetch(&place, name, None, left).await?;
        let descriptor = fetched.ok_or_else(|| Error::Unreachable {
            segment: name.to_owned(),
            message: "it answers without a segment".to_owned(),
        })?;
        Ok(self.learned(name, descriptor, &place))
    }

    /// The segment of this name, with what somebody says of it and of its owner's place unless it is
    /// open already.
    pub(crate) fn learned(
        &self,
        name: &str,
        descriptor: SegmentDescriptor,
        place: &str,
    ) -> Segment {
        let fences = self.fences_of(name);
        let life = descriptor.incarnation();
        let mut open = self.open.lock();
        // Whoever came first in the meantime is as good.
        let (open, is_new) = match open.entry(name.to_owned()) {
            Entry::Occupied(open) => (open.into_mut(), false),
            Entry::Vacant(vacant) => {
                let open = Open {
                    segment: Segment::new(name.to_owned(), descriptor, fences),
                    openings: Vec::new(),
                    _follower: None,
                };
                (vacant.insert(open), true)
            }
        };
        // What is said of another life may be old.
        if is_new || open.segment.incarnation() == life {
            self.saw(name, place);
        }
        if is_new && !self.stopped.load(Ordering::Acquire) {
            let follow = |me| Follower::follow(&me, open.segment.clone());
            open._follower = self.me.upgrade().map(follow);
        }
        open.opened_again()
    }

    /// They stay the same ones for as long as anybody has the segment, or a task that is not quiet.
    fn fences_of(&self, name: &str) -> Arc<Fences> {
        let mut fences = self.fences.lock();
        if let Some(fences) = fences.get(name) {
            return Arc::clone(fences);
        }
        if fences.len() >= FENCES && fences.len() == fences.capacity() {
            fences.retain(|_, fences| Arc::strong_count(fences) > 1);
        }
        Arc::clone(fences.entry(name.to_owned()).or_default())
    }

    /// The owner of this name was last seen there.
    fn saw(&self, name: &str, place: &str) {
        if !registry::is_address(name) {
            let mut places = self.places.lock();
            places.insert(name.to_owned(), place.to_owned());
        }
    }

    /// Where the owner of this segment was last seen.
    pub(crate) fn last_place(&self, segment: &Segment) -> Option<String> {
        let name = segment.name();
        if registry::is_address(name) {
            return Some(name.to_owned());
        }
        self.places.lock().get(name).cloned()
    }

    /// Owners are not followed any more.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Whoever opens one has the lock, or sees that.
        for open in self.open.lock().values_mut() {
            open._follower = None;
        }
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// What the owner tells of changes from now on.
    pub(super) async fn watch(&self, segment: &Segment) -> Result<Streaming<GetSegmentResponse>> {
        let name = segment.name();
        let place = match self.last_place(segment) {
            Some(place) => place,
            None => self.place(name, WATCH_BUDGET).await?,
        };
        let known = segment.descriptor();
        let watched = self.client.watch(&place, name, &known).await;
        watched.map_err(|fault| Error::Unreachable {
            segment: name.to_owned(),
            message: fault.to_string(),
        })
    }

    /// Ends one opening of it. With the last one the segment is forgotten.
    pub(crate) fn close(&self, segment: &Segment) {
        segment.close();
        let mut open = self.open.lock();
        let Some(other) = open.get_mut(segment.name()) else {
            return;
        };
        if other.segment.is(segment) && !other.is_in_use() {
            open.remove(segment.name());
            self.places.lock().remove(segment.name());
        }
    }

    /// What became of fetching descriptors anew.
    pub(crate) fn refreshes(&self) -> RefreshMetrics {
        *self.refreshes.lock()
    }

    /// Fetches the descriptor anew, unless another caller has done so since `seen`.
    pub(crate) async fn refresh(
        &self,
        segment: &Segment,
        seen: &SegmentDescriptor,
        budget: Duration,
    ) -> Result<()> {
        // The others' fetches before ours cost of our budget, too.
        let end = after(budget);
        let only = tokio::time::timeout(budget, segment.refreshing()).await;
        let _only = only.map_err(|_| Error::Unreachable {
            segment: segment.name().to_owned(),
            message: format!("no answer to others within {budget:?}"),
        })?;
        let is_seen = {
            let known = segment.known();
            known.descriptor.incarnation() == seen.incarnation()
                && known.descriptor.version() == seen.version()
        };
        if is_seen {
            let name = segment.name();
            let left = |end: Instant| end.saturating_duration_since(Instant::now());
            let fetched = async {
                let place = self.place(name, left(end)).await?;
                self.fetch(&place, name, Some(seen), left(end)).await
            };
            let fresh = fetched.await;
            {
                let mut refreshes = self.refreshes.lock();
                match &fresh {
                    Ok(_) => refreshes.fetched += 1,
                    Err(_) => refreshes.failed += 1,
                }
            }
            let fresh = fresh?;
            if let Some(fresh) = fresh {
                segment.learn(fresh);
            }
        }
        Ok(())
    }

    /// What the owner at `place` says, who need not repeat what is known; `None`: there is nothing else.
    async fn fetch(
        &self,
        place: &str,
        name: &str,
        known: Option<&SegmentDescriptor>,
        budget: Duration,
    ) -> Result<Option<SegmentDescriptor>> {
        let end = after(budget);
        let unreachable = |message: String| Error::Unreachable {
            segment: name.to_owned(),
            message,
        };
        let ask = async |known: Option<&SegmentDescriptor>| {
            let left = end.saturating_duration_since(Instant::now());
            let asked = self.client.segment(place, name, known);
            let answer = tokio::time::timeout(left, asked).await;
            answer
                .map_err(|_| {
                    self.client.forget(place);
                    unreachable(format!("no answer from {place} within {budget:?}"))
                })?
                .map_err(|fault| unreachable(fault.to_string()))
        };
        let answer = ask(known).await?;
        let whole = match (answer.segment, answer.delta, known) {
            (Some(whole), ..) => Some(whole),
            (None, Some(delta), Some(known)) => match known.with_delta(delta) {
                Ok(next) => return Ok(Some(next)),
                Err(what) => {
                    tracing::debug!(name, what, "a change does not fit");
                    ask(None).await?.segment
                }
            },
            (None, ..) => None,
        };
        let whole = whole.map(SegmentDescriptor::from_wire).transpose();
        whole.map_err(unreachable)
    }

    /// Where the owner's control service is.
    async fn place(&self, name: &str, budget: Duration) -> Result<String> {
        if registry::is_address(name) {
            return Ok(name.to_owned());
        }
        let last = self.places.lock().get(name).cloned();
        let looked_up = match &self.registry {
            Some(registry) => {
                // Whoever is known to be somewhere may be there still when nobody can say.
                let budget = if last.is_some() { budget / 2 } else { budget };
                let asked = registry.look_up(name);
                let entry = registry::within(&**registry, name, budget, asked).await;
                entry.map(|entry| entry.map(|entry| entry.control))
            }
            None => Ok(None),
        };
        match (looked_up, last) {
            (Ok(Some(place)), _) => {
                // Nobody would forget it if the segment was closed.
                let open = self.open.lock();
                if open.contains_key(name) {
                    self.saw(name, &place);
                }
                Ok(place)
            }
            (Err(error), Some(last)) => {
                tracing::debug!(name, %error, last, "the last known place must do");
                Ok(last)
            }
            // Not in the registry, but handed to us by somebody who knew.
            (Ok(None), Some(last)) => Ok(last),
            (Err(error), None) => Err(error),
            (Ok(None), None) => Err(Error::Unreachable {
                segment: name.to_owned(),
                message: match &self.registry {
                    Some(registry) => format!("{} has no such name", registry.place()),
                    None => "it is no host:port, and there is no registry to ask".to_owned(),
                },
            }),
        }
    }
}
