//! Finds inputs that are worth trying, and tries them.

use std::{
    any::Any,
    collections::HashSet,
    fs,
    panic::{self, AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rand::{RngExt, rngs::StdRng};

use crate::{Target, mutation};

/// Inputs that are kept to be changed further.
const POOL: usize = 4_096;

/// One run of one target: its corpus, and then inputs that are made from it.
#[derive(Debug)]
pub struct Campaign {
    target: Target,
    seed: u64,
    draw: StdRng,
    /// What is changed to make new inputs.
    pool: Vec<Vec<u8>>,
    shapes: HashSet<u64>,
    failures: PathBuf,
}

impl Campaign {
    /// Tries the corpus of `target`. An input that fails later is written into `failures`.
    ///
    /// # Panics
    ///
    /// An input of the corpus fails, or there is none.
    pub fn new(target: Target, seed: u64, failures: impl Into<PathBuf>) -> Self {
        let mut campaign = Self {
            draw: mutation::draw(target.name, seed),
            target,
            seed,
            pool: Vec::new(),
            shapes: HashSet::new(),
            failures: failures.into(),
        };
        for (name, input) in corpus(&target) {
            campaign.attempt(&input, &name);
            campaign.pool.push(input);
        }
        assert!(!campaign.pool.is_empty(), "{} has no corpus", target.name);
        campaign
    }

    /// Tries so many made-up inputs.
    ///
    /// # Panics
    ///
    /// One fails.
    pub fn inputs(&mut self, count: u64) {
        for _ in 0..count {
            self.next();
        }
    }

    /// Tries made-up inputs for so long; returns how many there were.
    ///
    /// # Panics
    ///
    /// One fails.
    pub fn time(&mut self, long: Duration) -> u64 {
        let start = Instant::now();
        let mut count = 0;
        while start.elapsed() < long {
            self.inputs(100);
            count += 100;
        }
        count
    }

    /// How many kinds of result there were.
    pub fn shapes(&self) -> usize {
        self.shapes.len()
    }

    fn next(&mut self) {
        let mut input = mutation::pick(&mut self.draw, &self.pool).clone();
        mutation::mutate(&mut self.draw, &mut input, &self.pool, self.target.words);
        if self.attempt(&input, "a made-up input") {
            if self.pool.len() < POOL {
                self.pool.push(input);
            } else {
                let place = self.draw.random_range(0..POOL);
                self.pool[place] = input;
            }
        }
    }

    /// `true`: its result is of a new kind.
    fn attempt(&mut self, input: &[u8], name: &str) -> bool {
        match caught(&self.target, input) {
            Ok(shape) => self.shapes.insert(shape),
            Err(what) => self.fail(input, name, &what),
        }
    }

    fn fail(&self, input: &[u8], name: &str, what: &str) -> ! {
        // Each step of the search panics, and only the end of it is of interest.
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let small = minimise(&self.target, input);
        panic::set_hook(hook);
        let target = self.target.name;
        let file = self.failures.join(format!("{target}-{}", self.seed));
        let written = match fs::write(&file, &small) {
            Ok(()) => format!("it is in {}", file.display()),
            Err(error) => format!("it is in no file ({error})"),
        };
        panic!(
            "{target}, seed {}: {name} of {} bytes breaks a promise: {what}\nthe smallest found is \
             b\"{}\"; {written}",
            self.seed,
            input.len(),
            small.escape_ascii()
        );
    }
}

/// All inputs that are kept for `target`, with their names, in order.
fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry?.path();
        let input = fs::read(&path)?;
        Ok((path.display().to_string(), input))
    };
    let all: std::io::Result<Vec<_>> =
        fs::read_dir(&folder).and_then(|entries| entries.map(read).collect());
    let mut all = all.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    all.sort();
    all
}

fn caught(target: &Target, input: &[u8]) -> Result<u64, String> {
    catch_unwind(AssertUnwindSafe(|| target.check(input))).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panics").to_owned()
}

/// Leaves out of a failing input what it does not need to fail.
fn minimise(target: &Target, input: &[u8]) -> Vec<u8> {
    let mut small = input.to_vec();
    let mut part = small.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < small.len() {
            let mut less = small.clone();
            less.drain(at..(at + part).min(small.len()));
            if caught(target, &less).is_err() {
                small = less;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
    small
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_input_is_made_small() {
        let target = Target {
            name: "bangs",
            run: |bytes| {
                assert!(
                    bytes.iter().filter(|byte| **byte == b'!').count() < 2,
                    "bang"
                );
                0
            },
            words: &[],
        };
        assert_eq!(minimise(&target, b"some ! text, and !! more"), b"!!");
        assert_eq!(caught(&target, b"!!"), Err("bang".to_owned()));
    }
}
