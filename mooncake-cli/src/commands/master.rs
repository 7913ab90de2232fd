//! `mooncake master`: runs a master until it is told to stop.

use std::time::Duration;

use clap::Args;
use mooncake_master::{Master, MasterConfig, StartError};
use serde::Serialize;

use super::serve::{Ready, Stop, listen_remedy};
use super::{Context, block_on};
use crate::config::{Flags, MasterSettings};
use crate::output::{Exit, Failure, Output};

/// Clients are asked to ping this often, or more often if they would count as dead too soon.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// So many pings may be lost before a client counts as dead.
const PINGS_A_TTL: u32 = 10;

/// The arguments of `mooncake master`.
#[derive(Args, Debug)]
pub struct MasterArgs {
    /// End when standard input does, as it does when whoever started this is gone.
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
    /// What the master runs with.
    #[command(flatten)]
    pub settings: Flags<MasterSettings>,
}

/// A master that serves.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "role", rename = "master")]
pub struct ReadyMaster {
    /// Where clients and nodes reach it.
    pub address: String,
    /// Where its pages for operators are.
    pub admin_address: String,
}

/// Runs the command.
///
/// # Errors
///
/// When the master cannot start.
pub fn run(args: &MasterArgs, context: &Context) -> Result<Exit, Failure> {
    let settings = context.sources.settle(&args.settings)?.settings;
    block_on(serve(
        config(&settings),
        args.end_with_stdin,
        context.output,
    ))
}

async fn serve(
    config: MasterConfig,
    end_with_stdin: bool,
    output: Output,
) -> Result<Exit, Failure> {
    let mut stop = Stop::listen(end_with_stdin)?;
    let master = Master::start(config).await.map_err(refusal)?;
    let (address, admin_address) = (master.address(), master.admin_address());
    output.remark(format_args!(
        "master is ready: clients and nodes at {address}, pages at http://{admin_address}"
    ));
    output.event(&Ready {
        ready: ReadyMaster {
            address: address.to_string(),
            admin_address: admin_address.to_string(),
        },
    })?;
    let reason = stop.wait().await;
    output.remark(format_args!("master ends: {reason}"));
    master.shutdown().await;
    Ok(Exit::Yes)
}

/// The settings in the master's own form.
fn config(settings: &MasterSettings) -> MasterConfig {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let ping_interval = PING_INTERVAL.min(settings.client_ttl / PINGS_A_TTL);
    MasterConfig {
        listen: settings.listen.to_string(),
        admin_listen: settings.admin_listen.to_string(),
        client_ttl: settings.client_ttl.as_secs(),
        suspect_after_ms: millis(settings.suspect_after),
        default_kv_lease_ttl: millis(settings.default_kv_lease_ttl),
        ping_interval_ms: millis(ping_interval),
        exist_reservation_ms: millis(settings.exist_reservation),
        put_deadline_ms: millis(settings.put_deadline),
        // A frame is part of a put and has no more time than it.
        write_frame_budget_ms: millis(settings.put_deadline),
        eviction_high_watermark_ratio: settings.eviction_high_watermark_ratio.get(),
        eviction_low_watermark_ratio: settings.eviction_low_watermark_ratio.get(),
        quarantine_share: settings.quarantine_share.get(),
        reserved_share: settings.reserved_share.get(),
        allocation_strategy: settings.allocation_strategy,
        enable_offload: settings.enable_offload,
        offload_on_evict: settings.offload_on_evict,
        offloading_queue_limit: settings.offloading_queue_limit,
        state_dir: settings.state_dir.clone(),
    }
}

fn refusal(error: StartError) -> Failure {
    match error {
        StartError::Listen {
            setting,
            address,
            source,
            ..
        } => {
            let flag = format!("--{}", setting.replace('_', "-"));
            let remedy = listen_remedy(source.kind(), &flag);
            Failure::new(format!("the master cannot listen on {address}"))
                .because(source)
                .remedy(remedy)
        }
        other => Failure::new("the master cannot start").because(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn the_defaults_are_the_defaults_of_the_master() {
        let settings = Sources::default().settle(&Flags::default()).unwrap();
        assert_eq!(config(&settings.settings), MasterConfig::default());
    }

    #[test]
    fn a_master_that_forgets_soon_is_pinged_often() {
        let flags = Flags::default().with("client_ttl", "1s");
        let settings = Sources::default().settle(&flags).unwrap();
        assert_eq!(config(&settings.settings).ping_interval_ms, 100);
    }
}
