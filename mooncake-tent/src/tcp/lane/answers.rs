//! Which request an answer is to, and what ends by answers that came together.

use super::{
    ANSWER_BYTES, Allowance, AnswerHeader, Lane, Ordering, Outcome, Pending, Reason, Receiver,
    Status, Verb, violation,
};

impl Lane {
    /// Ends the requests in a row that were done as asked and whose answers are wholly here, with one
    /// look at the books for all of them; `false`: there is none.
    pub(super) fn take_whole(&self, receiver: &mut Receiver) -> bool {
        let Receiver {
            inbox,
            whole,
            answered,
            allowance,
            ..
        } = receiver;
        {
            // What is not known to be sent is looked at one by one.
            let sent = self.sent_below.load(Ordering::Relaxed);
            let mut pending = self.pending.lock();
            let mut rest = inbox.waiting();
            while let Some(oldest) = pending.front()
                && let Some((header, after)) = rest.split_first_chunk::<ANSWER_BYTES>()
                && let Ok(answer) = AnswerHeader::decode(header)
                && answer.status == Status::Applied
                // What is checked is looked at one by one as well.
                && answer.check.is_none()
                && answer.tag < sent
                && fits(&answer, oldest).is_ok()
                && let Some(after) = after.get(answer.length as usize..)
            {
                rest = after;
                allowance.hear(oldest, answer.granted);
                let run = oldest.run.tasks as usize;
                whole.extend(pending.drain(..run));
            }
            if !whole.is_empty() {
                self.granted.set(allowance.grants());
            }
        }
        if whole.is_empty() {
            return false;
        }
        *answered += whole.len() as u64;
        self.load_less(whole.iter().map(|pending| pending.length).sum());
        for pending in whole.drain(..) {
            let bytes = pending.length;
            if pending.run.tasks > 0 {
                inbox.discard(ANSWER_BYTES as u64);
            }
            if pending.verb == Verb::Read {
                if pending.run.tasks > 0 {
                    inbox.expect(pending.run.bytes);
                }
                match pending.task {
                    Some(_) => inbox.place(&pending.local),
                    None => _ = inbox.discard(bytes),
                }
            }
            // Who waits for the end finds our leases returned.
            let Pending { task, local, .. } = pending;
            drop(local);
            if let Some(task) = task {
                self.tasks.finish(task, Outcome::Completed { bytes }, true);
            }
        }
        true
    }

    /// Takes out the requests that `answer` fits. On a violation they stay where
    /// [`fail`](Self::fail) finds them.
    pub(super) fn take_answered(
        &self,
        answer: &AnswerHeader,
        allowance: &mut Allowance,
        whole: &mut Vec<Pending>,
    ) -> Result<(), Reason> {
        if !self.was_sent(answer.tag) {
            return Err(violation("an answer to what was not asked yet"));
        }
        let mut queue = self.pending.lock();
        let Some(oldest) = queue.front() else {
            return Err(violation("an answer that nobody asked for"));
        };
        fits(answer, oldest).map_err(violation)?;
        allowance.hear(oldest, answer.granted);
        self.granted.set(allowance.grants());
        let run = oldest.run.tasks as usize;
        whole.extend(queue.drain(..run));
        Ok(())
    }
}

/// Whether `answer` is one to `oldest`; if not, why.
fn fits(answer: &AnswerHeader, oldest: &Pending) -> Result<(), &'static str> {
    if answer.tag != oldest.tag || answer.verb != oldest.verb {
        return Err("an answer out of order");
    }
    if answer.check.is_some() != oldest.checked {
        return Err("an answer that is checked otherwise than its request");
    }
    let length = match (answer.status, oldest.verb) {
        (Status::Applied, Verb::Read) => Some(oldest.run.bytes),
        (Status::Applied | Status::Refused(_), _) => Some(0),
        (Status::NoRoom | Status::Corrupted, Verb::Write) => Some(0),
        (Status::StillRunning | Status::NoRoom | Status::Corrupted, _) => None,
    };
    if length != Some(answer.length) {
        return Err("an answer that does not fit its request");
    }
    // With a payload this has to wait for it.
    if answer.length == 0
        && answer
            .check
            .is_some_and(|check| check != answer.checksum(&[]))
    {
        return Err("an answer that was changed on the way");
    }
    Ok(())
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use std::{
        io::Write,
        net::TcpStream,
        os::{fd::OwnedFd, unix::net::UnixStream},
        sync::Arc,
    };

    use smallvec::smallvec;

    use super::super::*;
    use crate::{
        credit::Credit,
        identity::Incarnation,
        memory::{LocalBuffer, Memory, Permission, Refusal},
        transport::{BatchState, Op, Peer, TaskSlab, TaskSpec},
    };

    const LENGTH: u64 = 5;

    /// A lane with reads under way, and the other end of its connection.
    struct Reading {
        tasks: Tasks,
        refs: Vec<TaskRef>,
        local: Arc<LocalBuffer>,
        lane: Lane,
        peer: UnixStream,
    }

    impl Reading {
        /// Each into the bytes behind those of the one before.
        fn of(count: u64) -> Self {
            let tasks: Tasks = Arc::new(TaskSlab::new());
            let id = PeerId::from_u64(1).unwrap();
            let config = TcpConfig::default();
            let lane = Lane::new(1, id, Arc::clone(&tasks), &config, Arc::default());
            let (ours, peer) = UnixStream::pair().unwrap();
            lane.connected(TcpStream::from(OwnedFd::from(ours)), LaneClock::start());

            let memory = Memory::from_vec(vec![b'.'; (LENGTH * count) as usize]).unwrap();
            let registration = RegistrationId(1);
            let local = LocalBuffer::new(registration, memory, Permission::Local, String::new());
            let local = Arc::new(local);
            let target = Arc::new(Peer::new(Incarnation::random(), Vec::new()));
            let specs: Vec<_> = (0..count)
                .map(|i| TaskSpec {
                    op: Op::Read,
                    local: smallvec![slice(&local, i)],
                    peer: Arc::clone(&target),
                    registration,
                    generation: Generation(1),
                    // Neighbours would be asked for as one.
                    offset: 2 * LENGTH * i,
                    length: LENGTH,
                    deadline: None,
                    receipt: crate::transport::Receipt::default(),
                    qos: crate::qos::Qos::new(),
                    terms: None,
                    origin: None,
                    meter: crate::metrics::MeterId::NONE,
                })
                .collect();
            let (batch, mut refs) = (Arc::new(BatchState::default()), Vec::new());
            tasks.take(&batch, specs.len(), &mut refs).unwrap();
            let entries = specs.iter().map(|spec| (spec.clone(), false));
            tasks.begin(&batch, &refs, entries);
            let posts = refs.iter().zip(specs).map(|(task, spec)| Post {
                task: *task,
                verb: Verb::Read,
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
            lane.flush();
            Self {
                tasks,
                refs,
                local,
                lane,
                peer,
            }
        }

        fn hear(&mut self, bytes: &[u8]) -> Result<Received, Reason> {
            self.peer.write_all(bytes).unwrap();
            self.lane.receive(&mut self.lane.receiver())
        }

        /// `c` for a read that completed, `f` for one that failed, `-` for one under way.
        fn ends(&self) -> String {
            let ends = self.refs.iter().map(|task| self.tasks.outcome(*task));
            ends.map(|end| match end {
                None => '-',
                Some(end) if end.is_completed() => 'c',
                Some(_) => 'f',
            })
            .collect()
        }

        fn memory(&self) -> String {
            let mut bytes = vec![0; self.local.memory().len()];
            self.local.memory().read_at(0, &mut bytes);
            String::from_utf8(bytes).unwrap()
        }
    }

    fn slice(local: &Arc<LocalBuffer>, place: u64) -> LocalSlice {
        let range = LENGTH * place..LENGTH * (place + 1);
        LocalSlice::new(local.lease(None).unwrap(), range).unwrap()
    }

    fn answer(tag: u64, status: Status, payload: &str) -> Vec<u8> {
        let header = AnswerHeader {
            status,
            verb: Verb::Read,
            check: None,
            tag,
            length: payload.len() as u64,
            granted: Credit::default(),
        };
        [&header.encode(), payload.as_bytes()].concat()
    }

    #[test]
    fn wherever_bytes_are_cut_each_read_ends_with_its_own() {
        let refused = Status::Refused(Refusal::OutOfBounds);
        let all = [
            answer(0, Status::Applied, "zero."),
            answer(1, Status::Applied, "one.."),
            answer(2, refused, ""),
            answer(3, Status::Applied, "three"),
        ]
        .concat();
        for cut in 1..all.len() {
            let mut reading = Reading::of(4);
            reading.hear(&all[..cut]).unwrap();
            let whole = [45, 90, 130, all.len()].map(|end| end <= cut);
            let so_far = whole.iter().zip("ccfc".chars());
            let so_far: String = so_far
                .map(|(whole, end)| if *whole { end } else { '-' })
                .collect();
            assert_eq!(reading.ends(), so_far, "cut at {cut}");
            reading.hear(&all[cut..]).unwrap();
            assert_eq!(reading.ends(), "ccfc", "cut at {cut}");
            assert_eq!(reading.memory(), "zero.one.......three", "cut at {cut}");
            assert_eq!((reading.lane.load(), reading.local.leases()), (0, 0));
        }
    }

    #[test]
    fn of_answers_that_came_together_those_to_cancelled_reads_go_nowhere() {
        let mut reading = Reading::of(3);
        reading.lane.cancel(reading.refs[1]);
        assert_eq!(reading.ends(), "-f-");
        let all = (0..3).flat_map(|tag| answer(tag, Status::Applied, "bytes"));
        assert_eq!(
            reading.hear(&all.collect::<Vec<_>>()),
            Ok(Received::Answers)
        );
        assert_eq!(reading.ends(), "cfc");
        assert_eq!(reading.memory(), "bytes.....bytes");
        assert_eq!((reading.lane.load(), reading.local.leases()), (0, 0));
    }

    #[test]
    fn law_04_what_came_before_an_answer_that_fits_nothing_counts_and_no_more() {
        let mut reading = Reading::of(3);
        let all = [
            answer(0, Status::Applied, "bytes"),
            answer(2, Status::Applied, "bytes"),
            answer(1, Status::Applied, "bytes"),
        ];
        let reason = reading.hear(&all.concat()).unwrap_err();
        assert_eq!(reading.ends(), "c--");
        let loud = reading.lane.fail(&mut reading.lane.receiver(), &reason);
        assert!(loud.tasks.is_empty());
        assert_eq!(reading.ends(), "cff");
        assert_eq!(reading.memory(), "bytes..........");
        assert_eq!((reading.lane.load(), reading.local.leases()), (0, 0));
    }
}
