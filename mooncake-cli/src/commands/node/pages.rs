//! A node's pages for operators: whether it serves, what its engine holds and what it has done.
//!
//! | Page | Answer |
//! |---|---|
//! | `/health`, `/healthz` | `{"status": "serving"}` |
//! | `/metrics` | all numbers, as text in the format of Prometheus |

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use mooncake_store::{HolderCounts, Node};
use mooncake_tent::transport::LinkGauges;
use mooncake_tent::{Gauges, TentEngine};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::listen_remedy;
use crate::output::Failure;

/// Listens, so that an address in use is known early.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let remedy = listen_remedy(error.kind(), "--admin-listen");
        Failure::new(format!("the node cannot listen on {address}"))
            .because(error)
            .remedy(remedy)
    })
}

/// Pages that are served until this is dropped.
#[derive(Debug)]
pub(super) struct Pages {
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl Pages {
    /// Serves them; call it within a tokio runtime.
    pub(super) fn serve(listener: TcpListener, node: &Arc<Node>) -> Result<Self, Failure> {
        let address = listener
            .local_addr()
            .map_err(|error| Failure::new("the node's own address is unknown").because(error))?;
        let pages = pages(node.engine().clone(), Arc::downgrade(node));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, pages).await {
                tracing::warn!(%error, "the node's pages are gone");
            }
        });
        Ok(Self { address, server })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn pages(engine: TentEngine, node: Weak<Node>) -> Router {
    let health = || async { Json(serde_json::json!({ "status": "serving" })) };
    let metrics = move || async move { metrics(&engine, &node) };
    Router::new()
        .route("/health", get(health))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
}

fn metrics(engine: &TentEngine, node: &Weak<Node>) -> impl IntoResponse + use<> {
    let mut registry = Registry::with_prefix("mooncake_tent");
    registry.register_collector(Box::new(EngineNumbers(engine.clone())));
    let mut body = String::new();
    text::encode_registry(&mut body, &registry).expect("writing to a string does not fail");
    body += &engine.metrics().text();
    if let Some(counts) = node.upgrade().and_then(|node| node.storage_counts()) {
        let mut registry = Registry::with_prefix("mooncake_node_disk");
        registry.register_collector(Box::new(DiskNumbers(counts)));
        text::encode_registry(&mut body, &registry).expect("writing to a string does not fail");
    }
    text::encode_eof(&mut body).expect("writing to a string does not fail");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], body)
}

/// Reads the engine when asked.
#[derive(Debug)]
struct EngineNumbers(TentEngine);

impl Collector for EngineNumbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = self.0.gauges();
        let gauges = [
            (
                "tasks_in_flight",
                "Transfers of this process that have not ended",
                now.tasks_in_flight,
            ),
            ("bytes_in_flight", "Bytes of these", now.bytes_in_flight),
            (
                "quarantined_bytes",
                "Bytes of transfers that have ended but may still move",
                now.quarantined_bytes,
            ),
            (
                "open_batches",
                "Batches that were not given back",
                now.open_batches,
            ),
            ("registrations", "Registered buffers", now.registrations),
            ("leases", "Leases on buffers", now.leases),
            (
                "withdrawn_bytes",
                "Memory of unregistered buffers that leases keep",
                now.withdrawn_bytes,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            number(value).encode(gauge)?;
        }
        let help = "Connections with peers, whoever opened them";
        per_link(&mut encoder, &now, "connections", help, |link| {
            link.connections
        })?;
        let help = "Bytes that peers want moved and that have not moved yet";
        per_link(&mut encoder, &now, "peer_bytes_in_flight", help, |link| {
            link.peer_bytes_in_flight
        })?;
        let help = "Bytes that peers have been granted to have under way to this process at once";
        per_link(&mut encoder, &now, "peer_credit_bytes", help, |link| {
            link.peer_credit_bytes
        })?;
        let help = "Requests that peers have been granted in the same way";
        per_link(&mut encoder, &now, "peer_credit_requests", help, |link| {
            link.peer_credit_requests
        })?;
        let help = "Connections whose next request waits until the peer grants it";
        per_link(&mut encoder, &now, "waiting_for_credit", help, |link| {
            link.waiting_for_credit
        })
    }
}

/// What was done with the node's disk.
#[derive(Debug)]
struct DiskNumbers(HolderCounts);

impl Collector for DiskNumbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in self.0.each() {
            let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(counter)?;
        }
        Ok(())
    }
}

fn per_link(
    encoder: &mut DescriptorEncoder<'_>,
    now: &Gauges,
    name: &str,
    help: &str,
    value: impl Fn(&LinkGauges) -> u64,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (link, gauges) in &now.links {
        number(value(gauges)).encode(family.encode_family(&[("link", *link)])?)?;
    }
    Ok(())
}

fn number(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}
