//! Where a process of this host listens, and who can reach it there.

use std::{fs, os::unix::fs::MetadataExt};

use crate::{identity::Incarnation, platform};

/// Namespaces in which names of sockets, numbers of processes and users, and clocks mean the same.
const NAMESPACES: [&str; 4] = ["net", "pid", "time", "user"];

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

    /// How peers learn of a process of `user` that listens here.
    pub(super) fn endpoint(&self, user: u32, incarnation: Incarnation) -> String {
        format!("{}/{user}/{incarnation}", self.0)
    }

    /// The process behind `endpoint` can be reached from here, and is one of `users`.
    pub(super) fn reaches(&self, endpoint: &str, users: &[u32], incarnation: Incarnation) -> bool {
        let mut users = users.iter();
        users.any(|user| endpoint == self.endpoint(*user, incarnation))
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
        assert!(ours.reaches(&ours.endpoint(7, one), &[5, 7], one));
        assert!(!ours.reaches(&ours.endpoint(7, one), &[5], one));
        assert!(!ours.reaches(&ours.endpoint(7, one), &[7], other));
        let elsewhere = Place(format!("{}1", ours.0));
        assert!(!ours.reaches(&elsewhere.endpoint(7, one), &[7], one));
    }
}
