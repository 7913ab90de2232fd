//! Measures the state machine alone: CPU per key, bytes per object, the longest single step, and
//! what comes back when everything is removed.
//!
//! `cargo run --release -p mooncake-master --example memory [objects [keys a batch]]`

use std::time::{Duration, Instant};

use mooncake_master::{
    Time,
    state::{
        Answer, Caller, ClientId, Command, Effect, Key, Operation, PutStart, SegmentId,
        SegmentIdentity, Settings, State,
    },
};

const CLIENT: ClientId = ClientId(1);
const LENGTH: u64 = 200_000;

struct Store {
    state: State,
    began: Instant,
    number: u64,
    /// In this part so far: of all steps, and of the longest.
    spent: Duration,
    longest: Duration,
    settled: Option<Answer>,
}

impl Store {
    fn new(capacity: u64) -> Self {
        let mut store = Self {
            state: State::new(1, Settings::default()),
            began: Instant::now(),
            number: 0,
            spent: Duration::ZERO,
            longest: Duration::ZERO,
            settled: None,
        };
        store.apply(&Command::Hello {
            client: CLIENT,
            tenant: String::new(),
            name: String::new(),
        });
        for id in 0..4 {
            store.perform(Operation::Mount(SegmentIdentity {
                id: SegmentId([id; 16]),
                name: format!("segment-{id}"),
                owner: CLIENT,
                registration: 1,
                generation: 0,
                length: capacity / 4,
                owner_name: String::new(),
            }));
        }
        store
    }

    fn apply(&mut self, command: &Command) -> Answer {
        let now = Time(self.began.elapsed().as_micros() as u64);
        let began = Instant::now();
        let applied = self.state.apply(now, command);
        let took = began.elapsed();
        self.spent += took;
        self.longest = self.longest.max(took);
        for effect in applied.effects {
            if let Effect::Settled { answer, .. } = effect {
                self.settled = Some(answer);
            }
        }
        applied.answer
    }

    fn perform(&mut self, operation: Operation) -> Answer {
        self.number += 1;
        let (client, number) = (CLIENT, self.number);
        self.apply(&Command::AcknowledgeBelow { client, number });
        let caller = Caller::Session { client, number };
        self.apply(&Command::Perform { caller, operation })
    }

    fn put(&mut self, items: &[Key], draw: u64) {
        let started = self.perform(Operation::PutStart(PutStart {
            items: items.iter().map(|key| (key.clone(), LENGTH)).collect(),
            replicas: 1,
            draw,
            ..PutStart::default()
        }));
        let Answer::Started(started) = started else {
            unreachable!("PutStart is answered by Started");
        };
        let ends = items.iter().zip(started.results);
        let ends = ends.filter_map(|(key, object)| Some((key.clone(), object.ok()?.incarnation)));
        let ends = ends.collect();
        self.perform(Operation::PutEnd(ends));
    }

    fn fill(&mut self, objects: u64, batch: u64) {
        for first in (0..objects).step_by(batch as usize) {
            let items: Vec<_> = (first..objects.min(first + batch)).map(key).collect();
            self.put(&items, self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
    }

    fn remove_all(&mut self) {
        let mut answer = self.perform(Operation::RemoveAll);
        while let Answer::Later { .. } = answer {
            self.apply(&Command::Tick);
            if let Some(settled) = self.settled.take() {
                answer = settled;
            }
        }
    }

    fn report(&mut self, what: &str, count: u64) {
        let each = self.spent.as_nanos() as f64 / 1000.0 / count.max(1) as f64;
        println!(
            "{what:<44} {each:>8.3} µs each {:>8.1} ms in all, longest step {:>6.2} ms",
            self.spent.as_secs_f64() * 1e3,
            self.longest.as_secs_f64() * 1e3,
        );
        (self.spent, self.longest) = (Duration::ZERO, Duration::ZERO);
    }
}

/// As long as the keys of inference engines.
fn key(n: u64) -> Key {
    Key(format!("{n:0107}").into_bytes().into())
}

/// Visits each of `0..count` once, in no order.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    let mut step = (count as f64 * 0.618) as u64 | 1;
    while !is_coprime(step, count) {
        step += 2;
    }
    (0..count).map(move |n| n * step % count)
}

fn is_coprime(a: u64, b: u64) -> bool {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| {
        let given = arguments.next().map(|given| given.parse::<u64>());
        given.map_or(default, |given| given.expect("a number is asked for"))
    };
    let objects = number(20_000);
    let batch = number(128);
    let keys = |which: &mut dyn Iterator<Item = u64>| -> Vec<Key> {
        which.take(batch as usize).map(key).collect()
    };

    let before = resident_bytes();
    // Room for all of them and a little more, so that the last puts reach the watermark.
    let mut store =
        Store::new((objects as f64 * LENGTH.next_multiple_of(64) as f64 / 0.899) as u64);
    store.fill(objects, batch);
    store.report("put_start + put_end", objects);
    let each = resident_bytes().saturating_sub(before) / objects;
    println!("{each} bytes each are resident");

    let mut all = shuffled(objects);
    loop {
        let items = keys(&mut all);
        if items.is_empty() {
            break;
        }
        store.perform(Operation::Exist(items));
    }
    store.report("exist, in no order", objects);
    let mut ticks = 0;
    while store.state.counters().reservations > 0 {
        std::thread::sleep(Duration::from_millis(20));
        while (store.apply(&Command::Tick) == Answer::Ticked { more: true }) {}
        ticks += 1;
    }
    store.report("  until nothing is reserved (ticks)", ticks);

    let mut all = shuffled(objects);
    loop {
        let items = keys(&mut all);
        if items.is_empty() {
            break;
        }
        if let Answer::Looked { lease, .. } = store.perform(Operation::Lookup(items)) {
            store.perform(Operation::Release(vec![lease]));
        }
    }
    store.report("lookup + release, in no order", objects);

    // The order of use is now that of the look-ups.
    let (mut more, mut evicted) = (objects, 0);
    while evicted < objects / 20 {
        store.put(&keys(&mut (more..more + batch)), more);
        more += batch;
        while (store.apply(&Command::Tick) == Answer::Ticked { more: true }) {}
        evicted = store.state.counters().evicted_objects;
    }
    store.report("eviction of 5 %, beside puts", evicted);

    let count = store.state.counters().objects;
    store.remove_all();
    store.report("remove_all, used in no order", count);
    store.fill(objects, batch);
    store.report("put_start + put_end, again", objects);
    store.remove_all();
    store.report("remove_all, used in the order of puts", objects);
    let left = resident_bytes();
    println!(
        "resident before the first put {:.1} MiB, now {:.1} MiB",
        before as f64 / f64::from(1 << 20),
        left as f64 / f64::from(1 << 20),
    );
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).map(str::parse::<u64>);
    pages.and_then(Result::ok).unwrap_or(0) * 4096
}
