//! The cases that are loads: ours beside a plain echo.

use std::time::Duration;

use mooncake_proto::master::{
    Answer, ClientFrame, Event, ExistResponse, Operation, ServerFrame, event,
};
use mooncake_store::core::{MasterAnswer, MasterRequest};
use prost::Message;
use serde::Serialize;
use tokio::runtime::Handle;

use super::{
    caller::{Caller, Wire},
    case::{Case, Shape},
    echo::{Echo, EchoShape},
    figure::Figure,
    fixture::Fixture,
    keys::Keys,
    load,
    plan::{Source, Work},
    suite::Suite,
};
use crate::{
    bench::cpp::{MasterCalls, MasterCase, MasterOp},
    bench::{Contender, Row, Sample, Yardstick, figures::median, own_cpu},
    latency::Latency,
    output::Failure,
};

/// Objects that exist while they are asked for.
const OBJECTS: u64 = 100_000;
/// The same for the C++ master, a client; it takes longer to put them.
const CPP_OBJECTS: u64 = 50_000;
/// Enough for all objects that a load can put.
const SEGMENT_BYTES: u64 = 1 << 40;
/// Spaces of keys: those that exist, those that do not, and from here on each client's own.
const FOUND: u64 = 0;
const MISSED: u64 = 1;
const OWN: u64 = 2;

/// What a row of a master tells besides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MasterSide {
    /// Calls of one client under way.
    pub depth: u64,
    /// Processor microseconds of the master, a key.
    pub master_cpu_us_per_key: f64,
    /// Processor microseconds of the clients, a call.
    pub client_cpu_us_per_call: f64,
    /// Processor microseconds of both sides of the limit, a call.
    pub limit_cpu_us_per_call: f64,
}

/// Measures a load.
///
/// # Errors
///
/// A side fails.
pub(super) fn measure(
    runtime: &Handle,
    suite: &Suite,
    case: Case,
    shape: Shape,
) -> Result<(Row, Vec<Figure>), Failure> {
    let fixture = runtime.block_on(Fixture::start(&[], SEGMENT_BYTES))?;
    let found = Keys::new(suite.key_bytes, FOUND);
    // The keys that are asked for, and one that the length of an answer is taken from.
    let objects = if shape.plan.work == Work::Put {
        0
    } else {
        OBJECTS
    };
    runtime.block_on(fixture.fill(found, objects))?;
    let echo_shape = runtime.block_on(messages(&fixture, suite, shape))?;
    let mut ours = Load::start(runtime, &fixture, suite, shape)?;
    let mut limit = Echo::start(runtime, echo_shape)?;
    let mut contenders: Vec<&mut dyn Contender> = vec![&mut ours, &mut limit];
    let mut cpp = cpp(suite, shape)?;
    if let Some(cpp) = &mut cpp {
        contenders.push(cpp);
    }
    let rounds = suite.turns.measure(&mut contenders)?;
    let mut row = Row::beside_limit(&rounds, "plain echo", Yardstick::OpsPerS);
    row.transport = match shape.wire {
        Wire::Session => "session",
        Wire::Unary => "unary",
    }
    .to_owned();
    row.op = shape.op.to_owned();
    row.block_bytes = suite.key_bytes as u64;
    row.batch = shape.plan.batch as u64;
    row.threads = shape.clients as u64;
    row.repeat = suite.repeat(case);
    if let Some(mut cpp) = cpp {
        row.add_other(&rounds, 2, "cpp");
        cpp.end()?;
    }
    let side = ours.side(rounds.figures(1).cpu_us_per_op);
    row.master = Some(side);
    let both = side.master_cpu_us_per_key * shape.plan.batch as f64 + side.client_cpu_us_per_call;
    let name = case.name();
    let figures = [
        (shape.keys_per_s, "rate", row.ours.ops_per_s, "keys/s"),
        (
            shape.master_us,
            "CPU of the master",
            side.master_cpu_us_per_key,
            "µs/key",
        ),
        (shape.both_us, "CPU of both sides", both, "µs/call"),
    ];
    let figures = figures.into_iter().filter_map(|(goal, what, value, unit)| {
        let figure = Figure::new(format!("{name}: {what}"), value, unit);
        goal.map(|goal| figure.should_be(goal))
    });
    Ok((row, figures.collect()))
}

/// The same load on the C++ store's master, where that is asked for. Its clients wait for each call.
fn cpp(suite: &Suite, shape: Shape) -> Result<Option<MasterCalls>, Failure> {
    let op = match shape.plan.work {
        Work::Exist { found: true } => MasterOp::Exist,
        Work::Exist { found: false } => MasterOp::ExistMiss,
        Work::Put => MasterOp::Put,
        Work::Query => return Ok(None),
    };
    let Some(wheel) = &suite.wheel else {
        return Ok(None);
    };
    let mut calls = MasterCalls::start(wheel, shape.clients)?;
    calls.begin(MasterCase {
        op,
        batch: shape.plan.batch as u64,
        key_bytes: suite.key_bytes as u64,
        keys: CPP_OBJECTS,
    })?;
    Ok(Some(calls))
}

/// Our side: clients that load one master.
struct Load<'a> {
    runtime: &'a Handle,
    fixture: &'a Fixture,
    shape: Shape,
    callers: Vec<Caller>,
    /// Of each round, the first of which warms up: the master's processor time a key, the clients' a
    /// call.
    sides: Vec<(f64, f64)>,
}

impl<'a> Load<'a> {
    fn start(
        runtime: &'a Handle,
        fixture: &'a Fixture,
        suite: &Suite,
        shape: Shape,
    ) -> Result<Self, Failure> {
        let keys = |space| Keys::new(suite.key_bytes, space);
        let source = |number: usize| match shape.plan.work {
            Work::Exist { found: false } => Source::known(&keys(MISSED), OBJECTS),
            Work::Exist { found: true } | Work::Query => Source::known(&keys(FOUND), OBJECTS),
            Work::Put => Source::fresh(keys(OWN + number as u64)),
        };
        let address = &fixture.master.address;
        let callers = (0..shape.clients)
            .map(|number| Caller::start(address, shape.wire, shape.plan, source(number)));
        Ok(Self {
            runtime,
            fixture,
            shape,
            callers: callers.collect::<Result<_, _>>()?,
            sides: Vec::new(),
        })
    }

    fn side(&self, limit_us_per_key: f64) -> MasterSide {
        let counted = self.sides.get(1..).unwrap_or_default();
        MasterSide {
            depth: self.shape.plan.depth as u64,
            master_cpu_us_per_key: median(counted.iter().map(|side| side.0)),
            client_cpu_us_per_call: median(counted.iter().map(|side| side.1)),
            limit_cpu_us_per_call: limit_us_per_key * self.shape.plan.batch as f64,
        }
    }
}

impl Contender for Load<'_> {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let cpu = self.fixture.master.cpu();
        let (theirs, ours) = (cpu.read(), own_cpu());
        self.callers.iter().for_each(|caller| caller.begin(budget));
        let samples: Vec<_> = self.callers.iter().map(Caller::wait).collect();
        let (master, clients) = (cpu.read() - theirs, own_cpu() - ours);
        let mut total = Sample {
            cpu: master + clients,
            latency: Latency::default(),
            ..Sample::default()
        };
        for sample in samples {
            let sample = sample?;
            total.operations += sample.operations;
            total.wall = total.wall.max(sample.wall);
            total.latency.merge(&sample.latency);
        }
        let micros = |cpu: Duration, of: u64| cpu.as_secs_f64() * 1e6 / of.max(1) as f64;
        self.sides.push((
            micros(master, total.operations),
            micros(clients, total.latency.count()),
        ));
        if self.shape.plan.work == Work::Put {
            self.runtime.block_on(self.fixture.remove_all())?;
        }
        Ok(total)
    }
}

/// How long the messages of a call are, taken from one that is made.
async fn messages(fixture: &Fixture, suite: &Suite, shape: Shape) -> Result<EchoShape, Failure> {
    let space = match shape.plan.work {
        Work::Exist { found: false } => MISSED,
        Work::Exist { found: true } | Work::Query => FOUND,
        // Removed after the first round.
        Work::Put => OWN + shape.clients as u64,
    };
    let source = Keys::new(suite.key_bytes, space);
    let keys: Vec<_> = (0..shape.plan.batch as u64)
        .map(|n| source.key(n))
        .collect();
    let request = load::request(shape.plan.work, keys.clone());
    let mut lengths = (wire_bytes(shape.wire, &request), 0);
    let answer = fixture.call(request).await?;
    lengths.1 = answer_bytes(shape.wire, &answer);
    let mut trips = 1;
    if let MasterAnswer::PutStart(started) = answer {
        let request = load::put_end(keys, started)?;
        lengths.0 += wire_bytes(shape.wire, &request);
        let answer = fixture.call(request).await?;
        lengths.1 += answer_bytes(shape.wire, &answer);
        trips = 2;
    }
    Ok(EchoShape {
        request_bytes: lengths.0 / trips,
        answer_bytes: lengths.1 / trips,
        trips: trips as u32,
        batch: shape.plan.batch as u64,
        depth: shape.plan.depth,
        connections: shape.clients,
    })
}

/// A gRPC message has this in front.
const PREFIX_BYTES: usize = 5;

fn wire_bytes(wire: Wire, request: &MasterRequest) -> usize {
    let message = match (wire, request) {
        (Wire::Unary, MasterRequest::Exist(request)) => request.encoded_len(),
        _ => ClientFrame {
            operations: vec![Operation {
                number: 1_000_000,
                operation: Some(request.clone()),
            }],
            ..ClientFrame::default()
        }
        .encoded_len(),
    };
    PREFIX_BYTES + message
}

fn answer_bytes(wire: Wire, answer: &MasterAnswer) -> usize {
    let message = match (wire, answer) {
        (Wire::Unary, MasterAnswer::Exist(ExistResponse { results })) => {
            let results = results.clone();
            ExistResponse { results }.encoded_len()
        }
        _ => {
            let answer = Answer {
                number: 1_000_000,
                answer: Some(answer.clone()),
            };
            let event = Some(event::Event::Answer(answer));
            let events = vec![Event { event }];
            ServerFrame { events }.encoded_len()
        }
    };
    PREFIX_BYTES + message
}
