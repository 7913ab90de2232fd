//! A process that puts and removes is killed without warning; another one looks what is there.
//!
//! `cargo run -p mooncake-bucket --example crash_and_recover`

use std::{
    collections::BTreeSet,
    error::Error,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use mooncake_bucket::{BucketConfig, BucketStorageBackend, Incarnation, Name, Put, Removal};

const LIFE: Incarnation = Incarnation::new(1, 1);

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(directory) = std::env::args_os().nth(1) {
        return work(&directory);
    }
    let directory = std::env::temp_dir().join(format!("crash-and-recover-{}", std::process::id()));
    let mut process = Command::new(std::env::current_exe()?)
        .arg(&directory)
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(process.stdout.take().ok_or("there is no pipe")?).lines();
    // What it said is done must be as it said.
    let (mut here, mut gone, mut said) = (BTreeSet::new(), BTreeSet::new(), 0);
    for line in lines {
        let line = line?;
        match line.split_once(' ') {
            Some(("put", key)) => here.insert(key.to_string()),
            Some(("removed", key)) => gone.insert(key.to_string()),
            // Begun, and perhaps done: it may be there or not.
            Some(("removing", key)) => here.remove(key),
            _ => false,
        };
        said += 1;
        if said == 400 {
            process.kill()?;
        }
    }
    process.wait()?;
    println!(
        "the process was killed; it had acknowledged {} objects and {} removals",
        here.len(),
        gone.len()
    );

    let storage = BucketStorageBackend::open(&directory, BucketConfig::default())?;
    println!("found: {:?}", storage.recovery());
    for key in &here {
        assert_eq!(
            storage.get(Name::key(key), None)?.bytes,
            key.repeat(1000).as_bytes()
        );
    }
    for key in &gone {
        assert!(
            storage.get(Name::key(key), None).is_err(),
            "{key} came back"
        );
    }
    println!("all that was acknowledged is there, and nothing that was removed");
    drop(storage);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

/// Puts and removes until somebody kills it.
fn work(directory: &std::ffi::OsStr) -> Result<(), Box<dyn Error>> {
    let storage = BucketStorageBackend::open(directory, BucketConfig::default())?;
    let mut out = std::io::stdout().lock();
    for number in 0u64.. {
        let key = number.to_string();
        storage.put(Put::new(Name::key(&key), LIFE, key.repeat(1000).as_bytes()))?;
        writeln!(out, "put {key}")?;
        if number % 3 == 2 {
            let old = (number - 2).to_string();
            writeln!(out, "removing {old}")?;
            let removal = Removal {
                name: Name::key(&old),
                incarnation: LIFE,
            };
            for result in storage.mark_removed(&[removal]) {
                result?;
            }
            writeln!(out, "removed {old}")?;
        }
    }
    Ok(())
}
