//! Frames of a client's session with the master: from bytes to operations, and through the state
//! machine to an answer.

use std::time::Duration;

use mooncake_master::{
    Time,
    state::{Caller, ClientId, Command, Operation, Settings, State},
    wire::{Terms, operation, refusal, reply},
};
use mooncake_proto::master::{
    Answer, ClientFrame, answer::Answer as Reply, operation::Operation as Request,
};
use prost::Message;

use crate::{Target, shape::shape};

pub(crate) const TARGET: Target = Target {
    name: "operations",
    run,
    words: &[
        b"\x12\x04\x08\x01\x52\0",
        b"\x0a\x01k",
        b"\x10\x80\x20",
        b"\x12\x04\x08\x01\x10\x01",
        b"\x0a\x100123456789abcdef",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff\xff\xff\xff\x0f",
        b"\x18\x01",
    ],
};

const CLIENT: ClientId = ClientId(1);

fn run(bytes: &[u8]) -> u64 {
    let Ok(frame) = ClientFrame::decode(bytes) else {
        return 0;
    };
    let encoded = frame.encode_to_vec();
    assert_eq!(encoded.len(), frame.encoded_len());
    let again = ClientFrame::decode(&encoded[..]).expect("what we encode decodes");
    assert_eq!(again, frame);

    let mut state = State::new(1, Settings::default());
    let hello = frame.hello.clone().unwrap_or_default();
    let (tenant, name) = (hello.tenant, hello.name);
    state.apply(
        Time::ZERO,
        &Command::Hello {
            client: CLIENT,
            tenant,
            name,
        },
    );
    let mut answers = Vec::new();
    for (asked, again) in frame.operations.into_iter().zip(again.operations) {
        let number = asked.number;
        let entries = asked.operation.as_ref().map(entries);
        let converted = operation(asked.operation, || 7);
        assert_eq!(converted, operation(again.operation, || 7));
        let answer = match converted {
            Ok(operation) => {
                assert_eq!(entries, Some(size(&operation)), "{operation:?}");
                perform(&mut state, number, operation)
            }
            Err(failure) => refusal(failure),
        };
        answers.push(std::mem::discriminant(&answer));
        let answer = Answer {
            number,
            answer: Some(answer),
        };
        let encoded = answer.encode_to_vec();
        assert_eq!(Answer::decode(&encoded[..]).as_ref(), Ok(&answer));
    }
    let client = CLIENT;
    let number = frame.acknowledged_below;
    state.apply(Time(2), &Command::AcknowledgeBelow { client, number });
    state.apply(Time(2 + 3_600_000_000), &Command::Tick);
    let left = state.counters();
    // Nobody has said anything for an hour.
    assert_eq!(
        (
            left.clients,
            left.leases,
            left.puts_in_progress,
            left.granted_bytes
        ),
        (0, 0, 0, 0)
    );
    answers.truncate(4);
    shape(answers)
}

fn perform(state: &mut State, number: u64, operation: Operation) -> Reply {
    let settings = state.settings();
    let terms = Terms {
        epoch: state.epoch(),
        ping_interval: Duration::from_secs(1),
        client_ttl: settings.client_ttl,
        lease_ttl: settings.lease_ttl,
        put_deadline: settings.put_deadline,
    };
    let caller = Caller::Session {
        client: CLIENT,
        number,
    };
    let command = Command::Perform { caller, operation };
    let applied = state.apply(Time(1), &command);
    let Command::Perform { operation, .. } = command else {
        unreachable!("it was just made");
    };
    reply(&terms, &operation, applied.answer)
}

/// How many things a request is about.
fn entries(request: &Request) -> usize {
    match request {
        Request::Describe(request) => request.keys.len(),
        Request::Exist(request) => request.keys.len(),
        Request::Lookup(request) => request.keys.len(),
        Request::Put(request) => request.items.len(),
        Request::PutEnd(request) => request.items.len(),
        Request::PutRevoke(request) => request.items.len(),
        Request::PutStart(request) => request.items.len(),
        Request::Release(request) => request.leases.len(),
        Request::Remove(request) => request.items.len(),
        Request::ReturnGrants(request) => request.grants.len(),
        _ => 1,
    }
}

/// How many things an operation is about.
fn size(operation: &Operation) -> usize {
    match operation {
        Operation::Describe(keys) | Operation::Exist(keys) | Operation::Lookup(keys) => keys.len(),
        Operation::Put(put) => put.items.len(),
        Operation::PutEnd(items) | Operation::PutRevoke(items) => items.len(),
        Operation::PutStart(put) => put.items.len(),
        Operation::Release(leases) => leases.len(),
        Operation::Remove(remove) => remove.items.len(),
        Operation::ReturnGrants { numbers, .. } => numbers.len(),
        _ => 1,
    }
}
