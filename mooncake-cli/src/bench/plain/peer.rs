//! The other end: a thread a connection, each with memory of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use serde::{Deserialize, Serialize};

use super::Direction;
use super::stream::{ANSWER, CALL, REQUEST, Request, broken};
use crate::output::Failure;

/// A peer that serves.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "role", rename = "plain_peer")]
pub(crate) struct ReadyPeer {
    /// Where it listens.
    pub(crate) address: String,
}

/// Serves as long as its process lives.
#[derive(Debug)]
pub(crate) struct Peer {
    address: String,
}

impl Peer {
    /// Listens on a free loopback port; each connection has `memory` bytes.
    pub(crate) fn start(memory: u64) -> Result<Self, Failure> {
        let failed = |error| Failure::new("the plain peer cannot listen").because(error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?.to_string();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    // It ends when whoever has connected does.
                    let _over = serve(socket, memory as usize);
                });
            }
        });
        Ok(Self { address })
    }

    pub(crate) fn ready(&self) -> ReadyPeer {
        ReadyPeer {
            address: self.address.clone(),
        }
    }
}

fn serve(socket: TcpStream, memory: usize) -> Result<(), Failure> {
    socket.set_nodelay(true).map_err(broken)?;
    let mut memory = vec![1; memory.max(ANSWER)];
    let mut output = socket.try_clone().map_err(broken)?;
    let mut input = BufReader::with_capacity(16 << 10, socket);
    let mut acknowledged = 0;
    loop {
        if buffered(&input).is_none() && acknowledged > 0 {
            output.write_all(&vec![1; acknowledged]).map_err(broken)?;
            acknowledged = 0;
        }
        let mut bytes = [0; REQUEST];
        input.read_exact(&mut bytes).map_err(broken)?;
        let request = Request::decode(&bytes);
        let start = request.offset as usize;
        let mut end = start + request.length as usize;
        match request.direction {
            Direction::Write => {
                input.read_exact(&mut memory[start..end]).map_err(broken)?;
                acknowledged += 1;
            }
            Direction::Read => {
                // Blocks that lie side by side leave in one call.
                while let Some(next) = buffered(&input)
                    && next.direction == Direction::Read
                    && next.offset as usize == end
                    && end - start + next.length as usize <= CALL
                {
                    input.consume(REQUEST);
                    end += next.length as usize;
                }
                output.write_all(&memory[start..end]).map_err(broken)?;
            }
        }
    }
}

/// The next request, if it is there already.
fn buffered(input: &BufReader<TcpStream>) -> Option<Request> {
    input.buffer().first_chunk().map(Request::decode)
}
