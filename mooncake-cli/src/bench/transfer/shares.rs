//! Which links carried what.

use std::collections::BTreeMap;

use mooncake_tent::TentEngine;
use serde::Serialize;

/// What of all bytes one link carried to or from one target.
#[derive(Clone, Debug, Serialize)]
pub struct LinkShare {
    /// Its name.
    pub link: &'static str,
    /// The target; `null` for those that the engine counts together.
    pub peer: Option<Box<str>>,
    /// From 0 to 1.
    pub share: f64,
}

/// Bytes by link and target since the engine began.
pub(super) type Carried = BTreeMap<(&'static str, Option<Box<str>>), u64>;

pub(super) fn carried(engine: &TentEngine) -> Carried {
    let mut carried = Carried::new();
    for link in engine.metrics().links {
        *carried.entry((link.transport, link.peer)).or_default() += link.bytes;
    }
    carried
}

pub(super) fn shares(before: &Carried, after: Carried) -> Vec<LinkShare> {
    let since = |(name, bytes): ((&'static str, Option<Box<str>>), u64)| {
        let bytes = bytes - before.get(&name).copied().unwrap_or_default();
        (name, bytes)
    };
    let moved: Vec<_> = after.into_iter().map(since).collect();
    let all: u64 = moved.iter().map(|(_, bytes)| bytes).sum();
    let moved = moved.into_iter().filter(|(_, bytes)| *bytes > 0);
    let mut shares: Vec<_> = moved
        .map(|((link, peer), bytes)| LinkShare {
            link,
            peer,
            share: bytes as f64 / all as f64,
        })
        .collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

/// For people: each link with its share to all targets.
pub(super) fn links(shares: &[LinkShare]) -> String {
    let mut links: Vec<(&str, f64)> = Vec::new();
    for LinkShare { link, share, .. } in shares {
        match links.iter_mut().find(|(name, _)| name == link) {
            Some((_, sum)) => *sum += share,
            None => links.push((link, *share)),
        }
    }
    let one = |(link, share): &(&str, f64)| format!("{link} {:.0} %", share * 100.0);
    links.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_moved_meanwhile() {
        let carried = |numbers: [u64; 3]| -> Carried {
            let names = [("shm", "a"), ("tcp", "a"), ("tcp", "b")];
            let named = names.map(|(link, peer)| (link, Some(peer.into())));
            named.into_iter().zip(numbers).collect()
        };
        assert!(shares(&carried([5, 6, 7]), carried([5, 6, 7])).is_empty());
        let found = shares(&carried([5, 0, 10]), carried([5, 25, 85]));
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.link, it.peer.as_deref(), it.share))
            .collect();
        assert_eq!(found, [("tcp", Some("b"), 0.75), ("tcp", Some("a"), 0.25)]);
        assert_eq!(
            links(&shares(&Carried::new(), carried([1, 1, 2]))),
            "tcp 75 %, shm 25 %"
        );
    }
}
