//! Where a process of this host listens, and who can reach it there.

use std::{fs, os::unix::fs::MetadataExt};

use crate::{identity::Incarnation, platform};

/// Namespaces in which names of sockets, numbers of processes and clocks mean the same.
const NAMESPACES: [&str; 3] = ["net", "pid", "time"];

/// What two processes must have in common to reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place(String);

impl Place {
    /// Where this process is; `None`: the machine does not say.
    pub(super) fn ours() -> Option<Self> {
        let machine = platform::machine();
        if machine.is_empty() {
            return None;
        }
        let mut place = machine;
        for name in NAMESPACES {
            // A kernel without such namespaces has one for all.
            let found = fs::metadata(format!("/proc/self/ns/{name}"));
            let number = found.map_or(0, |namespace| namespace.ino());
            place.push_str(&format!("/{number}"));
        }
        Some(Self(place))
    }

    /// How peers learn of a process that listens here.
    pub(super) fn endpoint(&self, incarnation: Incarnation) -> String {
        format!("{}/{incarnation}", self.0)
    }

    /// The process behind `endpoint` can be reached from here.
    pub(super) fn reaches(&self, endpoint: &str, incarnation: Incarnation) -> bool {
        endpoint == self.endpoint(incarnation)
    }
}

/// The name of a process's socket, which exists as long as the process listens on it.
pub(super) fn socket_name(link: &str, incarnation: Incarnation) -> Vec<u8> {
    format!("mooncake-{link}-{incarnation}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_elsewhere_is_not_reached_by_a_name_that_means_another_one_here() {
        let ours = Place::ours().unwrap();
        let (one, other) = (Incarnation::random(), Incarnation::random());
        assert!(ours.reaches(&ours.endpoint(one), one));
        assert!(!ours.reaches(&ours.endpoint(one), other));
        let elsewhere = Place(format!("{}1", ours.0));
        assert!(!ours.reaches(&elsewhere.endpoint(one), one));
    }
}
