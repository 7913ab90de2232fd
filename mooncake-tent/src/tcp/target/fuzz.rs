//! Serves a lane whose bytes somebody made up.

use std::{
    io,
    net::TcpStream,
    sync::{Arc, atomic::AtomicBool},
};

use parking_lot::{Condvar, Mutex};

use super::{Lane, Shared};
use crate::{
    credit::{Credit, Ledger},
    identity::Incarnation,
    memory::BufferTable,
    tcp::{
        TcpConfig,
        fuzz::{CREDIT_BYTES, CREDIT_REQUESTS, LANE_AGE, MOST_ARRIVALS},
        wire::{Hello, LaneClock},
    },
    transport::ArrivalBook,
};

/// Serves what comes on `socket`, a lane of `initiator`, from `buffers`; returns why it ended. All
/// answers are sent.
pub(in crate::tcp) fn serve(
    socket: &TcpStream,
    initiator: Incarnation,
    buffers: Arc<BufferTable>,
) -> io::Error {
    let totals = Credit {
        bytes: 2 * CREDIT_BYTES,
        requests: 2 * CREDIT_REQUESTS,
    };
    let shared = Shared {
        incarnation: Incarnation::random(),
        buffers,
        arrivals: ArrivalBook::new(MOST_ARRIVALS),
        served: Arc::default(),
        ledger: Ledger::new(totals, 1),
        config: TcpConfig::default(),
        lanes: Mutex::default(),
        ended: Condvar::new(),
        greeted: Condvar::new(),
        stopped: AtomicBool::new(false),
    };
    let hello = Hello {
        initiator,
        target: shared.incarnation,
        lane: 1,
        most: Credit::default(),
        errand: false,
    };
    let clock = LaneClock::started(LANE_AGE);
    let account = shared.ledger.open(initiator, hello.most);
    let mut lane = Lane::new(&shared, socket, &hello, clock, Arc::default(), account);
    let end = lane.serve().expect_err("a lane is served until it ends");
    match lane.send_answers() {
        Ok(()) => end,
        Err(error) => error,
    }
}
