//! Measures the transfer engine beside plain loops of the same pattern.
//!
//! Blocks walk through more memory than any cache holds. After each turn every block is checked at
//! its destination, outside of what is timed, so a figure is never that of bytes which did not move.

mod case;
mod contents;
mod engine;
mod file;
mod file_loop;
mod memory;
mod null;
mod pace;
mod peer;
mod plain;
mod pool;
mod readv;
mod roles;
mod shares;
#[cfg(target_arch = "x86_64")]
mod streaming;
mod traced;
mod walk;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::cpp::{EngineCase, EnginePair, Wheel};
use super::store::{ContentsFile, Values};
use super::{Contender, Row, Turns};
use crate::config::Size;
use crate::output::Failure;

pub use case::{Against, Case, Op, Transport};
pub use peer::{Role, serve_engine, serve_plain};
pub use roles::{Grid, Initiator, Links, RoleReport, RoleRow, Target, Work, doublings, initiate};
pub use shares::LinkShare;
pub use traced::{Traced, traced};

use engine::Engine;
use file::BenchFile;
use file_loop::FileLoop;
use memory::Copier;
use null::EngineAlone;
use peer::Peer;
use plain::Plain;
use pool::Pool;
use readv::Readv;

/// Blocks that may be submitted together.
pub const MOST_BATCH: u64 = plain::MOST_BATCH;

/// What all cases of a measurement have in common.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// How long and how often each contender has its turn.
    pub turns: Turns,
    /// Connections of the engine to its target.
    pub lanes: u64,
    /// Memory that there is, on either side.
    pub window: u64,
    /// Memory that blocks walk through, unless one batch of all callers needs more.
    pub walk: u64,
    /// Whether blocks are checked.
    pub verify: bool,
    /// The target that makes some bytes wrong, which must be noticed.
    pub spoil: Option<Role>,
}

/// Measures one case after the other.
#[derive(Debug)]
pub struct Measurement<'a> {
    runtime: Handle,
    conditions: Conditions,
    peers: &'a Peers,
    pool: Pool,
    /// Whose callers sleep, and whose callers look.
    tcp: [Option<Engine<'a>>; 2],
    in_process: Option<Engine<'a>>,
    /// Of the last case within this host.
    on_host: Option<(Transport, bool, Engine<'a>)>,
    /// With the file that it reads and writes.
    file: Option<(Engine<'a>, Arc<BenchFile>)>,
    /// Where files are made.
    folder: Option<PathBuf>,
    wheel: Option<Wheel>,
}

/// The processes at the other end.
#[derive(Debug)]
pub struct Peers {
    engine: Peer,
    plain: Peer,
    streams: SocketAddr,
}

impl Peers {
    /// Starts them. Not for async code, which it would block.
    ///
    /// # Errors
    ///
    /// One does not start.
    pub fn start(runtime: &Handle, conditions: &Conditions) -> Result<Self, Failure> {
        let Conditions { window, spoil, .. } = *conditions;
        let start = |role| Peer::start(runtime, role, window, spoil == Some(role));
        let plain = start(Role::Plain)?;
        let no_address = |error| Failure::new("the plain target has no address").because(error);
        Ok(Self {
            engine: start(Role::Engine)?,
            streams: plain.address().parse().map_err(no_address)?,
            plain,
        })
    }
}

impl Conditions {
    /// Connections unless told otherwise.
    pub const LANES: u64 = 2;
    /// Memory unless told otherwise: many times what a cache holds.
    pub const WINDOW: u64 = 256 << 20;

    /// Memory that the blocks of `case` walk through.
    fn reach(&self, case: &Case) -> u64 {
        let under_way = case.block.saturating_mul(case.batch * case.threads);
        self.walk.max(under_way).min(self.window)
    }

    /// What to add to a command so that it has the same conditions, but for the time that it takes.
    fn words(&self) -> String {
        let mut words = String::new();
        if self.lanes != Self::LANES {
            words += &format!(" --lanes {}", self.lanes);
        }
        if self.window != Self::WINDOW {
            words += &format!(" --window {}", Size::of(self.window));
        }
        if !self.verify {
            words += " --no-verify";
        }
        words
    }
}

impl<'a> Measurement<'a> {
    /// Nothing measured yet.
    #[must_use]
    pub fn new(runtime: Handle, conditions: Conditions, peers: &'a Peers) -> Self {
        Self {
            runtime,
            conditions,
            peers,
            pool: Pool::default(),
            tcp: [None, None],
            in_process: None,
            on_host: None,
            file: None,
            folder: None,
            wheel: None,
        }
    }

    /// Measures the C++ engine as well, where it can do a case.
    #[must_use]
    pub fn with_cpp(mut self, wheel: Option<Wheel>) -> Self {
        self.wheel = wheel;
        self
    }

    /// Makes files in this folder, and otherwise where the system has temporary ones.
    #[must_use]
    pub fn with_folder(mut self, folder: Option<PathBuf>) -> Self {
        self.folder = folder;
        self
    }

    /// Measures a case. Not for async code, which it would block.
    ///
    /// # Errors
    ///
    /// Something does not work, or a byte did not arrive.
    pub fn row(&mut self, case: &Case) -> Result<Row, Failure> {
        let conditions = self.conditions;
        match case.transport {
            Transport::Tcp => {
                let limit = match case.against {
                    Against::Plain => Some(Plain::connect(
                        case,
                        &conditions,
                        (&self.peers.plain, self.peers.streams),
                        &self.pool,
                    )?),
                    Against::OneThread => None,
                };
                let cpp = cpp(case, &conditions, self.wheel.as_ref())?;
                let engine = self.tcp(case.poll)?;
                beside(case, &conditions, engine, limit, cpp)
            }
            Transport::Shm => {
                let limit = match case.against {
                    Against::Plain if case.is_streamed() => {
                        Some(streaming(case, &conditions, &self.pool)?)
                    }
                    Against::Plain => Some(Copier::memcpy(case, &conditions, &self.pool)?),
                    Against::OneThread => None,
                };
                let cpp = cpp(case, &conditions, self.wheel.as_ref())?;
                let engine = self.on_host(case)?;
                beside(case, &conditions, engine, limit, cpp)
            }
            Transport::Cma => {
                let (pool, pid) = (self.pool.clone(), self.peers.engine.pid());
                let engine = self.on_host(case)?;
                let limit = match case.against {
                    Against::Plain => {
                        let place = (pid, engine.address());
                        Some(Readv::new(case, &conditions, &pool, place)?)
                    }
                    Against::OneThread => None,
                };
                beside(case, &conditions, engine, limit, None)
            }
            Transport::InProcess => {
                let limit = match case.against {
                    Against::Plain => Some(Copier::memcpy(case, &conditions, &self.pool)?),
                    Against::OneThread => None,
                };
                let engine = self.in_process()?;
                beside(case, &conditions, engine, limit, None)
            }
            Transport::File => {
                let folder = self.folder.clone();
                let (engine, file) = self.file()?;
                let limit = match case.against {
                    Against::Plain => {
                        let memory = engine.memory()?;
                        Some(FileLoop::new(case, &conditions, memory, file)?)
                    }
                    Against::OneThread => None,
                };
                let mut row = beside(case, &conditions, engine, limit, None)?;
                if let Some(folder) = folder {
                    row.repeat += &format!(" --folder {}", folder.display());
                }
                Ok(row)
            }
            Transport::Null => {
                let mut ours = EngineAlone::shared(&self.runtime, case)?;
                let mut limit = match case.against {
                    Against::Plain => EngineAlone::each(&self.runtime, case)?,
                    Against::OneThread => {
                        let one = Case {
                            threads: 1,
                            ..*case
                        };
                        EngineAlone::shared(&self.runtime, &one)?
                    }
                };
                compare(case, &conditions, &mut ours, &mut limit, None)
            }
            Transport::Memory => {
                let mut ours = streaming(case, &conditions, &self.pool)?;
                let mut limit = Copier::memcpy(case, &conditions, &self.pool)?;
                compare(case, &conditions, &mut ours, &mut limit, None)
            }
        }
    }

    /// The engine whose callers sleep, or that whose callers look.
    fn tcp(&mut self, poll: bool) -> Result<&mut Engine<'a>, Failure> {
        // They share a target, whose memory is prepared for one of them.
        let on_host = self.on_host.iter_mut().map(|(.., engine)| engine);
        for engine in self.tcp.iter_mut().flatten().chain(on_host) {
            engine.forget();
        }
        let place = &mut self.tcp[usize::from(poll)];
        match place {
            Some(engine) => Ok(engine),
            None => {
                let peer = &self.peers.engine;
                let engine = Engine::tcp(&self.runtime, peer, poll, &self.conditions)?;
                Ok(place.insert(engine))
            }
        }
    }

    /// An engine over a link within this host.
    fn on_host(&mut self, case: &Case) -> Result<&mut Engine<'a>, Failure> {
        for engine in self.tcp.iter_mut().flatten() {
            engine.forget();
        }
        let wanted = (case.transport, case.poll);
        let fits = |made: &(Transport, bool, Engine<'_>)| (made.0, made.1) == wanted;
        if !self.on_host.as_ref().is_some_and(fits) {
            let peer = &self.peers.engine;
            let engine = Engine::on_host(&self.runtime, peer, case, &self.conditions)?;
            self.on_host = Some((case.transport, case.poll, engine));
        }
        let (.., engine) = self.on_host.as_mut().expect("it was just made");
        Ok(engine)
    }

    fn file(&mut self) -> Result<(&mut Engine<'a>, &Arc<BenchFile>), Failure> {
        let place = &mut self.file;
        if place.is_none() {
            let window = self.conditions.window;
            let file = Arc::new(BenchFile::make(self.folder.as_deref(), window)?);
            let engine = Engine::file(&self.runtime, &file, &self.conditions)?;
            *place = Some((engine, file));
        }
        let (engine, file) = place.as_mut().expect("it was just made");
        Ok((engine, file))
    }

    fn in_process(&mut self) -> Result<&mut Engine<'a>, Failure> {
        match &mut self.in_process {
            Some(engine) => Ok(engine),
            place => {
                let engine = Engine::in_process(&self.runtime, &self.conditions)?;
                Ok(place.insert(engine))
            }
        }
    }
}

/// Measures an engine beside its limit, or beside itself with one caller.
fn beside<L: Contender>(
    case: &Case,
    conditions: &Conditions,
    engine: &mut Engine<'_>,
    limit: Option<L>,
    cpp: Option<EnginePair>,
) -> Result<Row, Failure> {
    engine.prepare(case.op)?;
    let mut ours = engine.callers(case)?;
    match limit {
        Some(mut limit) => compare(case, conditions, &mut ours, &mut limit, cpp),
        None => {
            let one = Case {
                threads: 1,
                ..*case
            };
            compare(case, conditions, &mut ours, &mut engine.callers(&one)?, cpp)
        }
    }
}

fn compare(
    case: &Case,
    conditions: &Conditions,
    ours: &mut dyn Contender,
    limit: &mut dyn Contender,
    mut cpp: Option<EnginePair>,
) -> Result<Row, Failure> {
    let goal = case.goal();
    let mut contenders: Vec<&mut dyn Contender> = Vec::new();
    contenders.push(ours);
    contenders.push(limit);
    if let Some(cpp) = &mut cpp {
        contenders.push(cpp);
    }
    let rounds = conditions.turns.measure(&mut contenders)?;
    let mut row = Row::beside_limit(&rounds, &case.limit(conditions.lanes), goal.by);
    row.transport = case.transport.name().to_owned();
    row.op = case.op.name().to_owned();
    row.block_bytes = case.block;
    row.batch = case.batch;
    row.threads = case.threads;
    row.poll = case.poll;
    row.repeat = case.repeat() + &conditions.words();
    if let Some(mut cpp) = cpp {
        cpp.check()?;
        row.add_other(&rounds, 2, "cpp");
    }
    if let Some(least) = goal.least_ratio {
        row = row.should_reach(least);
    }
    if let Some(most) = goal.most_cpu_ratio {
        row = row.should_take_at_most(most);
    }
    Ok(row)
}

/// The C++ engine in the same case; it has no open loop.
fn cpp(
    case: &Case,
    conditions: &Conditions,
    wheel: Option<&Wheel>,
) -> Result<Option<EnginePair>, Failure> {
    let Some(wheel) = wheel.filter(|_| case.rate.is_none()) else {
        return Ok(None);
    };
    let values = Values {
        value_bytes: case.block,
        count: (conditions.window / case.block).max(case.batch * case.threads),
    };
    let contents = ContentsFile::write(values)?;
    let engine = EngineCase {
        op: case.op.name(),
        contents: contents.path().to_owned(),
        block_bytes: case.block,
        batch: case.batch,
        threads: case.threads,
    };
    // They have opened the file by now.
    EnginePair::start(wheel, &engine).map(Some)
}

#[cfg(target_arch = "x86_64")]
fn streaming(case: &Case, conditions: &Conditions, pool: &Pool) -> Result<Copier, Failure> {
    Copier::streaming(case, conditions, pool)
}

#[cfg(not(target_arch = "x86_64"))]
fn streaming(_case: &Case, _conditions: &Conditions, _pool: &Pool) -> Result<Copier, Failure> {
    Err(Failure::new(
        "there are no streaming stores on this kind of machine",
    ))
}
