//! Which device carries each slice.

use std::{ops::Range, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    Candidate, Charge, DeviceId, DeviceLoad, Devices, NoDevice, Priority, Rank, Route, SlicePlan,
    route::Way,
};
use crate::Time;

/// How much longer a byte takes for each [`Rank`], as the choice sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumaPenalties([f64; 3]);

impl NumaPenalties {
    /// For the nearest, near and far devices; `None` unless each is a number of at least 1.
    pub fn new(penalties: [f64; 3]) -> Option<Self> {
        let sound = |penalty: &f64| penalty.is_finite() && *penalty >= 1.0;
        penalties.iter().all(sound).then_some(Self(penalties))
    }

    fn of(self, rank: Rank) -> f64 {
        match rank {
            Rank::Nearest => self.0[0],
            Rank::Near => self.0[1],
            Rank::Far => self.0[2],
        }
    }
}

impl Default for NumaPenalties {
    /// 1, 5 and 10: a far device is used when the nearest ones have ten times as much to do.
    fn default() -> Self {
        Self([1.0, 5.0, 10.0])
    }
}

/// How devices are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SprayConfig {
    /// What distance costs.
    pub numa_penalties: NumaPenalties,
    /// A rate that was not measured for so long is unknown again, so that a device that was slow once
    /// is not left out for ever.
    pub stale_after: Duration,
}

impl Default for SprayConfig {
    /// Penalties of 1, 5 and 10; rates hold for 10 s.
    fn default() -> Self {
        Self {
            numa_penalties: NumaPenalties::default(),
            stale_after: Duration::from_secs(10),
        }
    }
}

/// Spreads slices over the devices of a link.
///
/// Each slice goes to the device of the least cost:
///
/// > cost = (bytes in flight + bytes of the slice) ÷ wire rate × NUMA penalty
///
/// where in flight counts what is as urgent as the slice or more, on behalf of whomever. One slice or
/// many, the choice is the same. Devices of the same cost take turns. So do those whose rates are
/// nearly that of the fastest one, to a sixteenth or for a few slices an eighth, since no measurement is
/// exact. A device of unknown rate counts as fast as the known ones are on average.
///
/// ```
/// use mooncake_tent::{
///     Priority, Time,
///     spray::{Candidate, DeviceId, Devices, Rank, SliceLimits, SlicePlan, Spray, SprayConfig},
/// };
///
/// let spray = Spray::new(4, SprayConfig::default());
/// let candidates = (0..4).map(|device| Candidate {
///     device: DeviceId(device),
///     rank: Rank::Nearest,
///     probe: false,
/// });
/// let route = spray.route(candidates, &Devices::first(2))?;
/// let plan = SlicePlan::new(300_000, &SliceLimits::default(), route.width()).expect("not empty");
/// for (slice, charge) in spray.assign(Time(0), &route, &plan, Priority::High) {
///     println!("{slice:?} goes to {}", charge.device());
/// }
/// # Ok::<_, mooncake_tent::spray::NoDevice>(())
/// ```
#[derive(Debug)]
pub struct Spray {
    loads: Box<[Arc<DeviceLoad>]>,
    config: SprayConfig,
}

impl Spray {
    /// For `devices` devices, numbered from 0.
    pub fn new(devices: u16, config: SprayConfig) -> Self {
        Self {
            loads: (0..devices).map(DeviceId).map(DeviceLoad::new).collect(),
            config,
        }
    }

    /// The load of a device, if there is such a device.
    pub fn load(&self, device: DeviceId) -> Option<&Arc<DeviceLoad>> {
        self.loads.get(usize::from(device.0))
    }

    /// The load of every device, by number.
    pub fn loads(&self) -> &[Arc<DeviceLoad>] {
        &self.loads
    }

    /// Those of `candidates` that are `allowed`. A device that comes twice counts where it comes first.
    ///
    /// # Errors
    ///
    /// There is none. An empty set permits nothing.
    pub fn route(
        &self,
        candidates: impl IntoIterator<Item = Candidate>,
        allowed: &Devices,
    ) -> Result<Route, NoDevice> {
        let mut seen = Devices::new();
        let mut route = Route {
            ways: SmallVec::new(),
        };
        for candidate in candidates {
            let device = candidate.device;
            let load = self.load(device).ok_or(NoDevice::Unknown { device })?;
            if seen.insert(device) && allowed.contains(device) {
                route.ways.push(Way {
                    load: Arc::clone(load),
                    penalty: self.config.numa_penalties.of(candidate.rank),
                    probe: candidate.probe,
                });
            }
        }
        match route.ways.is_empty() {
            false => Ok(route),
            true if allowed.is_empty() => Err(NoDevice::EmptySet),
            true if seen.is_empty() => Err(NoDevice::NoneReaches),
            true => Err(NoDevice::Excluded {
                candidates: seen.len(),
            }),
        }
    }

    /// Assigns the slices of `plan` in order, each charged to its device when it is taken from the
    /// iterator.
    ///
    /// Devices that are only tried get one slice each, the first ones. If there are no others, that
    /// ends it: what is [left](Assignments::left) has to wait for the outcome of the trials.
    pub fn assign<'a>(
        &self,
        now: Time,
        route: &'a Route,
        plan: &SlicePlan,
        priority: Priority,
    ) -> Assignments<'a> {
        let slice = plan.length() as f64 / plan.len() as f64;
        let known = |way: &Way| way.load.rate(now, self.config.stale_after);
        let neutral = mean(route.ways.iter().filter_map(known)).unwrap_or(1.0);
        let speed = |way: &Way| known(way).unwrap_or(neutral) / way.penalty;
        let fastest = route.ways.iter().map(speed).fold(0.0, f64::max);
        let alike = match plan.len() >= MANY * route.ways.len() as u64 {
            true => ALIKE,
            false => ALIKE_FOR_FEW,
        };
        // In bytes of the usual slice, so that a round of slices leaves equals equal.
        let turn = plan.length() / plan.len();
        let most = route.ways.iter().map(|way| way.load.given()).max();
        let behind = most
            .unwrap_or(0)
            .saturating_sub(turn.saturating_mul(CATCH_UP));
        let lane = |(place, way): (usize, &'a Way)| {
            let speed = match speed(way) {
                speed if speed >= fastest * alike => fastest,
                speed => speed,
            };
            // How many times as long a byte takes as on the fastest, and with it the slice.
            let slower = fastest / speed;
            Lane {
                load: &way.load,
                // A trial is the first thing that happens, and the only one on its device.
                cost: match way.probe {
                    true => f64::NEG_INFINITY,
                    false => GRAINS * (way.load.ahead_of(priority) as f64 / slice + 1.0) * slower,
                },
                step: GRAINS * slower,
                given: way.load.given().max(behind),
                place,
                probe: way.probe,
            }
        };
        let mut lanes: SmallVec<[Lane<'a>; 8]> = route.ways.iter().enumerate().map(lane).collect();
        for root in (0..lanes.len() / 2).rev() {
            sift_down(&mut lanes, root);
        }
        Assignments {
            lanes,
            plan: *plan,
            next: 0,
            turn,
            priority,
        }
    }
}

/// Rates that differ by less are alike: for many slices, and for a few, where whole slices are coarser
/// than any difference between devices, and taking turns matters more.
const ALIKE: f64 = 15.0 / 16.0;
const ALIKE_FOR_FEW: f64 = 7.0 / 8.0;
/// Many are so many for each device.
const MANY: u64 = 4;
/// Costs are compared in so many parts of what a slice costs on the fastest device: slices that differ
/// by a unit cost the same.
const GRAINS: f64 = 16.0;
/// A device that was given nothing for long has so many turns before the others at most.
const CATCH_UP: u64 = 16;

fn mean(rates: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = rates.fold((0u32, 0.0), |(count, sum), rate| (count + 1, sum + rate));
    (count > 0).then(|| sum / f64::from(count))
}

/// Slices with the charges of their devices; see [`Spray::assign`].
#[derive(Debug)]
pub struct Assignments<'a> {
    /// A heap: the device for the next slice is the first.
    lanes: SmallVec<[Lane<'a>; 8]>,
    plan: SlicePlan,
    next: u64,
    /// Bytes that a slice counts in taking turns.
    turn: u64,
    priority: Priority,
}

#[derive(Debug)]
struct Lane<'a> {
    load: &'a Arc<DeviceLoad>,
    /// When the next slice would be done here, in grains.
    cost: f64,
    /// What a slice adds to it.
    step: f64,
    /// What it was given so far, and its place: the order among equals.
    given: u64,
    place: usize,
    probe: bool,
}

impl Assignments<'_> {
    /// The slices that were not taken, by number.
    pub fn left(&self) -> Range<u64> {
        self.next..self.plan.len()
    }
}

impl Iterator for Assignments<'_> {
    type Item = (Range<u64>, Charge);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.plan.len() {
            return None;
        }
        let lane = self.lanes.first_mut()?;
        let slice = self.plan.slice(self.next);
        lane.given = lane.given.wrapping_add(self.turn);
        lane.load.set_given(lane.given);
        self.next += 1;
        let charge = lane.load.charge(slice.end - slice.start, self.priority);
        lane.cost += lane.step;
        if lane.probe {
            self.lanes.swap_remove(0);
        }
        sift_down(&mut self.lanes, 0);
        Some((slice, charge))
    }
}

/// Restores the heap whose order may be broken at `root` alone.
fn sift_down(lanes: &mut [Lane<'_>], mut root: usize) {
    let before = |a: &Lane<'_>, b: &Lane<'_>| {
        let order = a.cost.round().total_cmp(&b.cost.round());
        order
            .then(a.given.cmp(&b.given))
            .then(a.place.cmp(&b.place))
            .is_lt()
    };
    loop {
        let mut least = root;
        for child in [2 * root + 1, 2 * root + 2] {
            if child < lanes.len() && before(&lanes[child], &lanes[least]) {
                least = child;
            }
        }
        if least == root {
            return;
        }
        lanes.swap(root, least);
        root = least;
    }
}

#[cfg(all(test, not(mooncake_loom)))]
mod tests;
