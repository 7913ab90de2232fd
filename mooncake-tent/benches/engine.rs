//! The hot paths of the engine, one a run, for the count of their instructions.
//!
//! `cargo bench -p mooncake-tent --features fuzzing --bench engine -- CASE` runs `measured` so many
//! times as it then prints; `./test` counts the instructions in there.

use std::{hint::black_box, time::Duration};

use mooncake_tent::{
    Memory, Permission, RegisterOptions, RemoteRange, Request, TentEngine, TransferEngine,
    tcp::fuzz::MESSAGES,
};

/// The only function whose instructions count.
#[inline(never)]
fn measured(run: &mut dyn FnMut()) {
    run();
}

/// Runs it once to warm up, then so many times.
fn count(operations: u64, rounds: u64, mut run: impl FnMut()) {
    run();
    for _ in 0..rounds {
        measured(&mut run);
    }
    println!("operations {}", operations * rounds);
}

fn main() {
    let cases: [(&str, fn()); 3] = [
        ("batch", || transfer(128)),
        ("task", || transfer(1)),
        ("request-header", request_header),
    ];
    let asked: Vec<_> = std::env::args().skip(1).collect();
    for (name, run) in cases {
        if asked.is_empty()
            || asked
                .iter()
                .any(|other| other == name || other == "--bench")
        {
            run();
        }
    }
}

/// From submit to completion within the process, which runs on our thread.
fn transfer(tasks: usize) {
    const BLOCK: usize = 64;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let _entered = runtime.enter();
    let (engine, segment, local, remote) = runtime.block_on(async {
        let engine = TentEngine::builder().build().await.expect("it starts");
        let segment = engine.open_segment("", Duration::from_secs(5)).await;
        let segment = segment.expect("its own segment is there");
        let register = async |permission| {
            let memory = Memory::from_vec(vec![0; BLOCK * tasks]).expect("it is not empty");
            let options = RegisterOptions::new(permission);
            let buffer = engine.register_memory(memory, options).await;
            buffer.expect("memory can be registered")
        };
        let local = register(Permission::Local).await;
        let remote = register(Permission::PeersReadWrite).await;
        (engine.clone(), segment, local, remote)
    });
    let request = |at: usize| {
        let start = (at * BLOCK) as u64;
        let part = local.slice(start..start + BLOCK as u64);
        let place = RemoteRange::Registered {
            registration: remote.id(),
            generation: Some(remote.generation()),
            offset: start,
        };
        Request::write(part.expect("it is within"), &segment, place)
    };
    count(tasks as u64, 100, || {
        let mut batch = engine.allocate_batch(tasks);
        let requests = (0..tasks).map(request).collect();
        let submitted = engine.submit_transfer(&mut batch, requests);
        submitted.expect("there is room");
        assert!(batch.is_terminal(), "it ran on our thread");
    });
}

fn request_header() {
    let message = MESSAGES.iter().find(|message| message.name == "request");
    let message = message.expect("there is one");
    let mut bytes = vec![0; message.length];
    // The first of all headers that says something.
    let sensible = (0..=255).find(|verb| {
        bytes[0] = *verb;
        (message.again)(&bytes).is_ok()
    });
    sensible.expect("a verb makes a header of zeros a request");
    count(1, 10_000, || {
        black_box((message.again)(black_box(&bytes))).expect("it made sense before");
    });
}
