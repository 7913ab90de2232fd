//! How much to evict, and when: a decision over sums of bytes.

pub(crate) mod window;

/// Between which fill levels the store is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watermarks {
    /// Eviction starts above this share of the capacity; 1: never by itself.
    pub(crate) high: f64,
    /// And goes down to this share.
    pub(crate) low: f64,
}

/// How full the store is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) capacity: u64,
    /// Allocated to objects, those in quarantine included.
    pub(crate) used: u64,
    /// Of these, what waits for leases or writers to end, and then is free by itself.
    pub(crate) quarantined: u64,
}

/// Whether eviction is on its way from the high watermark to the low one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drain {
    running: bool,
}

impl Drain {
    /// Bytes to evict now; 0: none.
    pub(crate) fn goal(&mut self, marks: Watermarks, fill: Fill) -> u64 {
        if !self.running && fill.used <= share(fill.capacity, marks.high) {
            return 0;
        }
        let staying = fill.used.saturating_sub(fill.quarantined);
        let goal = staying.saturating_sub(share(fill.capacity, marks.low));
        self.running = goal > 0;
        goal
    }

    /// Nothing is left to evict: starts afresh above the high watermark.
    pub(crate) fn give_up(&mut self) {
        self.running = false;
    }
}

/// `ratio` of `bytes`, all of it for a ratio of 1.
pub(crate) fn share(bytes: u64, ratio: f64) -> u64 {
    if ratio >= 1.0 {
        return bytes;
    }
    (bytes as f64 * ratio) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(used: u64, quarantined: u64) -> Fill {
        Fill {
            capacity: 1000,
            used,
            quarantined,
        }
    }

    #[test]
    fn eviction_runs_from_the_high_mark_to_the_low_one() {
        let marks = Watermarks {
            high: 0.9,
            low: 0.85,
        };
        let mut drain = Drain::default();
        assert_eq!(drain.goal(marks, fill(900, 0)), 0);
        assert_eq!(drain.goal(marks, fill(901, 0)), 51);
        assert_eq!(
            drain.goal(marks, fill(870, 0)),
            20,
            "it goes on below the high mark"
        );
        assert_eq!(drain.goal(marks, fill(850, 0)), 0);
        assert_eq!(drain.goal(marks, fill(870, 0)), 0, "and then rests");
    }

    #[test]
    fn what_is_in_quarantine_is_not_evicted_for_again() {
        let marks = Watermarks {
            high: 0.9,
            low: 0.85,
        };
        assert_eq!(Drain::default().goal(marks, fill(950, 90)), 10);
        assert_eq!(Drain::default().goal(marks, fill(950, 100)), 0);
    }

    #[test]
    fn a_watermark_of_one_never_evicts_by_itself() {
        let marks = Watermarks {
            high: 1.0,
            low: 0.5,
        };
        assert_eq!(Drain::default().goal(marks, fill(1000, 0)), 0);
    }
}
