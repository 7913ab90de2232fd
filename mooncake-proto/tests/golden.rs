//! One encoded example of every message: a field that gets another number or type fails here.

use std::fmt::Debug;

use mooncake_proto::{master, status, store, tent};
use prost::Message;

/// What a message is encoded to, and that this is read back as the same message.
fn check<M: Message + Default + PartialEq + Debug>(message: M, hex: &str, name: &str) {
    let bytes = message.encode_to_vec();
    let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, hex, "{name}");
    assert_eq!(M::decode(&*bytes), Ok(message), "{name}");
}

/// The messages that a generated file has.
fn messages(generated: &str) -> Vec<&str> {
    let lines: Vec<_> = generated.lines().collect();
    let message = |pair: &[&str]| pair[0].contains("::prost::Message)]");
    let pairs = lines.windows(2).filter(|pair| message(pair));
    pairs
        .filter_map(|pair| pair[1].strip_prefix("pub struct ")?.split(' ').next())
        .collect()
}

#[test]
fn no_message_is_without_an_example() {
    let ours = include_str!("golden.rs");
    for generated in [
        include_str!("../src/generated/mooncake.status.v1.rs"),
        include_str!("../src/generated/mooncake.tent.v1.rs"),
        include_str!("../src/generated/mooncake.master.v1.rs"),
        include_str!("../src/generated/mooncake.store.v1.rs"),
    ] {
        let messages = messages(generated);
        assert!(!messages.is_empty());
        for message in messages {
            let named = ["master", "status", "store", "tent"]
                .iter()
                .any(|package| ours.contains(&format!("-> {package}::{message} ")));
            assert!(named, "{message} has no example");
        }
    }
}

#[test]
fn the_messages_of_status_keep_their_form() {
    check(
        error_detail(),
        "08b8feffffffffffffff011004188b07200228e30b30013a036b657942047065\
65724a05737461676552076d657373616765",
        "ErrorDetail",
    );
}

#[test]
fn the_messages_of_tent_keep_their_form() {
    check(
        get_segment_request(),
        "0a046e616d6510df04188b07",
        "GetSegmentRequest",
    );
    check(
        get_segment_response(),
        "0a5208cb0112046e616d65188b0720b7092a076d616368696e65322708b30210\
9303188b0720b709280332086c6f636174696f6e3a056c696e6b733a066c696e\
6b73323a0f0a046c696e6b120761646472657373123e08cb0110df04188b0720\
b7092a2708b302109303188b0720b709280332086c6f636174696f6e3a056c69\
6e6b733a066c696e6b733232048f0e900e38bb10",
        "GetSegmentResponse",
    );
    check(probe_request(), "", "ProbeRequest");
    check(probe_response(), "08b302", "ProbeResponse");
    check(
        notify_request(),
        "08b30210df041a077365676d656e74208b0728b70932046e616d653a076d6573\
73616765",
        "NotifyRequest",
    );
    check(
        notify_response(),
        "080310b3021893032206726561736f6e",
        "NotifyResponse",
    );
    check(
        stage_request(),
        "08b30210df04188b07200328b70930db0438e30b408f0e488707500158bb1060\
e712",
        "StageRequest",
    );
    check(
        stage_response(),
        "080b1206726561736f6e18b30220cb0128df04308b073893034001",
        "StageResponse",
    );
    check(
        segment_descriptor(),
        "08cb0112046e616d65188b0720b7092a076d616368696e65322708b302109303\
188b0720b709280332086c6f636174696f6e3a056c696e6b733a066c696e6b73\
323a0f0a046c696e6b120761646472657373",
        "SegmentDescriptor",
    );
    check(
        segment_delta(),
        "08cb0110df04188b0720b7092a2708b302109303188b0720b709280332086c6f\
636174696f6e3a056c696e6b733a066c696e6b733232048f0e900e38bb10",
        "SegmentDelta",
    );
    check(
        segment_handle(),
        "0a07636f6e74726f6c125208cb0112046e616d65188b0720b7092a076d616368\
696e65322708b302109303188b0720b709280332086c6f636174696f6e3a056c\
696e6b733a066c696e6b73323a0f0a046c696e6b120761646472657373",
        "SegmentHandle",
    );
    check(
        buffer_descriptor(),
        "08b302109303188b0720b709280332086c6f636174696f6e3a056c696e6b733a\
066c696e6b7332",
        "BufferDescriptor",
    );
    check(
        link_endpoint(),
        "0a046c696e6b120761646472657373",
        "LinkEndpoint",
    );
}

#[test]
fn the_messages_of_master_keep_their_form() {
    check(object_incarnation(), "08b30210df04", "ObjectIncarnation");
    check(
        client_frame(),
        "0a1708cb0110df041a0674656e616e7422046e616d6528e30b121a08b3021215\
0a046b6579730a056b657973327a0674656e616e74188b07",
        "ClientFrame",
    );
    check(
        hello(),
        "08cb0110df041a0674656e616e7422046e616d6528e30b",
        "Hello",
    );
    check(
        server_frame(),
        "0a710a6f08b302126a0a1a0a180a0608b30210df0410df041a0b0a0908cb0110\
df04188b07121d0a02696412046e616d65188b0720b70928eb07308f0e3a056f\
776e6572188b0720b7092a270a026964108b071a08656e64706f696e74220c73\
65676d656e745f6e616d652a06686f6c646572",
        "ServerFrame",
    );
    check(
        event(),
        "0a6f08b302126a0a1a0a180a0608b30210df0410df041a0b0a0908cb0110df04\
188b07121d0a02696412046e616d65188b0720b70928eb07308f0e3a056f776e\
6572188b0720b7092a270a026964108b071a08656e64706f696e74220c736567\
6d656e745f6e616d652a06686f6c646572",
        "Event Answer",
    );
    check(
        master::Event {
            event: Some(master::event::Event::Nudge(nudge())),
        },
        "1200",
        "Event Nudge",
    );
    check(
        master::Event {
            event: Some(master::event::Event::Invalidate(invalidate())),
        },
        "1a0f0a0d0a036b6579120608b30210df04",
        "Event Invalidate",
    );
    check(
        master::Event {
            event: Some(master::event::Event::Fenced(fenced())),
        },
        "22080a06726561736f6e",
        "Event Fenced",
    );
    check(
        master::Event {
            event: Some(master::event::Event::Hello(hello_answer())),
        },
        "2a0e08b3021001188b0720b70928e30b",
        "Event Hello",
    );
    check(
        master::Event {
            event: Some(master::event::Event::Reclaim(reclaim())),
        },
        "3200",
        "Event Reclaim",
    );
    check(
        hello_answer(),
        "08b3021001188b0720b70928e30b",
        "HelloAnswer",
    );
    check(nudge(), "", "Nudge");
    check(reclaim(), "", "Reclaim");
    check(invalidate(), "0a0d0a036b6579120608b30210df04", "Invalidate");
    check(
        invalidated_object(),
        "0a036b6579120608b30210df04",
        "InvalidatedObject",
    );
    check(fenced(), "0a06726561736f6e", "Fenced");
    check(
        operation(),
        "08b30212150a046b6579730a056b657973327a0674656e616e74",
        "Operation Lookup",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::Release(release_request())),
            ..operation()
        },
        "08b3021a050a03b30201",
        "Operation Release",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::PutStart(put_start_request())),
            ..operation()
        },
        "08b30222680a080a036b657910df041093031a127072656665727265645f7365\
676d656e74731a137072656665727265645f7365676d656e74733220012a1061\
766f696465645f7365676d656e74732a1161766f696465645f7365676d656e74\
733270ef207a0674656e616e74",
        "Operation PutStart",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::PutEnd(put_end_request())),
            ..operation()
        },
        "08b3022a1a0a0d0a036b6579120608b30210df0470ef207a0674656e616e74",
        "Operation PutEnd",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::PutRevoke(put_revoke_request())),
            ..operation()
        },
        "08b302321a0a0d0a036b6579120608b30210df0470ef207a0674656e616e74",
        "Operation PutRevoke",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::Exist(exist_request())),
            ..operation()
        },
        "08b3023a150a046b6579730a056b657973327a0674656e616e74",
        "Operation Exist",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::Remove(remove_request())),
            ..operation()
        },
        "08b30242190a0d0a036b6579120608b30210df0410017a0674656e616e74",
        "Operation Remove",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::Describe(describe_request())),
            ..operation()
        },
        "08b3024a150a046b6579730a056b657973327a0674656e616e74",
        "Operation Describe",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::ListObjects(
                list_objects_request(),
            )),
            ..operation()
        },
        "08b302521a0a067072656669781205616674657218db047a0674656e616e74",
        "Operation ListObjects",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::ListSegments(
                list_segments_request(),
            )),
            ..operation()
        },
        "08b3025a00",
        "Operation ListSegments",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::MountSegment(
                mount_segment_request(),
            )),
            ..operation()
        },
        "08b302621f0a1d0a02696412046e616d65188b0720b70928eb07308f0e3a056f\
776e6572",
        "Operation MountSegment",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::UnmountSegment(
                unmount_segment_request(),
            )),
            ..operation()
        },
        "08b3026a070a02696470ef20",
        "Operation UnmountSegment",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::Ping(ping_request())),
            ..operation()
        },
        "08b302720370ef20",
        "Operation Ping",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::RemoveAll(remove_all_request())),
            ..operation()
        },
        "08b3027a087a0674656e616e74",
        "Operation RemoveAll",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::Goodbye(goodbye_request())),
            ..operation()
        },
        "08b302820105080170ef20",
        "Operation Goodbye",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::RemoveAll(remove_all_response())),
            ..answer()
        },
        "08b30282010308f327",
        "Answer RemoveAll",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::Goodbye(goodbye_response())),
            ..answer()
        },
        "08b3028a0100",
        "Answer Goodbye",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::Grant(grant_request())),
            ..operation()
        },
        "08b3028a010d0a02696410df04188b0770ef20",
        "Operation Grant",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::Put(put_request())),
            ..operation()
        },
        "08b3029201210a026964120e0a036b657910df04188b0720b709180170ef207a\
0674656e616e74",
        "Operation Put",
    );
    check(
        master::Operation {
            operation: Some(master::operation::Operation::ReturnGrants(
                return_grants_request(),
            )),
            ..operation()
        },
        "08b3029a010d0a0269641204df048b0770ef20",
        "Operation ReturnGrants",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::Grant(grant_response())),
            ..answer()
        },
        "08b30292010608b30210df04",
        "Answer Grant",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::Put(put_response())),
            ..answer()
        },
        "08b3029a010a0a080a0608b30210df04",
        "Answer Put",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::ReturnGrants(
                return_grants_response(),
            )),
            ..answer()
        },
        "08b302a20100",
        "Answer ReturnGrants",
    );
    check(
        answer(),
        "08b302126a0a1a0a180a0608b30210df0410df041a0b0a0908cb0110df04188b\
07121d0a02696412046e616d65188b0720b70928eb07308f0e3a056f776e6572\
188b0720b7092a270a026964108b071a08656e64706f696e74220c7365676d65\
6e745f6e616d652a06686f6c646572",
        "Answer Lookup",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::Release(release_response())),
            ..answer()
        },
        "08b3021a00",
        "Answer Release",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::PutStart(put_start_response())),
            ..answer()
        },
        "08b302223e0a1a0a180a0608b30210df0410df041a0b0a0908cb0110df04188b\
07121d0a02696412046e616d65188b0720b70928eb07308f0e3a056f776e6572\
188b07",
        "Answer PutStart",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::PutEnd(put_end_response())),
            ..answer()
        },
        "08b3022a360a340a3208b8feffffffffffffff011004188b07200228e30b3001\
3a036b65794204706565724a05737461676552076d657373616765",
        "Answer PutEnd",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::PutRevoke(put_revoke_response())),
            ..answer()
        },
        "08b30232360a340a3208b8feffffffffffffff011004188b07200228e30b3001\
3a036b65794204706565724a05737461676552076d657373616765",
        "Answer PutRevoke",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::Exist(exist_response())),
            ..answer()
        },
        "08b3023a3b0a3908011093031a3208b8feffffffffffffff011004188b072002\
28e30b30013a036b65794204706565724a05737461676552076d657373616765",
        "Answer Exist",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::Remove(remove_response())),
            ..answer()
        },
        "08b30242360a340a3208b8feffffffffffffff011004188b07200228e30b3001\
3a036b65794204706565724a05737461676552076d657373616765",
        "Answer Remove",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::Describe(describe_response())),
            ..answer()
        },
        "08b3024a6e0a240a220a180a0608b30210df0410df041a0b0a0908cb0110df04\
188b07100118db0420b709121d0a02696412046e616d65188b0720b70928eb07\
308f0e3a056f776e65721a270a026964108b071a08656e64706f696e74220c73\
65676d656e745f6e616d652a06686f6c646572",
        "Answer Describe",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::ListObjects(list_objects_response())),
            ..answer()
        },
        "08b30252170a130a036b657910df0418db04220608b30210df041001",
        "Answer ListObjects",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::ListSegments(
                list_segments_response(),
            )),
            ..answer()
        },
        "08b3025a330a2e0a1d0a02696412046e616d65188b0720b70928eb07308f0e3a\
056f776e657210df04188b0720b70928e30b308f0e10df04",
        "Answer ListSegments",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::MountSegment(
                mount_segment_response(),
            )),
            ..answer()
        },
        "08b3026200",
        "Answer MountSegment",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::UnmountSegment(
                unmount_segment_response(),
            )),
            ..answer()
        },
        "08b3026a00",
        "Answer UnmountSegment",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::Ping(ping_response())),
            ..answer()
        },
        "08b302720508b3021001",
        "Answer Ping",
    );
    check(
        master::Answer {
            answer: Some(master::answer::Answer::Error(error_detail().into())),
            ..answer()
        },
        "08b3027a3208b8feffffffffffffff011004188b07200228e30b30013a036b65\
794204706565724a05737461676552076d657373616765",
        "Answer Error",
    );
    check(
        segment(),
        "0a02696412046e616d65188b0720b70928eb07308f0e3a056f776e6572",
        "Segment",
    );
    check(memory_replica(), "08cb0110df04188b07", "MemoryReplica");
    check(local_disk_replica(), "188b0720b302", "LocalDiskReplica");
    check(
        remote_replica(),
        "0a0573746f7265120470617468188b07",
        "RemoteReplica",
    );
    check(replica(), "0a0908cb0110df04188b07", "Replica Memory");
    check(
        master::Replica {
            replica: Some(master::replica::Replica::LocalDisk(local_disk_replica())),
        },
        "1206188b0720b302",
        "Replica LocalDisk",
    );
    check(
        master::Replica {
            replica: Some(master::replica::Replica::Remote(remote_replica())),
        },
        "1a100a0573746f7265120470617468188b07",
        "Replica Remote",
    );
    check(
        object(),
        "0a0608b30210df0410df041a0b0a0908cb0110df04188b07",
        "Object",
    );
    check(
        key_incarnation(),
        "0a036b6579120608b30210df04",
        "KeyIncarnation",
    );
    check(
        key_result(),
        "0a3208b8feffffffffffffff011004188b07200228e30b30013a036b65794204\
706565724a05737461676552076d657373616765",
        "KeyResult",
    );
    check(
        lookup_request(),
        "0a046b6579730a056b657973327a0674656e616e74",
        "LookupRequest",
    );
    check(
        lookup_response(),
        "0a1a0a180a0608b30210df0410df041a0b0a0908cb0110df04188b07121d0a02\
696412046e616d65188b0720b70928eb07308f0e3a056f776e6572188b0720b7\
092a270a026964108b071a08656e64706f696e74220c7365676d656e745f6e61\
6d652a06686f6c646572",
        "LookupResponse",
    );
    check(
        lookup_result(),
        "0a180a0608b30210df0410df041a0b0a0908cb0110df04188b07",
        "LookupResult Object",
    );
    check(
        master::LookupResult {
            result: Some(master::lookup_result::Result::Error(error_detail().into())),
        },
        "123208b8feffffffffffffff011004188b07200228e30b30013a036b65794204\
706565724a05737461676552076d657373616765",
        "LookupResult Error",
    );
    check(release_request(), "0a03b30201", "ReleaseRequest");
    check(release_response(), "", "ReleaseResponse");
    check(
        put_start_request(),
        "0a080a036b657910df041093031a127072656665727265645f7365676d656e74\
731a137072656665727265645f7365676d656e74733220012a1061766f696465\
645f7365676d656e74732a1161766f696465645f7365676d656e74733270ef20\
7a0674656e616e74",
        "PutStartRequest",
    );
    check(put_item(), "0a036b657910df04", "PutItem");
    check(
        put_start_response(),
        "0a1a0a180a0608b30210df0410df041a0b0a0908cb0110df04188b07121d0a02\
696412046e616d65188b0720b70928eb07308f0e3a056f776e6572188b07",
        "PutStartResponse",
    );
    check(
        put_start_result(),
        "0a180a0608b30210df0410df041a0b0a0908cb0110df04188b07",
        "PutStartResult Object",
    );
    check(
        master::PutStartResult {
            result: Some(master::put_start_result::Result::Error(
                error_detail().into(),
            )),
        },
        "123208b8feffffffffffffff011004188b07200228e30b30013a036b65794204\
706565724a05737461676552076d657373616765",
        "PutStartResult Error",
    );
    check(
        put_end_request(),
        "0a0d0a036b6579120608b30210df0470ef207a0674656e616e74",
        "PutEndRequest",
    );
    check(
        put_end_response(),
        "0a340a3208b8feffffffffffffff011004188b07200228e30b30013a036b6579\
4204706565724a05737461676552076d657373616765",
        "PutEndResponse",
    );
    check(
        put_revoke_request(),
        "0a0d0a036b6579120608b30210df0470ef207a0674656e616e74",
        "PutRevokeRequest",
    );
    check(
        put_revoke_response(),
        "0a340a3208b8feffffffffffffff011004188b07200228e30b30013a036b6579\
4204706565724a05737461676552076d657373616765",
        "PutRevokeResponse",
    );
    check(
        exist_request(),
        "0a046b6579730a056b657973327a0674656e616e74",
        "ExistRequest",
    );
    check(
        exist_response(),
        "0a3908011093031a3208b8feffffffffffffff011004188b07200228e30b3001\
3a036b65794204706565724a05737461676552076d657373616765",
        "ExistResponse",
    );
    check(
        exist_result(),
        "08011093031a3208b8feffffffffffffff011004188b07200228e30b30013a03\
6b65794204706565724a05737461676552076d657373616765",
        "ExistResult",
    );
    check(
        remove_request(),
        "0a0d0a036b6579120608b30210df0410017a0674656e616e74",
        "RemoveRequest",
    );
    check(remove_item(), "0a036b6579120608b30210df04", "RemoveItem");
    check(
        remove_response(),
        "0a340a3208b8feffffffffffffff011004188b07200228e30b30013a036b6579\
4204706565724a05737461676552076d657373616765",
        "RemoveResponse",
    );
    check(
        describe_request(),
        "0a046b6579730a056b657973327a0674656e616e74",
        "DescribeRequest",
    );
    check(
        describe_response(),
        "0a240a220a180a0608b30210df0410df041a0b0a0908cb0110df04188b071001\
18db0420b709121d0a02696412046e616d65188b0720b70928eb07308f0e3a05\
6f776e65721a270a026964108b071a08656e64706f696e74220c7365676d656e\
745f6e616d652a06686f6c646572",
        "DescribeResponse",
    );
    check(
        describe_result(),
        "0a220a180a0608b30210df0410df041a0b0a0908cb0110df04188b07100118db\
0420b709",
        "DescribeResult Description",
    );
    check(
        master::DescribeResult {
            result: Some(master::describe_result::Result::Error(
                error_detail().into(),
            )),
        },
        "123208b8feffffffffffffff011004188b07200228e30b30013a036b65794204\
706565724a05737461676552076d657373616765",
        "DescribeResult Error",
    );
    check(
        object_description(),
        "0a180a0608b30210df0410df041a0b0a0908cb0110df04188b07100118db0420\
b709",
        "ObjectDescription",
    );
    check(
        list_objects_request(),
        "0a067072656669781205616674657218db047a0674656e616e74",
        "ListObjectsRequest",
    );
    check(
        list_objects_response(),
        "0a130a036b657910df0418db04220608b30210df041001",
        "ListObjectsResponse",
    );
    check(
        listed_object(),
        "0a036b657910df0418db04220608b30210df04",
        "ListedObject",
    );
    check(list_segments_request(), "", "ListSegmentsRequest");
    check(
        list_segments_response(),
        "0a2e0a1d0a02696412046e616d65188b0720b70928eb07308f0e3a056f776e65\
7210df04188b0720b70928e30b308f0e10df04",
        "ListSegmentsResponse",
    );
    check(
        segment_usage(),
        "0a1d0a02696412046e616d65188b0720b70928eb07308f0e3a056f776e657210\
df04188b0720b70928e30b308f0e",
        "SegmentUsage",
    );
    check(
        mount_segment_request(),
        "0a1d0a02696412046e616d65188b0720b70928eb07308f0e3a056f776e6572",
        "MountSegmentRequest",
    );
    check(mount_segment_response(), "", "MountSegmentResponse");
    check(
        unmount_segment_request(),
        "0a02696470ef20",
        "UnmountSegmentRequest",
    );
    check(unmount_segment_response(), "", "UnmountSegmentResponse");
    check(ping_request(), "70ef20", "PingRequest");
    check(ping_response(), "08b3021001", "PingResponse");
    check(remove_all_request(), "7a0674656e616e74", "RemoveAllRequest");
    check(remove_all_response(), "08f327", "RemoveAllResponse");
    check(
        grant_request(),
        "0a02696410df04188b0770ef20",
        "GrantRequest",
    );
    check(grant_response(), "08b30210df04", "GrantResponse");
    check(placed_item(), "0a036b657910df04188b0720b709", "PlacedItem");
    check(
        put_request(),
        "0a026964120e0a036b657910df04188b0720b709180170ef207a0674656e616e\
74",
        "PutRequest",
    );
    check(put_response(), "0a080a0608b30210df04", "PutResponse");
    check(put_result(), "0a0608b30210df04", "PutResult Incarnation");
    check(
        master::PutResult {
            result: Some(master::put_result::Result::Error(error_detail().into())),
        },
        "123208b8feffffffffffffff011004188b07200228e30b30013a036b65794204\
706565724a05737461676552076d657373616765",
        "PutResult Error",
    );
    check(
        return_grants_request(),
        "0a0269641204df048b0770ef20",
        "ReturnGrantsRequest",
    );
    check(return_grants_response(), "", "ReturnGrantsResponse");
    check(goodbye_request(), "080170ef20", "GoodbyeRequest");
    check(goodbye_response(), "", "GoodbyeResponse");
}

fn error_detail() -> status::ErrorDetail {
    status::ErrorDetail {
        code: status::ErrorCode::NoSpace.into(),
        retry: status::Retry::Later.into(),
        retry_after_us: 907,
        applied: status::Applied::UpTo.into(),
        applied_bytes: 1507,
        quiescent: true,
        key: "key".into(),
        peer: "peer".into(),
        stage: "stage".into(),
        message: "message".into(),
    }
}

fn get_segment_request() -> tent::GetSegmentRequest {
    tent::GetSegmentRequest {
        name: "name".into(),
        incarnation: 607,
        version: 907,
    }
}

fn get_segment_response() -> tent::GetSegmentResponse {
    tent::GetSegmentResponse {
        segment: Some(segment_descriptor()),
        delta: Some(segment_delta()),
    }
}

fn segment_delta() -> tent::SegmentDelta {
    tent::SegmentDelta {
        schema_version: 203,
        incarnation: 607,
        from_version: 907,
        version: 1207,
        changed: vec![buffer_descriptor()],
        removed: vec![1807, 1808],
        buffers: 2107,
    }
}

fn segment_handle() -> tent::SegmentHandle {
    tent::SegmentHandle {
        control: "control".into(),
        segment: Some(segment_descriptor()),
    }
}

fn probe_request() -> tent::ProbeRequest {
    tent::ProbeRequest {}
}

fn probe_response() -> tent::ProbeResponse {
    tent::ProbeResponse { incarnation: 307 }
}

fn notify_request() -> tent::NotifyRequest {
    tent::NotifyRequest {
        target: 307,
        sender: 607,
        segment: "segment".to_owned(),
        window: 907,
        sequence: 1207,
        name: "name".to_owned(),
        message: "message".into(),
    }
}

fn notify_response() -> tent::NotifyResponse {
    tent::NotifyResponse {
        outcome: tent::NotifyOutcome::Busy.into(),
        window: 307,
        retry_after_ms: 403,
        reason: "reason".to_owned(),
    }
}

fn stage_request() -> tent::StageRequest {
    tent::StageRequest {
        target: 307,
        sender: 607,
        ticket: 907,
        step: tent::StageStep::Drain.into(),
        registration: 1207,
        generation: 603,
        offset: 1507,
        length: 1807,
        budget_ms: 903,
        clean: true,
        before: 2107,
        behind: 2407,
    }
}

fn stage_response() -> tent::StageResponse {
    tent::StageResponse {
        outcome: tent::StageOutcome::NotQuiet.into(),
        reason: "reason".to_owned(),
        registration: 307,
        generation: 203,
        offset: 607,
        length: 907,
        lease_ms: 403,
        wanted: true,
    }
}

fn segment_descriptor() -> tent::SegmentDescriptor {
    tent::SegmentDescriptor {
        schema_version: 203,
        name: "name".into(),
        incarnation: 907,
        version: 1207,
        machine: "machine".into(),
        buffers: vec![buffer_descriptor()],
        links: vec![link_endpoint()],
    }
}

fn buffer_descriptor() -> tent::BufferDescriptor {
    tent::BufferDescriptor {
        registration: 307,
        generation: 403,
        address: 907,
        length: 1207,
        permission: tent::Permission::ReadWrite.into(),
        location: "location".into(),
        links: vec!["links".into(), "links2".into()],
    }
}

fn link_endpoint() -> tent::LinkEndpoint {
    tent::LinkEndpoint {
        link: "link".into(),
        address: "address".into(),
    }
}

fn object_incarnation() -> master::ObjectIncarnation {
    master::ObjectIncarnation {
        epoch: 307,
        sequence: 607,
    }
}

fn client_frame() -> master::ClientFrame {
    master::ClientFrame {
        hello: Some(hello()),
        operations: vec![operation()],
        acknowledged_below: 907,
    }
}

fn hello() -> master::Hello {
    master::Hello {
        protocol: 203,
        client_incarnation: 607,
        tenant: "tenant".into(),
        name: "name".into(),
        capabilities: 1507,
    }
}

fn server_frame() -> master::ServerFrame {
    master::ServerFrame {
        events: vec![event()],
    }
}

fn event() -> master::Event {
    master::Event {
        event: Some(master::event::Event::Answer(answer())),
    }
}

fn hello_answer() -> master::HelloAnswer {
    master::HelloAnswer {
        epoch: 307,
        resumed: true,
        ping_interval_us: 907,
        client_ttl_us: 1207,
        put_deadline_us: 1507,
    }
}

fn nudge() -> master::Nudge {
    master::Nudge {}
}

fn invalidate() -> master::Invalidate {
    master::Invalidate {
        objects: vec![invalidated_object()],
    }
}

fn invalidated_object() -> master::InvalidatedObject {
    master::InvalidatedObject {
        key: "key".into(),
        incarnation: Some(object_incarnation()),
    }
}

fn fenced() -> master::Fenced {
    master::Fenced {
        reason: "reason".into(),
    }
}

fn operation() -> master::Operation {
    master::Operation {
        number: 307,
        operation: Some(master::operation::Operation::Lookup(lookup_request())),
    }
}

fn answer() -> master::Answer {
    master::Answer {
        number: 307,
        answer: Some(master::answer::Answer::Lookup(lookup_response())),
    }
}

fn segment() -> master::Segment {
    master::Segment {
        id: "id".into(),
        name: "name".into(),
        owner_incarnation: 907,
        registration: 1207,
        generation: 1003,
        length: 1807,
        owner: "owner".into(),
    }
}

fn memory_replica() -> master::MemoryReplica {
    master::MemoryReplica {
        segment: 203,
        offset: 607,
        length: 907,
    }
}

fn local_disk_replica() -> master::LocalDiskReplica {
    master::LocalDiskReplica {
        storage: 307,
        length: 907,
    }
}

fn remote_replica() -> master::RemoteReplica {
    master::RemoteReplica {
        store: "store".into(),
        path: "path".into(),
        length: 907,
    }
}

fn replica() -> master::Replica {
    master::Replica {
        replica: Some(master::replica::Replica::Memory(memory_replica())),
    }
}

fn object() -> master::Object {
    master::Object {
        incarnation: Some(object_incarnation()),
        length: 607,
        replicas: vec![replica()],
    }
}

fn key_incarnation() -> master::KeyIncarnation {
    master::KeyIncarnation {
        key: "key".into(),
        incarnation: Some(object_incarnation()),
    }
}

fn key_result() -> master::KeyResult {
    master::KeyResult {
        error: Some(error_detail().into()),
    }
}

fn lookup_request() -> master::LookupRequest {
    master::LookupRequest {
        keys: vec!["keys".into(), "keys2".into()],
        tenant: "tenant".into(),
    }
}

fn lookup_response() -> master::LookupResponse {
    master::LookupResponse {
        results: vec![lookup_result()],
        segments: vec![segment()],
        lease: 907,
        lease_us: 1207,
        storages: vec![storage()],
    }
}

fn lookup_result() -> master::LookupResult {
    master::LookupResult {
        result: Some(master::lookup_result::Result::Object(object())),
    }
}

fn release_request() -> master::ReleaseRequest {
    master::ReleaseRequest {
        leases: vec![307, 1],
    }
}

fn release_response() -> master::ReleaseResponse {
    master::ReleaseResponse {}
}

fn put_start_request() -> master::PutStartRequest {
    master::PutStartRequest {
        items: vec![put_item()],
        replicas: 403,
        preferred_segments: vec!["preferred_segments".into(), "preferred_segments2".into()],
        upsert: true,
        avoided_segments: vec!["avoided_segments".into(), "avoided_segments2".into()],
        client_incarnation: 4207,
        tenant: "tenant".into(),
    }
}

fn put_item() -> master::PutItem {
    master::PutItem {
        key: "key".into(),
        length: 607,
    }
}

fn put_start_response() -> master::PutStartResponse {
    master::PutStartResponse {
        results: vec![put_start_result()],
        segments: vec![segment()],
        deadline_us: 907,
    }
}

fn put_start_result() -> master::PutStartResult {
    master::PutStartResult {
        result: Some(master::put_start_result::Result::Object(object())),
    }
}

fn put_end_request() -> master::PutEndRequest {
    master::PutEndRequest {
        items: vec![key_incarnation()],
        client_incarnation: 4207,
        tenant: "tenant".into(),
    }
}

fn put_end_response() -> master::PutEndResponse {
    master::PutEndResponse {
        results: vec![key_result()],
    }
}

fn put_revoke_request() -> master::PutRevokeRequest {
    master::PutRevokeRequest {
        items: vec![key_incarnation()],
        client_incarnation: 4207,
        tenant: "tenant".into(),
    }
}

fn put_revoke_response() -> master::PutRevokeResponse {
    master::PutRevokeResponse {
        results: vec![key_result()],
    }
}

fn exist_request() -> master::ExistRequest {
    master::ExistRequest {
        keys: vec!["keys".into(), "keys2".into()],
        tenant: "tenant".into(),
    }
}

fn exist_response() -> master::ExistResponse {
    master::ExistResponse {
        results: vec![exist_result()],
    }
}

fn exist_result() -> master::ExistResult {
    master::ExistResult {
        exists: true,
        held_ms: 403,
        error: Some(error_detail().into()),
    }
}

fn remove_request() -> master::RemoveRequest {
    master::RemoveRequest {
        items: vec![remove_item()],
        barrier: true,
        tenant: "tenant".into(),
    }
}

fn remove_item() -> master::RemoveItem {
    master::RemoveItem {
        key: "key".into(),
        incarnation: Some(object_incarnation()),
    }
}

fn remove_response() -> master::RemoveResponse {
    master::RemoveResponse {
        results: vec![key_result()],
    }
}

fn describe_request() -> master::DescribeRequest {
    master::DescribeRequest {
        keys: vec!["keys".into(), "keys2".into()],
        tenant: "tenant".into(),
    }
}

fn describe_response() -> master::DescribeResponse {
    master::DescribeResponse {
        results: vec![describe_result()],
        segments: vec![segment()],
        storages: vec![storage()],
    }
}

fn describe_result() -> master::DescribeResult {
    master::DescribeResult {
        result: Some(master::describe_result::Result::Description(
            object_description(),
        )),
    }
}

fn object_description() -> master::ObjectDescription {
    master::ObjectDescription {
        object: Some(object()),
        writing: true,
        leases: 603,
        idle_us: 1207,
    }
}

fn list_objects_request() -> master::ListObjectsRequest {
    master::ListObjectsRequest {
        prefix: "prefix".into(),
        after: "after".into(),
        limit: 603,
        tenant: "tenant".into(),
    }
}

fn list_objects_response() -> master::ListObjectsResponse {
    master::ListObjectsResponse {
        objects: vec![listed_object()],
        more: true,
    }
}

fn listed_object() -> master::ListedObject {
    master::ListedObject {
        key: "key".into(),
        length: 607,
        replicas: 603,
        incarnation: Some(object_incarnation()),
    }
}

fn list_segments_request() -> master::ListSegmentsRequest {
    master::ListSegmentsRequest {}
}

fn list_segments_response() -> master::ListSegmentsResponse {
    master::ListSegmentsResponse {
        segments: vec![segment_usage()],
        evicted_objects: 607,
    }
}

fn segment_usage() -> master::SegmentUsage {
    master::SegmentUsage {
        segment: Some(segment()),
        used_bytes: 607,
        quarantined_bytes: 907,
        objects: 1207,
        silent_us: 1507,
        granted_bytes: 1807,
    }
}

fn grant_request() -> master::GrantRequest {
    master::GrantRequest {
        segment: "id".into(),
        grant: 607,
        length: 907,
        client_incarnation: 4207,
    }
}

fn grant_response() -> master::GrantResponse {
    master::GrantResponse {
        offset: 307,
        length: 607,
    }
}

fn placed_item() -> master::PlacedItem {
    master::PlacedItem {
        key: "key".into(),
        length: 607,
        grant: 907,
        offset: 1207,
    }
}

fn put_request() -> master::PutRequest {
    master::PutRequest {
        segment: "id".into(),
        items: vec![placed_item()],
        upsert: true,
        client_incarnation: 4207,
        tenant: "tenant".into(),
    }
}

fn put_response() -> master::PutResponse {
    master::PutResponse {
        results: vec![put_result()],
    }
}

fn put_result() -> master::PutResult {
    master::PutResult {
        result: Some(master::put_result::Result::Incarnation(object_incarnation())),
    }
}

fn reclaim() -> master::Reclaim {
    master::Reclaim {}
}

fn return_grants_request() -> master::ReturnGrantsRequest {
    master::ReturnGrantsRequest {
        segment: "id".into(),
        grants: vec![607, 907],
        client_incarnation: 4207,
    }
}

fn return_grants_response() -> master::ReturnGrantsResponse {
    master::ReturnGrantsResponse {}
}

fn mount_segment_request() -> master::MountSegmentRequest {
    master::MountSegmentRequest {
        segment: Some(segment()),
    }
}

fn mount_segment_response() -> master::MountSegmentResponse {
    master::MountSegmentResponse {}
}

fn unmount_segment_request() -> master::UnmountSegmentRequest {
    master::UnmountSegmentRequest {
        id: "id".into(),
        client_incarnation: 4207,
    }
}

fn unmount_segment_response() -> master::UnmountSegmentResponse {
    master::UnmountSegmentResponse {}
}

fn remove_all_request() -> master::RemoveAllRequest {
    master::RemoveAllRequest {
        tenant: "tenant".into(),
    }
}

fn remove_all_response() -> master::RemoveAllResponse {
    master::RemoveAllResponse { removed: 5107 }
}

fn goodbye_request() -> master::GoodbyeRequest {
    master::GoodbyeRequest {
        quiet: true,
        client_incarnation: 4207,
    }
}

fn goodbye_response() -> master::GoodbyeResponse {
    master::GoodbyeResponse {}
}

fn ping_request() -> master::PingRequest {
    master::PingRequest {
        client_incarnation: 4207,
    }
}

fn ping_response() -> master::PingResponse {
    master::PingResponse {
        epoch: 307,
        unknown_client: true,
    }
}

#[test]
fn the_messages_of_storages_keep_their_form() {
    check(
        storage(),
        "0a026964108b071a08656e64706f696e74220c7365676d656e745f6e616d652a\
06686f6c646572",
        "Storage",
    );
    check(
        storage_state(),
        "08930310f70318df0420c50528ab06308b0738f107",
        "StorageState",
    );
    check(
        mount_storage_request(),
        "0a270a026964108b071a08656e64706f696e74220c7365676d656e745f6e616d\
652a06686f6c646572121508930310f70318df0420c50528ab06308b0738f107\
1801",
        "MountStorageRequest",
    );
    check(mount_storage_response(), "08cb01", "MountStorageResponse");
    check(
        held_object(),
        "0a0674656e616e7412036b65791a0608b30210df0420f703",
        "HeldObject",
    );
    check(
        reconcile_storage_request(),
        "0a0773746f7261676510c5051a180a0674656e616e7412036b65791a0608b302\
10df0420f703200170ef20",
        "ReconcileStorageRequest",
    );
    check(
        reconcile_storage_response(),
        "0a04df04c505",
        "ReconcileStorageResponse",
    );
    check(
        report_storage_request(),
        "0a0773746f72616765121508930310f70318df0420c50528ab06308b0738f107\
70ef20",
        "ReportStorageRequest",
    );
    check(
        report_storage_response(),
        "08b30210930318f703",
        "ReportStorageResponse",
    );
    check(
        unmount_storage_request(),
        "0a0773746f7261676570ef20",
        "UnmountStorageRequest",
    );
    check(unmount_storage_response(), "", "UnmountStorageResponse");
    check(
        adopt_storage_request(),
        "0a0773746f72616765",
        "AdoptStorageRequest",
    );
    check(adopt_storage_response(), "", "AdoptStorageResponse");
    check(list_storages_request(), "", "ListStoragesRequest");
    check(
        list_storages_response(),
        "0a560a270a026964108b071a08656e64706f696e74220c7365676d656e745f6e\
616d652a06686f6c646572121508930310f70318df0420c50528ab06308b0738\
f10718df0420c50528ab06308b0738f1074001480150950a",
        "ListStoragesResponse",
    );
    check(
        storage_usage(),
        "0a270a026964108b071a08656e64706f696e74220c7365676d656e745f6e616d\
652a06686f6c646572121508930310f70318df0420c50528ab06308b0738f107\
18df0420c50528ab06308b0738f1074001480150950a",
        "StorageUsage",
    );
    check(
        fetch_remove_tasks_request(),
        "0a0773746f7261676510c50518ab0670ef20",
        "FetchRemoveTasksRequest",
    );
    check(
        fetch_remove_tasks_response(),
        "0a1a08cb01120674656e616e741a0d0a036b6579120608b30210df041001",
        "FetchRemoveTasksResponse",
    );
    check(
        remove_task(),
        "08cb01120674656e616e741a0d0a036b6579120608b30210df04",
        "RemoveTask Object",
    );
    check(
        master::RemoveTask {
            what: Some(master::remove_task::What::AllUpTo(object_incarnation())),
            ..remove_task()
        },
        "08cb01120674656e616e74220608b30210df04",
        "RemoveTask AllUpTo",
    );
    check(
        ack_remove_tasks_request(),
        "0a0773746f726167651204f703df0470ef20",
        "AckRemoveTasksRequest",
    );
    check(ack_remove_tasks_response(), "", "AckRemoveTasksResponse");
    check(
        fetch_offload_tasks_request(),
        "0a0773746f7261676510ab06188b0770ef20",
        "FetchOffloadTasksRequest",
    );
    check(
        fetch_offload_tasks_response(),
        "0a2a08b302120674656e616e741a036b657922180a0608b30210df0410df041a\
0b0a0908cb0110df04188b07121d0a02696412046e616d65188b0720b70928eb\
07308f0e3a056f776e657218930320f7032801",
        "FetchOffloadTasksResponse",
    );
    check(
        offload_task(),
        "08b302120674656e616e741a036b657922180a0608b30210df0410df041a0b0a\
0908cb0110df04188b07",
        "OffloadTask",
    );
    check(
        notify_offload_request(),
        "0a0773746f72616765124c08f703123208b8feffffffffffffff011004188b07\
200228e30b30013a036b65794204706565724a05737461676552076d65737361\
67651a0674656e616e7422036b65792a0608b30210df0470ef20",
        "NotifyOffloadRequest",
    );
    check(
        offload_result(),
        "08f703123208b8feffffffffffffff011004188b07200228e30b30013a036b65\
794204706565724a05737461676552076d6573736167651a0674656e616e7422\
036b65792a0608b30210df04",
        "OffloadResult",
    );
    check(
        notify_offload_response(),
        "0a340a3208b8feffffffffffffff011004188b07200228e30b30013a036b6579\
4204706565724a05737461676552076d657373616765",
        "NotifyOffloadResponse",
    );
    check(
        drop_replicas_request(),
        "0a0773746f7261676512170a0674656e616e7412036b65791a0608b30210df04\
200270ef20",
        "DropReplicasRequest",
    );
    check(
        dropped_replica(),
        "0a0674656e616e7412036b65791a0608b30210df042002",
        "DroppedReplica",
    );
    check(
        drop_replicas_response(),
        "0a340a3208b8feffffffffffffff011004188b07200228e30b30013a036b6579\
4204706565724a05737461676552076d657373616765",
        "DropReplicasResponse",
    );
    check(
        prefetch_request(),
        "0a046b6579730a046b6579737a0674656e616e74",
        "PrefetchRequest",
    );
    check(
        prefetch_response(),
        "0a340a3208b8feffffffffffffff011004188b07200228e30b30013a036b6579\
4204706565724a05737461676552076d657373616765",
        "PrefetchResponse",
    );
    check(
        fetch_promotions_request(),
        "0a0773746f7261676510df0418c50570ef20",
        "FetchPromotionsRequest",
    );
    check(
        fetch_promotions_response(),
        "0a2a08df04120674656e616e741a036b657922180a0608b30210df0410df041a\
0b0a0908cb0110df04188b07121d0a02696412046e616d65188b0720b70928eb\
07308f0e3a056f776e657218c5052001",
        "FetchPromotionsResponse",
    );
    check(
        promotion(),
        "08df04120674656e616e741a036b657922180a0608b30210df0410df041a0b0a\
0908cb0110df04188b07",
        "Promotion",
    );
    check(
        end_promotions_request(),
        "0a0773746f72616765123708cb01123208b8feffffffffffffff011004188b07\
200228e30b30013a036b65794204706565724a05737461676552076d65737361\
676570ef20",
        "EndPromotionsRequest",
    );
    check(
        promotion_result(),
        "08cb01123208b8feffffffffffffff011004188b07200228e30b30013a036b65\
794204706565724a05737461676552076d657373616765",
        "PromotionResult",
    );
    check(
        end_promotions_response(),
        "0a340a3208b8feffffffffffffff011004188b07200228e30b30013a036b6579\
4204706565724a05737461676552076d657373616765",
        "EndPromotionsResponse",
    );
}

#[test]
fn the_messages_of_store_keep_their_form() {
    check(
        disk_item(),
        "0a0674656e616e7412036b65791a0608b30210df0420ab06288b07",
        "DiskItem",
    );
    check(
        read_offloaded_request(),
        "0a0773746f7261676510ef2018ef20221b0a0674656e616e7412036b65791a06\
08b30210df0420ab06288b0728df04",
        "ReadOffloadedRequest",
    );
    check(
        read_offloaded_response(),
        "0a110a0f08b30210930318f70320df0428c50510930318f703",
        "ReadOffloadedResponse",
    );
    check(
        staged_result(),
        "0a0f08b30210930318f70320df0428c505",
        "StagedResult Staged",
    );
    check(
        store::StagedResult {
            result: Some(store::staged_result::Result::Error(error_detail().into())),
        },
        "123208b8feffffffffffffff011004188b07200228e30b30013a036b65794204\
706565724a05737461676552076d657373616765",
        "StagedResult Error",
    );
    check(staged(), "08b30210930318f70320df0428c505", "Staged");
    check(
        release_staged_request(),
        "08ef2010ef201a049303f703",
        "ReleaseStagedRequest",
    );
    check(release_staged_response(), "", "ReleaseStagedResponse");
    check(
        push_offloaded_request(),
        "0a0773746f7261676510ef2018ef20220e7265616465725f7365676d656e742a\
290a1b0a0674656e616e7412036b65791a0608b30210df0420ab06288b0710df\
0418c50520ab06288b0730c50538ab06",
        "PushOffloadedRequest",
    );
    check(
        push_item(),
        "0a1b0a0674656e616e7412036b65791a0608b30210df0420ab06288b0710df04\
18c50520ab06288b07",
        "PushItem",
    );
    check(
        push_offloaded_response(),
        "0a400a3208b8feffffffffffffff011004188b07200228e30b30013a036b6579\
4204706565724a05737461676552076d65737361676510b30218930320f70328\
df04",
        "PushOffloadedResponse",
    );
    check(
        push_result(),
        "0a3208b8feffffffffffffff011004188b07200228e30b30013a036b65794204\
706565724a05737461676552076d65737361676510b30218930320f70328df04",
        "PushResult",
    );
}

fn storage() -> master::Storage {
    master::Storage {
        id: "id".into(),
        holder_incarnation: 907,
        endpoint: "endpoint".into(),
        segment_name: "segment_name".into(),
        holder: "holder".into(),
    }
}

fn storage_state() -> master::StorageState {
    master::StorageState {
        capacity_bytes: 403,
        used_bytes: 503,
        live_bytes: 607,
        dead_bytes: 709,
        queued_bytes: 811,
        value_bytes: 907,
        objects: 1009,
    }
}

fn mount_storage_request() -> master::MountStorageRequest {
    master::MountStorageRequest {
        storage: Some(storage()),
        state: Some(storage_state()),
        fresh: true,
    }
}

fn mount_storage_response() -> master::MountStorageResponse {
    master::MountStorageResponse { page: 203 }
}

fn held_object() -> master::HeldObject {
    master::HeldObject {
        tenant: "tenant".into(),
        key: "key".into(),
        incarnation: Some(object_incarnation()),
        length: 503,
    }
}

fn reconcile_storage_request() -> master::ReconcileStorageRequest {
    master::ReconcileStorageRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
        page: 709,
        objects: vec![held_object()],
        last: true,
    }
}

fn reconcile_storage_response() -> master::ReconcileStorageResponse {
    master::ReconcileStorageResponse {
        remove: vec![607, 709],
    }
}

fn report_storage_request() -> master::ReportStorageRequest {
    master::ReportStorageRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
        state: Some(storage_state()),
    }
}

fn report_storage_response() -> master::ReportStorageResponse {
    master::ReportStorageResponse {
        remove_tasks: 307,
        offload_tasks: 403,
        promotions: 503,
    }
}

fn unmount_storage_request() -> master::UnmountStorageRequest {
    master::UnmountStorageRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
    }
}

fn unmount_storage_response() -> master::UnmountStorageResponse {
    master::UnmountStorageResponse {}
}

fn adopt_storage_request() -> master::AdoptStorageRequest {
    master::AdoptStorageRequest {
        storage: "storage".into(),
    }
}

fn adopt_storage_response() -> master::AdoptStorageResponse {
    master::AdoptStorageResponse {}
}

fn list_storages_request() -> master::ListStoragesRequest {
    master::ListStoragesRequest {}
}

fn list_storages_response() -> master::ListStoragesResponse {
    master::ListStoragesResponse {
        storages: vec![storage_usage()],
    }
}

fn storage_usage() -> master::StorageUsage {
    master::StorageUsage {
        storage: Some(storage()),
        state: Some(storage_state()),
        value_bytes: 607,
        objects: 709,
        remove_tasks: 811,
        offload_tasks: 907,
        promotions: 1009,
        mounted: true,
        reconciled: true,
        silent_us: 1301,
    }
}

fn fetch_remove_tasks_request() -> master::FetchRemoveTasksRequest {
    master::FetchRemoveTasksRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
        limit: 709,
        after: 811,
    }
}

fn fetch_remove_tasks_response() -> master::FetchRemoveTasksResponse {
    master::FetchRemoveTasksResponse {
        tasks: vec![remove_task()],
        more: true,
    }
}

fn remove_task() -> master::RemoveTask {
    master::RemoveTask {
        task: 203,
        tenant: "tenant".into(),
        what: Some(master::remove_task::What::Object(key_incarnation())),
    }
}

fn ack_remove_tasks_request() -> master::AckRemoveTasksRequest {
    master::AckRemoveTasksRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
        tasks: vec![503, 607],
    }
}

fn ack_remove_tasks_response() -> master::AckRemoveTasksResponse {
    master::AckRemoveTasksResponse {}
}

fn fetch_offload_tasks_request() -> master::FetchOffloadTasksRequest {
    master::FetchOffloadTasksRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
        limit: 811,
        limit_bytes: 907,
    }
}

fn fetch_offload_tasks_response() -> master::FetchOffloadTasksResponse {
    master::FetchOffloadTasksResponse {
        tasks: vec![offload_task()],
        segments: vec![segment()],
        lease: 403,
        lease_us: 503,
        more: true,
    }
}

fn offload_task() -> master::OffloadTask {
    master::OffloadTask {
        task: 307,
        tenant: "tenant".into(),
        key: "key".into(),
        object: Some(object()),
    }
}

fn notify_offload_request() -> master::NotifyOffloadRequest {
    master::NotifyOffloadRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
        results: vec![offload_result()],
    }
}

fn offload_result() -> master::OffloadResult {
    master::OffloadResult {
        task: 503,
        error: Some(error_detail().into()),
        tenant: "tenant".into(),
        key: "key".into(),
        incarnation: Some(object_incarnation()),
    }
}

fn notify_offload_response() -> master::NotifyOffloadResponse {
    master::NotifyOffloadResponse {
        results: vec![key_result()],
    }
}

fn drop_replicas_request() -> master::DropReplicasRequest {
    master::DropReplicasRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
        objects: vec![dropped_replica()],
    }
}

fn dropped_replica() -> master::DroppedReplica {
    master::DroppedReplica {
        tenant: "tenant".into(),
        key: "key".into(),
        incarnation: Some(object_incarnation()),
        reason: master::dropped_replica::Reason::Damaged.into(),
    }
}

fn drop_replicas_response() -> master::DropReplicasResponse {
    master::DropReplicasResponse {
        results: vec![key_result()],
    }
}

fn prefetch_request() -> master::PrefetchRequest {
    master::PrefetchRequest {
        tenant: "tenant".into(),
        keys: vec!["keys".into(), "keys".into()],
    }
}

fn prefetch_response() -> master::PrefetchResponse {
    master::PrefetchResponse {
        results: vec![key_result()],
    }
}

fn fetch_promotions_request() -> master::FetchPromotionsRequest {
    master::FetchPromotionsRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
        limit: 607,
        limit_bytes: 709,
    }
}

fn fetch_promotions_response() -> master::FetchPromotionsResponse {
    master::FetchPromotionsResponse {
        promotions: vec![promotion()],
        segments: vec![segment()],
        deadline_us: 709,
        more: true,
    }
}

fn promotion() -> master::Promotion {
    master::Promotion {
        task: 607,
        tenant: "tenant".into(),
        key: "key".into(),
        object: Some(object()),
    }
}

fn end_promotions_request() -> master::EndPromotionsRequest {
    master::EndPromotionsRequest {
        storage: "storage".into(),
        client_incarnation: 4207,
        results: vec![promotion_result()],
    }
}

fn promotion_result() -> master::PromotionResult {
    master::PromotionResult {
        task: 203,
        error: Some(error_detail().into()),
    }
}

fn end_promotions_response() -> master::EndPromotionsResponse {
    master::EndPromotionsResponse {
        results: vec![key_result()],
    }
}

fn disk_item() -> store::DiskItem {
    store::DiskItem {
        tenant: "tenant".into(),
        key: "key".into(),
        incarnation: Some(object_incarnation()),
        offset: 811,
        length: 907,
    }
}

fn read_offloaded_request() -> store::ReadOffloadedRequest {
    store::ReadOffloadedRequest {
        storage: "storage".into(),
        holder_incarnation: 4207,
        reader_incarnation: 4207,
        items: vec![disk_item()],
        budget_us: 607,
    }
}

fn read_offloaded_response() -> store::ReadOffloadedResponse {
    store::ReadOffloadedResponse {
        results: vec![staged_result()],
        ticket: 403,
        held_us: 503,
    }
}

fn staged_result() -> store::StagedResult {
    store::StagedResult {
        result: Some(store::staged_result::Result::Staged(staged())),
    }
}

fn staged() -> store::Staged {
    store::Staged {
        registration: 307,
        generation: 403,
        offset: 503,
        length: 607,
        checksum: 709,
    }
}

fn release_staged_request() -> store::ReleaseStagedRequest {
    store::ReleaseStagedRequest {
        holder_incarnation: 4207,
        reader_incarnation: 4207,
        tickets: vec![403, 503],
    }
}

fn release_staged_response() -> store::ReleaseStagedResponse {
    store::ReleaseStagedResponse {}
}

fn push_offloaded_request() -> store::PushOffloadedRequest {
    store::PushOffloadedRequest {
        storage: "storage".into(),
        holder_incarnation: 4207,
        reader_incarnation: 4207,
        reader_segment: "reader_segment".into(),
        items: vec![push_item()],
        budget_us: 709,
        margin_us: 811,
    }
}

fn push_item() -> store::PushItem {
    store::PushItem {
        item: Some(disk_item()),
        op_id: 607,
        registration: 709,
        generation: 811,
        offset: 907,
    }
}

fn push_offloaded_response() -> store::PushOffloadedResponse {
    store::PushOffloadedResponse {
        results: vec![push_result()],
    }
}

fn push_result() -> store::PushResult {
    store::PushResult {
        error: Some(error_detail().into()),
        checksum: 307,
        queue_us: 403,
        disk_us: 503,
        wire_us: 607,
    }
}

#[test]
fn the_codes_of_the_cpp_store_keep_their_numbers() {
    // The ranges of its table, from the first code of each to the last.
    let ranges = [
        (0, 1),
        (-1, 1),
        (-10, 1),
        (-100, 4),
        (-200, 1),
        (-300, 1),
        (-400, 1),
        (-500, 1),
        (-600, 2),
        (-700, 15),
        (-800, 2),
        (-900, 2),
        (-1000, 8),
        (-1010, 3),
        (-1100, 7),
        (-1200, 4),
        (-1300, 2),
        (-1400, 3),
        (-1500, 4),
        (-1600, 6),
        (-1700, 3),
    ];
    let theirs: Vec<i32> = ranges
        .iter()
        .flat_map(|&(first, count)| (0..count).map(move |n| first - n))
        .collect();
    let known: Vec<i32> = (-1999..=0)
        .rev()
        .filter(|&number| status::ErrorCode::try_from(number).is_ok())
        .collect();
    assert_eq!(known, theirs);
    for (number, name) in [
        (-101, "ERROR_CODE_SEGMENT_NOT_FOUND"),
        (-200, "ERROR_CODE_NO_SPACE"),
        (-601, "ERROR_CODE_ILLEGAL_CLIENT"),
        (-706, "ERROR_CODE_OBJECT_HAS_LEASE"),
        (-714, "ERROR_CODE_OBJECT_REPLICA_BUSY"),
        (-801, "ERROR_CODE_CHECKSUM_MISMATCH"),
        (-1007, "ERROR_CODE_INCOMPLETE_OPLOG_CATCH_UP"),
        (-1012, "ERROR_CODE_NOT_SUPPORTED"),
        (-1106, "ERROR_CODE_FILE_INVALID_HANDLE"),
        (-1203, "ERROR_CODE_KEYS_ULTRA_LIMIT"),
        (-1402, "ERROR_CODE_JOB_NOT_FOUND"),
        (-1605, "ERROR_CODE_DFS_PARTIAL_WRITE"),
        (-1702, "ERROR_CODE_TENANT_NOT_EMPTY"),
    ] {
        let code = status::ErrorCode::try_from(number).expect("it is known");
        assert_eq!(code.as_str_name(), name);
    }
}
