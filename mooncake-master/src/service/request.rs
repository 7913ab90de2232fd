//! Requests of the wire as operations of the state machine.

use mooncake_proto::master::{self as proto, operation::Operation as Request};

use crate::state::{
    ClientId, Failure, Grant, Incarnation, Key, ListObjects, Operation, Placed, PutPlaced,
    PutStart, Remove, SegmentId, SegmentIdentity,
};

/// Keys, or leases, in one operation: it holds up all others for as long as it takes.
const MAX_BATCH: usize = 65_536;

/// What the request asks for. `draw` is for what is decided by chance.
pub fn operation(
    request: Option<Request>,
    draw: impl FnOnce() -> u64,
) -> Result<Operation, Failure> {
    let request = request.ok_or_else(|| {
        Failure::invalid("the operation is empty, or of a kind that this master does not know")
    })?;
    let count = entries(&request);
    if count > MAX_BATCH {
        let what = format!("an operation takes at most {MAX_BATCH} entries, not {count}");
        return Err(Failure::invalid(what));
    }
    Ok(match request {
        Request::Describe(request) => Operation::Describe(keys(request.keys)),
        Request::Exist(request) => Operation::Exist(keys(request.keys)),
        Request::Goodbye(request) => Operation::Goodbye {
            quiet: request.quiet,
        },
        Request::Grant(request) => Operation::Grant(Grant {
            segment: segment_id(&request.segment)?,
            number: request.grant,
            length: request.length,
        }),
        Request::ListObjects(request) => Operation::ListObjects(ListObjects {
            prefix: Key(request.prefix),
            after: Key(request.after),
            limit: request.limit,
        }),
        Request::ListSegments(_) => Operation::ListSegments,
        Request::Lookup(request) => Operation::Lookup(keys(request.keys)),
        Request::MountSegment(request) => Operation::Mount(segment(request)?),
        Request::Ping(_) => Operation::Ping,
        Request::Put(request) => Operation::Put(PutPlaced {
            segment: segment_id(&request.segment)?,
            items: request.items.into_iter().map(placed).collect(),
            upsert: request.upsert,
        }),
        Request::PutEnd(request) => Operation::PutEnd(incarnations(request.items)?),
        Request::PutRevoke(request) => Operation::PutRevoke(incarnations(request.items)?),
        Request::PutStart(request) => Operation::PutStart(PutStart {
            items: request
                .items
                .into_iter()
                .map(|item| (Key(item.key), item.length))
                .collect(),
            replicas: request.replicas,
            preferred: request.preferred_segments,
            avoided: request
                .avoided_segments
                .iter()
                .map(|id| segment_id(id))
                .collect::<Result<_, _>>()?,
            upsert: request.upsert,
            draw: draw(),
        }),
        Request::Release(request) => Operation::Release(request.leases),
        Request::Remove(request) => {
            let items = request.items.into_iter();
            Operation::Remove(Remove {
                items: items
                    .map(|item| (Key(item.key), item.incarnation.map(incarnation)))
                    .collect(),
                barrier: request.barrier,
            })
        }
        Request::RemoveAll(_) => Operation::RemoveAll,
        Request::ReturnGrants(request) => Operation::ReturnGrants {
            segment: segment_id(&request.segment)?,
            numbers: request.grants,
        },
        Request::UnmountSegment(request) => Operation::Unmount(segment_id(&request.id)?),
    })
}

/// Keys, or leases, that the request is about.
pub(super) fn entries(request: &Request) -> usize {
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
        Request::Goodbye(_)
        | Request::Grant(_)
        | Request::ListObjects(_)
        | Request::ListSegments(_)
        | Request::MountSegment(_)
        | Request::Ping(_)
        | Request::RemoveAll(_)
        | Request::UnmountSegment(_) => 0,
    }
}

fn placed(item: proto::PlacedItem) -> Placed {
    Placed {
        key: Key(item.key),
        length: item.length,
        grant: item.grant,
        offset: item.offset,
    }
}

fn keys(keys: Vec<bytes::Bytes>) -> Vec<Key> {
    keys.into_iter().map(Key).collect()
}

pub(super) fn incarnation(of: proto::ObjectIncarnation) -> Incarnation {
    Incarnation {
        epoch: of.epoch,
        sequence: of.sequence,
    }
}

fn incarnations(items: Vec<proto::KeyIncarnation>) -> Result<Vec<(Key, Incarnation)>, Failure> {
    let one = |item: proto::KeyIncarnation| {
        let of = item.incarnation.ok_or_else(|| {
            let key = &item.key[..item.key.len().min(64)];
            Failure::invalid(format!(
                "key \"{}\" comes without its incarnation",
                key.escape_ascii()
            ))
        })?;
        Ok((Key(item.key), incarnation(of)))
    };
    items.into_iter().map(one).collect()
}

fn segment(request: proto::MountSegmentRequest) -> Result<SegmentIdentity, Failure> {
    let segment = request
        .segment
        .ok_or_else(|| Failure::invalid("the request names no segment"))?;
    Ok(SegmentIdentity {
        id: segment_id(&segment.id)?,
        name: segment.name,
        owner: ClientId(segment.owner_incarnation),
        registration: segment.registration,
        generation: segment.generation,
        length: segment.length,
        owner_name: segment.owner,
    })
}

fn segment_id(id: &[u8]) -> Result<SegmentId, Failure> {
    let id = id
        .try_into()
        .map_err(|_| Failure::invalid(format!("a segment's id has 16 bytes, not {}", id.len())))?;
    Ok(SegmentId(id))
}

#[cfg(test)]
mod tests {
    use mooncake_proto::master::ClientFrame;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::{
        Time,
        state::{Caller, Command, Settings, State},
    };

    /// One field of a message: its number, its kind, and bytes that may be a message themselves.
    fn field() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            (1u8..16, any::<u64>()).prop_map(|(tag, value)| {
                let mut bytes = vec![tag << 3];
                prost::encode_length_delimiter(value as usize, &mut bytes).unwrap();
                bytes
            }),
            (1u8..16, prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(tag, text)| {
                let mut bytes = vec![tag << 3 | 2, text.len() as u8];
                bytes.extend(text);
                bytes
            }),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            (1u8..16, prop::collection::vec(inner, 1..4)).prop_map(|(tag, fields)| {
                let fields = fields.concat();
                let mut bytes = vec![tag << 3 | 2];
                prost::encode_length_delimiter(fields.len(), &mut bytes).unwrap();
                bytes.extend(fields);
                bytes
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn law_04_whatever_comes_is_answered_or_refused(
            operations in prop::collection::vec(prop::collection::vec(field(), 1..4), 1..4)
        ) {
            let client = ClientId(1);
            let mut state = State::new(1, Settings::default());
            let (tenant, name) = (String::new(), String::new());
            state.apply(Time::ZERO, &Command::Hello { client, tenant, name });
            for fields in operations {
                let fields = fields.concat();
                let Ok(operation) = proto::Operation::decode(&fields[..]) else { continue };
                let number = operation.number;
                if let Ok(operation) = super::operation(operation.operation, || 0) {
                    let caller = Caller::Session { client, number };
                    state.apply(Time(1), &Command::Perform { caller, operation });
                }
            }
        }

        #[test]
        fn law_04_frames_of_noise_are_decoded_or_refused(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ClientFrame::decode(&noise[..]);
        }
    }

    #[test]
    fn what_is_malformed_is_refused_by_name() {
        let cut = operation(
            Some(Request::UnmountSegment(proto::UnmountSegmentRequest {
                id: vec![1; 15].into(),
                client_incarnation: 1,
            })),
            || 0,
        );
        assert_eq!(
            cut,
            Err(Failure::invalid("a segment's id has 16 bytes, not 15"))
        );

        let nameless = operation(
            Some(Request::PutEnd(proto::PutEndRequest {
                items: vec![proto::KeyIncarnation {
                    key: b"k\xff".as_slice().into(),
                    incarnation: None,
                }],
                ..Default::default()
            })),
            || 0,
        );
        assert!(nameless.unwrap_err().to_string().contains(r"k\xff"));
        assert!(operation(None, || 0).is_err());
        let leases = vec![1; MAX_BATCH + 1];
        let many = Request::Release(proto::ReleaseRequest { leases });
        assert!(operation(Some(many), || 0).is_err());
    }
}
