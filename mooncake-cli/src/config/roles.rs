//! The settings themselves.

use std::net::SocketAddr;
use std::time::Duration;

use mooncake_master::AllocationStrategy;

use super::setting::settings;
use super::{Address, Ratio, Size, duration_text};

settings! {
    /// What a master runs with.
    pub struct MasterSettings, "master", check_master {
        /// Where clients and nodes reach the master.
        listen: SocketAddr = "127.0.0.1:50051",
        /// Where metrics, health and queries are served over HTTP.
        admin_listen: SocketAddr = "127.0.0.1:9003",
        /// How long a client may be silent before it counts as dead.
        client_ttl: Duration = "10s",
        /// How long a client may be silent before others are preferred to it.
        suspect_after: Duration = "3s",
        /// How long a read may rely on the locations that it was given.
        default_kv_lease_ttl: Duration = "10s",
        /// How long an object stays that `exist` has found.
        exist_reservation: Duration = "500ms",
        /// At most this share of the capacity is kept so at once; 0: nothing is.
        reserved_share: Ratio = "0.10",
        /// How long a put may take from its start to its end.
        put_deadline: Duration = "30s",
        /// Eviction starts when this share of the capacity is used.
        eviction_high_watermark_ratio: Ratio = "0.90",
        /// Eviction stops when no more than this share of the capacity is used.
        eviction_low_watermark_ratio: Ratio = "0.85",
        /// How the segment of a new object is chosen.
        allocation_strategy: AllocationStrategy = "random",
        /// Objects are copied to the disks of nodes that offer some.
        enable_offload: bool = "false",
        /// They are copied when memory runs short, not as soon as they are written.
        offload_on_evict: bool = "false",
        /// So many objects wait to be copied to one disk at most.
        offloading_queue_limit: u64 = "50000",
        /// Directory of the log that outlives the master; when empty, a restart forgets what disks hold.
        state_dir: String = "",
        /// Puts are told to wait while more than this share of the capacity is freed but not reusable yet.
        quarantine_share: Ratio = "0.20",
    }
}

settings! {
    /// What a node runs with: a process that lends memory to the store.
    pub struct NodeSettings, "node", check_node {
        /// The master that the node joins.
        master: Address = "127.0.0.1:50051",
        /// What the node calls itself; when empty, its host name and process id.
        name: String = "",
        /// How much memory it lends.
        segment_size: Size = "1GiB",
        /// Where its control service listens; port 0 takes any that is free.
        listen: SocketAddr = "127.0.0.1:0",
        /// Where it sends and receives objects; port 0 takes any that is free.
        data_listen: SocketAddr = "127.0.0.1:0",
        /// Where metrics and health are served over HTTP; port 0 takes any that is free.
        admin_listen: SocketAddr = "127.0.0.1:0",
        /// The directory in which it keeps objects on its disk; empty: nowhere.
        ssd_path: String = "",
        /// How much of that disk it may take.
        ssd_capacity: Size = "10GiB",
        /// Where readers of that disk reach it; port 0 takes any that is free.
        ssd_listen: SocketAddr = "127.0.0.1:0",
    }
}

settings! {
    /// What a metadata service runs with: a process that keeps names of segments.
    pub struct MetadataSettings, "metadata", check_metadata {
        /// Where engines reach it, and where metrics and health are served, over HTTP.
        listen: SocketAddr = "127.0.0.1:8080",
        /// How much memory the names may take.
        capacity: Size = "64MiB",
        /// The longest lease that it gives.
        longest_lease: Duration = "10m",
    }
}

settings! {
    /// What commands that use a store run with.
    pub struct ClientSettings, "client", check_client {
        /// The master of the store.
        master: Address = "127.0.0.1:50051",
        /// Whose objects are meant; tenants do not see each other's.
        tenant: String = "default",
        /// How long one operation may take, all its attempts included.
        operation_deadline: Duration = "5s",
        /// How long one attempt to connect may take.
        connect_deadline: Duration = "1s",
    }
}

/// The longest name of a tenant, in bytes.
const TENANT_BYTES: usize = 128;

fn check_master(settings: &MasterSettings) -> Result<(), String> {
    let (low, high) = (
        settings.eviction_low_watermark_ratio,
        settings.eviction_high_watermark_ratio,
    );
    if low.get() > high.get() {
        return Err(format!(
            "eviction_low_watermark_ratio ({low}) is above eviction_high_watermark_ratio ({high}), \
             so eviction would never stop"
        ));
    }
    if settings.client_ttl.subsec_nanos() != 0 {
        return Err(format!(
            "client_ttl is {}, but only whole seconds are counted",
            duration_text(settings.client_ttl)
        ));
    }
    if settings.offload_on_evict && !settings.enable_offload {
        return Err("offload_on_evict is true, but enable_offload is not".to_owned());
    }
    if settings.offloading_queue_limit == 0 {
        return Err("offloading_queue_limit is 0, but 1 is the least".to_owned());
    }
    for (name, duration) in [
        ("default_kv_lease_ttl", settings.default_kv_lease_ttl),
        ("put_deadline", settings.put_deadline),
    ] {
        if duration < Duration::from_millis(1) {
            let text = duration_text(duration);
            return Err(format!("{name} is {text}, but 1ms is the least"));
        }
    }
    if settings.listen == settings.admin_listen && settings.listen.port() != 0 {
        return Err(format!(
            "listen and admin_listen are both {}",
            settings.listen
        ));
    }
    Ok(())
}

fn check_node(settings: &NodeSettings) -> Result<(), String> {
    if settings.segment_size.bytes() == 0 {
        return Err("segment_size is 0, but a node exists to lend memory".to_owned());
    }
    for (name, address) in [
        ("listen", settings.listen),
        ("data_listen", settings.data_listen),
    ] {
        if address.ip().is_unspecified() {
            return Err(format!(
                "{name} is {address}, but others are told to go there: name an address that they can reach"
            ));
        }
    }
    let pairs = [
        (
            "listen and data_listen",
            settings.listen,
            settings.data_listen,
        ),
        (
            "listen and admin_listen",
            settings.listen,
            settings.admin_listen,
        ),
        (
            "data_listen and admin_listen",
            settings.data_listen,
            settings.admin_listen,
        ),
    ];
    for (names, one, other) in pairs {
        if one == other && one.port() != 0 {
            return Err(format!("{names} are both {one}"));
        }
    }
    Ok(())
}

fn check_metadata(settings: &MetadataSettings) -> Result<(), String> {
    if settings.longest_lease < Duration::from_secs(1) {
        let text = duration_text(settings.longest_lease);
        return Err(format!("longest_lease is {text}, but 1s is the least"));
    }
    Ok(())
}

fn check_client(settings: &ClientSettings) -> Result<(), String> {
    let tenant = &settings.tenant;
    let fits = (1..=TENANT_BYTES).contains(&tenant.len());
    if !fits || tenant.starts_with('_') || tenant.chars().any(char::is_control) {
        return Err(format!(
            "{tenant:?} is no tenant: 1 to {TENANT_BYTES} bytes, no control characters, no underscore in front"
        ));
    }
    Ok(())
}
