//! In every order: see [`crate::sync`].

use std::{
    io::Read,
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use loom::thread;

use super::{
    super::{TcpConfig, peers::are_quiet, wire::REQUEST_BYTES},
    *,
};
use crate::transport::TaskSlab;

fn post() -> Post {
    Post {
        task: TaskRef::NONE,
        verb: Verb::Read,
        local: SmallVec::new(),
        registration: RegistrationId(1),
        generation: Generation(1),
        offset: 0,
        length: 1,
        flags: Flags::default(),
        extension: Extension::default(),
        single: false,
        deadline: None,
    }
}

#[test]
fn what_an_answer_makes_room_for_is_sent_though_another_sends_just_then() {
    loom::model(|| {
        let tasks = Arc::new(TaskSlab::new());
        let peer = PeerId::from_u64(1).unwrap();
        let config = TcpConfig {
            window: 1,
            spin: Duration::ZERO,
            ..TcpConfig::default()
        };
        let lane = Lane::new(1, peer, tasks, &config, Arc::default());
        let lane = Arc::new(lane);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        lane.connected(OwnedFd::from(ours).into(), LaneClock::start());
        assert!(lane.post(&mut vec![post(), post()]));
        let other = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || assert!(!lane.flush()))
        };
        // The first is answered, so that the window takes the second.
        lane.pending.lock().pop_front();
        assert!(!lane.flush());
        other.join().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let sent = theirs.read(&mut [0; 3 * REQUEST_BYTES]).unwrap();
        assert_eq!(sent, 2 * REQUEST_BYTES);
    });
}

#[test]
fn law_03_who_sees_that_all_lanes_are_broken_sees_which_are_loud() {
    loom::model(|| {
        let peer = PeerId::from_u64(1).unwrap();
        let tasks = Arc::new(TaskSlab::new());
        let lane = Lane::new(1, peer, tasks, &TcpConfig::default(), Arc::default());
        let lane = Arc::new(lane);
        let loud = Arc::new(AtomicU64::new(0));
        let retiring = {
            let (lane, loud) = (Arc::clone(&lane), Arc::clone(&loud));
            thread::spawn(move || {
                loud.fetch_add(1, Ordering::AcqRel);
                lane.fail(&mut lane.receiver(), &overdue());
            })
        };
        // Nothing of it has landed yet.
        assert!(!are_quiet(&[Arc::clone(&lane)], &loud));
        retiring.join().unwrap();
        loud.fetch_sub(1, Ordering::AcqRel);
        assert!(are_quiet(&[lane], &loud));
    });
}

#[test]
fn who_sends_what_goes_alone_pays_out_of_the_last_grant() {
    loom::model(|| {
        let tasks = Arc::new(TaskSlab::new());
        let peer = PeerId::from_u64(1).unwrap();
        let lane = Lane::new(1, peer, tasks, &TcpConfig::default(), Arc::default());
        let lane = Arc::new(lane);
        lane.begin_with(crate::credit::Credit::of_request(1), Duration::ZERO);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        lane.connected(OwnedFd::from(ours).into(), LaneClock::start());
        // For the second there is no credit.
        assert!(lane.post(&mut vec![post(), post()]));
        assert!(!lane.flush());
        let other = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || assert!(!lane.flush()))
        };
        let answer = AnswerHeader {
            status: Status::Applied,
            verb: Verb::Read,
            check: None,
            tag: 0,
            length: 1,
            granted: crate::credit::Credit {
                bytes: 2,
                requests: 2,
            },
        };
        lane.take_answered(&answer, &mut lane.receiver().allowance, &mut Vec::new())
            .unwrap();
        assert!(!lane.flush());
        other.join().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let sent = theirs.read(&mut [0; 3 * REQUEST_BYTES]).unwrap();
        assert_eq!(sent, 2 * REQUEST_BYTES);
        let left = lane.outbox.lock().outbox.left(lane.granted.now());
        assert!(left.is_zero(), "{left:?}");
    });
}
