//! A link in miniature: what drives devices by the modules of [`spray`](crate::spray) and
//! [`rail`](crate::rail), and by nothing else.

use std::{collections::VecDeque, num::NonZeroU64, ops::Range, time::Duration};

use smallvec::SmallVec;

use super::{
    DeviceReport, Event, Fabric, PilotConfig, TaskId, TaskReport,
    slices::{Attempt, Piece, Slices},
};
use crate::{
    Incarnation, PeerId, Priority, Time, TimerToken, TimerWheel,
    rail::{Admission, DeviceNames, Permit, RailId, RailState, Rails},
    spray::{
        Candidate, DeviceId, Devices, NoDevice, Overdue, PostQueue, Rank, Route, SlicePlan, Spray,
        Watch, WireMeter,
    },
};

#[derive(Clone, Copy, Debug)]
enum Timer {
    Overdue(u64),
    /// Slices that found no rail try again.
    TryAgain,
}

/// What belongs to one device.
#[derive(Debug)]
struct Worker {
    rail: RailId,
    rank: Rank,
    queue: PostQueue<u64>,
    meter: WireMeter,
    watch: Watch<u64>,
    assigned: u64,
    moved: u64,
}

/// Moves tasks over a [`Fabric`] to one peer, over the rails from each device to the peer's device of
/// the same number.
#[derive(Debug)]
pub struct Pilot {
    fabric: Fabric,
    config: PilotConfig,
    spray: Spray,
    rails: Rails,
    wheel: TimerWheel<Timer>,
    workers: Vec<Worker>,
    slices: Slices,
    tasks: Vec<TaskReport>,
    /// Pieces that found no rail, and what wakes them.
    parked: VecDeque<Piece>,
    again: Option<TimerToken>,
    /// In the order in which slices were posted.
    posts: Vec<(DeviceId, TaskId)>,
}

type Permits = SmallVec<[(DeviceId, Permit, bool); 8]>;

impl Pilot {
    /// For all devices of `fabric`.
    ///
    /// # Panics
    ///
    /// There are more than 65,535 devices.
    pub fn new(fabric: Fabric, config: PilotConfig) -> Self {
        let peer: PeerId = Incarnation::from_u64(1).expect("1 is not 0");
        let mut names = DeviceNames::new();
        let workers: Vec<_> = fabric
            .nics()
            .enumerate()
            .map(|(number, nic)| Worker {
                rail: RailId {
                    local: DeviceId(u16::try_from(number).expect("there are fewer devices")),
                    peer,
                    remote: names.id(&format!("nic{number}")).expect("there is room"),
                },
                rank: nic.rank,
                queue: PostQueue::new(config.queue, config.aging),
                meter: WireMeter::new(),
                watch: Watch::new(config.patience),
                assigned: 0,
                moved: 0,
            })
            .collect();
        Self {
            spray: Spray::new(workers.len() as u16, config.spray),
            rails: Rails::new(config.rails),
            wheel: TimerWheel::new(fabric.now(), Duration::from_micros(64)),
            workers,
            slices: Slices::default(),
            tasks: Vec::new(),
            parked: VecDeque::new(),
            again: None,
            posts: Vec::new(),
            fabric,
            config,
        }
    }

    /// Submits a transfer of `length` bytes over devices of `allowed`.
    ///
    /// # Errors
    ///
    /// `allowed` permits no device.
    ///
    /// # Panics
    ///
    /// `length` is 0.
    pub fn submit(
        &mut self,
        length: u64,
        priority: Priority,
        allowed: &Devices,
    ) -> Result<TaskId, NoDevice> {
        let all = self.workers.iter().map(|worker| Candidate {
            device: worker.rail.local,
            rank: worker.rank,
            probe: false,
        });
        let width = self.spray.route(all, allowed)?.width();
        let (task, now) = (TaskId(self.tasks.len()), self.now());
        self.tasks.push(TaskReport {
            length,
            priority,
            submitted: now,
            ended: None,
            moved: Vec::new(),
            allowed: allowed.clone(),
            open: 0,
            unwanted: false,
        });
        let (route, permits) = self.admitted(allowed, None);
        let width = route.as_ref().map_or(width, Route::width);
        let plan = SlicePlan::new(length, &self.config.limits, width).expect("it is not empty");
        self.tasks[task.0].open = plan.len();
        let piece = Piece {
            task,
            range: 0..length,
            failures: 0,
            failed_on: None,
            since: now,
        };
        self.spread(&piece, route.as_ref(), &permits, &plan);
        Ok(task)
    }

    /// Asks for an early end: what is not posted is dropped, what is posted ends by itself.
    pub fn cancel(&mut self, task: TaskId) {
        self.tasks[task.0].unwanted = true;
    }

    /// Goes on until nothing is to be done, or until `limit`.
    pub fn run(&mut self, limit: Time) {
        self.run_until(limit, |_| false);
    }

    /// Goes on until `done`, or until nothing is to be done, or until `limit`; whether it is done.
    pub fn run_until(&mut self, limit: Time, done: impl Fn(&Self) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            let idle = self.slices.len() == 0 && self.parked.is_empty() && self.fabric.is_idle();
            if idle || self.now() >= limit {
                return false;
            }
            let timer = self.wheel.next_due().unwrap_or(limit);
            match self.fabric.next(timer.min(limit)) {
                Some(event) => self.on_event(event),
                None => {
                    while let Some((_, timer)) = self.wheel.pop(self.now()) {
                        self.on_timer(timer);
                    }
                }
            }
        }
    }

    /// What the clock shows.
    pub fn now(&self) -> Time {
        self.fabric.now()
    }

    /// The devices, to break them.
    pub fn fabric_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// How many devices there are.
    pub fn devices(&self) -> u16 {
        self.workers.len() as u16
    }

    /// How a task is.
    pub fn task(&self, task: TaskId) -> &TaskReport {
        &self.tasks[task.0]
    }

    /// How a device is.
    pub fn device(&self, device: DeviceId) -> DeviceReport {
        let worker = &self.workers[usize::from(device.0)];
        let load = &self.spray.loads()[usize::from(device.0)];
        DeviceReport {
            assigned: worker.assigned,
            moved: worker.moved,
            in_flight: load.in_flight(),
            rate: load.rate(self.now(), self.config.spray.stale_after),
            rail: self.rails.state(worker.rail),
        }
    }

    /// Bytes in flight on all devices.
    pub fn in_flight(&self) -> u64 {
        let loads = self.spray.loads().iter();
        loads.map(|load| load.in_flight()).sum()
    }

    /// Slices that have not ended, and timers that wait for them.
    pub fn unfinished(&self) -> usize {
        self.slices.len() + self.parked.len() + self.wheel.len()
    }

    /// Which slices were posted where, in order.
    pub fn posts(&self) -> &[(DeviceId, TaskId)] {
        &self.posts
    }

    /// The devices that may be used now, and the permits of their rails.
    fn admitted(
        &mut self,
        allowed: &Devices,
        failed_on: Option<DeviceId>,
    ) -> (Option<Route>, Permits) {
        let now = self.now();
        let mut permits = Permits::new();
        let mut candidates = SmallVec::<[Candidate; 8]>::new();
        for worker in &self.workers {
            let device = worker.rail.local;
            if !allowed.contains(device) || failed_on == Some(device) {
                continue;
            }
            let admission = self.rails.admit(now, worker.rail);
            let probe = matches!(admission, Admission::Probe(_));
            if let Some(permit) = admission.permit() {
                permits.push((device, permit, probe));
                candidates.push(Candidate {
                    device,
                    rank: worker.rank,
                    probe,
                });
            }
        }
        if candidates.is_empty() && failed_on.is_some() {
            return self.admitted(allowed, None);
        }
        (self.spray.route(candidates, allowed).ok(), permits)
    }

    /// Queues the slices of a piece on the devices of a route.
    fn spread(
        &mut self,
        piece: &Piece,
        route: Option<&Route>,
        permits: &Permits,
        plan: &SlicePlan,
    ) {
        let now = self.now();
        let priority = self.tasks[piece.task.0].priority;
        let part = |range: Range<u64>| Piece {
            range: piece.range.start + range.start..piece.range.start + range.end,
            ..piece.clone()
        };
        let mut left = 0..plan.len();
        let mut used = Devices::new();
        if let Some(route) = route {
            let mut assignments = self.spray.assign(now, route, plan, priority);
            for (range, charge) in assignments.by_ref() {
                let device = charge.device();
                let (_, permit, _) = permits
                    .iter()
                    .find(|(admitted, ..)| *admitted == device)
                    .expect("routes have admitted devices only");
                used.insert(device);
                let worker = &mut self.workers[usize::from(device.0)];
                worker.assigned += 1;
                let token = self.slices.insert(Attempt {
                    piece: part(range),
                    charge,
                    rail: worker.rail,
                    permit: *permit,
                    timer: None,
                });
                if worker.queue.push(piece.since, priority, token).is_err() {
                    let attempt = self.slices.remove(token).expect("it was just inserted");
                    self.parked.push_back(attempt.piece);
                }
            }
            left = assignments.left();
        }
        let rest = left.map(|index| part(plan.slice(index)));
        self.parked.extend(rest);
        for (device, permit, probe) in permits {
            let rail = self.workers[usize::from(device.0)].rail;
            if *probe && !used.contains(*device) {
                self.rails.unused(now, rail, *permit);
            }
        }
        used.iter().for_each(|device| self.pump(device));
        if !self.parked.is_empty() && self.again.is_none() {
            let later = now + self.config.rails.cooldown;
            self.again = Some(self.wheel.insert(later, Timer::TryAgain));
        }
    }

    fn retry(&mut self, piece: Piece) {
        if self.drop_unwanted(piece.task) {
            return;
        }
        let allowed = self.tasks[piece.task.0].allowed.clone();
        let (route, permits) = self.admitted(&allowed, piece.failed_on);
        let length = NonZeroU64::new(piece.range.end - piece.range.start);
        let plan = SlicePlan::whole(length.expect("no slice is empty"));
        self.spread(&piece, route.as_ref(), &permits, &plan);
    }

    fn try_again(&mut self) {
        if let Some(timer) = self.again.take() {
            self.wheel.cancel(timer);
        }
        for piece in std::mem::take(&mut self.parked) {
            self.retry(piece);
        }
    }

    /// Posts what a device can take.
    fn pump(&mut self, device: DeviceId) {
        let now = self.now();
        loop {
            let worker = &mut self.workers[usize::from(device.0)];
            if worker.watch.len() >= self.config.window {
                return;
            }
            let Some(queued) = worker.queue.pop(now) else {
                return;
            };
            let token = queued.item;
            let attempt = self.slices.get_mut(token).expect("what queues is kept");
            let task = attempt.piece.task;
            if self.tasks[task.0].unwanted {
                let unposted = self.slices.remove(token).expect("it was just seen");
                self.rails.unused(now, unposted.rail, unposted.permit);
                self.drop_unwanted(task);
                continue;
            }
            let overdue = worker.watch.post(now, token, attempt.charge.bytes());
            attempt.timer = Some(self.wheel.insert(overdue, Timer::Overdue(token)));
            self.posts.push((device, task));
            self.fabric.post(device, token, attempt.charge.bytes());
        }
    }

    fn on_event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Completion { token, moved, .. } => self.on_completion(token, moved),
            Event::LinkDown(device) => {
                let rail = self.workers[usize::from(device.0)].rail;
                self.rails.lost(now, rail);
                self.move_away(device);
            }
            Event::LinkUp(device) => {
                let rail = self.workers[usize::from(device.0)].rail;
                self.rails.restored(now, rail);
                self.try_again();
            }
        }
    }

    fn on_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Overdue(token) => self.on_overdue(token),
            Timer::TryAgain => self.try_again(),
        }
    }

    fn on_overdue(&mut self, token: u64) {
        let attempt = self
            .slices
            .get_mut(token)
            .expect("its timer was not cancelled");
        let worker = &self.workers[usize::from(attempt.charge.device().0)];
        match worker.watch.look(self.fabric.now(), token) {
            Overdue::Ended => {}
            Overdue::NotBefore(then) => {
                attempt.timer = Some(self.wheel.insert(then, Timer::Overdue(token)));
            }
            // A link would fence here; what the fabric completes later finds no slice.
            Overdue::Now => self.on_completion(token, false),
        }
    }

    fn on_completion(&mut self, token: u64, moved: bool) {
        let now = self.now();
        let Some(attempt) = self.slices.remove(token) else {
            return;
        };
        self.wheel
            .cancel(attempt.timer.expect("only what was posted ends"));
        let device = attempt.charge.device();
        let worker = &mut self.workers[usize::from(device.0)];
        let posted = worker.watch.end(now, token, moved).unwrap_or(now);
        if moved {
            worker.moved += attempt.charge.bytes();
            let bytes = attempt.charge.bytes();
            if let Some(rate) = worker.meter.completed(now, posted, bytes) {
                attempt.charge.load().publish_rate(now, rate);
            }
            let was_trial = !matches!(self.rails.state(attempt.rail), RailState::Open { .. });
            self.rails.succeeded(now, attempt.rail, attempt.permit);
            let report = &mut self.tasks[attempt.piece.task.0];
            report.moved.push((device, attempt.piece.range.clone()));
            self.end_slice(attempt.piece.task);
            if was_trial {
                self.try_again();
            }
        } else {
            worker.meter.interrupted(now);
            self.rails.failed(now, attempt.rail, attempt.permit);
            if matches!(self.rails.state(attempt.rail), RailState::Cooling { .. }) {
                self.move_away(device);
            }
            self.on_failure(attempt, device);
        }
        self.pump(device);
    }

    fn on_failure(&mut self, attempt: Attempt, device: DeviceId) {
        let mut piece = attempt.piece;
        // Released before the slice is charged elsewhere.
        drop(attempt.charge);
        piece.failures += 1;
        piece.failed_on = Some(device);
        if piece.failures >= self.config.attempts {
            self.tasks[piece.task.0].unwanted = true;
        }
        self.retry(piece);
    }

    /// The rail of a device is closed: what is not posted goes elsewhere.
    fn move_away(&mut self, device: DeviceId) {
        let worker = &mut self.workers[usize::from(device.0)];
        let tokens: Vec<_> = worker.queue.drain().map(|(_, _, token)| token).collect();
        let pieces: Vec<_> = tokens
            .into_iter()
            .filter_map(|token| self.slices.remove(token))
            .map(|attempt| attempt.piece)
            .collect();
        pieces.into_iter().for_each(|piece| self.retry(piece));
    }

    fn drop_unwanted(&mut self, task: TaskId) -> bool {
        let unwanted = self.tasks[task.0].unwanted;
        if unwanted {
            self.end_slice(task);
        }
        unwanted
    }

    fn end_slice(&mut self, task: TaskId) {
        let now = self.now();
        let report = &mut self.tasks[task.0];
        report.open -= 1;
        if report.open == 0 {
            report.ended = Some(now);
        }
    }
}
