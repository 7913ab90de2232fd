//! `mooncake`: one binary to run, use and measure a Mooncake Store.

use std::process::ExitCode;

fn main() -> ExitCode {
    mooncake_cli::cli::main(std::env::args_os())
}
