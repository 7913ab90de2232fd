//! Steps that are taken to their end, or are the last.

use std::{mem, process};

/// Runs a step. A panic in its middle ends the process: what it leaves half changed must not be
/// served, while the next life of the master begins with what clients bring.
pub(super) fn whole<T>(step: impl FnOnce() -> T) -> T {
    let unfinished = Unfinished;
    let done = step();
    mem::forget(unfinished);
    done
}

struct Unfinished;

impl Drop for Unfinished {
    fn drop(&mut self) {
        tracing::error!("the master ends: a step has panicked, and its state cannot be trusted");
        process::abort();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::process::ExitStatusExt,
        process::{Command, Stdio},
        thread,
    };

    use super::*;

    const CHILD: &str = "MOONCAKE_TEST_PANICS_IN_A_STEP";

    #[test]
    fn a_panic_in_the_middle_of_a_step_is_the_end_of_the_process() {
        if env::var_os(CHILD).is_some() {
            let caught = thread::spawn(|| whole(|| panic!("planted"))).join();
            assert!(caught.is_err());
            return;
        }
        let me = thread::current();
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", me.name().unwrap()])
            .env(CHILD, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        // SIGABRT.
        assert_eq!(child.unwrap().signal(), Some(6));
        assert_eq!(whole(|| 5), 5);
    }
}
