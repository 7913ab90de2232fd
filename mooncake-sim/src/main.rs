//! Repeats a seed, or tries many.

use std::{process::ExitCode, time::Instant};

use mooncake_sim::{Plan, Plant, Report, run, shrink};

const USAGE: &str = "usage: mooncake-sim [--seed N [--ops LIST] [--faults LIST]] \
                     [--seeds FROM..TO] [--plant MISTAKE]";

#[derive(Default)]
struct Arguments {
    seed: Option<u64>,
    seeds: Option<(u64, u64)>,
    ops: Option<Vec<usize>>,
    faults: Option<Vec<usize>>,
    plant: Plant,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(what) => {
            eprintln!("error: {what}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let (from, to) = match (arguments.seed, arguments.seeds) {
        (Some(seed), _) => (seed, seed + 1),
        (None, Some(seeds)) => seeds,
        (None, None) => (0, 2_000),
    };
    let begun = Instant::now();
    let mut total = Report::default();
    for seed in from..to {
        let plan = Plan::draw(seed, arguments.plant)
            .keep(arguments.ops.as_deref(), arguments.faults.as_deref());
        match run(&plan) {
            Ok(report) => total += report,
            Err(violation) => {
                println!("seed {seed}, {violation}\n  {}", plan.command());
                let (smaller, violation) = shrink(plan, violation);
                println!("smaller: {violation}\n  {}", smaller.command());
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{} seeds in {:.1?}: {total:#?}", to - from, begun.elapsed());
    ExitCode::SUCCESS
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        let value = words
            .next()
            .ok_or_else(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--faults" => arguments.faults = Some(list(&value)?),
            "--ops" => arguments.ops = Some(list(&value)?),
            "--plant" => arguments.plant = value.parse()?,
            "--seed" => arguments.seed = Some(number(&value)?),
            "--seeds" => {
                let (from, to) = value
                    .split_once("..")
                    .ok_or_else(|| format!("{value:?} is no range"))?;
                arguments.seeds = Some((number(from)?, number(to)?));
            }
            _ => return Err(format!("there is no option {word:?}")),
        }
    }
    Ok(arguments)
}

fn list(text: &str) -> Result<Vec<usize>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    text.split(',').map(number).collect()
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}
