//! Ranks links for a request.

use std::{cmp::Reverse, time::Duration};

use super::{
    DeviceMask, Excluded, Exclusion, Health, LinkDevices, LinkFacts, Merit, Policies, Policy,
    RankKey, Ranked, Ranking, RequestFacts, Ruling, SegmentKind, SizeClass,
    facts::HOST,
    policy::{is_like, means},
};
use crate::{
    qos::{DeviceSet, Strength},
    transport::Op,
};

/// Chooses links: the policy for a request says which may be used, capability and health which can
/// be, and cost which is best.
///
/// ```
/// use mooncake_tent::selector::{LinkFacts, Policies, RequestFacts, TransportSelector};
/// use mooncake_tent::transport::{Capabilities, Op};
///
/// let selector = TransportSelector::new();
/// let tcp = LinkFacts::new("tcp", Capabilities::read_write());
/// let shm = LinkFacts { same_machine_only: true, ..LinkFacts::new("shm", Capabilities::read_write()) };
/// let ranking = selector.rank(&RequestFacts::new(Op::Read, 4096), &[tcp, shm]);
/// assert_eq!(ranking.ranked[0].name, "tcp");
/// assert_eq!(ranking.excluded[0].why.to_string(), "the peer is on another machine");
/// ```
#[derive(Clone, Debug, Default)]
pub struct TransportSelector {
    policies: Policies,
}

/// A link that can carry the request.
struct Candidate<'a> {
    index: usize,
    link: &'a LinkFacts<'a>,
    /// In the policy's list.
    place: usize,
    hinted: bool,
    devices: Option<DeviceMask>,
    estimate: Option<Duration>,
}

impl TransportSelector {
    /// A selector that nobody has told anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// A selector that keeps to `policies`.
    pub fn with_policies(policies: Policies) -> Self {
        Self { policies }
    }

    /// What it keeps to.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// What the ranking for `request` depends on, besides the route, the kind of memory here and the
    /// links. `None`: it asks for links, devices, a pool or a policy by name, and is ranked by itself.
    /// Allocates nothing.
    pub fn key(&self, request: &RequestFacts<'_>) -> Option<RankKey> {
        let by_name = request.hint.is_some()
            || request.devices.is_some()
            || request.pool.is_some()
            || request.policy.is_some();
        if by_name {
            return None;
        }
        let policy = match self.policies.ruling(request) {
            Ruling::Applies(place, _) => Some(u32::try_from(place).ok()?),
            Ruling::Free | Ruling::Unknown(_) => None,
        };
        Some(RankKey {
            op: request.op,
            policy,
            size: SizeClass::of(request.length),
            receipt: request.receipt,
        })
    }

    /// The key of a request that names nothing, where there is no policy to look for.
    #[inline]
    pub(crate) fn free_key(&self, op: Op, length: u64) -> Option<RankKey> {
        self.policies.is_empty().then(|| RankKey {
            receipt: false,
            op,
            policy: None,
            size: SizeClass::of(length),
        })
    }

    /// Ranks `links` for `request`.
    ///
    /// A policy that lists links puts them in order; else those come first that take the shortest
    /// time. A link of which that is not known keeps the place that it has without: it is neither
    /// better nor worse than the others. That place is the policy's, or else nearer links come before
    /// farther ones, and equal ones as they were given.
    pub fn rank(&self, request: &RequestFacts<'_>, links: &[LinkFacts<'_>]) -> Ranking {
        let ruling = self.policies.ruling(request);
        let (policy, title) = match ruling {
            Ruling::Applies(place, policy) => {
                (Some(policy), Some((place, self.policies.title(place))))
            }
            Ruling::Free | Ruling::Unknown(_) => (None, None),
        };
        let mut ranking = Ranking {
            policy: title,
            pool: request
                .pool
                .or_else(|| policy?.qp_pool.as_deref())
                .map(str::to_owned),
            service_level: policy.and_then(|policy| policy.service_level),
            traffic_class: policy.and_then(|policy| policy.traffic_class),
            ..Ranking::default()
        };
        let mut fit = Vec::with_capacity(links.len());
        let direct = links
            .iter()
            .find(|link| !link.capabilities.indirect && can(request, link).is_ok());
        for (index, link) in links.iter().enumerate() {
            let detour = direct.filter(|_| link.capabilities.indirect);
            let judged = match detour {
                Some(direct) => Err(Exclusion::Detour {
                    direct: direct.name.to_owned(),
                }),
                None => self.judge(request, ruling, index, link),
            };
            match judged {
                Ok(candidate) => fit.push(candidate),
                Err(why) => ranking.excluded.push(Excluded {
                    index: Some(index),
                    name: link.name.to_owned(),
                    why,
                }),
            }
        }
        ranking.excluded.extend(missing(request, policy, links));
        order(&mut fit, policy.is_some_and(Policy::is_ordered));
        let listed = policy.is_some_and(|policy| policy.transports.is_some());
        ranking.ranked = fit
            .into_iter()
            .map(|candidate| candidate.ranked(listed))
            .collect();
        ranking
    }

    /// The link can carry the request, or why not.
    fn judge<'a>(
        &self,
        request: &RequestFacts<'_>,
        ruling: Ruling<'_>,
        index: usize,
        link: &'a LinkFacts<'a>,
    ) -> Result<Candidate<'a>, Exclusion> {
        let policy = match ruling {
            Ruling::Applies(at, policy) => Some((at, policy)),
            Ruling::Free => None,
            Ruling::Unknown(policy) => {
                let policy = policy.to_owned();
                return Err(Exclusion::NoSuchPolicy { policy });
            }
        };
        let place = match policy {
            Some((at, policy)) => policy
                .place(link.name)
                .ok_or_else(|| Exclusion::NotListed {
                    policy: self.policies.title(at),
                })?,
            None => 0,
        };
        let hinted = request
            .hint
            .is_some_and(|hint| means(hint.link(), link.name));
        if let Some(hint) = request.hint
            && hint.strength() == Strength::Hard
            && !hinted
        {
            let wanted = hint.link().to_owned();
            return Err(Exclusion::NotHinted { wanted });
        }
        if let Some(why) = link.absent {
            let why = why.to_owned();
            return Err(Exclusion::Absent { why });
        }
        can(request, link)?;
        let sets = [
            policy.and_then(|(_, policy)| policy.devices.as_ref()),
            request.devices,
        ];
        let devices = permitted(link.devices, sets)?;
        if let Health::Open { why, left } = link.health {
            let why = why.to_owned();
            return Err(Exclusion::Open { why, left });
        }
        Ok(Candidate {
            index,
            link,
            place,
            hinted,
            devices,
            estimate: link.estimate(request.length),
        })
    }
}

/// Whether the link is able to, whatever anybody wants.
fn can(request: &RequestFacts<'_>, link: &LinkFacts<'_>) -> Result<(), Exclusion> {
    let able = match request.op {
        Op::Read => link.capabilities.reads,
        Op::Write => link.capabilities.writes,
    };
    let (local, remote) = request.ends();
    let joins = |(here, there): &(&str, &str)| is_like(local, here) && is_like(remote, there);
    if !able {
        Err(Exclusion::Incapable)
    } else if request.receipt && !link.capabilities.receipts {
        Err(Exclusion::NoReceipts)
    } else if !link.joins.iter().any(joins) || is_at_home(link, local, remote) {
        let local = local.to_owned();
        Err(match request.segment {
            SegmentKind::File => Exclusion::WrongSegment {
                segment: request.segment,
                local,
            },
            SegmentKind::Memory => Exclusion::WrongMemory {
                local,
                remote: remote.to_owned(),
            },
        })
    } else if link.same_machine_only && !request.same_machine {
        Err(Exclusion::OtherMachine)
    } else if !link.reaches {
        Err(Exclusion::Unreachable)
    } else if !link.accepts {
        Err(Exclusion::NotAccepted)
    } else {
        Ok(())
    }
}

/// A detour from ordinary memory to ordinary memory leads nowhere new.
fn is_at_home(link: &LinkFacts<'_>, local: &str, remote: &str) -> bool {
    link.capabilities.indirect && [local, remote] == [HOST; 2]
}

/// Those of a link's devices that are in every set; `None`: nobody restricts them.
fn permitted(
    devices: LinkDevices<'_>,
    sets: [Option<&DeviceSet>; 2],
) -> Result<Option<DeviceMask>, Exclusion> {
    let mut sets = sets.into_iter().flatten().peekable();
    if sets.peek().is_none() {
        return Ok(None);
    }
    let sets: Vec<_> = sets.collect();
    match devices {
        LinkDevices::NotNeeded => Ok(None),
        LinkDevices::Unchosen => Err(Exclusion::DevicesUnchosen),
        LinkDevices::Named(names) => {
            let mask = DeviceMask::of(names.len(), |place| {
                sets.iter().all(|set| set.contains(names[*place]))
            });
            if mask.is_empty() {
                let permitted = sets.iter().map(ToString::to_string).collect::<Vec<_>>();
                let permitted = permitted.join(" that are also among ");
                return Err(Exclusion::NoDevice { permitted });
            }
            Ok(Some(mask))
        }
    }
}

/// Links that a policy or a hint names, but that were not given.
fn missing(
    request: &RequestFacts<'_>,
    policy: Option<&Policy>,
    links: &[LinkFacts<'_>],
) -> Vec<Excluded> {
    let listed = policy.and_then(|policy| policy.transports.as_deref());
    let hinted = request.hint.map(|hint| hint.link());
    let mut named: Vec<&str> = listed
        .unwrap_or_default()
        .iter()
        .map(|name| &**name)
        .collect();
    named.extend(hinted.filter(|hinted| !named.contains(hinted)));
    named.retain(|name| !links.iter().any(|link| means(name, link.name)));
    let excluded = named.into_iter().map(|name| Excluded {
        index: None,
        name: name.to_owned(),
        why: Exclusion::NotInstalled,
    });
    excluded.collect()
}

/// The best first.
fn order(fit: &mut Vec<Candidate<'_>>, listed: bool) {
    fit.sort_by_key(|candidate| (candidate.place, Reverse(candidate.nearness())));
    if !listed {
        by_cost(fit);
    }
    fit.sort_by_key(|candidate| !candidate.hinted);
}

/// Sorts those with an estimate among the places that they have; the others stay where they are.
fn by_cost(fit: &mut Vec<Candidate<'_>>) {
    let (known, mut rest): (Vec<_>, Vec<_>) = std::mem::take(fit)
        .into_iter()
        .enumerate()
        .partition(|(_, candidate)| candidate.estimate.is_some());
    let (places, mut known): (Vec<_>, Vec<_>) = known.into_iter().unzip();
    known.sort_by_key(|candidate| candidate.estimate);
    rest.extend(places.into_iter().zip(known));
    rest.sort_by_key(|(place, _)| *place);
    fit.extend(rest.into_iter().map(|(_, candidate)| candidate));
}

impl Candidate<'_> {
    /// How near both ends of the link are at least.
    fn nearness(&self) -> u8 {
        if self.link.capabilities.within_process {
            2
        } else {
            self.link.same_machine_only.into()
        }
    }

    fn ranked(self, listed: bool) -> Ranked {
        let Self { link, estimate, .. } = self;
        let half_open = match link.health {
            Health::HalfOpen { why } => Some(Merit::HalfOpen(why.to_owned())),
            Health::Closed | Health::Open { .. } => None,
        };
        let near = match self.nearness() {
            0 => None,
            1 => Some(Merit::SameMachine),
            _ => Some(Merit::WithinProcess),
        };
        let merits = [
            self.hinted.then_some(Merit::Hinted),
            listed.then_some(Merit::Listed(self.place + 1)),
            near,
            Some(estimate.map_or(Merit::Unmeasured, Merit::Estimated)),
            half_open,
        ];
        Ranked {
            index: self.index,
            name: link.name.to_owned(),
            devices: self.devices,
            estimate,
            merits: merits.into_iter().flatten().collect(),
        }
    }
}

#[cfg(test)]
mod tests;
