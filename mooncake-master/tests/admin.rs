//! The pages for operators, over a real socket.
#![expect(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod wire;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use mooncake_master::{Master, MasterConfig};
use mooncake_proto::master::{
    KeyIncarnation, MountSegmentRequest, PutEndRequest, PutItem, PutStartRequest, put_start_result,
};
use serde_json::Value;
use wire::{client, master, segment};

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(
        socket,
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let status = answer[9..12].parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, body.to_owned())
}

fn json(address: SocketAddr, path: &str) -> Value {
    let (status, body) = get(address, path);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_show_what_is_stored() {
    let master = master().await;
    let mut client = client(&master).await;
    let segment = Some(segment(5, 1 << 20));
    client
        .mount_segment(MountSegmentRequest { segment })
        .await
        .unwrap();
    let items = ["a/1", "a/2", "b/1"].map(|key| PutItem {
        key: key.into(),
        length: 100,
    });
    let started = client
        .put_start(PutStartRequest {
            items: items.to_vec(),
            client_incarnation: 5,
            tenant: "t".into(),
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    let ends = items
        .iter()
        .zip(started.results)
        .map(|(item, result)| match result.result {
            Some(put_start_result::Result::Object(object)) => KeyIncarnation {
                key: item.key.clone(),
                incarnation: object.incarnation,
            },
            other => panic!("{other:?}"),
        });
    client
        .put_end(PutEndRequest {
            items: ends.collect(),
            client_incarnation: 5,
            tenant: "t".into(),
        })
        .await
        .unwrap();

    let admin = master.admin_address();
    let health = json(admin, "/health");
    assert_eq!(
        (&health["status"], &health["epoch"]),
        (&"serving".into(), &master.epoch().into())
    );

    let page = json(admin, "/keys?tenant=t&prefix=a/&limit=1");
    assert_eq!(
        (&page["keys"][0]["key"], &page["more"]),
        (&"a/1".into(), &true.into())
    );
    let after = page["keys"][0]["key_hex"].as_str().unwrap();
    let page = json(
        admin,
        &format!("/keys?tenant=t&prefix=a/&after_hex={after}"),
    );
    assert_eq!(
        (&page["keys"][0]["key"], &page["more"]),
        (&"a/2".into(), &false.into())
    );
    assert_eq!(page["keys"].as_array().unwrap().len(), 1);
    assert_eq!(
        json(admin, "/keys")["keys"].as_array().unwrap().len(),
        0,
        "another tenant"
    );

    assert_eq!(json(admin, "/storages")["storages"], serde_json::json!([]));
    let segments = json(admin, "/segments");
    assert_eq!(segments["segments"][0]["name"], "segment-5");
    assert_eq!(segments["segments"][0]["used_bytes"], 3 * 128);

    let (_, metrics) = get(admin, "/metrics");
    for line in [
        "mooncake_master_objects 3",
        "mooncake_master_used_bytes 384",
        "mooncake_master_evicted_objects_total 0",
        "mooncake_master_operations_total{kind=\"put_end\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }

    let (status, body) = get(admin, "/keys?tenant=_bad");
    assert_eq!(status, 400);
    assert!(body.contains("underscore"), "{body}");
    master.shutdown().await;
    assert!(TcpStream::connect(admin).is_err());
}

#[tokio::test]
async fn an_address_in_use_is_named_with_a_remedy() {
    let master = master().await;
    let config = MasterConfig {
        listen: master.address().to_string(),
        ..MasterConfig::default()
    };
    let error = Master::start(config).await.unwrap_err().to_string();
    assert!(
        error.contains(&master.address().to_string()) && error.contains("in use"),
        "{error}"
    );
}
