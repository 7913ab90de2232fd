//! Space of a segment that is set aside for its owner's next puts.
//!
//! Only the owner's process writes there, before it says what it has put. So the space is nobody
//! else's until the owner returns it, which promises that nothing of it is being written, or until
//! the segment is lost with all that is in it.

use std::{collections::BTreeMap, time::Duration};

use super::{Answer, ClientId, Effect, Failure, SegmentId, State, segments::Mounted};
use crate::{Time, alloc::ALIGNMENT, evict::share};

/// Grants of one segment at a time: few are needed, so more are a mistake.
const MAX_GRANTS: usize = 64;
/// For how long nothing is granted after space was short, so that what is returned is found by those
/// who wait for it. Owners are asked once in that time.
const SHORT: Duration = Duration::from_secs(1);

/// A range of a grant that was not put yet, and its id among what is taken of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) id: u32,
    pub(crate) size: u64,
}

/// The grants of one segment.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// By the owner's number, then by offset.
    open: BTreeMap<u64, BTreeMap<u64, Part>>,
    bytes: u64,
}

impl Grants {
    /// Set aside in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    /// All ranges that are set aside, as (offset, size).
    #[cfg(test)]
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let ranges = self.open.values().flatten();
        ranges.map(|(&offset, part)| (offset, part.size))
    }

    pub(crate) fn open(&mut self, number: u64, offset: u64, part: Part) {
        self.bytes += part.size;
        self.open.insert(number, BTreeMap::from([(offset, part)]));
    }

    /// The range is no longer set aside; its id, which it has alone from now on. `None`: not all of
    /// it was, under this number. `split` leaves the first so many bytes to an id, and gives what
    /// follows an id of its own.
    pub(crate) fn take(
        &mut self,
        number: u64,
        offset: u64,
        size: u64,
        mut split: impl FnMut(u32, u64) -> u32,
    ) -> Option<u32> {
        let ranges = self.open.get_mut(&number)?;
        let (&start, part) = ranges.range_mut(..=offset).next_back()?;
        let before = offset - start;
        let after = part.size.checked_sub(before)?.checked_sub(size)?;
        let mut id = part.id;
        if before > 0 {
            part.size = before;
            id = split(id, before);
        } else {
            ranges.remove(&start);
        }
        if after > 0 {
            let rest = Part {
                id: split(id, size),
                size: after,
            };
            ranges.insert(offset + size, rest);
        }
        if ranges.is_empty() {
            self.open.remove(&number);
        }
        self.bytes -= size;
        Some(id)
    }

    /// What is left of a grant, which is over.
    pub(crate) fn close(&mut self, number: u64) -> BTreeMap<u64, Part> {
        let ranges = self.open.remove(&number).unwrap_or_default();
        self.bytes -= ranges.values().map(|part| part.size).sum::<u64>();
        ranges
    }
}

impl State {
    pub(super) fn grant(
        &mut self,
        now: Time,
        owner: ClientId,
        (id, number, wanted): (SegmentId, u64, u64),
    ) -> Result<Answer, Failure> {
        let slot = self.own_segment(owner, id)?;
        let mounted = self.segments.at(slot);
        if number == 0 || mounted.grants.has(number) {
            let what = format!("grant {number} is taken: each has a number of its own");
            return Err(Failure::invalid(what));
        }
        let mut most = wanted.min(self.grantable(mounted));
        if mounted.grants.len() >= MAX_GRANTS || self.short_until.is_some_and(|until| now < until) {
            most = 0;
        }
        most -= most % ALIGNMENT;
        let bodies = &mut self.objects.bodies;
        let (offset, length) = self.segments.set_aside(bodies, slot, number, most);
        Ok(Answer::Granted { offset, length })
    }

    /// Grants take a small share of a segment, never the last of its space, and make nobody evict.
    fn grantable(&self, mounted: &Mounted) -> u64 {
        let capacity = mounted.capacity();
        let most = share(capacity, self.settings.granted_share);
        let mark = share(self.segments.capacity, self.settings.high_watermark);
        (most.saturating_sub(mounted.grants.bytes()))
            .min(mounted.free() / 2)
            .min(mark.saturating_sub(self.segments.taken()))
    }

    pub(super) fn return_grants(
        &mut self,
        owner: ClientId,
        id: SegmentId,
        numbers: &[u64],
    ) -> Result<Answer, Failure> {
        let slot = self.own_segment(owner, id)?;
        for &number in numbers {
            self.segments
                .give_back(&mut self.objects.bodies, slot, number);
        }
        if !numbers.is_empty() {
            self.crowded = None;
        }
        Ok(Answer::Done)
    }

    /// Space is short: asks those for theirs that have some set aside, and readers for leases that
    /// they do not need.
    pub(super) fn reclaim(&mut self, now: Time) {
        let idle = self.segments.granted_bytes == 0 && self.leases.len() == 0;
        if idle || self.short_until.is_some_and(|until| now < until) {
            return;
        }
        self.short_until = Some(now + SHORT);
        let granted = self.segments.iter().filter(|one| one.grants.bytes() > 0);
        let owners = granted.map(|mounted| mounted.identity.owner);
        let mut asked: Vec<_> = owners.chain(self.leases.holders()).collect();
        asked.sort_unstable();
        asked.dedup();
        let asked = asked.into_iter().map(|client| Effect::Reclaim { client });
        self.effects.extend(asked);
    }

    /// The slot of a segment that the caller offers.
    pub(super) fn own_segment(&self, caller: ClientId, id: SegmentId) -> Result<u32, Failure> {
        let (slot, mounted) = self.segments.find(id).ok_or(Failure::SegmentNotFound)?;
        let owner = mounted.identity.owner;
        if owner != caller {
            return Err(Failure::IllegalClient { owner });
        }
        Ok(slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_taken_was_set_aside_and_only_once(
            takes in prop::collection::vec((1u64..4, 0u64..40, 1u64..12), 0..60)
        ) {
            let mut grants = Grants::default();
            grants.open(1, 4, Part { id: 0, size: 16 });
            grants.open(2, 20, Part { id: 1, size: 12 });
            // What each id has, as (offset, size).
            let mut plots = vec![(4, 16), (20, 12)];
            // The naive model: whose each cell is.
            let mut cells: Vec<u64> = (0..60)
                .map(|cell| match cell {
                    4..20 => 1,
                    20..32 => 2,
                    _ => 0,
                })
                .collect();
            for (number, offset, size) in takes {
                let range = offset as usize..(offset + size) as usize;
                let theirs = cells[range.clone()].iter().all(|owner| *owner == number);
                let taken = grants.take(number, offset, size, |id, first| {
                    let (start, size) = plots[id as usize];
                    plots[id as usize].1 = first;
                    plots.push((start + first, size - first));
                    plots.len() as u32 - 1
                });
                prop_assert_eq!(taken.map(|id| plots[id as usize]), theirs.then_some((offset, size)));
                if theirs {
                    cells[range].fill(0);
                }
                let left = cells.iter().filter(|owner| **owner != 0).count() as u64;
                prop_assert_eq!(grants.bytes(), left);
                prop_assert_eq!(grants.ranges().map(|(_, size)| size).sum::<u64>(), left);
            }
            for number in [1, 2] {
                for (offset, Part { id, size }) in grants.close(number) {
                    prop_assert_eq!(plots[id as usize], (offset, size));
                    cells[offset as usize..(offset + size) as usize].fill(0);
                }
            }
            prop_assert!(cells.iter().all(|owner| *owner == 0));
            prop_assert_eq!((grants.bytes(), grants.len()), (0, 0));
        }
    }
}
