//! The segment of the world's client, and what its grants must never become.

use mooncake_proto::master::{
    GrantRequest, GrantResponse, PutRequest, PutResponse, PutResult, ReturnGrantsRequest,
    ReturnGrantsResponse, put_result,
};

use super::{master::error, *};

pub(super) const NAME: &str = "home";
const SIZE: u64 = 64;

/// What the master and the client know of the client's segment.
#[derive(Debug, Default)]
pub(super) struct Homestead {
    next_offset: u64,
    /// By number: cells that were not put, and whether the client said that it returns them.
    grants: BTreeMap<u64, (Vec<u64>, bool)>,
    /// Writes to each cell that may still move, and whether the last one came to its end.
    cells: BTreeMap<u64, Cell>,
    pub(super) puts: usize,
}

#[derive(Debug, Default)]
struct Cell {
    moving: Vec<TransferId>,
    whole: bool,
    published: bool,
}

impl World {
    pub(super) fn lend(&mut self) {
        let segment = SegmentInfo {
            id: SegmentId([9; 16]),
            name: NAME.into(),
            owner_incarnation: 1,
            registration: 1,
            generation: 1,
            length: 1 << 30,
        };
        let first = u64::from(self.rng.random::<u32>());
        self.core.lend(self.now, segment, first);
        self.drain();
    }

    pub(super) fn write_home(&mut self, id: TransferId, offset: u64) {
        let granted = |(cells, returned): &(Vec<u64>, bool)| cells.contains(&offset) && !returned;
        let known = self.home.grants.values().any(granted);
        assert!(
            known,
            "seed {}: a write where nothing is granted",
            self.seed
        );
        let cell = self.home.cells.entry(offset).or_default();
        assert!(
            !cell.published,
            "seed {}: a write over an object",
            self.seed
        );
        assert!(
            cell.moving.is_empty(),
            "seed {}: two writes meet",
            self.seed
        );
        cell.moving.push(id);
        cell.whole = false;
    }

    pub(super) fn wrote_home(&mut self, id: TransferId, whole: bool, quiet: bool) {
        for cell in self.home.cells.values_mut() {
            if cell.moving.contains(&id) {
                cell.whole |= whole;
                if quiet {
                    cell.moving.retain(|one| *one != id);
                }
            }
        }
    }

    /// What a call says about the segment is true when it is sent.
    pub(super) fn says_of_home(&mut self, request: &MasterRequest) {
        match request {
            MasterRequest::Put(put) => {
                for item in &put.items {
                    let cell = &self.home.cells[&item.offset];
                    let there = cell.whole && cell.moving.is_empty();
                    assert!(there, "seed {}: put before it is written", self.seed);
                }
            }
            MasterRequest::ReturnGrants(back) => {
                for number in &back.grants {
                    let Some((cells, returned)) = self.home.grants.get_mut(number) else {
                        continue;
                    };
                    *returned = true;
                    let moves = |at: &u64| {
                        let cell = self.home.cells.get(at);
                        cell.is_some_and(|cell| !cell.moving.is_empty())
                    };
                    let quiet = !cells.iter().any(moves);
                    assert!(quiet, "seed {}: returned while it is written", self.seed);
                }
            }
            _ => {}
        }
    }

    pub(super) fn grant(&mut self, asked: &GrantRequest) -> MasterAnswer {
        let cells = if self.chance(5) {
            0
        } else {
            self.rng.random_range(1..=asked.length / SIZE)
        };
        let offset = self.home.next_offset;
        self.home.next_offset += cells * SIZE;
        if cells > 0 {
            let cells = (0..cells).map(|cell| offset + cell * SIZE).collect();
            let before = self.home.grants.insert(asked.grant, (cells, false));
            assert!(before.is_none(), "seed {}: a number twice", self.seed);
        }
        let length = cells * SIZE;
        MasterAnswer::Grant(GrantResponse { offset, length })
    }

    pub(super) fn put(&mut self, put: PutRequest) -> MasterAnswer {
        if self.chance(5) {
            return MasterAnswer::Error(error(ErrorCode::SegmentNotFound));
        }
        let mut results = Vec::new();
        for item in put.items {
            let taken =
                matches!(self.lives.get(&item.key), Some((_, _, life)) if *life != Life::Gone);
            let known = self.home.grants.get_mut(&item.grant);
            let cell = known.and_then(|(cells, _)| {
                let at = cells.iter().position(|cell| *cell == item.offset)?;
                Some((cells, at))
            });
            let result = match cell {
                _ if taken => put_result::Result::Error(error(ErrorCode::ObjectAlreadyExists)),
                Some((cells, at)) if self.rng.random_range(0..100) >= 3 => {
                    cells.swap_remove(at);
                    self.sequence += 1;
                    let incarnation = Incarnation {
                        epoch: 1,
                        sequence: self.sequence,
                    };
                    self.lives
                        .insert(item.key, (incarnation, 0, Life::Complete));
                    self.acknowledged.insert(incarnation);
                    let cell = self.home.cells.get_mut(&item.offset).unwrap();
                    assert!(cell.moving.is_empty() && cell.whole, "seed {}", self.seed);
                    cell.published = true;
                    self.home.puts += 1;
                    put_result::Result::Incarnation(incarnation.into())
                }
                _ => put_result::Result::Error(error(ErrorCode::Stale)),
            };
            results.push(PutResult {
                result: Some(result),
            });
        }
        MasterAnswer::Put(PutResponse { results })
    }

    pub(super) fn take_grants(&mut self, back: &ReturnGrantsRequest) -> MasterAnswer {
        for number in &back.grants {
            self.home.grants.remove(number);
        }
        MasterAnswer::ReturnGrants(ReturnGrantsResponse {})
    }

    /// The client lends nothing any more: all that was set aside for it is an object's, or free.
    pub(super) fn judge_home(&self) {
        let left = self.home.grants.values();
        let left: Vec<_> = left.filter(|(cells, _)| !cells.is_empty()).collect();
        assert!(left.is_empty(), "seed {}: {left:?} is kept", self.seed);
    }
}
