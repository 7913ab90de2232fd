//! A master as a process of its own, with a segment that objects may be placed on.

use std::time::{Duration, Instant};

use mooncake_proto::master::{ListSegmentsRequest, MountSegmentRequest, RemoveAllRequest, Segment};
use mooncake_store::{
    Clock,
    core::{MasterAnswer, MasterRequest},
    master::{ConnectOptions, Hello, MasterClient},
};
use serde::Deserialize;

use super::{
    keys::Keys,
    load::{self, Until},
    plan::{Plan, Source, Work},
};
use crate::{bench::ProcessCpu, cluster::Process, output::Failure};

/// How long the master may take to start.
const READY_BUDGET: Duration = Duration::from_secs(10);
/// How long one of our own calls may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How objects are put before the measurement.
const FILL: Plan = Plan {
    work: Work::Put,
    batch: 128,
    depth: 4,
};
const PAGE_BYTES: u64 = 4096;

#[derive(Debug, Deserialize)]
struct Ready {
    ready: ReadyMaster,
}

#[derive(Debug, Deserialize)]
struct ReadyMaster {
    address: String,
}

/// A running master.
#[derive(Debug)]
pub(super) struct MasterProcess {
    pub(super) address: String,
    pid: u32,
    /// Ends with this.
    _process: Process,
}

impl MasterProcess {
    /// Starts one on free loopback ports.
    ///
    /// # Errors
    ///
    /// It does not come up.
    pub(super) async fn start(settings: &[&str]) -> Result<Self, Failure> {
        let own = [
            "master",
            "--listen=127.0.0.1:0",
            "--admin-listen=127.0.0.1:0",
        ];
        let mut process = Process::server("the master", &[&own, settings].concat())?;
        let ready: Ready = process.ready(READY_BUDGET).await?;
        Ok(Self {
            address: ready.ready.address,
            pid: process.id().unwrap_or(0),
            _process: process,
        })
    }

    pub(super) fn cpu(&self) -> ProcessCpu {
        ProcessCpu::of(self.pid)
    }

    /// Memory that it has now.
    pub(super) fn resident_bytes(&self) -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.pid));
        let statm = statm.unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        pages.unwrap_or(0) * PAGE_BYTES
    }
}

/// A master with a segment, and the session of the segment's owner.
#[derive(Debug)]
pub(super) struct Fixture {
    pub(super) master: MasterProcess,
    owner: MasterClient,
}

impl Fixture {
    /// Starts a master and mounts a segment of `segment_bytes`, behind which there is no memory: no
    /// payload moves. Call it within a runtime that goes on while the fixture lives.
    ///
    /// # Errors
    ///
    /// The master does not come up or refuses.
    pub(super) async fn start(settings: &[&str], segment_bytes: u64) -> Result<Self, Failure> {
        let master = MasterProcess::start(settings).await?;
        let client_incarnation = rand::random::<u64>() | 1;
        let hello = Hello {
            client_incarnation,
            tenant: String::new(),
            name: "owner".to_owned(),
        };
        let owner = MasterClient::connect(&master.address, hello, ConnectOptions::default()).await;
        let owner =
            owner.map_err(|error| Failure::new("the master cannot be reached").because(error))?;
        let fixture = Self { master, owner };
        let segment = Some(Segment {
            id: rand::random::<[u8; 16]>().to_vec().into(),
            name: "127.0.0.1:1".to_owned(),
            owner_incarnation: client_incarnation,
            registration: 1,
            length: segment_bytes,
            ..Segment::default()
        });
        let mount = MasterRequest::MountSegment(MountSegmentRequest { segment });
        fixture.call(mount).await?;
        Ok(fixture)
    }

    /// Puts the first `count` of `keys`.
    ///
    /// # Errors
    ///
    /// The master refuses.
    pub(super) async fn fill(&self, keys: Keys, count: u64) -> Result<Duration, Failure> {
        let mut source = Source::fresh(keys);
        let done = load::run(&self.owner, FILL, &mut source, Until::Keys(count)).await?;
        Ok(done.wall)
    }

    /// Removes all objects, and tells how long that took.
    ///
    /// # Errors
    ///
    /// The master refuses.
    pub(super) async fn remove_all(&self) -> Result<Duration, Failure> {
        let began = Instant::now();
        let request = MasterRequest::RemoveAll(RemoveAllRequest::default());
        self.call(request).await?;
        Ok(began.elapsed())
    }

    /// Objects that had to make room so far.
    ///
    /// # Errors
    ///
    /// The master refuses.
    pub(super) async fn evicted_objects(&self) -> Result<u64, Failure> {
        let request = MasterRequest::ListSegments(ListSegmentsRequest::default());
        match self.call(request).await? {
            MasterAnswer::ListSegments(answer) => Ok(answer.evicted_objects),
            _ => Err(Failure::new("the master answers something else")),
        }
    }

    /// Asks the master.
    ///
    /// # Errors
    ///
    /// It refuses.
    pub(super) async fn call(&self, request: MasterRequest) -> Result<MasterAnswer, Failure> {
        let answer = self.owner.call(request, Clock.now() + PATIENCE).await;
        answer.map_err(|fault| Failure::new("the master refuses a call").because(fault))
    }
}
