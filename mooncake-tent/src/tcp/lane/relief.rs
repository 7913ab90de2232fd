//! A lane that has little left to do takes over what another one has not begun.

use smallvec::SmallVec;

use super::{Lane, Ordering, RequestHeader, Sender, TaskRef, Verb, runs};

impl Lane {
    /// It has little to do, and other lanes to its peer much.
    pub(in crate::tcp) fn has_time(&self) -> bool {
        let load = self.load();
        let all = self.peer_load.load(Ordering::Relaxed);
        // Of what it could have under way.
        let little = self.window_bytes / 8;
        load < little && all.saturating_sub(load) > little
    }

    /// Takes requests from `other`'s end that were not begun, until both have as much to do. `true`:
    /// there were some, and the next [`flush`](Self::flush) sends them.
    pub(in crate::tcp) fn relieve(&self, other: &Self) -> bool {
        // Who takes from each other at once must not wait for each other.
        let (Some(mut ours), Some(mut theirs)) = (self.outbox.try_lock(), other.outbox.try_lock())
        else {
            return false;
        };
        if self.is_broken() || self.is_cut() || self.is_aged() || ours.clock.is_none() {
            return false;
        }
        let mut taken = false;
        let mut unwanted = SmallVec::<[_; 2]>::new();
        while let Some(most) = other.load().checked_sub(self.load())
            && let Some(task) = self.take_last(&mut ours, other, &mut theirs, most)
        {
            taken = true;
            // Whoever cancelled it meanwhile may have looked for it in vain.
            unwanted.extend(task.filter(|task| self.tasks.is_unwanted(*task)));
        }
        drop((ours, theirs));
        for task in unwanted {
            self.cancel(task);
        }
        taken
    }

    /// Takes `other`'s last request if that is no longer than `most` and was not begun; tells its
    /// task.
    fn take_last(
        &self,
        ours: &mut Sender,
        other: &Self,
        theirs: &mut Sender,
        most: u64,
    ) -> Option<Option<TaskRef>> {
        let mut pending = {
            let mut pending = other.pending.lock();
            if theirs.outbox.last_may_be_joined() {
                runs::part(theirs, &mut pending);
            }
            let unsent = theirs.outbox.first_not_begun().unwrap_or(theirs.next_tag);
            let last = pending.back()?;
            if last.tag < unsent || last.length > most || last.verb == Verb::Fence {
                return None;
            }
            pending.pop_back()?
        };
        let mut frame = theirs.outbox.pop_back().expect("it waits to be sent");
        debug_assert_eq!(
            frame.tag, pending.tag,
            "both are in the order of their tags"
        );
        theirs.posted -= pending.length;
        other.load_less(pending.length);

        (frame.tag, frame.before) = (ours.next_tag, ours.posted);
        pending.tag = frame.tag;
        ours.next_tag += 1;
        ours.posted += pending.length;
        let deadline = ours.clock.map_or(0, |clock| clock.to_wire(frame.deadline));
        RequestHeader::set_tag(&mut frame.header, frame.tag);
        RequestHeader::set_deadline(&mut frame.header, deadline);
        self.load_more(pending.length);
        let task = pending.task;
        self.pending.lock().push_back(pending);
        ours.outbox.push(frame);
        Some(task)
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use std::{
        io::Read,
        net::TcpStream,
        os::{fd::OwnedFd, unix::net::UnixStream},
        sync::Arc,
    };

    use super::{super::*, *};
    use crate::{
        identity::Incarnation,
        tcp::wire::REQUEST_BYTES,
        transport::{BatchState, Op, Peer, TaskSlab, TaskSpec},
    };

    const LENGTH: u64 = 6;

    /// A busy lane, an idle one and the other ends of their connections.
    struct Pair {
        tasks: Tasks,
        refs: Vec<TaskRef>,
        busy: Lane,
        busy_peer: UnixStream,
        idle: Lane,
        idle_peer: UnixStream,
    }

    impl Pair {
        fn with_reads(count: u64) -> Self {
            let tasks: Tasks = Arc::new(TaskSlab::new());
            let peer_load = Arc::default();
            let (busy, busy_peer) = lane(1, &tasks, &peer_load);
            let (idle, idle_peer) = lane(2, &tasks, &peer_load);
            let batch = Arc::new(BatchState::default());
            let peer = Arc::new(Peer::new(Incarnation::random(), Vec::new()));
            let spec = |offset| TaskSpec {
                op: Op::Read,
                local: SmallVec::new(),
                peer: Arc::clone(&peer),
                registration: RegistrationId(1),
                generation: Generation(1),
                offset,
                length: LENGTH,
                deadline: None,
                receipt: crate::transport::Receipt::default(),
                qos: crate::qos::Qos::new(),
                terms: None,
                origin: None,
                meter: crate::metrics::MeterId::NONE,
            };
            let mut refs = Vec::new();
            tasks.take(&batch, count as usize, &mut refs).unwrap();
            let specs = (0..count).map(|offset| (spec(offset), false));
            tasks.begin(&batch, &refs, specs);
            let posts = refs.iter().zip(0..);
            let mut posts: Vec<_> = posts.map(|(task, offset)| post(*task, offset)).collect();
            assert!(busy.post(&mut posts));
            Self {
                tasks,
                refs,
                busy,
                busy_peer,
                idle,
                idle_peer,
            }
        }
    }

    fn lane(id: u64, tasks: &Tasks, peer_load: &Arc<PeerLoad>) -> (Lane, UnixStream) {
        let config = TcpConfig {
            window_bytes: 8,
            ..TcpConfig::default()
        };
        let peer = PeerId::from_u64(1).unwrap();
        let lane = Lane::new(id, peer, Arc::clone(tasks), &config, Arc::clone(peer_load));
        let (ours, theirs) = UnixStream::pair().unwrap();
        lane.connected(TcpStream::from(OwnedFd::from(ours)), LaneClock::start());
        theirs.set_nonblocking(true).unwrap();
        (lane, theirs)
    }

    fn post(task: TaskRef, offset: u64) -> Post {
        Post {
            task,
            verb: Verb::Read,
            local: SmallVec::new(),
            registration: RegistrationId(1),
            generation: Generation(1),
            offset,
            length: LENGTH,
            flags: Flags::default(),
            extension: Extension::default(),
            single: false,
            deadline: None,
        }
    }

    /// Tags and offsets of what was sent.
    fn sent(theirs: &mut UnixStream) -> Vec<(u64, u64)> {
        let mut request = [0; REQUEST_BYTES];
        let mut all = Vec::new();
        while theirs.read_exact(&mut request).is_ok() {
            let request = RequestHeader::decode(&request).unwrap();
            all.push((request.tag, request.offset));
        }
        all
    }

    #[test]
    fn what_is_not_begun_goes_to_a_lane_that_has_time() {
        let mut pair = Pair::with_reads(6);
        let (busy, idle) = (&pair.busy, &pair.idle);
        assert!(!busy.flush());
        // The second one exceeds the window, but was begun within it.
        assert_eq!(sent(&mut pair.busy_peer), [(0, 0), (1, 1)]);
        assert!(idle.has_time() && !busy.has_time());
        assert!(idle.relieve(busy));
        assert_eq!((busy.load(), idle.load()), (3 * LENGTH, 3 * LENGTH));
        assert!(!idle.has_time());
        idle.flush();
        assert_eq!(sent(&mut pair.idle_peer), [(0, 5), (1, 4)]);
        // There is nothing to gain any more, in either direction.
        assert!(!idle.relieve(busy) && !busy.relieve(idle));
    }

    #[test]
    fn what_was_sent_stays() {
        let pair = Pair::with_reads(2);
        pair.busy.flush();
        assert!(!pair.idle.relieve(&pair.busy));
        assert_eq!((pair.busy.load(), pair.idle.load()), (2 * LENGTH, 0));
    }

    #[test]
    fn what_is_cancelled_on_its_way_to_another_lane_ends() {
        let pair = Pair::with_reads(6);
        pair.busy.flush();
        let last = pair.refs[5];
        // As whoever cancels does first, and then finds it on neither lane.
        pair.tasks.ask_to_cancel(last);
        assert!(pair.idle.relieve(&pair.busy));
        let outcome = pair.tasks.outcome(last);
        assert!(outcome.is_some_and(|end| end.is_cancelled()));
        assert_eq!(
            (pair.busy.load(), pair.idle.load()),
            (3 * LENGTH, 2 * LENGTH)
        );
    }
}
