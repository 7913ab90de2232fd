//! Ways in for fuzzing. Peers are made of bytes; everything behind the socket is what always runs.
//!
//! No part of the API: it may change at any time.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use smallvec::SmallVec;

use super::{
    TcpConfig,
    lane::{Lane, Post, Received},
    target,
    wire::{
        ANSWER_BYTES, AnswerHeader, Extension, Flags, HELLO_BYTES, Hello, HelloAnswer,
        LONG_REQUEST_BYTES, LaneClock, REQUEST_BYTES, RequestHeader, Verb,
    },
};
use crate::{
    identity::{Generation, Incarnation, RegistrationId},
    memory::{BufferTable, LocalBuffer, LocalSlice, Memory, Permission},
    transport::{BatchState, Op, Outcome, Peer, TaskRef, TaskSlab, TaskSpec},
};

/// A message of fixed length.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// What it is called.
    pub name: &'static str,
    /// Its length in bytes.
    pub length: usize,
    /// Decodes bytes of that length and encodes what they say; the error says what is wrong.
    pub again: fn(&[u8]) -> Result<Vec<u8>, String>,
}

macro_rules! message {
    ($name:literal, $kind:ident, $length:ident) => {
        Message {
            name: $name,
            length: $length,
            again: |bytes| {
                let bytes = bytes.try_into().expect("it has the message's length");
                let decoded = $kind::decode(bytes).map_err(|what| what.to_string())?;
                Ok(decoded.encode().to_vec())
            },
        }
    };
}

/// All messages of the protocol.
pub const MESSAGES: [Message; 5] = [
    message!("hello", Hello, HELLO_BYTES),
    message!("hello answer", HelloAnswer, HELLO_BYTES),
    message!("request", RequestHeader, REQUEST_BYTES),
    message!("answer", AnswerHeader, ANSWER_BYTES),
    Message {
        name: "request with an extension",
        length: LONG_REQUEST_BYTES,
        again: |bytes| {
            let bytes = bytes.try_into().expect("it has the message's length");
            let decoded = RequestHeader::decode_long(bytes).map_err(|what| what.to_string())?;
            let (header, extension) = decoded;
            Ok(header.encode_long(extension).to_vec())
        },
    },
];

/// Most bytes that arrive at once when they arrive in pieces.
pub const MOST_AT_ONCE: usize = 64;

/// Length of each buffer of [`serve`]: registration 1 may be read and written, 2 read, 3 neither.
/// All are of generation 1. Byte `i` of registration `n` begins as `n + i`, cut to a byte.
pub const BUFFER_BYTES: usize = 256;

/// How old the lane of [`serve`] is: deadlines before that are over, and others still to come.
pub const LANE_AGE: Duration = Duration::from_secs(10);

/// The target of [`serve`] has room to note so many writes that tell; nobody takes them.
pub const MOST_ARRIVALS: usize = 3;

/// The lane of [`serve`] may have so many bytes under way, which no input asks for …
pub const CREDIT_BYTES: u64 = 1 << 60;
/// … and so many requests. It is granted neither more nor less.
pub const CREDIT_REQUESTS: u64 = 1 << 40;

/// What a target did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// All that it sent.
    pub answers: Vec<u8>,
    /// Its buffers, as they are now.
    pub memory: [Vec<u8>; 3],
    /// Leases that are left.
    pub leases: u64,
    /// Why the lane ended.
    pub end: String,
}

/// Serves a lane that brings `pieces` and then ends.
pub fn serve(pieces: &[&[u8]]) -> Served {
    let permissions = [
        Permission::PeersReadWrite,
        Permission::PeersRead,
        Permission::Local,
    ];
    let table = Arc::new(BufferTable::new());
    let buffers = [1, 2, 3].map(|id| {
        let bytes = (0..BUFFER_BYTES).map(|at| (id as usize + at) as u8);
        let buffer = buffer(id, bytes.collect(), permissions[id as usize - 1]);
        table.publish(&buffer);
        buffer
    });
    let (ours, mut theirs) = sockets(pieces);
    let end = target::fuzz::serve(&ours, life(1), table).to_string();
    // Not closed yet: bytes that it has not read would make that a reset.
    ours.shutdown(Shutdown::Write).expect("it is connected");
    let mut answers = Vec::new();
    // One record after the other, where the socket has such.
    let mut some = vec![0; 64 << 10];
    while let length @ 1.. = theirs.read(&mut some).expect("it was not reset") {
        answers.extend_from_slice(&some[..length]);
    }
    Served {
        answers,
        memory: [0, 1, 2].map(|at: usize| contents(&buffers[at])),
        leases: buffers.iter().map(|buffer| buffer.leases()).sum(),
        end,
    }
}

/// A request that [`receive`] awaits the answer of.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    /// A read, or else a write.
    pub reads: bool,
    /// How many bytes in each piece of local memory; the pieces have gaps of [`GAP`] bytes after
    /// them.
    pub pieces: &'static [usize],
}

/// Bytes after each piece, which nobody may touch.
pub const GAP: usize = 8;

/// The requests of [`receive`], in order; their tags count from 0.
pub const AWAITED: [Awaited; 4] = [
    Awaited {
        reads: true,
        pieces: &[16, 24],
    },
    Awaited {
        reads: false,
        pieces: &[10],
    },
    Awaited {
        reads: true,
        pieces: &[3],
    },
    Awaited {
        reads: true,
        pieces: &[1, 1, 7],
    },
];

/// What an initiator made of answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// How each request ended.
    pub outcomes: Vec<Option<Outcome>>,
    /// Which of them may still move bytes.
    pub loud: Vec<bool>,
    /// The local memory; it began as zeros.
    pub memory: Vec<u8>,
    /// Leases on local memory that are left.
    pub leases: u64,
    /// Why the lane ended.
    pub end: String,
}

/// Receives `pieces`, after which the lane ends, as answers to [`AWAITED`].
pub fn receive(pieces: &[&[u8]]) -> Heard {
    let bytes = AWAITED.iter().flat_map(|awaited| awaited.pieces);
    let memory = vec![0; bytes.map(|length| length + GAP).sum()];
    let local = buffer(1, memory, Permission::Local);
    let tasks = Arc::new(TaskSlab::new());
    let batch = Arc::new(BatchState::default());
    let peer = Arc::new(Peer::new(life(2), Vec::new()));
    let mut refs = Vec::new();
    let mut at = 0;
    let specs: Vec<TaskSpec> = AWAITED
        .iter()
        .map(|awaited| awaiting(awaited, &local, &mut at, &peer))
        .collect();
    tasks
        .take(&batch, specs.len(), &mut refs)
        .expect("there is room");
    let entries = specs.iter().map(|spec| (spec.clone(), false));
    tasks.begin(&batch, &refs, entries);

    let config = TcpConfig {
        spin: Duration::ZERO,
        ..TcpConfig::default()
    };
    let lane = Lane::new(1, life(2), Arc::clone(&tasks), &config, Arc::default());
    let posts = refs.iter().zip(specs);
    let mut posts: Vec<_> = posts.map(|(task, spec)| post(*task, spec)).collect();
    assert!(lane.post(&mut posts), "the lane is not broken");
    let (ours, theirs) = sockets(pieces);
    lane.connected(ours, LaneClock::start());
    lane.flush();
    let mut receiver = lane.receiver();
    let reason = loop {
        match lane.receive(&mut receiver) {
            Ok(Received::Nothing) => panic!("the lane has ended, but nothing says so"),
            Ok(Received::Answers | Received::Bytes) => {}
            Err(reason) => break reason,
        }
    };
    lane.fail(&mut receiver, &reason);
    drop(theirs);
    let quiet = |task: &TaskRef| tasks.is_quiescent(*task);
    Heard {
        outcomes: refs
            .iter()
            .map(|task| tasks.outcome(*task).map(timeless))
            .collect(),
        loud: refs.iter().map(|task| !quiet(task)).collect(),
        memory: contents(&local),
        leases: local.leases(),
        end: reason.to_string(),
    }
}

/// How long it took is different each time.
fn timeless(mut outcome: Outcome) -> Outcome {
    if let Outcome::Failed(error) | Outcome::Cancelled(error) | Outcome::TimedOut(error) =
        &mut outcome
        && let Some(progress) = &mut error.progress
    {
        progress.after = Duration::ZERO;
    }
    outcome
}

fn awaiting(
    awaited: &Awaited,
    local: &Arc<LocalBuffer>,
    at: &mut usize,
    peer: &Arc<Peer>,
) -> TaskSpec {
    let slices: SmallVec<[LocalSlice; 1]> = awaited
        .pieces
        .iter()
        .map(|length| {
            let range = *at as u64..(*at + length) as u64;
            *at += length + GAP;
            let lease = local.lease(None).expect("the buffer is open");
            LocalSlice::new(lease, range).expect("it lies within the buffer")
        })
        .collect();
    TaskSpec {
        op: if awaited.reads { Op::Read } else { Op::Write },
        length: slices.iter().map(LocalSlice::len).sum(),
        local: slices,
        peer: Arc::clone(peer),
        registration: RegistrationId(1),
        generation: Generation(1),
        offset: 0,
        deadline: None,
        receipt: crate::transport::Receipt::default(),
        qos: crate::qos::Qos::new(),
        terms: None,
        origin: None,
        meter: crate::metrics::MeterId::NONE,
    }
}

fn post(task: TaskRef, spec: TaskSpec) -> Post {
    Post {
        task,
        verb: match spec.op {
            Op::Read => Verb::Read,
            Op::Write => Verb::Write,
        },
        local: spec.local,
        registration: spec.registration,
        generation: spec.generation,
        offset: spec.offset,
        length: spec.length,
        flags: Flags::default(),
        extension: Extension::default(),
        single: false,
        deadline: None,
    }
}

fn life(raw: u64) -> Incarnation {
    Incarnation::from_u64(raw).expect("it is not 0")
}

fn buffer(id: u64, bytes: Vec<u8>, permission: Permission) -> Arc<LocalBuffer> {
    let memory = Memory::from_vec(bytes).expect("it is not empty");
    let (id, location) = (RegistrationId(id), String::new());
    Arc::new(LocalBuffer::new(id, memory, permission, location))
}

fn contents(buffer: &LocalBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.memory().len()];
    buffer.memory().read_at(0, &mut bytes);
    bytes
}

/// A connection on which `pieces` have come and nothing more will: a stream if it is one piece,
/// else each piece arrives by itself.
fn sockets(pieces: &[&[u8]]) -> (TcpStream, TcpStream) {
    let kind = match pieces.len() {
        0 | 1 => SocketType::STREAM,
        _ => SocketType::SEQPACKET,
    };
    let flags = SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, kind, flags, None);
    let (ours, theirs) = pair.expect("there is a pair of sockets");
    let (ours, mut theirs) = (TcpStream::from(ours), TcpStream::from(theirs));
    for socket in [&ours, &theirs] {
        // What does not fit ends the run instead of stopping it.
        let limit = Some(Duration::from_secs(5));
        sockopt::set_socket_send_buffer_size(socket, 1 << 20).expect("it is a socket");
        socket.set_write_timeout(limit).expect("it is a socket");
    }
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        let whole = kind == SocketType::STREAM || piece.len() <= MOST_AT_ONCE;
        assert!(whole, "a piece of {} bytes would be cut", piece.len());
        theirs.write_all(piece).expect("the socket takes it");
    }
    theirs.shutdown(Shutdown::Write).expect("it is connected");
    (ours, theirs)
}
