//! A link of one's own: reads over Unix sockets, one thread for each peer. Writes it leaves to others,
//! and the engine does too: reads go over it, writes over TCP.
//!
//! ```text
//! cargo run -p mooncake-tent --example own_link
//! ```
#![allow(clippy::unwrap_used, reason = "an example ends at its first problem")]

use std::{
    collections::HashMap,
    fs, io,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use mooncake_tent::{
    Error, Generation, LocalBuffer, Memory, PeerId, Permission, Qos, Reason, RegisterOptions,
    RegistrationId, RemoteRange, Request, Result, Stage, TcpTransport, TentEngine, TransferEngine,
    TransferError,
    transport::{
        Attachment, BoxFuture, Capabilities, InstallContext, LinkGauges, Op, Outcome, Peer,
        Posting, SubBatch, TaskRef, Tasks, Transport,
    },
};

const NAME: &str = "pigeon";
const BUDGET: Duration = Duration::from_secs(5);

/// Registration, generation, offset and length, each of eight bytes.
const REQUEST: usize = 32;
/// Comes before the bytes, or alone.
const HERE_THEY_ARE: u8 = 1;
const REFUSED: u8 = 0;

/// The link. Peers find its socket at `path`.
#[derive(Debug)]
struct Pigeon {
    path: PathBuf,
    installed: OnceLock<Installed>,
}

#[derive(Debug)]
struct Installed {
    tasks: Tasks,
    /// Who carries requests to each peer.
    carriers: Arc<Mutex<HashMap<PeerId, Sender<TaskRef>>>>,
}

impl Pigeon {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            installed: OnceLock::new(),
        }
    }

    fn installed(&self) -> Result<&Installed> {
        self.installed.get().ok_or_else(|| failed("not installed"))
    }
}

fn failed(message: impl ToString) -> Error {
    Error::Install {
        link: NAME,
        message: message.to_string(),
    }
}

impl Transport for Pigeon {
    fn name(&self) -> &'static str {
        NAME
    }

    /// What is not said here, such as writes, is never asked of it.
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::read_write();
        capabilities.writes = false;
        capabilities.same_host = true;
        capabilities
    }

    fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let listener = UnixListener::bind(&self.path).map_err(failed)?;
            let installed = Installed {
                tasks: Arc::clone(engine.tasks()),
                carriers: Arc::default(),
            };
            self.installed
                .set(installed)
                .map_err(|_| failed("it serves another engine"))?;
            thread::spawn(move || {
                for peer in listener.incoming().map_while(io::Result::ok) {
                    let engine = engine.clone();
                    thread::spawn(move || serve(peer, &engine));
                }
            });
            Ok(())
        })
    }

    /// Travels in the segment's descriptor.
    fn endpoint(&self) -> Option<String> {
        Some(self.path.display().to_string())
    }

    /// Without carriers nothing is read any more; reads of peers hold what they read from.
    fn uninstall(&self, _budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.installed()?.carriers.lock().unwrap().clear();
            fs::remove_file(&self.path).map_err(failed)
        })
    }

    /// A link that must pin memory or tell a device of it does so here.
    fn add_memory_buffer<'a>(
        &'a self,
        _buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>> {
        Box::pin(async { Ok(Attachment::Attached) })
    }

    fn remove_memory_buffer(&self, _id: RegistrationId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn allocate_sub_batch(&self, _capacity: usize) -> Result<Box<dyn SubBatch>> {
        let Installed { tasks, carriers } = self.installed()?;
        Ok(Box::new(Basket {
            tasks: Arc::clone(tasks),
            carriers: Arc::clone(carriers),
        }))
    }

    fn reaches(&self, peer: &Peer) -> bool {
        peer.endpoint(NAME).is_some()
    }

    fn warm_up<'a>(&'a self, _: &'a Arc<Peer>, _: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// It writes nothing at a peer, so nothing can land there late.
    fn fence(&self, _peer: PeerId, _budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        None
    }

    fn gauges(&self) -> LinkGauges {
        LinkGauges::default()
    }
}

/// Takes the tasks of a batch to who carries them.
#[derive(Debug)]
struct Basket {
    tasks: Tasks,
    carriers: Arc<Mutex<HashMap<PeerId, Sender<TaskRef>>>>,
}

impl SubBatch for Basket {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()> {
        for task in tasks {
            // It may have been cancelled.
            let Some(spec) = self.tasks.spec(*task) else {
                continue;
            };
            let mut carriers = self.carriers.lock().unwrap();
            let carrier = carriers.entry(spec.peer.id()).or_insert_with(|| {
                let (carrier, orders) = mpsc::channel();
                let tasks = Arc::clone(&self.tasks);
                thread::spawn(move || carry(&tasks, &spec.peer, orders));
                carrier
            });
            carrier.send(*task).map_err(failed)?;
        }
        Ok(())
    }

    /// They end soon enough.
    fn cancel_transfer_task(&self, _task: TaskRef) {}

    fn drive(&self, _budget: Duration) -> bool {
        false
    }

    fn hand_over(&self) {}
}

/// The initiator's end: one read after the other.
fn carry(tasks: &Tasks, peer: &Peer, orders: mpsc::Receiver<TaskRef>) {
    let path = peer.endpoint(NAME).unwrap_or_default();
    let mut socket = UnixStream::connect(path);
    for task in orders {
        let Some(posting) = tasks.posting(task) else {
            continue;
        };
        let read = match &mut socket {
            _ if posting.deadline.is_some_and(|end| end <= Instant::now()) => {
                Ok(Outcome::timed_out(Stage::Post, peer.id()))
            }
            Ok(socket) => fetch(socket, &posting),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        let end = read.unwrap_or_else(|error| {
            let why = Reason::Broken(error.to_string().into());
            let error = TransferError::unstarted(why, Stage::Move, Some(peer.id()));
            // The next read tries anew.
            socket = UnixStream::connect(path);
            Outcome::Failed(error)
        });
        // Whatever came of it, we touch the destination no more: the task is quiet.
        tasks.finish(task, end, true);
    }
}

fn fetch(socket: &mut UnixStream, posting: &Posting) -> io::Result<Outcome> {
    let mut request = [0; REQUEST];
    let fields = [
        posting.registration.0,
        u64::from(posting.generation.0),
        posting.offset,
        posting.length,
    ];
    for (place, field) in request.chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    socket.write_all(&request)?;
    let mut answer = [0];
    socket.read_exact(&mut answer)?;
    if answer != [HERE_THEY_ARE] {
        let error = TransferError::unstarted(Reason::Permission, Stage::Admit, Some(posting.peer));
        return Ok(Outcome::Failed(error));
    }
    let mut piece = vec![0; 64 << 10];
    for local in &posting.local {
        for at in (0..local.len()).step_by(piece.len()) {
            let piece = &mut piece[..(local.len() - at).min(64 << 10) as usize];
            socket.read_exact(piece)?;
            local.write_at(at, piece);
        }
    }
    Ok(Outcome::Completed {
        bytes: posting.length,
    })
}

/// The target's end: checks each request against the registrations, whatever the peer believes.
fn serve(mut peer: UnixStream, engine: &InstallContext) -> io::Result<()> {
    let mut request = [0; REQUEST];
    let mut piece = vec![0; 64 << 10];
    loop {
        peer.read_exact(&mut request)?;
        let field = |i: usize| u64::from_le_bytes(request[i * 8..][..8].try_into().unwrap());
        let generation = Generation(u32::try_from(field(1)).unwrap_or(0));
        let range = field(2)..field(2).saturating_add(field(3));
        let admitted = engine.admit(Op::Read, RegistrationId(field(0)), generation, range);
        // While we hold it, the memory stays what it is.
        let Ok(slice) = admitted else {
            peer.write_all(&[REFUSED])?;
            continue;
        };
        peer.write_all(&[HERE_THEY_ARE])?;
        for at in (0..slice.len()).step_by(piece.len()) {
            let piece = &mut piece[..(slice.len() - at).min(64 << 10) as usize];
            slice.read_at(at, piece);
            peer.write_all(piece)?;
        }
    }
}

#[tokio::main]
async fn main() {
    let folder = std::env::temp_dir().join(format!("own-link-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let start = async |name| {
        TentEngine::builder()
            .transport(Pigeon::new(folder.join(name)))
            .transport(TcpTransport::default())
            .build()
            .await
            .unwrap()
    };
    let (owner, reader) = (start("owner").await, start("reader").await);

    let offered = Memory::from_vec((0..1 << 20).map(|at| (at % 251) as u8).collect()).unwrap();
    let options = RegisterOptions::new(Permission::PeersReadWrite);
    let offered = owner.register_memory(offered, options).await.unwrap();
    let local = Memory::allocate(1 << 20).unwrap();
    let options = RegisterOptions::new(Permission::Local);
    let local = reader.register_memory(local, options).await.unwrap();

    let segment = reader
        .open_segment(owner.segment_name(), BUDGET)
        .await
        .unwrap();
    for op in [Op::Read, Op::Write] {
        println!(
            "{op}: {}",
            reader.explain(op, 1 << 20, &Qos::new(), &segment)
        );
    }

    let place = RemoteRange::Address(offered.memory().address());
    let mut batch = reader.allocate_batch(1);
    let read = Request::read(local.all().unwrap(), &segment, place);
    reader.submit_transfer(&mut batch, vec![read]).unwrap();
    batch.terminal().await;
    assert!(batch.outcome(0).unwrap().is_completed());
    let mut bytes = vec![0; 1 << 20];
    local.memory().read_at(0, &mut bytes);
    assert!(
        bytes
            .iter()
            .zip(0..)
            .all(|(byte, at)| *byte == (at % 251) as u8)
    );
    println!("a megabyte came by {NAME}, every byte of it right");

    for engine in [reader, owner] {
        engine.shutdown(BUDGET).await.unwrap();
    }
    fs::remove_dir(&folder).unwrap();
}
