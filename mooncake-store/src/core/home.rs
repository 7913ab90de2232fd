//! Space of the client's own segment that the master has set aside for its puts.
//!
//! Nobody else writes there, so a put writes first and asks once, when all is there. A grant is
//! returned only when nothing of it is being written or put: the master may give its space to
//! others from then on.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mooncake_proto::{
    Applied, Fault, Retry,
    master::{GrantRequest, GrantResponse, ReturnGrantsRequest},
    status::ErrorCode,
};

use super::{Location, MasterRequest, SegmentId, SegmentInfo};
use crate::time::Time;

/// Places are multiples of this.
const ALIGNMENT: u64 = 64;
/// For how long nothing is asked for after the master had nothing to give, or wanted it back.
const REST: Duration = Duration::from_secs(1);
/// Grants at a time; the master allows for some more.
const MOST: usize = 32;

/// A part of a grant, for one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) segment: SegmentId,
    pub(super) grant: u64,
    pub(super) offset: u64,
    size: u64,
}

/// A grant by its segment and number.
pub(super) type Granted = (SegmentId, u64);

#[derive(Debug)]
struct Grant {
    name: Granted,
    /// Of all of it, when it was new.
    length: u64,
    /// Ranges that are not in use, offset → size.
    free: BTreeMap<u64, u64>,
    /// Pieces of which it is not decided what becomes of them.
    out: usize,
    /// Writes of which bytes may still move.
    moving: usize,
    /// It takes no more, and is returned as soon as it is quiet.
    over: bool,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Home {
    segment: Option<Arc<SegmentInfo>>,
    grants: Vec<Grant>,
    /// The grant that the master was asked for.
    asked: Option<u64>,
    next: u64,
    /// Somebody could use more.
    wanted: bool,
    rests_until: Time,
    /// Grants that are quiet and must be returned.
    returns: Vec<Granted>,
    return_at: Time,
}

impl Home {
    /// From now on this segment is the client's own, in a life that has no grants yet. They get
    /// numbers from `first` on.
    pub(super) fn lend(&mut self, segment: SegmentInfo, first: u64) {
        *self = Self {
            segment: Some(Arc::new(segment)),
            next: first.max(1),
            wanted: true,
            ..Self::default()
        };
    }

    /// Nothing is the client's own any more. What it was granted is returned.
    pub(super) fn withdraw(&mut self) {
        self.segment = None;
        for grant in &mut self.grants {
            grant.over = true;
        }
    }

    /// Nobody hears any more what becomes of puts, and of what was asked for: all of it is returned
    /// of which no byte moves.
    pub(super) fn abandon(&mut self) {
        if let (Some(segment), Some(number)) = (&self.segment, self.asked.take()) {
            self.returns.push((segment.id, number));
        }
        self.withdraw();
        for grant in &mut self.grants {
            grant.out = 0;
        }
    }

    pub(super) fn segment(&self) -> Option<&SegmentInfo> {
        self.segment.as_deref()
    }

    /// Nothing is owed to the master.
    pub(super) fn is_idle(&self) -> bool {
        self.returns.is_empty() && !self.grants.iter().any(|grant| grant.over)
    }

    /// Set aside and not in use.
    pub(super) fn free(&self) -> u64 {
        self.grants
            .iter()
            .flat_map(|grant| grant.free.values())
            .sum()
    }

    /// Room for so many bytes, and where it is.
    pub(super) fn carve(&mut self, length: u64) -> Option<(Piece, Location)> {
        let segment = self.segment.as_ref()?;
        self.wanted = true;
        let size = length.checked_next_multiple_of(ALIGNMENT)?;
        let mut open = self.grants.iter_mut().filter(|grant| !grant.over);
        let found = open.find_map(|grant| {
            let mut ranges = grant.free.iter();
            let (&offset, _) = ranges.find(|(_, free)| **free >= size)?;
            Some((grant, offset))
        });
        let Some((grant, offset)) = found else {
            // What is left of those that had such room once keeps more from being asked for.
            for grant in &mut self.grants {
                grant.over |= size <= grant.length;
            }
            return None;
        };
        let free = grant.free.remove(&offset).expect("it was just found");
        if free > size {
            grant.free.insert(offset + size, free - size);
        }
        grant.out += 1;
        let (of, number) = grant.name;
        let piece = Piece {
            segment: of,
            grant: number,
            offset,
            size,
        };
        let location = Location {
            segment: Arc::clone(segment),
            offset,
            length,
        };
        Some((piece, location))
    }

    /// The piece is an object's now.
    pub(super) fn consume(&mut self, piece: Piece) {
        if let Some(grant) = self.of(piece.grant) {
            grant.out -= 1;
        }
        self.forget_used();
    }

    /// The piece was not put, and nothing of it is being written.
    pub(super) fn take_back(&mut self, piece: Piece) {
        let Some(grant) = self.of(piece.grant) else {
            return;
        };
        grant.out -= 1;
        let (mut start, mut end) = (piece.offset, piece.offset + piece.size);
        if let Some((&before, &size)) = grant.free.range(..start).next_back()
            && before + size == start
        {
            start = before;
        }
        if let Some(size) = grant.free.remove(&end) {
            end += size;
        }
        grant.free.insert(start, end - start);
    }

    /// Nobody knows what became of the piece, or it may still be written to: its grant takes no more.
    pub(super) fn lose(&mut self, piece: Piece) {
        if let Some(grant) = self.of(piece.grant) {
            grant.out -= 1;
            grant.over = true;
        }
    }

    pub(super) fn write_begins(&mut self, number: u64) {
        if let Some(grant) = self.of(number) {
            grant.moving += 1;
        }
    }

    /// No byte of the write moves any more.
    pub(super) fn write_is_quiet(&mut self, number: u64) {
        if let Some(grant) = self.of(number) {
            grant.moving -= 1;
        }
        self.forget_used();
    }

    /// Space is short: what is not in use is to be returned. `true`: there is something.
    pub(super) fn reclaim(&mut self, now: Time) -> bool {
        self.rests_until = now + REST;
        let mut some = false;
        for grant in &mut self.grants {
            some |= !grant.over && !grant.free.is_empty();
            grant.over = true;
        }
        some
    }

    /// The grants that are to be returned now, and how.
    pub(super) fn next_return(&mut self, now: Time) -> Option<(Vec<Granted>, MasterRequest)> {
        let quiet = |grant: &mut Grant| grant.over && grant.out == 0 && grant.moving == 0;
        let quiet = self.grants.extract_if(.., quiet);
        self.returns.extend(quiet.map(|grant| grant.name));
        if now < self.return_at {
            return None;
        }
        let (segment, _) = *self.returns.first()?;
        let these = self.returns.extract_if(.., |(of, _)| *of == segment);
        let these: Vec<_> = these.collect();
        let request = MasterRequest::ReturnGrants(ReturnGrantsRequest {
            segment: segment.0.to_vec().into(),
            grants: these.iter().map(|(_, number)| *number).collect(),
            ..ReturnGrantsRequest::default()
        });
        Some((these, request))
    }

    /// The master did not take these back. If it may know of them they are returned again, later.
    pub(super) fn not_returned(&mut self, now: Time, these: Vec<Granted>, fault: &Fault) {
        // With the session it has forgotten the grants too.
        if fault.code != ErrorCode::UnknownOutcome && fault.retry != Retry::Never {
            self.returns.extend(these);
            self.return_at = now + REST;
        }
    }

    /// What to ask for now, so that there are `enough` bytes for puts to come.
    pub(super) fn next_ask(&mut self, now: Time, enough: u64) -> Option<(Granted, MasterRequest)> {
        let segment = self.segment.as_ref()?.id;
        let open = self.grants.iter().filter(|grant| !grant.over);
        let many = open.clone().count() >= MOST;
        let rests = now < self.rests_until || self.asked.is_some() || many;
        if !std::mem::take(&mut self.wanted) || rests {
            return None;
        }
        let free: u64 = open.flat_map(|grant| grant.free.values()).sum();
        if free > enough / 2 {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.asked = Some(number);
        let request = MasterRequest::Grant(GrantRequest {
            segment: segment.0.to_vec().into(),
            grant: number,
            length: enough - free,
            ..GrantRequest::default()
        });
        Some(((segment, number), request))
    }

    pub(super) fn granted(&mut self, now: Time, name: Granted, answer: &GrantResponse) {
        let awaited = self.answered(name);
        let GrantResponse { offset, length } = *answer;
        let fits = |segment: &SegmentInfo| {
            let end = offset.checked_add(length);
            let within = end.is_some_and(|end| end <= segment.length);
            within && offset % ALIGNMENT == 0 && length >= ALIGNMENT
        };
        if length == 0 {
            self.rests_until = now + REST;
        } else if awaited && self.segment().is_some_and(fits) {
            self.grants.push(Grant {
                name,
                length,
                free: BTreeMap::from([(offset, length - length % ALIGNMENT)]),
                out: 0,
                moving: 0,
                over: false,
            });
        } else {
            self.returns.push(name);
        }
    }

    pub(super) fn not_granted(&mut self, now: Time, name: Granted, fault: &Fault) {
        self.answered(name);
        self.rests_until = now + REST;
        // An answer may be lost that gave us something.
        if fault.applied != Applied::Nothing {
            self.returns.push(name);
        }
    }

    /// When there is something to return again.
    pub(super) fn due(&self) -> Time {
        if self.returns.is_empty() {
            Time::NEVER
        } else {
            self.return_at
        }
    }

    /// `true`: it was asked for in the segment's present life.
    fn answered(&mut self, (_, number): Granted) -> bool {
        let awaited = self.asked == Some(number);
        if awaited {
            self.asked = None;
        }
        awaited
    }

    fn of(&mut self, number: u64) -> Option<&mut Grant> {
        let mut grants = self.grants.iter_mut();
        grants.find(|grant| grant.name.1 == number)
    }

    /// The master has forgotten them too: all of their space is objects'.
    fn forget_used(&mut self) {
        self.grants.retain(|grant| {
            grant.over || grant.out > 0 || grant.moving > 0 || !grant.free.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::*;

    fn home() -> Home {
        let segment = SegmentInfo {
            id: SegmentId([1; 16]),
            name: "home".into(),
            owner_incarnation: 1,
            registration: 1,
            generation: 1,
            length: 1 << 60,
        };
        let mut home = Home::default();
        home.lend(segment, 1);
        home
    }

    /// Of the last tenth of a thousand values of such lengths, those that found room, beside a master
    /// that gives what it is asked for.
    fn placed_at_last(lengths: std::ops::Range<u64>) -> usize {
        const ENOUGH: u64 = 32 << 20;
        let (now, mut end) = (Time(1), 0);
        let mut rng = SmallRng::seed_from_u64(lengths.start);
        let mut home = home();
        let mut placed = 0;
        for n in 0..1_000 {
            let carved = home.carve(rng.random_range(lengths.clone()));
            placed += usize::from(n >= 900 && carved.is_some());
            if let Some((piece, _)) = carved {
                home.consume(piece);
            }
            while home.next_return(now).is_some() {}
            if let Some((name, request)) = home.next_ask(now, ENOUGH) {
                let MasterRequest::Grant(asked) = request else {
                    panic!("a grant is asked for");
                };
                let (offset, length) = (end, asked.length);
                end += length;
                home.granted(now, name, &GrantResponse { offset, length });
            }
            let free = home.free();
            assert!(free <= ENOUGH, "{free} bytes are set aside");
            assert!(home.grants.len() <= MOST);
        }
        placed
    }

    #[test]
    fn what_is_left_of_grants_does_not_keep_values_of_other_lengths_away() {
        for lengths in [100 << 10..3 << 20, 2 << 20..6 << 20] {
            let placed = placed_at_last(lengths.clone());
            assert!(placed >= 90, "{placed} of 100 in {lengths:?}");
        }
    }

    #[test]
    fn what_no_grant_ever_had_room_for_ends_none() {
        let mut home = home();
        assert!(home.carve(64).is_none());
        let (name, _) = home.next_ask(Time(1), 1 << 20).unwrap();
        let answer = GrantResponse {
            offset: 0,
            length: 1 << 20,
        };
        home.granted(Time(1), name, &answer);
        assert!(home.carve(2 << 20).is_none() && home.carve(1 << 19).is_some());
    }
}
