//! Starts a master on free ports and follows one object through its life, with single calls.

use mooncake_master::{Master, MasterConfig};
use mooncake_proto::master::{
    KeyIncarnation, ListSegmentsRequest, LookupRequest, MountSegmentRequest, PutEndRequest,
    PutItem, PutStartRequest, RemoveItem, RemoveRequest, Segment, lookup_result,
    master_client::MasterClient, put_start_result,
};
use tonic::transport::Endpoint;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let master = Master::start(MasterConfig {
        listen: "127.0.0.1:0".into(),
        admin_listen: "127.0.0.1:0".into(),
        ..MasterConfig::default()
    })
    .await?;
    println!(
        "pages for operators: http://{}/segments",
        master.admin_address()
    );
    let address = format!("http://{}", master.address());
    let mut client = MasterClient::new(Endpoint::from_shared(address)?.connect().await?);

    // A real node registers this memory with its transfer engine first.
    let me = 42;
    let segment = Segment {
        id: vec![7; 16].into(),
        name: "node-a".into(),
        owner_incarnation: me,
        registration: 1,
        generation: 0,
        length: 64 << 20,
        owner: "embedded example".into(),
    };
    let segment = Some(segment);
    client
        .mount_segment(MountSegmentRequest { segment })
        .await?;

    let item = PutItem {
        key: "model/block-0".into(),
        length: 100_000,
    };
    let started = client
        .put_start(PutStartRequest {
            items: vec![item.clone()],
            client_incarnation: me,
            ..Default::default()
        })
        .await?
        .into_inner();
    let Some(put_start_result::Result::Object(object)) = started.results[0].result.clone() else {
        return Err(format!("no memory: {:?}", started.results[0]).into());
    };
    println!("write {} bytes to {:?}", object.length, object.replicas[0]);

    let ended = KeyIncarnation {
        key: item.key.clone(),
        incarnation: object.incarnation,
    };
    client
        .put_end(PutEndRequest {
            items: vec![ended],
            client_incarnation: me,
            ..Default::default()
        })
        .await?;

    let keys = vec![item.key.clone()];
    let found = client
        .lookup(LookupRequest {
            keys,
            ..Default::default()
        })
        .await?
        .into_inner();
    if let Some(lookup_result::Result::Object(object)) = &found.results[0].result {
        let segment = &found.segments[0];
        println!(
            "read {} bytes from segment {}, within {} ms",
            object.length,
            segment.name,
            found.lease_us / 1000
        );
    }
    let item = RemoveItem {
        key: item.key,
        incarnation: None,
    };
    client
        .remove(RemoveRequest {
            items: vec![item],
            ..Default::default()
        })
        .await?;
    let usage = client
        .list_segments(ListSegmentsRequest {})
        .await?
        .into_inner();
    let usage = &usage.segments[0];
    println!(
        "removed: {} bytes used, {} wait for our lease to end",
        usage.used_bytes, usage.quarantined_bytes
    );
    master.shutdown().await;
    Ok(())
}
