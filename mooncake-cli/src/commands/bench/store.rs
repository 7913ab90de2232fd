//! `mooncake bench store`: measures gets and puts beside their limit, and beside other stores.

mod site;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::runtime::Runtime;

use self::site::Site;
use crate::bench::cpp::{CppCase, CppStore, Home, Wheel};
use crate::bench::plain::{Direction, Pattern, Plain};
use crate::bench::redis::{Redis, RedisServer};
use crate::bench::store::{
    Case, ContentsFile, Copying, Lookup, Op, Ours, Placement, Values, standard_suite,
};
use crate::bench::{Contender, Report, Row, Turns, Yardstick};
use crate::commands::{Context, runtime};
use crate::config::{ClientSettings, Flags, Size};
use crate::output::{Exit, Failure};

/// The arguments of `mooncake bench store`.
///
/// Without --op, the standard suite is measured. Without --master, a store is started on this
/// machine for it, whose processor time counts as well.
#[derive(Args, Debug)]
pub struct StoreArgs {
    /// Measure only this.
    #[arg(long, value_enum)]
    pub op: Option<Op>,
    /// How long a value is.
    #[arg(long, value_name = "SIZE", default_value_t = Size::of(1 << 20), requires = "op")]
    pub value_bytes: Size,
    /// How many keys one call gets or puts.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "op", value_parser = clap::value_parser!(u64).range(1..=4_096))]
    pub batch: u64,
    /// How many clients of this process call at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "op", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub clients: u64,
    /// Where the objects are.
    #[arg(long, value_enum, default_value = "remote", requires = "op")]
    pub placement: Placement,
    /// What a client knows of a key before it gets it.
    #[arg(long, value_enum, default_value = "fresh", requires = "op")]
    pub lookup: Lookup,
    /// How often each contender has its turn [default: 5, or 3 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub rounds: Option<u16>,
    /// Short turns over less memory: a look, not a result.
    #[arg(long)]
    pub quick: bool,
    /// Measure the C++ store in the same rounds, whose wheel this Python has.
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3")]
    pub vs_cpp: Option<PathBuf>,
    /// Measure Redis in the same rounds.
    #[arg(long)]
    pub vs_redis: bool,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

/// Runs the command; "no" when a row misses its bar.
///
/// # Errors
///
/// When it cannot be measured, or a byte was wrong.
pub(super) fn run(args: &StoreArgs, context: &Context) -> Result<Exit, Failure> {
    let effective = context.sources.settle(&args.settings)?;
    let given = effective.is_given("master");
    let cases = cases(args);
    if cases.iter().any(|case| case.value_bytes == 0) {
        return Err(
            Failure::new("a value of 0 bytes cannot be stored").remedy("--value-bytes 1MiB")
        );
    }
    let bench = Bench {
        args,
        wheel: args.vs_cpp.as_deref().map(Wheel::find).transpose()?,
        redis: args.vs_redis.then(RedisServer::start).transpose()?,
        master: given.then(|| effective.settings.master.as_str().to_owned()),
        settings: effective.settings,
        runtime: Arc::new(runtime()?),
    };
    let bar = context.output.progress(cases.len() as u64, "cases");
    let mut report = Report::default();
    for placement in [Placement::Remote, Placement::Local] {
        let cases = cases.iter().filter(|case| case.placement == placement);
        let cases: Vec<_> = cases.copied().collect();
        if cases.is_empty() {
            continue;
        }
        let mut place = bench.place(placement, &cases)?;
        for case in cases {
            report.rows.push(bench.measure(&mut place, case)?);
            bar.inc(1);
        }
        place.end(&bench)?;
    }
    bar.finish_and_clear();
    context.output.result(&report)?;
    Ok(report.all_met().into())
}

fn cases(args: &StoreArgs) -> Vec<Case> {
    let Some(op) = args.op else {
        let mut cases = standard_suite();
        cases
            .iter_mut()
            .for_each(|case| case.redis &= args.vs_redis);
        return cases;
    };
    let mut case = Case::new(op, args.value_bytes.bytes(), args.batch);
    // The same case of the suite has bars.
    let alike = standard_suite().into_iter().find(|known| {
        (known.op, known.value_bytes, known.batch) == (case.op, case.value_bytes, case.batch)
            && known.placement == args.placement
            && (op == Op::Put || known.lookup == args.lookup)
    });
    if let Some(known) = alike.filter(|_| args.clients == 1) {
        case = known;
    }
    case.clients = args.clients;
    case.placement = args.placement;
    case.lookup = args.lookup;
    case.redis = args.vs_redis && args.clients == 1 && args.placement == Placement::Remote;
    vec![case]
}

/// The command that measures a case again.
fn repeat(case: &Case) -> String {
    let size = Size::of(case.value_bytes);
    let op = match case.op {
        Op::Get => "get",
        Op::Put => "put",
    };
    let mut words = format!(
        "mooncake bench store --op {op} --value-bytes {size} --batch {}",
        case.batch
    );
    if case.clients > 1 {
        words += &format!(" --clients {}", case.clients);
    }
    if case.placement == Placement::Local {
        words += " --placement local";
    }
    if case.op == Op::Get && case.lookup == Lookup::Cached {
        words += " --lookup cached";
    }
    words
}

/// What all cases share.
struct Bench<'a> {
    args: &'a StoreArgs,
    wheel: Option<Wheel>,
    redis: Option<RedisServer>,
    master: Option<String>,
    settings: ClientSettings,
    runtime: Arc<Runtime>,
}

/// The stores of one placement.
struct Place {
    site: Site,
    cpp: Option<CppStore>,
}

impl Place {
    fn end(self, bench: &Bench<'_>) -> Result<(), Failure> {
        self.site.stop(&bench.runtime)
    }
}

impl Bench<'_> {
    fn values(&self, case: &Case) -> Values {
        Values::cold(case.value_bytes, case.batch, case.clients, self.args.quick)
    }

    fn turns(&self) -> Turns {
        let (rounds, millis) = if self.args.quick { (3, 100) } else { (5, 300) };
        Turns {
            rounds: self.args.rounds.map_or(rounds, usize::from),
            budget: Duration::from_millis(millis),
        }
    }

    fn place(&self, placement: Placement, cases: &[Case]) -> Result<Place, Failure> {
        let largest = cases.iter().map(|case| self.values(case).total()).max();
        // A walk, the next one, and what is not given back yet.
        let segment_bytes = 3 * largest.unwrap_or(0) + (64 << 20);
        let master = self.master.as_deref();
        let site = Site::start(
            &self.runtime,
            placement,
            master,
            segment_bytes,
            &self.settings,
        )?;
        let home = match placement {
            Placement::Remote => Home::Owner,
            Placement::Local => Home::Client,
        };
        let start = |wheel| CppStore::start(wheel, home, segment_bytes);
        let cpp = self.wheel.as_ref().map(start).transpose()?;
        Ok(Place { site, cpp })
    }

    fn measure(&self, place: &mut Place, case: Case) -> Result<Row, Failure> {
        let values = self.values(&case);
        let (mut limit, name) = self.limit(&case, values)?;
        let clients = place.site.clients(case.clients)?;
        let beside = place.site.beside();
        let mut ours = Ours::begin(clients, beside, case, values)?;
        let mut others: Vec<(&str, &mut dyn Contender)> = Vec::new();
        let contents = match &place.cpp {
            Some(_) => Some(ContentsFile::write(values)?),
            None => None,
        };
        if let (Some(cpp), Some(contents)) = (&mut place.cpp, &contents) {
            cpp.begin(&CppCase {
                op: match case.op {
                    Op::Get => "get",
                    Op::Put => "put",
                },
                contents: contents.path().to_owned(),
                value_bytes: case.value_bytes,
                batch: case.batch,
                clients: case.clients,
            })?;
            others.push(("cpp", cpp));
        }
        let server = self.redis.as_ref().filter(|_| case.redis);
        let begin = |server| Redis::begin(server, case.op, values, case.batch);
        let mut redis = server.map(begin).transpose()?;
        if let Some(redis) = &mut redis {
            others.push(("redis", redis));
        }
        let mut systems = Vec::new();
        let mut contenders: Vec<&mut dyn Contender> = vec![&mut ours, limit.as_mut()];
        for (system, contender) in others {
            systems.push(system);
            contenders.push(contender);
        }
        let rounds = self.turns().measure(&mut contenders)?;
        let by = match case.batch * case.clients {
            1 => Yardstick::P50Us,
            _ => Yardstick::GbPerS,
        };
        let mut row = Row::beside_limit(&rounds, &name, by);
        row.transport = match case.placement {
            Placement::Remote => "tcp",
            Placement::Local => "memory",
        }
        .to_owned();
        (row.op, row.lookup) = match (case.op, case.lookup) {
            (Op::Put, _) => ("put".to_owned(), None),
            (Op::Get, Lookup::Cached) => ("get".to_owned(), Some("cached".to_owned())),
            (Op::Get, Lookup::Fresh) => ("get".to_owned(), Some("fresh".to_owned())),
        };
        (row.block_bytes, row.batch, row.threads) = (case.value_bytes, case.batch, case.clients);
        for (who, system) in (2..).zip(systems) {
            row.add_other(&rounds, who, system);
        }
        for (system, bar) in [("cpp", case.bar_cpp), ("redis", case.bar_redis)] {
            if let Some(bar) = bar {
                row.should_beat(system, bar);
            }
        }
        if let Some(bar) = case.bar {
            row = row.should_reach(bar);
        }
        row.repeat = repeat(&case);
        ours.end()?;
        place.site.release()?;
        if let Some(cpp) = &mut place.cpp {
            cpp.end()?;
        }
        Ok(row)
    }

    fn limit(&self, case: &Case, values: Values) -> Result<(Box<dyn Contender>, String), Failure> {
        if case.placement == Placement::Local {
            let copying = Copying::new(values, case.batch);
            return Ok((Box::new(copying), "memcpy".to_owned()));
        }
        let single = case.batch == 1;
        let pattern = Pattern {
            direction: match case.op {
                Op::Get => Direction::Read,
                Op::Put => Direction::Write,
            },
            block_bytes: case.value_bytes,
            batch: case.batch,
            connections: if single { 1 } else { 2 },
            before: match (case.op, case.lookup) {
                (Op::Get, Lookup::Cached) => 0,
                _ if single => 1,
                _ => 0,
            },
            after: u32::from(single && case.op == Op::Put),
            walk_bytes: values.total(),
        };
        let plain = self.runtime.block_on(Plain::start(pattern))?;
        Ok((Box::new(plain), pattern.name()))
    }
}
