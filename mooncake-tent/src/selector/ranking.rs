//! Ranks links for a request.

use std::{cmp::Ordering, fmt};

use crate::transport::{Capabilities, Op};

/// What matters of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// Its direction.
    pub op: Op,
}

/// What matters of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it can do.
    pub capabilities: Capabilities,
    /// It can reach the owner of the segment.
    pub reaches: bool,
    /// Bytes per second, if measured.
    pub bandwidth: Option<f64>,
}

/// Why a link is out of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exclusion {
    /// It does not do this operation.
    Incapable,
    /// It does not reach the peer.
    Unreachable,
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Incapable => "cannot do this operation",
            Self::Unreachable => "does not reach the peer",
        })
    }
}

/// A link that can carry the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// Its place among the links that were given.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Why it stands where it stands.
    pub why: String,
}

/// The links in the order in which they should be tried, and those that cannot be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranking {
    /// Best first.
    pub ranked: Vec<Ranked>,
    /// The others, with the reason.
    pub excluded: Vec<(String, Exclusion)>,
}

impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranked = self
            .ranked
            .iter()
            .map(|link| format!("{} ({})", link.name, link.why));
        let excluded = self
            .excluded
            .iter()
            .map(|(name, why)| format!("not {name}: {why}"));
        let all: Vec<_> = ranked.chain(excluded).collect();
        if all.is_empty() {
            return f.write_str("no link is installed");
        }
        f.write_str(&all.join(", "))
    }
}

/// Chooses links.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct TransportSelector;

impl TransportSelector {
    /// A selector without policies: capability, then reach, then nearness, then speed.
    pub fn new() -> Self {
        Self
    }

    /// Ranks `links` for `request`. Equal links keep their order.
    pub fn rank(&self, request: RequestFacts, links: &[LinkFacts<'_>]) -> Ranking {
        let mut ranking = Ranking::default();
        let mut fit: Vec<(usize, &LinkFacts<'_>)> = Vec::new();
        for (index, link) in links.iter().enumerate() {
            let capable = match request.op {
                Op::Read => link.capabilities.reads,
                Op::Write => link.capabilities.writes,
            };
            if !capable {
                ranking
                    .excluded
                    .push((link.name.to_owned(), Exclusion::Incapable));
            } else if !link.reaches {
                ranking
                    .excluded
                    .push((link.name.to_owned(), Exclusion::Unreachable));
            } else {
                fit.push((index, link));
            }
        }
        fit.sort_by(|(_, a), (_, b)| {
            let within = |link: &LinkFacts<'_>| link.capabilities.within_process;
            let near = |link: &LinkFacts<'_>| link.capabilities.same_host;
            within(b)
                .cmp(&within(a))
                .then_with(|| near(b).cmp(&near(a)))
                .then_with(|| faster(a.bandwidth, b.bandwidth))
        });
        ranking.ranked = fit
            .into_iter()
            .map(|(index, link)| Ranked {
                index,
                name: link.name.to_owned(),
                why: reason(link),
            })
            .collect();
        ranking
    }
}

/// Faster first. An unknown speed is neither better nor worse than any other (law 12).
fn faster(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        _ => Ordering::Equal,
    }
}

fn reason(link: &LinkFacts<'_>) -> String {
    match (link.capabilities.within_process, link.bandwidth) {
        (true, _) => "both ends are in this process".to_owned(),
        (false, Some(bandwidth)) => format!("measured {:.2} GB/s", bandwidth / 1e9),
        (false, None) => "its speed is unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkFacts<'static> = LinkFacts {
        name: "tcp",
        capabilities: Capabilities::read_write(),
        reaches: true,
        bandwidth: None,
    };

    fn order(ranking: &Ranking) -> Vec<&str> {
        ranking
            .ranked
            .iter()
            .map(|link| link.name.as_str())
            .collect()
    }

    #[test]
    fn a_link_that_cannot_carry_the_request_is_excluded_with_its_reason() {
        let mut capabilities = Capabilities::read_write();
        capabilities.writes = false;
        let links = [
            LinkFacts {
                name: "read-only",
                capabilities,
                ..LINK
            },
            LinkFacts {
                name: "far",
                reaches: false,
                ..LINK
            },
            LINK,
        ];
        let request = RequestFacts { op: Op::Write };
        let ranking = TransportSelector::new().rank(request, &links);
        assert_eq!(order(&ranking), ["tcp"]);
        assert_eq!(ranking.ranked[0].index, 2);
        let excluded: Vec<_> = ranking
            .excluded
            .iter()
            .map(|(name, why)| (&**name, *why))
            .collect();
        assert_eq!(
            excluded,
            [
                ("read-only", Exclusion::Incapable),
                ("far", Exclusion::Unreachable)
            ]
        );
        assert!(
            ranking
                .to_string()
                .contains("not far: does not reach the peer")
        );
    }

    #[test]
    fn within_one_process_no_socket_is_used() {
        let mut capabilities = Capabilities::read_write();
        capabilities.within_process = true;
        let links = [
            LINK,
            LinkFacts {
                name: "inside",
                capabilities,
                ..LINK
            },
        ];
        let request = RequestFacts { op: Op::Read };
        assert_eq!(
            order(&TransportSelector::new().rank(request, &links)),
            ["inside", "tcp"]
        );
    }

    #[test]
    fn law_12_an_unknown_speed_is_neither_best_nor_worst() {
        let fast = LinkFacts {
            name: "fast",
            bandwidth: Some(9e9),
            ..LINK
        };
        let slow = LinkFacts {
            name: "slow",
            bandwidth: Some(1e9),
            ..LINK
        };
        let request = RequestFacts { op: Op::Read };
        let rank = |links: &[LinkFacts<'_>]| {
            let ranking = TransportSelector::new().rank(request, links);
            order(&ranking)
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(rank(&[slow, fast]), ["fast", "slow"]);
        assert_eq!(rank(&[LINK, fast]), ["tcp", "fast"]);
        assert_eq!(rank(&[slow, LINK]), ["slow", "tcp"]);
    }
}
