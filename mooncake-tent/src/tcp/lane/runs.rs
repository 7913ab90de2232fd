//! Requests for neighbours go as one: one header, one answer, whose bytes come straight to their places.
//!
//! It is decided when they are about to be sent, so that until then each is by itself: it may be
//! cancelled, or go to another lane. Each keeps its task, its bytes and its end.

use super::{
    super::link::cut, Extension, Flags, Frame, LONG_REQUEST_BYTES, Lane, Limit, Pending, Post,
    Receiver, RequestHeader, Run, Sender, Sink, VecDeque,
};

/// Most bytes of a request that is made of several: so much goes to waste if one of them is cancelled.
pub(super) const MOST_BYTES: u64 = 256 << 10;
/// Most requests that become one: so many can be received into by one call.
const MOST: usize = 128;

impl Run {
    pub(super) fn of_one(bytes: u64) -> Self {
        Self { tasks: 1, bytes }
    }
}

impl Lane {
    /// Joins what is sent next and lies next to each other at the peer.
    pub(super) fn join(&self, sender: &mut Sender, limit: Limit) {
        let mut bytes = 0;
        // No longer than what may be under way at once.
        let most = self.run_bytes.min(self.piece());
        let joins = |before: &Frame<LONG_REQUEST_BYTES>, next: &Frame<_>, frames| {
            if frames == 1 {
                bytes = RequestHeader::length(&before.header);
            }
            let longer = bytes + RequestHeader::length(&next.header);
            let joins = frames < MOST
                && longer <= most
                && RequestHeader::goes_on(&before.header, &next.header);
            if joins {
                bytes = longer;
            }
            joins
        };
        sender.outbox.join(limit, joins, |lead, frames| {
            let mut pending = self.pending.lock();
            let first = place(&pending, lead.tag);
            let mut whole = Run::of_one(0);
            for member in pending.range_mut(first..first + frames) {
                whole.bytes += member.length;
                member.run = Run { tasks: 0, bytes: 0 };
            }
            whole.tasks = frames as u32;
            pending[first].run = whole;
            RequestHeader::set_length(&mut lead.header, whole.bytes);
            lead.cost = pending[first].verb.cost(whole.bytes);
        });
    }
}

impl Lane {
    /// A run was refused, since it reaches too far. Nothing of it was touched, and those that do not
    /// reach too far have nothing to do with that: each asks for itself.
    pub(super) fn ask_one_by_one(&self, run: &mut Vec<Pending>) {
        let mut posts = Vec::new();
        for pending in run.drain(..) {
            self.load_less(pending.length);
            let Some(task) = pending.task else { continue };
            let Some(spec) = self.tasks.posting(task) else {
                continue;
            };
            let start = pending.offset - spec.offset;
            posts.push(Post {
                task,
                verb: pending.verb,
                local: cut(&spec.local, start, start + pending.length),
                registration: spec.registration,
                generation: spec.generation,
                offset: pending.offset,
                length: pending.length,
                deadline: pending.deadline,
                flags: Flags::default(),
                extension: Extension::default(),
                single: true,
            });
        }
        let tasks: Vec<_> = posts.iter().map(|post| post.task).collect();
        self.post_or_end(&mut posts);
        // Whoever cancelled one meanwhile may have looked for it in vain.
        for task in tasks {
            if self.tasks.is_unwanted(task) {
                self.cancel(task);
            }
        }
    }
}

/// Makes requests of what was joined and not begun.
pub(super) fn part(sender: &mut Sender, pending: &mut VecDeque<Pending>) {
    let mut at = None;
    sender.outbox.part(|frame| {
        let at = at.get_or_insert_with(|| place(pending, frame.tag));
        // Nobody waits for the answer to a message that gives credit back.
        let waits = pending.get_mut(*at).filter(|it| it.tag == frame.tag);
        let Some(pending) = waits else { return };
        pending.run = Run::of_one(pending.length);
        RequestHeader::set_length(&mut frame.header, pending.length);
        frame.cost = pending.verb.cost(pending.length);
        *at += 1;
    });
}

fn place(pending: &VecDeque<Pending>, tag: u64) -> usize {
    pending.partition_point(|pending| pending.tag < tag)
}

impl Receiver {
    /// So many bytes have come to the places of what is being read.
    pub(super) fn placed(&mut self, mut bytes: u64) {
        for (_, sink) in &mut self.reading {
            let Sink::Place(cursor) = sink else { break };
            let here = bytes.min(cursor.remaining());
            cursor.advance(here);
            bytes -= here;
            if bytes == 0 {
                break;
            }
        }
        debug_assert_eq!(bytes, 0, "what was received had places");
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::{fd::OwnedFd, unix::net::UnixStream},
        sync::Arc,
    };

    use proptest::prelude::*;
    use rustix::net::sockopt;
    use smallvec::smallvec;

    use super::super::*;
    use crate::{
        credit::Credit,
        identity::Incarnation,
        memory::{LocalBuffer, Memory, Permission},
        tcp::wire::REQUEST_BYTES,
        transport::{BatchState, Op, Peer, TaskSlab, TaskSpec},
    };

    /// Of the memory at either end.
    const MEMORY: usize = 64 << 10;

    /// What one task asks for, at the same offset on both sides.
    #[derive(Clone, Copy, Debug)]
    struct Ask {
        verb: Verb,
        offset: u64,
        length: u64,
        generation: u32,
    }

    fn ask(verb: Verb, offset: u64, length: u64) -> Ask {
        Ask {
            verb,
            offset,
            length,
            generation: 1,
        }
    }

    fn ours(at: usize) -> u8 {
        (at % 251) as u8
    }

    fn theirs(at: usize) -> u8 {
        (at % 241 + 7) as u8
    }

    /// A lane and what stands in for its target.
    struct Scene {
        asks: Vec<Ask>,
        tasks: Tasks,
        refs: Vec<TaskRef>,
        local: Arc<LocalBuffer>,
        lane: Lane,
        peer: UnixStream,
        remote: Vec<u8>,
        /// What has come and is no whole request yet.
        came: Vec<u8>,
        /// Answers that the socket has not taken.
        going: Vec<u8>,
        requests: Vec<(u64, u64)>,
    }

    impl Scene {
        fn new(asks: &[Ask]) -> Self {
            let tasks: Tasks = Arc::new(TaskSlab::new());
            let id = PeerId::from_u64(1).unwrap();
            let config = TcpConfig::default();
            let lane = Lane::new(1, id, Arc::clone(&tasks), &config, Arc::default());
            let (socket, peer) = UnixStream::pair().unwrap();
            for end in [&socket, &peer] {
                sockopt::set_socket_send_buffer_size(end, 4096).unwrap();
            }
            peer.set_nonblocking(true).unwrap();
            lane.connected(TcpStream::from(OwnedFd::from(socket)), LaneClock::start());
            let memory = Memory::from_vec((0..MEMORY).map(ours).collect()).unwrap();
            let registration = RegistrationId(1);
            let local = LocalBuffer::new(registration, memory, Permission::Local, String::new());
            let local = Arc::new(local);
            let target = Arc::new(Peer::new(Incarnation::random(), Vec::new()));
            let spec = |ask: &Ask| TaskSpec {
                op: if ask.verb == Verb::Read {
                    Op::Read
                } else {
                    Op::Write
                },
                local: smallvec![slice(&local, ask.offset, ask.length)],
                peer: Arc::clone(&target),
                registration,
                generation: Generation(ask.generation),
                offset: ask.offset,
                length: ask.length,
                deadline: None,
                receipt: crate::transport::Receipt::default(),
                qos: crate::qos::Qos::new(),
                terms: None,
                origin: None,
                meter: crate::metrics::MeterId::NONE,
            };
            let specs: Vec<_> = asks.iter().map(spec).collect();
            let (batch, mut refs) = (Arc::new(BatchState::default()), Vec::new());
            tasks.take(&batch, specs.len(), &mut refs).unwrap();
            let entries = specs.iter().map(|spec| (spec.clone(), false));
            tasks.begin(&batch, &refs, entries);
            let posts = refs.iter().zip(specs).zip(asks);
            let posts = posts.map(|((task, spec), ask)| Post {
                task: *task,
                verb: ask.verb,
                local: spec.local,
                registration,
                generation: spec.generation,
                offset: spec.offset,
                length: spec.length,
                deadline: None,
                flags: Flags::default(),
                extension: Extension::default(),
                single: false,
            });
            assert!(lane.post(&mut posts.collect()));
            Self {
                asks: asks.to_vec(),
                tasks,
                refs,
                local,
                lane,
                peer,
                remote: (0..MEMORY).map(theirs).collect(),
                came: Vec::new(),
                going: Vec::new(),
                requests: Vec::new(),
            }
        }

        /// The target takes at most so many bytes and does what they ask for. `false`: there is
        /// nothing.
        fn serve(&mut self, most: usize) -> bool {
            let mut some = vec![0; most];
            let taken = self.peer.read(&mut some).unwrap_or(0);
            self.came.extend_from_slice(&some[..taken]);
            while let Some(header) = self.came.first_chunk::<REQUEST_BYTES>() {
                let request = RequestHeader::decode(header).unwrap();
                let (offset, length) = (request.offset as usize, request.length as usize);
                let place = &mut self.remote[offset..offset + length];
                let mut answer = AnswerHeader {
                    status: Status::Applied,
                    verb: request.verb,
                    check: None,
                    tag: request.tag,
                    length: 0,
                    granted: Credit::ENDLESS,
                };
                let payload = if request.verb == Verb::Write {
                    length
                } else {
                    0
                };
                let Some(bytes) = self.came[REQUEST_BYTES..].get(..payload) else {
                    break;
                };
                place[..payload].copy_from_slice(bytes);
                if request.verb == Verb::Read {
                    answer.length = request.length;
                }
                self.going.extend(answer.encode());
                self.going.extend(&place[..answer.length as usize]);
                self.came.drain(..REQUEST_BYTES + payload);
                self.requests.push((request.offset, request.length));
            }
            let given = self.peer.write(&self.going).unwrap_or(0);
            self.going.drain(..given);
            taken + given > 0
        }

        /// All that can still happen does.
        fn run(&mut self) {
            let mut moves = true;
            while moves {
                self.lane.flush();
                moves = self.serve(1 << 20);
                let heard = self.lane.receive(&mut self.lane.receiver()).unwrap();
                moves |= heard != Received::Nothing;
            }
        }

        fn end(&self, task: usize) -> Option<Outcome> {
            self.tasks.outcome(self.refs[task])
        }

        fn memory(&self) -> Vec<u8> {
            let mut bytes = vec![0; MEMORY];
            self.local.memory().read_at(0, &mut bytes);
            bytes
        }

        fn is_at_rest(&self) -> bool {
            let receiver = self.lane.receiver();
            let idle = self.lane.is_at_rest(&receiver);
            idle && (self.lane.load(), self.local.leases()) == (0, 0)
        }
    }

    fn slice(local: &Arc<LocalBuffer>, offset: u64, length: u64) -> LocalSlice {
        LocalSlice::new(local.lease(None).unwrap(), offset..offset + length).unwrap()
    }

    #[test]
    fn neighbours_go_as_one_request_and_others_by_themselves() {
        use Verb::{Read, Write};
        let newer = Ask {
            generation: 2,
            ..ask(Read, 400, 10)
        };
        let mut scene = Scene::new(&[
            ask(Read, 0, 100),
            ask(Read, 100, 50),
            ask(Read, 150, 1),
            ask(Read, 152, 1),
            ask(Write, 153, 7),
            ask(Write, 160, 20),
            ask(Read, 180, 20),
            ask(Read, 390, 10),
            newer,
        ]);
        scene.run();
        let requests = [
            (0, 151),
            (152, 1),
            (153, 27),
            (180, 20),
            (390, 10),
            (400, 10),
        ];
        assert_eq!(scene.requests, requests);
        for (i, ask) in scene.asks.iter().enumerate() {
            let bytes = ask.length;
            assert_eq!(scene.end(i), Some(Outcome::Completed { bytes }), "task {i}");
        }
        assert!(scene.is_at_rest());
    }

    #[test]
    fn a_run_has_an_end() {
        let length = super::MOST_BYTES / 4;
        // All of them to the same local bytes, as the offset is what counts.
        let asks: Vec<_> = (0..200).map(|i| ask(Verb::Read, 8 * i, 8)).collect();
        let mut scene = Scene::new(&asks);
        scene.run();
        let many = super::MOST as u64;
        assert_eq!(
            scene.requests,
            [(0, 8 * many), (8 * many, 8 * (200 - many))]
        );
        let lane = &scene.lane;
        let far = (0..6).map(|i| Post {
            task: TaskRef::NONE,
            verb: Verb::Read,
            local: SmallVec::new(),
            registration: RegistrationId(1),
            generation: Generation(1),
            offset: i * length,
            length,
            deadline: None,
            flags: Flags::default(),
            extension: Extension::default(),
            single: false,
        });
        assert!(lane.post(&mut far.collect()));
        lane.flush();
        let runs = lane.pending.lock();
        let runs: Vec<_> = runs.iter().map(|pending| pending.run.tasks).collect();
        assert_eq!(runs, [4, 0, 0, 0, 2, 0]);
    }

    #[test]
    fn of_a_run_that_was_sent_one_can_be_cancelled_alone() {
        let asks: Vec<_> = (0..5).map(|i| ask(Verb::Read, 3000 * i, 3000)).collect();
        for received in [0, 2000, 8000] {
            let mut scene = Scene::new(&asks);
            scene.lane.flush();
            scene.serve(1 << 20);
            let mut heard = 0;
            while heard < received {
                scene.serve(0);
                let before = scene.memory();
                let now = scene.lane.receive(&mut scene.lane.receiver()).unwrap();
                assert_ne!(now, Received::Nothing);
                let after = scene.memory();
                heard += before.iter().zip(&after).filter(|(a, b)| a != b).count();
            }
            scene.lane.cancel(scene.refs[3]);
            assert!(scene.end(3).unwrap().is_cancelled());
            let untouched = scene.memory()[9000..12000].to_vec();
            scene.run();
            for i in [0, 1, 2, 4] {
                assert!(scene.end(i).unwrap().is_completed(), "task {i}");
            }
            let memory = scene.memory();
            assert_eq!(memory[9000..12000], untouched);
            assert!(
                (0..9000)
                    .chain(12000..15000)
                    .all(|at| memory[at] == theirs(at))
            );
            assert_eq!(scene.requests, [(0, 15000)]);
            assert!(scene.is_at_rest());
        }
    }

    #[test]
    fn what_was_joined_and_not_begun_can_be_taken_back() {
        // More than the socket takes, and then what will be joined and wait.
        let mut asks = vec![ask(Verb::Write, 0, 20_000)];
        asks.extend((0..4).map(|i| ask(Verb::Write, 30_000 + 100 * i, 100)));
        let mut scene = Scene::new(&asks);
        assert!(scene.lane.flush(), "the socket is full");
        let runs = |scene: &Scene| -> Vec<_> {
            let pending = scene.lane.pending.lock();
            pending.iter().map(|pending| pending.run.tasks).collect()
        };
        assert_eq!(runs(&scene), [1, 4, 0, 0, 0]);
        scene.lane.cancel(scene.refs[2]);
        let end = scene.end(2).unwrap();
        assert!(end.is_cancelled(), "{end:?}");
        assert_eq!(runs(&scene), [1, 1, 1, 1]);
        scene.run();
        let requests = [(0, 20_000), (30_000, 100), (30_200, 200)];
        assert_eq!(scene.requests, requests);
        assert_eq!(scene.remote[30_100], theirs(30_100));
        assert!(scene.is_at_rest());
    }

    #[test]
    fn law_04_of_a_run_that_breaks_off_what_was_not_sent_was_not_begun() {
        let asks: Vec<_> = (0..8).map(|i| ask(Verb::Write, 4000 * i, 4000)).collect();
        let scene = Scene::new(&asks);
        assert!(scene.lane.flush(), "the socket is full");
        let first = scene.lane.outbox.lock().outbox.first_unsent().unwrap();
        assert!(0 < first && first < 8, "{first}");
        let loud = scene.lane.fail(&mut scene.lane.receiver(), &stuck());
        assert_eq!(loud.tasks, scene.refs[..first as usize]);
        for task in 0..8 {
            let Some(Outcome::Failed(error)) = scene.end(task) else {
                panic!("it failed");
            };
            let begun = (task as u64) < first;
            assert_eq!(
                error.applied == crate::error::Applied::Nothing,
                !begun,
                "{task}"
            );
        }
    }

    #[test]
    fn law_04_nobody_answers_a_run_before_all_of_it_was_sent() {
        let asks: Vec<_> = (0..8).map(|i| ask(Verb::Write, 4000 * i, 4000)).collect();
        let mut scene = Scene::new(&asks);
        assert!(scene.lane.flush(), "the socket is full");
        let answer = AnswerHeader {
            status: Status::Applied,
            verb: Verb::Write,
            check: None,
            tag: 0,
            length: 0,
            granted: Credit::ENDLESS,
        };
        scene.peer.write_all(&answer.encode()).unwrap();
        let heard = scene.lane.receive(&mut scene.lane.receiver());
        assert!(matches!(heard, Err(Reason::Protocol(_))), "{heard:?}");
        assert!((0..8).all(|task| scene.end(task).is_none()));
    }

    #[test]
    fn what_is_begun_is_never_joined_wherever_a_call_ends() {
        const LENGTH: u64 = 5_000;
        const COUNT: u64 = 900;
        let memory = (0..(LENGTH * COUNT) as usize).map(ours).collect();
        let memory = Memory::from_vec(memory).unwrap();
        let local = LocalBuffer::new(RegistrationId(1), memory, Permission::Local, String::new());
        let local = Arc::new(local);
        for prefill in (1_000_000..1_036_000).step_by(611) {
            let id = PeerId::from_u64(1).unwrap();
            let tasks: Tasks = Arc::new(TaskSlab::new());
            let config = TcpConfig {
                window_bytes: LENGTH * COUNT,
                ..TcpConfig::default()
            };
            let lane = Lane::new(1, id, tasks, &config, Arc::default());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut peer = listener.accept().unwrap().0;
            // So the first call of the lane ends somewhere else each time.
            socket.write_all(&vec![9; prefill]).unwrap();
            lane.connected(socket, LaneClock::start());
            let posts = (0..COUNT).map(|i| Post {
                task: TaskRef::NONE,
                verb: Verb::Write,
                local: smallvec![slice(&local, i * LENGTH, LENGTH)],
                registration: RegistrationId(1),
                generation: Generation(1),
                offset: i * LENGTH,
                length: LENGTH,
                deadline: None,
                flags: Flags::default(),
                extension: Extension::default(),
                single: false,
            });
            assert!(lane.post(&mut posts.collect()));
            peer.set_nonblocking(true).unwrap();
            let (mut came, mut some) = (Vec::new(), vec![0; 1 << 20]);
            loop {
                let blocked = lane.flush();
                let taken = peer.read(&mut some).unwrap_or(0);
                came.extend_from_slice(&some[..taken]);
                if !blocked && taken == 0 {
                    break;
                }
            }
            let (mut rest, mut at) = (&came[prefill..], 0);
            while let Some(header) = rest.first_chunk::<REQUEST_BYTES>() {
                let request = RequestHeader::decode(header).expect("it is a request");
                assert_eq!(request.offset, at, "with {prefill} before");
                at += request.length;
                rest = &rest[REQUEST_BYTES + request.length as usize..];
            }
            assert!(rest.is_empty() && at == LENGTH * COUNT, "{at}");
        }
    }

    #[test]
    fn answers_to_large_writes_are_heard_many_at_once() {
        let mut scene = Scene::new(&[]);
        let length = 40 << 10;
        let memory = Memory::from_vec(vec![1; 20 * length as usize]).unwrap();
        let local = LocalBuffer::new(RegistrationId(1), memory, Permission::Local, String::new());
        let local = Arc::new(local);
        let posts = (0..20).map(|i| Post {
            task: TaskRef::NONE,
            verb: Verb::Write,
            local: smallvec![slice(&local, i * length, length)],
            registration: RegistrationId(1),
            generation: Generation(1),
            offset: 2 * i * length,
            length,
            deadline: None,
            flags: Flags::default(),
            extension: Extension::default(),
            single: false,
        });
        assert!(scene.lane.post(&mut posts.collect()));
        for pending in &mut *scene.lane.pending.lock() {
            pending.task = None;
        }
        let mut some = vec![0; 1 << 20];
        while scene.lane.flush() {
            let _taken = scene.peer.read(&mut some).unwrap();
        }
        let answer = |tag| AnswerHeader {
            status: Status::Applied,
            verb: Verb::Write,
            check: None,
            tag,
            length: 0,
            granted: Credit::ENDLESS,
        };
        let answers: Vec<u8> = (0..20).flat_map(|tag| answer(tag).encode()).collect();
        let mut calls = 0;
        for part in [&answers[..ANSWER_BYTES], &answers[ANSWER_BYTES..]] {
            scene.peer.write_all(part).unwrap();
            let lane = &scene.lane;
            while lane.receive(&mut lane.receiver()).unwrap() != Received::Nothing {
                calls += 1;
            }
        }
        assert_eq!((calls, scene.lane.load()), (2, 0));
    }

    fn asks() -> impl Strategy<Value = Vec<Ask>> {
        let one = (any::<bool>(), 0..10_u8, 1..3000_u64, 1..=2_u32);
        proptest::collection::vec(one, 1..24).prop_map(|all| {
            let mut end = 0;
            all.into_iter()
                .map(|(reads, gap, length, generation)| {
                    // Mostly neighbours of the same kind; none overlaps another.
                    end += u64::from(gap == 0) * 3;
                    let verb = match reads || gap > 5 {
                        true => Verb::Read,
                        false => Verb::Write,
                    };
                    let generation = if gap == 1 { generation } else { 1 };
                    let ask = Ask {
                        generation,
                        ..ask(verb, end, length)
                    };
                    end += length;
                    ask
                })
                .collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn whatever_is_joined_cut_and_cancelled_each_task_has_its_own_bytes_and_end(
            asks in asks(),
            steps in proptest::collection::vec((0..6_u8, 0..4096_usize, 0..24_usize), 0..60),
        ) {
            let mut scene = Scene::new(&asks);
            let mut cancelled = vec![false; asks.len()];
            for (step, bytes, task) in steps {
                match step {
                    0 | 1 => _ = scene.lane.flush(),
                    2 | 3 => _ = scene.serve(bytes),
                    4 => _ = scene.lane.receive(&mut scene.lane.receiver()).unwrap(),
                    _ if task < asks.len() => {
                        cancelled[task] = true;
                        scene.lane.cancel(scene.refs[task]);
                    }
                    _ => {}
                }
            }
            scene.run();
            let memory = scene.memory();
            for (i, ask) in asks.iter().enumerate() {
                let bytes = ask.length;
                let (start, end) = (ask.offset as usize, (ask.offset + bytes) as usize);
                let outcome = scene.end(i).expect("it has ended");
                if !cancelled[i] {
                    prop_assert_eq!(&outcome, &Outcome::Completed { bytes });
                }
                let done = outcome.is_completed();
                let here = memory[start..end].iter().zip(&scene.remote[start..end]);
                for (at, (mine, their)) in (start..).zip(here) {
                    match ask.verb {
                        Verb::Read if done => prop_assert_eq!(*mine, theirs(at)),
                        Verb::Read => prop_assert!([ours(at), theirs(at)].contains(mine)),
                        _ if done => prop_assert_eq!(*their, ours(at)),
                        _ => prop_assert_eq!(*their, theirs(at)),
                    }
                    if ask.verb != Verb::Read {
                        prop_assert_eq!(*mine, ours(at));
                    }
                }
            }
            prop_assert!(scene.is_at_rest());
        }
    }
}
