//! An engine whose memory others read and write, and which registers it anew all the time.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mooncake_tent::{
    Buffer, Incarnation, Memory, Permission, RegisterOptions, TentEngine, TransferEngine,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::task::JoinHandle;

use crate::{BUFFER_BYTES, common::BUDGET, idle, ledger::Ledger};

const BUFFERS: usize = 2;

pub(crate) struct Owner {
    engine: TentEngine,
    stop: Arc<AtomicBool>,
    work: JoinHandle<()>,
}

struct Work {
    engine: TentEngine,
    ledger: Arc<Ledger>,
    draw: StdRng,
    buffers: Vec<Buffer>,
    /// The latest number from each caller of each sender.
    heard: HashMap<(Incarnation, String), u64>,
    announced: HashSet<(Incarnation, u64)>,
    arrived: HashSet<(Incarnation, u64)>,
}

impl Owner {
    pub(crate) async fn start(engine: TentEngine, ledger: Arc<Ledger>, seed: u64) -> Self {
        let mut work = Work {
            engine: engine.clone(),
            ledger,
            draw: StdRng::seed_from_u64(seed),
            buffers: Vec::new(),
            heard: HashMap::new(),
            announced: HashSet::new(),
            arrived: HashSet::new(),
        };
        for foreign in [false, true] {
            let buffer = work.register(foreign).await;
            work.buffers.push(buffer);
        }
        let stop = Arc::<AtomicBool>::default();
        let until = Arc::clone(&stop);
        let work = tokio::spawn(work.run(until));
        Self { engine, stop, work }
    }

    pub(crate) fn name(&self) -> &str {
        self.engine.segment_name()
    }

    /// It found something that is wrong.
    pub(crate) fn has_ended(&self) -> bool {
        self.work.is_finished()
    }

    /// Once all callers are gone.
    pub(crate) async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.work.await.unwrap();
        idle(&self.engine, 0, false).await;
        self.engine.shutdown(BUDGET).await.unwrap();
        idle(&self.engine, 0, false).await;
    }
}

impl Work {
    async fn run(mut self, stop: Arc<AtomicBool>) {
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.listen();
            if Instant::now() > next {
                next += Duration::from_millis(self.draw.random_range(50..700));
                self.register_anew().await;
            }
        }
        for buffer in std::mem::take(&mut self.buffers) {
            self.engine.unregister_memory(buffer, BUDGET).await.unwrap();
        }
        // Callers are gone, and what they have told is here.
        self.listen();
    }

    fn listen(&mut self) {
        for arrival in self.engine.receive_arrivals() {
            assert!(arrival.length > 0);
            let new = self.arrived.insert((arrival.sender, arrival.op_id));
            assert!(new, "{arrival:?} twice");
            self.ledger.arrived(arrival.op_id);
        }
        for told in self.engine.receive_notifications() {
            let number = u64::from_le_bytes(told.notification.message[..8].try_into().unwrap());
            let name = told.notification.name;
            if name == "done" {
                assert!(self.announced.insert((told.sender, number)), "told twice");
                continue;
            }
            let last = self.heard.insert((told.sender, name), number);
            assert!(last.is_none_or(|last| last < number), "{last:?}, {number}");
        }
    }

    async fn register(&self, foreign: bool) -> Buffer {
        let memory = match foreign {
            true => Memory::from_vec(vec![0; BUFFER_BYTES as usize]),
            false => Memory::allocate(BUFFER_BYTES as usize),
        };
        let options = RegisterOptions::new(Permission::PeersReadWrite);
        let registered = self.engine.register_memory(memory.unwrap(), options);
        registered.await.unwrap()
    }

    async fn register_anew(&mut self) {
        let place = self.draw.random_range(0..BUFFERS);
        if self.draw.random_bool(0.7) {
            let renewed = self
                .engine
                .renew_registration(&self.buffers[place], BUDGET)
                .await;
            renewed.unwrap();
            return;
        }
        let buffer = self.buffers.remove(place);
        self.engine.unregister_memory(buffer, BUDGET).await.unwrap();
        let buffer = self.register(place == 1).await;
        self.buffers.insert(place, buffer);
    }
}
