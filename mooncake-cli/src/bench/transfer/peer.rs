//! The process at the other end: what it is asked, and how it answers.

use std::io::{self, BufRead};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use mooncake_tent::{
    Buffer, CmaTransport, Permission, ShmTransport, TcpTransport, TentEngine, TransferEngine,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::super::own_cpu;
use super::contents::{check_and_wipe, corrupt, fill, wipe};
use super::engine::{register, unusable};
use super::plain;
use super::walk::Walked;
use crate::cluster::Process;
use crate::output::{Failure, Output};

/// How long an answer may take: the check of all its memory, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// A transfer engine with a segment.
    Engine,
    /// A thread for each plain connection.
    Plain,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Plain => "plain",
        }
    }
}

/// What a peer is asked, a line of JSON each.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// Its processor time so far.
    Cpu,
    /// To fill its memory, from which will be read.
    Fill,
    /// To wipe its memory, which will be written.
    Wipe,
    /// Whether all that was written is there. What is there is wiped.
    Check(Vec<Walked>),
}

/// Its answer.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Told {
    cpu_ns: u64,
}

/// Where it is found.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    address: String,
}

/// A peer, as whoever started it sees it.
#[derive(Debug)]
pub(super) struct Peer {
    runtime: Handle,
    process: Mutex<Process>,
    address: String,
}

impl Peer {
    /// Starts `mooncake dev transfer-peer ROLE`. Its memory has `window` bytes, some of them wrong if
    /// it is to `spoil` them.
    pub(super) fn start(
        runtime: &Handle,
        role: Role,
        window: u64,
        spoil: bool,
    ) -> Result<Self, Failure> {
        let (role, window) = (role.name(), format!("--window={window}"));
        let mut arguments = vec![
            "dev",
            "transfer-peer",
            role,
            window.as_str(),
            "--output=json",
        ];
        if spoil {
            arguments.push("--spoil");
        }
        runtime.block_on(async {
            let what = format!("the {role} target");
            let mut process = Process::start(&what, &arguments)?;
            let Ready { address } = process.ready(PATIENCE).await?;
            Ok(Self {
                runtime: runtime.clone(),
                process: Mutex::new(process),
                address,
            })
        })
    }

    /// The name of its segment, or where it accepts streams.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The number of its process.
    pub(super) fn pid(&self) -> Option<u32> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.id()
    }

    /// Its processor time so far.
    pub(super) fn cpu(&self) -> Result<Duration, Failure> {
        Ok(Duration::from_nanos(self.told(&Ask::Cpu)?.cpu_ns))
    }

    /// Asks it for something that has no answer but that it is done.
    pub(super) fn ask(&self, ask: &Ask) -> Result<(), Failure> {
        self.told(ask).map(drop)
    }

    fn told(&self, ask: &Ask) -> Result<Told, Failure> {
        let line = serde_json::to_string(ask)
            .map_err(|error| Failure::new("a question has no JSON form").because(error))?;
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        self.runtime.block_on(async {
            process.tell(&line).await?;
            process.ready(PATIENCE).await
        })
    }
}

/// Serves plain streams until standard input ends.
///
/// # Errors
///
/// It cannot listen.
pub fn serve_plain(output: Output, spoil: bool) -> Result<(), Failure> {
    let failed = |error| Failure::new("a plain target cannot listen").because(error);
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?.to_string();
    output.event(&Ready { address })?;
    thread::spawn(move || plain::serve(&listener, spoil));
    answer(output, |ask| match ask {
        Ask::Cpu => Ok(()),
        _ => Err(Failure::new("a plain target is asked on its streams")),
    })
}

/// Offers `window` bytes to engines until standard input ends.
///
/// # Errors
///
/// The engine cannot start.
pub fn serve_engine(
    output: Output,
    runtime: &Handle,
    window: u64,
    spoil: bool,
) -> Result<(), Failure> {
    let (engine, buffer) = runtime.block_on(offer(window))?;
    output.event(&Ready {
        address: engine.segment_name().to_owned(),
    })?;
    answer(output, |ask| {
        let mut memory = buffer.memory();
        match ask {
            Ask::Cpu => {}
            Ask::Fill => {
                fill(memory, window);
                if spoil {
                    corrupt(&mut memory, 0);
                }
            }
            Ask::Wipe => wipe(&mut memory, 0, window),
            Ask::Check(all) => {
                if spoil {
                    corrupt(&mut memory, 0);
                }
                for walked in all {
                    let inside = walked.walk.end().is_some_and(|end| end <= window);
                    if !inside || walked.walk.is_empty() {
                        return Err(Failure::new("that is not within the target's memory"));
                    }
                    check_and_wipe(&mut memory, walked, "the target's memory")?;
                }
            }
        }
        Ok(())
    })
}

async fn offer(window: u64) -> Result<(TentEngine, Buffer), Failure> {
    let engine = TentEngine::builder()
        .transport_if_possible(ShmTransport::default())
        .transport_if_possible(CmaTransport::default())
        .transport(TcpTransport::default())
        .build()
        .await
        .map_err(unusable)?;
    let buffer = register(&engine, window, Permission::PeersReadWrite).await?;
    Ok((engine, buffer))
}

/// Answers each line until there is no more.
fn answer(
    output: Output,
    mut serve: impl FnMut(Ask) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| Failure::new("stdin cannot be read").because(error))?;
        let ask = serde_json::from_str(&line)
            .map_err(|error| Failure::new(format!("nobody knows {line:?}")).because(error))?;
        match serve(ask) {
            Ok(()) => output.event(&Told {
                cpu_ns: own_cpu().as_nanos() as u64,
            })?,
            Err(failure) => output.failure(&failure),
        }
    }
    Ok(())
}
