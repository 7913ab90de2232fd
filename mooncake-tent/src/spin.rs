//! Decides how long to look for bytes before sleeping.

use std::time::{Duration, Instant};

/// Looking is worth it where bytes came while looking; it is tried again now and then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    most: Duration,
    /// 0: does not pay off; up to [`SURE`].
    score: u8,
    skipped: u8,
}

const SURE: u8 = 8;
const TRY_AGAIN: u8 = 32;

impl Spin {
    pub(crate) fn new(most: Duration) -> Self {
        Self {
            most,
            score: SURE / 2,
            skipped: 0,
        }
    }

    /// Calls `look` until it finds something or looking longer does not pay off.
    pub(crate) fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(found) = look() {
            return Some(found);
        }
        if self.most.is_zero() {
            return None;
        }
        if self.score == 0 {
            self.skipped += 1;
            if self.skipped < TRY_AGAIN {
                return None;
            }
            self.skipped = 0;
        }
        let start = Instant::now();
        loop {
            for _ in 0..8 {
                std::hint::spin_loop();
            }
            if let Some(found) = look() {
                self.score = (self.score + 2).min(SURE);
                return Some(found);
            }
            if start.elapsed() >= self.most {
                self.score = self.score.saturating_sub(1);
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_stops_where_it_finds_nothing_and_is_tried_again() {
        let mut spin = Spin::new(Duration::from_nanos(1));
        let looks = |spin: &mut Spin| {
            let mut count = 0;
            spin.until(|| {
                count += 1;
                None::<()>
            });
            count
        };
        while looks(&mut spin) > 1 {}
        assert_eq!(spin.score, 0);
        let again = (0..u32::from(TRY_AGAIN)).position(|_| looks(&mut spin) > 1);
        assert!(again.is_some());
    }

    #[test]
    fn what_is_found_while_looking_makes_looking_worth_it() {
        let mut spin = Spin::new(Duration::from_secs(1));
        for _ in 0..10 {
            let mut looks = 0;
            let found = spin.until(|| {
                looks += 1;
                (looks == 3).then_some(looks)
            });
            assert_eq!(found, Some(3));
        }
        assert_eq!(spin.score, SURE);
    }
}
