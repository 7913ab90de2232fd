//! What happens in a run: drawn from a seed, and cut down when it fails.

use std::time::Duration;

use mooncake_master::state::Settings;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    Micros, Plant,
    world::{What, draw_budget},
};

const MS: Micros = 1_000;
/// Keys that there are, at most.
pub(crate) const KEYS: usize = 10;
/// Operations begin and faults strike before this.
const BUSY: Micros = 4_000 * MS;

/// What a client is asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Micros,
    pub(crate) client: usize,
    pub(crate) what: What,
    pub(crate) budget: Micros,
    /// Place in the seed's list.
    pub(crate) index: usize,
}

/// Somebody that faults happen to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    Client(usize),
    Master,
    Node(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) at: Micros,
    pub(crate) party: Party,
    pub(crate) kind: FaultKind,
    pub(crate) lasts: Micros,
    pub(crate) index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Crash,
    /// The stream with the master breaks.
    Cut,
    /// A client says goodbye.
    Leave,
    /// What is sent on the stream is lost, and nobody is told.
    Mute,
    Pause,
}

/// How bad the network is, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Messages that take long.
    pub(crate) late: u32,
    /// Frames and reports that come twice.
    pub(crate) twice: u32,
    /// News for readers whose queues at the master are full.
    pub(crate) untold: u32,
    /// Transfers whose connection breaks.
    pub(crate) broken: u32,
    /// Transfers of which nothing is heard any more.
    pub(crate) silent: u32,
    /// Transfers whose first frame, or fence, is stuck for long on its way.
    pub(crate) stuck: u32,
    /// Transfers that crawl.
    pub(crate) slow: u32,
}

/// A run that is still to come.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All else follows from it, and from what was cut out.
    pub seed: u64,
    /// The mistake that is made.
    pub plant: Plant,
    pub(crate) clients: usize,
    /// Clients belong to them in turns.
    pub(crate) tenants: usize,
    /// A client that releases no lease while it is busy, and reads again before it ends.
    pub(crate) keeper: Option<usize>,
    /// Clients keep what look-ups find. Where they do not, nobody reads what was gone before it asked.
    pub(crate) keeps: bool,
    pub(crate) nodes: usize,
    /// Clients whose processes lend memory too.
    pub(crate) lenders: Vec<usize>,
    pub(crate) node_cells: usize,
    pub(crate) weather: Weather,
    pub(crate) settings: Settings,
    pub(crate) ping: Micros,
    pub(crate) asked: Vec<Asked>,
    pub(crate) faults: Vec<Fault>,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64, plant: Plant) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let clients = rng.random_range(2..=4);
        let tenants = rng.random_range(1..=2);
        let nodes = [1, 2, 2, 3][rng.random_range(0..4)];
        let keys = rng.random_range(2..=KEYS);
        let bad = rng.random_range(0..4);
        let weather = Weather {
            late: bad * rng.random_range(0..5),
            twice: bad * rng.random_range(0..5),
            untold: bad * rng.random_range(0..20),
            broken: bad * rng.random_range(0..4),
            silent: bad * rng.random_range(0..2),
            stuck: rng.random_range(0..4) * 10,
            slow: rng.random_range(0..4) * 8,
        };
        let settings = settings(&mut rng);
        let asked = (0..rng.random_range(20..70))
            .map(|index| ask(&mut rng, index, clients, keys))
            .collect();
        let ttl = settings.client_ttl.as_micros() as Micros;
        let most = [0, 3, 6, 10][rng.random_range(0..4)];
        let faults = (0..most)
            .map(|index| strike(&mut rng, index, clients, nodes, ttl))
            .collect();
        Self {
            seed,
            plant,
            clients,
            tenants,
            keeper: rng.random_bool(0.5).then(|| rng.random_range(0..clients)),
            nodes,
            node_cells: rng.random_range(6..=24),
            lenders: (0..clients).filter(|_| rng.random_bool(0.6)).collect(),
            weather,
            settings,
            ping: ttl / 10,
            asked,
            faults,
            keeps: rng.random_bool(0.6),
        }
    }

    /// Only these operations and faults of the seed.
    #[must_use]
    pub fn keep(mut self, operations: Option<&[usize]>, faults: Option<&[usize]>) -> Self {
        if let Some(kept) = operations {
            self.asked.retain(|one| kept.contains(&one.index));
        }
        if let Some(kept) = faults {
            self.faults.retain(|one| kept.contains(&one.index));
        }
        self
    }

    /// Operations that are left.
    #[must_use]
    pub fn operations(&self) -> Vec<usize> {
        self.asked.iter().map(|one| one.index).collect()
    }

    /// Faults that are left.
    #[must_use]
    pub fn faults(&self) -> Vec<usize> {
        self.faults.iter().map(|one| one.index).collect()
    }

    /// The line that repeats this plan.
    #[must_use]
    pub fn command(&self) -> String {
        let whole = Self::draw(self.seed, self.plant);
        let mut line = format!("cargo run -p mooncake-sim -- --seed {}", self.seed);
        if self.plant != Plant::Nothing {
            line += &format!(" --plant {}", self.plant);
        }
        if self.asked.len() < whole.asked.len() {
            line += &format!(" --ops {}", list(&self.operations()));
        }
        if self.faults.len() < whole.faults.len() {
            line += &format!(" --faults {}", list(&self.faults()));
        }
        line
    }
}

fn list(numbers: &[usize]) -> String {
    if numbers.is_empty() {
        return "none".to_owned();
    }
    let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    numbers.join(",")
}

fn settings(rng: &mut StdRng) -> Settings {
    let ms = Duration::from_millis;
    let demand_only = rng.random_bool(0.5);
    Settings {
        client_ttl: ms(400),
        suspect_after: ms(150),
        lease_ttl: ms([100, 400, 800][rng.random_range(0..3)]),
        put_deadline: ms([150, 300, 900][rng.random_range(0..3)]),
        write_frame_budget: ms(900),
        hold_margin: ms(400),
        high_watermark: if demand_only { 1.0 } else { 0.9 },
        low_watermark: if demand_only { 1.0 } else { 0.7 },
        quarantine_share: [0.2, 0.6, 1.0][rng.random_range(0..3)],
        exist_reservation: ms([0, 100, 500][rng.random_range(0..3)]),
        reserved_share: [0.1, 0.5, 1.0][rng.random_range(0..3)],
        hash_seed: rng.random(),
        granted_share: [0.25, 0.5][rng.random_range(0..2)],
        ..Settings::default()
    }
}

fn ask(rng: &mut StdRng, index: usize, clients: usize, keys: usize) -> Asked {
    Asked {
        what: What::draw(rng, keys),
        budget: draw_budget(rng),
        at: rng.random_range(100 * MS..BUSY),
        client: rng.random_range(0..clients),
        index,
    }
}

fn strike(rng: &mut StdRng, index: usize, clients: usize, nodes: usize, ttl: Micros) -> Fault {
    let kind = match rng.random_range(0..10) {
        0..3 => FaultKind::Crash,
        3..5 => FaultKind::Cut,
        5..7 => FaultKind::Mute,
        _ => FaultKind::Pause,
    };
    let party = match rng.random_range(0..10) {
        0..4 => Party::Client(rng.random_range(0..clients)),
        4..7 => Party::Node(rng.random_range(0..nodes)),
        _ => Party::Master,
    };
    let kind = match party {
        Party::Client(_) if rng.random_bool(0.3) => FaultKind::Leave,
        _ => kind,
    };
    let lasts = match rng.random_range(0..3) {
        0 => rng.random_range(MS..ttl / 4),
        1 => rng.random_range(MS..ttl),
        _ => rng.random_range(MS..2 * ttl),
    };
    Fault {
        at: rng.random_range(100 * MS..BUSY),
        party,
        kind,
        lasts,
        index,
    }
}
