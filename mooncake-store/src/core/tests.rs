//! One sentence for each rule of the core.

use mooncake_proto::{
    Applied, Fault, Retry,
    master::{
        self, KeyResult, LookupResponse, LookupResult, MemoryReplica, Object, ObjectIncarnation,
        PutEndResponse, PutRevokeResponse, PutStartResponse, PutStartResult, RemoveAllResponse,
        RemoveResponse, lookup_result, put_start_result, replica,
    },
    status::ErrorCode,
};

use super::*;

const LENGTH: u64 = 1_000_003;
const LEASE: Duration = Duration::from_millis(10);
const LATE: Time = Time(5_000_000);

/// A core at a time of ours.
struct Rig {
    core: ClientCore,
    now: Time,
}

impl Rig {
    /// It looks up every object of every get.
    fn new() -> Self {
        Self::keeping(Duration::ZERO)
    }

    fn keeping(keep: Duration) -> Self {
        let settings = Settings {
            keep,
            ..Settings::default()
        };
        Self {
            core: ClientCore::new(settings),
            now: Time(1_000),
        }
    }

    fn put(&mut self, keys: &[&str]) -> CallId {
        let items = keys.iter().map(|key| PutItem {
            key: Bytes::copy_from_slice(key.as_bytes()),
            length: LENGTH,
        });
        let operation = Operation::Put {
            items: items.collect(),
            options: PutOptions::default(),
        };
        self.core.start(self.now, operation, LATE);
        self.call()
    }

    fn get(&mut self, keys: &[&str]) -> CallId {
        let items = keys.iter().map(|key| GetItem {
            key: Bytes::copy_from_slice(key.as_bytes()),
            capacity: Some(LENGTH),
        });
        let operation = Operation::Get {
            items: items.collect(),
        };
        self.core.start(self.now, operation, LATE);
        self.call()
    }

    fn event(&mut self, event: Event) {
        self.core.handle(self.now, event);
    }

    fn answer(&mut self, call: CallId, answer: MasterAnswer) {
        self.event(Event::MasterAnswered { call, answer });
    }

    fn end(&mut self, transfer: TransferId) {
        self.event(Event::TransferEnded {
            transfer,
            result: Ok(LENGTH),
        });
    }

    fn fail(&mut self, transfer: TransferId, retry: Retry, quiescent: bool) {
        let fault = TransferFault {
            retry,
            applied: Applied::Unknown,
            quiescent,
            peer: "node-b".into(),
            message: "lane cut".into(),
        };
        self.event(Event::TransferEnded {
            transfer,
            result: Err(fault),
        });
    }

    fn tick_at(&mut self, now: Time) {
        self.now = now;
        self.event(Event::Tick);
    }

    fn quiet(&mut self) -> bool {
        self.core.poll().is_none()
    }

    fn call(&mut self) -> CallId {
        self.asked().0
    }

    fn asked(&mut self) -> (CallId, MasterRequest) {
        match self.core.poll() {
            Some(Action::CallMaster { call, request, .. }) => (call, request),
            other => panic!("not a call: {other:?}"),
        }
    }

    /// The lease of an earlier get is released in company of the next one's look-up.
    fn released(&mut self) {
        let request = self.asked().1;
        assert!(matches!(request, MasterRequest::Release(_)), "{request:?}");
    }

    /// The next transfer and the offset that it is at.
    fn transfer(&mut self) -> (TransferId, u64) {
        match self.core.poll() {
            Some(
                Action::Read {
                    transfer, location, ..
                }
                | Action::Write {
                    transfer, location, ..
                },
            ) => (transfer, location.offset),
            other => panic!("not a transfer: {other:?}"),
        }
    }

    fn puts(&mut self) -> Vec<Result<Incarnation, Fault>> {
        match self.core.poll() {
            Some(Action::Finish {
                outcome: Outcome::Put(results),
                ..
            }) => results,
            other => panic!("not the end of a put: {other:?}"),
        }
    }

    fn gets(&mut self) -> Vec<Result<Got, Fault>> {
        match self.core.poll() {
            Some(Action::Finish {
                outcome: Outcome::Get(results),
                ..
            }) => results,
            other => panic!("not the end of a get: {other:?}"),
        }
    }
}

fn object(sequence: u64, offsets: &[u64]) -> Object {
    let replicas = offsets.iter().map(|offset| master::Replica {
        replica: Some(replica::Replica::Memory(MemoryReplica {
            segment: 0,
            offset: *offset,
            length: LENGTH,
        })),
    });
    Object {
        incarnation: Some(ObjectIncarnation { epoch: 1, sequence }),
        length: LENGTH,
        replicas: replicas.collect(),
    }
}

fn segments() -> Vec<master::Segment> {
    vec![master::Segment {
        id: Bytes::from_static(&[3; 16]),
        name: "node-b".into(),
        ..master::Segment::default()
    }]
}

fn granted(objects: Vec<Object>) -> MasterAnswer {
    let grant = |object| PutStartResult {
        result: Some(put_start_result::Result::Object(object)),
    };
    MasterAnswer::PutStart(PutStartResponse {
        results: objects.into_iter().map(grant).collect(),
        segments: segments(),
        deadline_us: 30_000_000,
    })
}

fn found(objects: Vec<Object>) -> MasterAnswer {
    let find = |object| LookupResult {
        result: Some(lookup_result::Result::Object(object)),
    };
    MasterAnswer::Lookup(LookupResponse {
        results: objects.into_iter().map(find).collect(),
        segments: segments(),
        storages: Vec::new(),
        lease: 9,
        lease_us: 10_000,
    })
}

fn ended(count: usize) -> MasterAnswer {
    MasterAnswer::PutEnd(PutEndResponse {
        results: vec![KeyResult::default(); count],
    })
}

fn revoked() -> MasterAnswer {
    MasterAnswer::PutRevoke(PutRevokeResponse {
        results: vec![KeyResult::default()],
    })
}

fn code<T: fmt::Debug>(result: &Result<T, Fault>) -> ErrorCode {
    result.as_ref().unwrap_err().code
}

#[test]
fn law_08_a_put_is_ended_after_all_its_writes_and_succeeds_after_the_master_says_so() {
    let mut rig = Rig::new();
    let start = rig.put(&["k"]);
    rig.answer(start, granted(vec![object(4, &[0, 64])]));
    let ((first, _), (second, _)) = (rig.transfer(), rig.transfer());
    rig.end(first);
    assert!(rig.quiet());
    rig.end(second);
    let (end, request) = rig.asked();
    let MasterRequest::PutEnd(request) = request else {
        panic!("{request:?}");
    };
    assert_eq!(request.items[0].incarnation.unwrap().sequence, 4);
    assert!(rig.quiet());
    rig.answer(end, ended(1));
    let incarnation = Incarnation {
        epoch: 1,
        sequence: 4,
    };
    assert_eq!(rig.puts(), [Ok(incarnation)]);
    assert!(rig.core.is_idle() && rig.core.next_deadline().is_none());
}

#[test]
fn law_03_a_failed_put_is_revoked_only_when_none_of_its_writes_can_land() {
    let mut rig = Rig::new();
    let start = rig.put(&["k"]);
    rig.answer(start, granted(vec![object(4, &[0, 64])]));
    let ((first, _), (second, _)) = (rig.transfer(), rig.transfer());
    rig.fail(first, Retry::Elsewhere, false);
    assert_eq!(rig.core.poll(), Some(Action::Cancel { transfer: second }));
    rig.end(second);
    assert!(rig.quiet(), "the first write may still land");
    rig.event(Event::Quiet { transfer: first });
    let (revoke, request) = rig.asked();
    assert!(matches!(request, MasterRequest::PutRevoke(_)));
    rig.answer(revoke, revoked());
    // Once more, elsewhere; then it is enough.
    let (start, request) = rig.asked();
    let MasterRequest::PutStart(request) = request else {
        panic!("{request:?}");
    };
    assert_eq!(request.avoided_segments, [&[3; 16][..]]);
    rig.answer(start, granted(vec![object(5, &[0])]));
    let (write, _) = rig.transfer();
    rig.fail(write, Retry::Elsewhere, true);
    let (revoke, _) = rig.asked();
    rig.answer(revoke, revoked());
    let fault = rig.puts().remove(0).unwrap_err();
    assert_eq!(fault.code, ErrorCode::TransferFailed);
    assert_eq!((&*fault.peer, &*fault.stage), ("node-b", "write"));
    assert_eq!((fault.quiescent, &fault.key[..]), (true, &b"k"[..]));
}

#[test]
fn a_put_that_may_wait_for_space_asks_again_until_its_deadline() {
    let full = || {
        let retry = Retry::Later(Duration::from_millis(100));
        let fault = Fault::new(ErrorCode::NoSpace, retry, "full");
        let result = Some(put_start_result::Result::Error(fault.into()));
        MasterAnswer::PutStart(PutStartResponse {
            results: vec![PutStartResult { result }],
            ..PutStartResponse::default()
        })
    };
    let mut rig = Rig::new();
    let start = rig.put(&["k"]);
    rig.answer(start, full());
    assert_eq!(code(&rig.puts()[0]), ErrorCode::NoSpace, "if it may not");

    let begin = |rig: &mut Rig| {
        let items = vec![PutItem {
            key: "k".into(),
            length: LENGTH,
        }];
        let options = PutOptions {
            wait_for_space: true,
            ..PutOptions::default()
        };
        rig.core
            .start(rig.now, Operation::Put { items, options }, LATE);
        rig.call()
    };
    let mut call = begin(&mut rig);
    for _ in 0..3 {
        rig.answer(call, full());
        assert!(rig.quiet());
        let due = rig.core.next_deadline().unwrap();
        assert_eq!(due, rig.now + Duration::from_millis(100));
        rig.tick_at(due);
        call = rig.call();
    }
    rig.answer(call, granted(vec![object(5, &[0])]));
    let (write, _) = rig.transfer();
    rig.end(write);
    let end = rig.call();
    rig.answer(end, ended(1));
    assert!(rig.puts()[0].is_ok());

    let call = begin(&mut rig);
    rig.answer(call, full());
    rig.tick_at(LATE);
    assert_eq!(code(&rig.puts()[0]), ErrorCode::NoSpace);
    assert!(rig.core.is_idle());
}

/// An object with replicas on two nodes.
fn on_two_nodes() -> MasterAnswer {
    let MasterAnswer::Lookup(mut answer) = found(vec![object(4, &[0, 64])]) else {
        unreachable!("it was found");
    };
    answer.lease_us = 10_000_000;
    answer.segments.push(master::Segment {
        id: Bytes::from_static(&[4; 16]),
        name: "node-c".into(),
        owner_incarnation: 4,
        ..master::Segment::default()
    });
    let Some(lookup_result::Result::Object(object)) = &mut answer.results[0].result else {
        unreachable!("it was found");
    };
    if let Some(replica::Replica::Memory(memory)) = &mut object.replicas[1].replica {
        memory.segment = 1;
    }
    MasterAnswer::Lookup(answer)
}

#[test]
fn law_09_a_silent_replica_leaves_time_for_the_next_one_and_is_tried_last_from_then_on() {
    let mut rig = Rig::new();
    let began = rig.now;
    let lookup = rig.get(&["k"]);
    rig.answer(lookup, on_two_nodes());
    let Some(Action::Read {
        transfer, deadline, ..
    }) = rig.core.poll()
    else {
        panic!("the first replica is read");
    };
    assert_eq!(deadline, began + LATE.since(began) / 2);
    rig.now = deadline;
    rig.fail(transfer, Retry::Elsewhere, true);
    let Some(Action::Read {
        transfer, deadline, ..
    }) = rig.core.poll()
    else {
        panic!("the second replica is read");
    };
    assert_eq!(deadline, LATE);
    rig.end(transfer);
    assert!(rig.gets()[0].is_ok());

    let lookup = rig.get(&["k"]);
    rig.released();
    rig.answer(lookup, on_two_nodes());
    let (transfer, offset) = rig.transfer();
    assert_eq!(offset, 64, "now the other one comes first");
    rig.fail(transfer, Retry::Elsewhere, true);
    let fault = rig.gets().remove(0).unwrap_err();
    assert_eq!(
        fault.retry,
        Retry::Elsewhere,
        "and the silent one is not asked so soon: {fault:?}"
    );
}

#[test]
fn a_peer_that_could_not_be_reached_fails_fast() {
    let mut rig = Rig::new();
    let lookup = rig.get(&["k"]);
    rig.answer(lookup, found(vec![object(4, &[0])]));
    let (read, _) = rig.transfer();
    let fault = TransferFault {
        retry: Retry::Elsewhere,
        applied: Applied::Nothing,
        quiescent: true,
        peer: "node-b".into(),
        message: "connection refused".into(),
    };
    rig.event(Event::TransferEnded {
        transfer: read,
        result: Err(fault),
    });
    assert_eq!(code(&rig.gets()[0]), ErrorCode::TransferFailed);
    let lookup = rig.get(&["k"]);
    rig.released();
    rig.answer(lookup, found(vec![object(4, &[0])]));
    let fault = rig.gets().remove(0).unwrap_err();
    assert!(matches!(fault.retry, Retry::Later(_)), "{fault:?}");
    assert_eq!(fault.peer, "node-b");
    // It is tried again after a while, and good once it answers.
    rig.now = rig.now + Duration::from_millis(250);
    // The lease of the second get is over by then.
    for earlier in [false, true] {
        let lookup = rig.get(&["k"]);
        if earlier {
            rig.released();
        }
        rig.answer(lookup, found(vec![object(4, &[0])]));
        let (read, _) = rig.transfer();
        rig.end(read);
        assert!(rig.gets()[0].is_ok());
    }
}

#[test]
fn a_put_that_is_not_quiet_at_its_deadline_is_left_to_the_master_and_says_so() {
    let mut rig = Rig::new();
    let start = rig.put(&["k"]);
    rig.answer(start, granted(vec![object(4, &[0])]));
    let (write, _) = rig.transfer();
    assert_eq!(rig.core.next_deadline(), Some(LATE));
    rig.tick_at(LATE);
    assert_eq!(rig.core.poll(), Some(Action::Cancel { transfer: write }));
    let fault = rig.puts().remove(0).unwrap_err();
    assert_eq!(fault.code, ErrorCode::RpcTimeout);
    assert_eq!((fault.applied, fault.quiescent), (Applied::Unknown, false));
    assert!(fault.message.contains("the master takes the memory back"));
    assert_eq!(fault.peer, "node-b");
    rig.fail(write, Retry::Never, true);
    assert!(rig.quiet() && rig.core.is_idle());
}

#[test]
fn a_transfer_that_moved_less_than_all_bytes_has_failed() {
    let mut rig = Rig::new();
    let start = rig.put(&["k"]);
    rig.answer(start, granted(vec![object(4, &[0])]));
    let (transfer, _) = rig.transfer();
    let short = |transfer| Event::TransferEnded {
        transfer,
        result: Ok(LENGTH - 1),
    };
    rig.event(short(transfer));
    assert!(matches!(rig.asked().1, MasterRequest::PutRevoke(_)));

    let lookup = rig.get(&["k"]);
    rig.answer(lookup, found(vec![object(4, &[0, 64])]));
    let (transfer, _) = rig.transfer();
    rig.event(short(transfer));
    let (transfer, offset) = rig.transfer();
    assert_eq!(offset, 64);
    rig.event(short(transfer));
    assert_eq!(code(&rig.gets()[0]), ErrorCode::TransferFailed);
}

#[test]
fn a_straggler_holds_up_the_other_keys_of_its_batch_for_a_moment_only() {
    let mut rig = Rig::new();
    let start = rig.put(&["a", "b", "c"]);
    let objects = vec![object(1, &[0]), object(2, &[64]), object(3, &[128])];
    rig.answer(start, granted(objects));
    let writes = [rig.transfer().0, rig.transfer().0, rig.transfer().0];
    rig.end(writes[0]);
    rig.end(writes[2]);
    assert!(rig.quiet());
    let due = rig.now + Settings::default().linger;
    assert_eq!(rig.core.next_deadline(), Some(due));
    rig.tick_at(due);
    let (_, request) = rig.asked();
    assert!(matches!(request, MasterRequest::PutEnd(end) if end.items.len() == 2));
}

#[test]
fn a_put_that_the_master_revoked_is_an_error_for_its_key_alone() {
    let mut rig = Rig::new();
    let start = rig.put(&["a", "b"]);
    rig.answer(start, granted(vec![object(1, &[0]), object(2, &[64])]));
    let writes = [rig.transfer().0, rig.transfer().0];
    for write in writes {
        rig.end(write);
    }
    let end = rig.call();
    let gone = Fault::new(ErrorCode::Revoked, Retry::Never, "removed meanwhile");
    let results = vec![
        KeyResult {
            error: Some(gone.into()),
        },
        KeyResult::default(),
    ];
    rig.answer(end, MasterAnswer::PutEnd(PutEndResponse { results }));
    let results = rig.puts();
    assert_eq!(code(&results[0]), ErrorCode::Revoked);
    assert!(results[1].is_ok());
}

#[test]
fn a_grant_that_comes_after_the_end_of_its_put_is_given_back() {
    let mut rig = Rig::new();
    let start = rig.put(&["k"]);
    rig.tick_at(LATE);
    assert_eq!(code(&rig.puts()[0]), ErrorCode::RpcTimeout);
    rig.answer(start, granted(vec![object(4, &[0])]));
    let (revoke, request) = rig.asked();
    assert!(matches!(request, MasterRequest::PutRevoke(revoke) if revoke.items[0].key == "k"));
    rig.answer(revoke, revoked());
    assert!(rig.quiet() && rig.core.is_idle());
}

#[test]
fn what_makes_no_sense_fails_here_and_the_other_keys_go_on() {
    let mut rig = Rig::new();
    let item = |key: Vec<u8>, length| PutItem {
        key: key.into(),
        length,
    };
    let items = vec![
        item(Vec::new(), 1),
        item(vec![b'x'; 4_097], 1),
        item(b"empty".to_vec(), 0),
        item(b"twice".to_vec(), LENGTH),
        item(b"twice".to_vec(), LENGTH),
    ];
    let options = PutOptions::default();
    rig.core
        .start(rig.now, Operation::Put { items, options }, LATE);
    let (call, request) = rig.asked();
    assert!(matches!(request, MasterRequest::PutStart(start) if start.items.len() == 1));
    let fault = Fault::new(ErrorCode::RpcFailed, Retry::Here, "lost");
    rig.event(Event::MasterFailed { call, fault });
    let codes: Vec<_> = rig.puts().iter().map(code).collect();
    let expected = [
        ErrorCode::InvalidKey,
        ErrorCode::InvalidKey,
        ErrorCode::InvalidParams,
        ErrorCode::RpcFailed,
        ErrorCode::InvalidParams,
    ];
    assert_eq!(codes, expected);

    let keys = vec![Bytes::new()];
    rig.core.start(rig.now, Operation::Exist { keys }, LATE);
    let finish = rig.core.poll();
    assert!(matches!(finish, Some(Action::Finish { .. })), "{finish:?}");
}

#[test]
fn a_failed_read_goes_on_at_the_next_replica_once_it_is_quiet_and_the_lease_is_released() {
    let mut rig = Rig::new();
    let lookup = rig.get(&["k"]);
    rig.answer(lookup, found(vec![object(4, &[0, 64])]));
    let (first, offset) = rig.transfer();
    assert_eq!(offset, 0);
    rig.fail(first, Retry::Elsewhere, false);
    assert!(
        rig.quiet(),
        "its bytes could land among those of the next read"
    );
    rig.event(Event::Quiet { transfer: first });
    let (second, offset) = rig.transfer();
    assert_eq!(offset, 64);
    rig.end(second);
    let got = rig.gets().remove(0).unwrap();
    assert_eq!((got.length, got.incarnation.sequence), (LENGTH, 4));
    assert!(rig.quiet());
    rig.tick_at(rig.core.next_deadline().unwrap());
    let (release, request) = rig.asked();
    assert!(matches!(request, MasterRequest::Release(release) if release.leases == [9]));
    rig.answer(release, MasterAnswer::Release(master::ReleaseResponse {}));
    assert!(rig.core.is_idle());
}

#[test]
fn a_release_travels_with_the_next_call() {
    let mut rig = Rig::new();
    let lookup = rig.get(&["k"]);
    rig.answer(lookup, found(vec![object(4, &[0])]));
    let (read, _) = rig.transfer();
    rig.end(read);
    assert!(rig.gets()[0].is_ok() && rig.quiet());
    let _lookup = rig.get(&["other"]);
    assert!(matches!(rig.asked().1, MasterRequest::Release(_)));
}

#[test]
fn law_05_bytes_that_come_after_the_lease_are_asked_for_once_more_and_then_fail() {
    let mut rig = Rig::new();
    let lookup = rig.get(&["k"]);
    let sent_at = rig.now;
    rig.now = rig.now + LEASE / 2;
    rig.answer(lookup, found(vec![object(4, &[0])]));
    let (first, _) = rig.transfer();
    assert_eq!(
        rig.core.next_deadline(),
        Some(sent_at + LEASE),
        "from before it was asked"
    );
    rig.tick_at(sent_at + LEASE);
    assert_eq!(rig.core.poll(), Some(Action::Cancel { transfer: first }));
    rig.end(first);
    let again = rig.call();
    rig.answer(again, found(vec![object(5, &[64])]));
    let (second, _) = rig.transfer();
    rig.now = rig.now + LEASE;
    rig.end(second);
    assert_eq!(code(&rig.gets()[0]), ErrorCode::LeaseExpired);
    assert!(
        rig.quiet() && rig.core.is_idle(),
        "a lease that is over needs no release"
    );
}

#[test]
fn a_stale_replica_is_looked_up_again_once() {
    let mut rig = Rig::new();
    let lookup = rig.get(&["k"]);
    rig.answer(lookup, found(vec![object(4, &[0])]));
    let (first, _) = rig.transfer();
    rig.fail(first, Retry::AfterRefresh, true);
    let (again, request) = rig.asked();
    assert!(matches!(request, MasterRequest::Lookup(_)));
    assert!(matches!(rig.asked().1, MasterRequest::Release(_)));
    rig.answer(again, found(vec![object(5, &[0])]));
    let (second, _) = rig.transfer();
    rig.fail(second, Retry::AfterRefresh, true);
    assert_eq!(code(&rig.gets()[0]), ErrorCode::Stale);
}

#[test]
fn a_get_ends_at_its_deadline_and_releases_its_lease_when_the_read_is_quiet() {
    let mut rig = Rig::new();
    let items = vec![GetItem {
        key: "k".into(),
        capacity: None,
    }];
    let deadline = rig.now + LEASE / 4;
    rig.core.start(rig.now, Operation::Get { items }, deadline);
    let lookup = rig.call();
    rig.answer(lookup, found(vec![object(4, &[0])]));
    let (read, _) = rig.transfer();
    rig.tick_at(deadline);
    assert_eq!(rig.core.poll(), Some(Action::Cancel { transfer: read }));
    let fault = rig.gets().remove(0).unwrap_err();
    assert_eq!(
        (fault.code, fault.quiescent),
        (ErrorCode::RpcTimeout, false)
    );
    rig.fail(read, Retry::Never, false);
    assert!(rig.quiet() && rig.core.next_deadline().is_none());
    rig.event(Event::Quiet { transfer: read });
    rig.tick_at(rig.core.next_deadline().unwrap());
    assert!(matches!(rig.asked().1, MasterRequest::Release(_)));
}

#[test]
fn nothing_is_read_into_a_destination_that_is_too_small() {
    let mut rig = Rig::new();
    let items = vec![GetItem {
        key: "k".into(),
        capacity: Some(10),
    }];
    rig.core.start(rig.now, Operation::Get { items }, LATE);
    let lookup = rig.call();
    rig.answer(lookup, found(vec![object(4, &[0])]));
    let fault = rig.gets().remove(0).unwrap_err();
    assert_eq!(fault.code, ErrorCode::InvalidParams);
    assert!(
        fault.message.contains("10") && fault.message.contains("1000003"),
        "{fault}"
    );
}

/// An answer that has the object in these places in memory, and on these disks.
fn found_on_disks(offsets: &[u64], holders: &[u64]) -> MasterAnswer {
    let mut on_disk = object(4, offsets);
    for storage in 0..holders.len() as u32 {
        on_disk.replicas.push(master::Replica {
            replica: Some(replica::Replica::LocalDisk(master::LocalDiskReplica {
                storage,
                length: LENGTH,
            })),
        });
    }
    let MasterAnswer::Lookup(mut answer) = found(vec![on_disk]) else {
        unreachable!("it was looked up");
    };
    let storage = |holder: &u64| master::Storage {
        id: vec![*holder as u8; 16].into(),
        holder_incarnation: *holder,
        endpoint: format!("holder-{holder}"),
        ..master::Storage::default()
    };
    answer.storages = holders.iter().map(storage).collect();
    MasterAnswer::Lookup(answer)
}

#[test]
fn disks_are_read_after_memory_and_one_after_the_other() {
    let mut rig = Rig::new();
    let lookup = rig.get(&["k"]);
    rig.answer(lookup, found_on_disks(&[0], &[7, 8]));
    let mut last = rig.transfer().0;
    for holder in [7, 8] {
        // Somebody answered, and has it no more.
        rig.fail(last, Retry::Later(Duration::from_millis(1)), true);
        let Some(Action::ReadDisk {
            transfer, place, ..
        }) = rig.core.poll()
        else {
            panic!("the disk of {holder} was not asked");
        };
        assert_eq!(place.storage.holder_incarnation, holder);
        assert_eq!((&place.key[..], place.length), (&b"k"[..], LENGTH));
        assert_eq!(place.incarnation.sequence, 4, "no other life");
        last = transfer;
    }
    rig.end(last);
    assert_eq!(rig.gets()[0].as_ref().unwrap().length, LENGTH);
}

#[test]
fn an_object_that_lies_only_in_remote_storage_is_not_supported() {
    let mut rig = Rig::new();
    let lookup = rig.get(&["k"]);
    let mut remote = object(4, &[]);
    remote.replicas.push(master::Replica {
        replica: Some(replica::Replica::Remote(master::RemoteReplica {
            length: LENGTH,
            ..master::RemoteReplica::default()
        })),
    });
    rig.answer(lookup, found(vec![remote]));
    assert_eq!(code(&rig.gets()[0]), ErrorCode::NotSupported);
}

#[test]
fn law_04_answers_that_make_no_sense_are_faults_and_no_transfers() {
    let other_length = Object {
        length: LENGTH + 1,
        ..object(4, &[0])
    };
    let mut other_segment = object(4, &[0]);
    let Some(replica::Replica::Memory(memory)) = &mut other_segment.replicas[0].replica else {
        unreachable!("it was built in memory");
    };
    memory.segment = 1;
    let nameless = Object {
        incarnation: None,
        ..object(4, &[0])
    };
    let beyond = object(4, &[u64::MAX - 5]);
    for wrong in [other_length, other_segment, nameless, beyond] {
        let mut rig = Rig::new();
        let lookup = rig.get(&["k"]);
        rig.answer(lookup, found(vec![wrong]));
        assert_eq!(code(&rig.gets()[0]), ErrorCode::Internal);
    }
    let mut rig = Rig::new();
    let lookup = rig.get(&["k"]);
    rig.answer(lookup, ended(1));
    assert_eq!(code(&rig.gets()[0]), ErrorCode::Internal);
    let lookup = rig.get(&["k"]);
    rig.answer(lookup, found(vec![object(1, &[0]), object(2, &[0])]));
    assert_eq!(code(&rig.gets()[0]), ErrorCode::Internal);
}

#[test]
fn results_come_in_the_order_of_keys_and_a_key_may_be_read_twice() {
    let mut rig = Rig::new();
    let lookup = rig.get(&["a", "b", "a"]);
    let objects = vec![object(1, &[0]), object(2, &[64]), object(1, &[0])];
    rig.answer(lookup, found(objects));
    let reads = [rig.transfer().0, rig.transfer().0, rig.transfer().0];
    for index in [2, 0, 1] {
        rig.end(reads[index]);
        rig.end(reads[index]);
    }
    let sequences: Vec<_> = rig
        .gets()
        .into_iter()
        .map(|result| result.unwrap().incarnation.sequence)
        .collect();
    assert_eq!(sequences, [1, 2, 1]);
}

#[test]
fn a_remove_that_was_lost_may_have_happened() {
    let mut rig = Rig::new();
    let remove = |rig: &mut Rig| {
        let keys = vec!["k".into()];
        rig.core.start(
            rig.now,
            Operation::Remove {
                keys,
                options: RemoveOptions::default(),
            },
            LATE,
        );
        rig.call()
    };
    let call = remove(&mut rig);
    let results = vec![KeyResult::default()];
    rig.answer(call, MasterAnswer::Remove(RemoveResponse { results }));
    let outcome = Outcome::Remove(vec![Ok(())]);
    assert!(
        matches!(rig.core.poll(), Some(Action::Finish { outcome: ended, .. }) if ended == outcome)
    );
    remove(&mut rig);
    rig.tick_at(LATE);
    let Some(Action::Finish {
        outcome: Outcome::Remove(results),
        ..
    }) = rig.core.poll()
    else {
        panic!("it ends at its deadline");
    };
    assert_eq!(results[0].as_ref().unwrap_err().applied, Applied::Unknown);
}

const KEEP: Duration = Duration::from_millis(4);

/// A core that has just read `k`, whose second life it was.
fn having_read() -> Rig {
    let mut rig = Rig::keeping(KEEP);
    let call = rig.get(&["k"]);
    rig.answer(call, found(vec![object(2, &[0, 64])]));
    let (read, _) = rig.transfer();
    rig.end(read);
    assert!(rig.gets()[0].is_ok());
    assert!(rig.quiet(), "the lease is kept");
    rig
}

/// Reads `k` again. `true`: what is known of it is enough.
fn reads_at_once(rig: &mut Rig) -> bool {
    let items = vec![GetItem {
        key: "k".into(),
        capacity: None,
    }];
    rig.core.start(rig.now, Operation::Get { items }, LATE);
    loop {
        match rig.core.poll() {
            Some(Action::Read { .. }) => return true,
            Some(Action::CallMaster {
                request: MasterRequest::Lookup(_),
                ..
            }) => return false,
            Some(_) => {}
            None => panic!("it does neither"),
        }
    }
}

#[test]
fn what_was_looked_up_is_kept_for_a_while_and_no_longer() {
    let mut rig = having_read();
    rig.now = rig.now + KEEP - Duration::from_micros(1);
    assert!(reads_at_once(&mut rig));
    let mut rig = having_read();
    rig.now = rig.now + KEEP;
    assert!(!reads_at_once(&mut rig));

    let mut rig = having_read();
    let due = rig.core.next_deadline().unwrap();
    assert!(
        due <= rig.now + KEEP + KEEP / 2,
        "the lease goes back by itself"
    );
    rig.tick_at(due);
    let due = rig.core.next_deadline().unwrap();
    rig.tick_at(due);
    rig.released();
    assert_eq!(rig.core.next_deadline(), None);
}

#[test]
fn what_was_looked_up_is_forgotten_with_the_first_word_that_it_is_no_more() {
    let life = |sequence| Incarnation { epoch: 1, sequence };
    let gone = |key: &'static str, sequence| Event::Invalidated {
        objects: vec![(key.into(), life(sequence))],
    };
    let after = |event: Event| {
        let mut rig = having_read();
        rig.event(event);
        reads_at_once(&mut rig)
    };
    assert!(!after(gone("k", 2)));
    assert!(!after(gone("k", u64::MAX)));
    assert!(after(gone("k", 1)), "an earlier life");
    assert!(after(gone("other", 2)));
    assert!(!after(Event::Lost));
    assert!(!after(Event::Reclaim));
}

#[test]
fn what_was_asked_for_before_the_master_said_something_new_is_not_kept() {
    let gone = Event::Invalidated {
        objects: vec![("k".into(), Incarnation::default())],
    };
    for news in [Event::Lost, gone] {
        let mut rig = Rig::keeping(KEEP);
        let call = rig.get(&["k"]);
        rig.event(news);
        rig.now = rig.now + Duration::from_micros(1);
        // It may be the first answer, asked for again on another stream.
        rig.answer(call, found(vec![object(2, &[0, 64])]));
        let (read, _) = rig.transfer();
        rig.end(read);
        assert!(rig.gets()[0].is_ok());
        assert!(!reads_at_once(&mut rig));
    }
}

#[test]
fn what_was_asked_for_before_a_change_of_ones_own_ended_is_not_kept() {
    let mut rig = Rig::keeping(KEEP);
    let get = rig.get(&["k"]);
    let remove = Operation::Remove {
        keys: vec!["k".into()],
        options: RemoveOptions::default(),
    };
    rig.core.start(rig.now, remove, LATE);
    let call = rig.call();
    let results = vec![KeyResult::default()];
    rig.answer(call, MasterAnswer::Remove(RemoveResponse { results }));
    assert!(matches!(rig.core.poll(), Some(Action::Finish { .. })));
    rig.now = rig.now + Duration::from_micros(1);
    rig.answer(get, found(vec![object(2, &[0, 64])]));
    let (read, _) = rig.transfer();
    rig.end(read);
    assert!(rig.gets()[0].is_ok(), "it was asked for before");
    assert!(!reads_at_once(&mut rig));
}

#[test]
fn a_change_of_ones_own_is_exact_at_once() {
    let mut rig = having_read();
    let remove = Operation::Remove {
        keys: vec!["k".into()],
        options: RemoveOptions::default(),
    };
    rig.core.start(rig.now, remove, LATE);
    let call = rig.call();
    rig.answer(
        call,
        MasterAnswer::Remove(RemoveResponse {
            results: vec![KeyResult::default()],
        }),
    );
    assert!(!reads_at_once(&mut rig));

    let mut rig = having_read();
    rig.core.start(rig.now, Operation::RemoveAll, LATE);
    let call = rig.call();
    rig.answer(call, MasterAnswer::RemoveAll(RemoveAllResponse::default()));
    assert!(!reads_at_once(&mut rig));

    let mut rig = having_read();
    let start = rig.put(&["k"]);
    rig.answer(start, granted(vec![object(3, &[128])]));
    let (write, _) = rig.transfer();
    rig.end(write);
    let end = rig.call();
    rig.answer(end, ended(1));
    assert!(rig.puts()[0].is_ok());
    assert!(!reads_at_once(&mut rig));
}

#[test]
fn what_was_known_and_is_of_no_use_is_looked_up() {
    let mut rig = having_read();
    assert!(reads_at_once(&mut rig));
    // The first read of this rig was transfer 0.
    let second = TransferId(1);
    rig.fail(second, Retry::Elsewhere, true);
    let (third, _) = rig.transfer();
    rig.fail(third, Retry::Elsewhere, true);
    let (call, request) = rig.asked();
    assert!(matches!(request, MasterRequest::Lookup(_)), "{request:?}");
    rig.answer(call, found(vec![object(3, &[256])]));
    let mut last = None;
    while let Some(action) = rig.core.poll() {
        if let Action::Read { transfer, .. } = action {
            last = Some(transfer);
        }
    }
    rig.end(last.expect("it is read where it is now"));
    assert_eq!(rig.gets()[0].as_ref().unwrap().incarnation.sequence, 3);
}

#[test]
fn all_of_a_batch_profits_from_space_that_is_given_up_for_it() {
    let mut rig = having_read();
    let start = rig.put(&["a", "b", "c"]);
    let full = || {
        let fault = Fault::new(ErrorCode::NoSpace, Retry::Never, "full");
        let result = Some(put_start_result::Result::Error(fault.into()));
        PutStartResult { result }
    };
    rig.answer(
        start,
        MasterAnswer::PutStart(PutStartResponse {
            results: vec![full(), full(), full()],
            ..PutStartResponse::default()
        }),
    );
    rig.released();
    let (_, request) = rig.asked();
    let MasterRequest::PutStart(request) = request else {
        panic!("{request:?}");
    };
    assert_eq!(request.items.len(), 3);
}
