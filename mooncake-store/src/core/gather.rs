//! Things that go out together: when enough are there, when no more are to come, or in a moment.

use super::Settings;
use crate::time::Time;

/// A bounded wait for company.
#[derive(Debug)]
pub(super) struct Gather<T> {
    waiting: Vec<T>,
    due: Time,
}

impl<T> Gather<T> {
    pub(super) const fn new() -> Self {
        Self {
            waiting: Vec::new(),
            due: Time::NEVER,
        }
    }

    /// Adds `one`; the first of a batch says how long all of it waits at most.
    pub(super) fn push(&mut self, now: Time, settings: &Settings, one: T) {
        if self.waiting.is_empty() {
            self.due = now + settings.linger;
        }
        self.waiting.push(one);
    }

    /// Takes the batch if it is time: `last` says that no more are to come.
    pub(super) fn take(&mut self, now: Time, settings: &Settings, last: bool) -> Vec<T> {
        if last || now >= self.due || self.waiting.len() >= settings.batch {
            self.due = Time::NEVER;
            return std::mem::take(&mut self.waiting);
        }
        Vec::new()
    }

    /// When to try again; [`Time::NEVER`] if nothing waits.
    pub(super) const fn due(&self) -> Time {
        self.due
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_batch_goes_when_full_when_last_or_when_its_first_has_waited_long_enough() {
        let settings = Settings {
            batch: 3,
            linger: Duration::from_micros(10),
            ..Settings::default()
        };
        let mut gather = Gather::new();
        gather.push(Time(100), &settings, 'a');
        gather.push(Time(105), &settings, 'b');
        assert_eq!(gather.due(), Time(110));
        assert!(gather.take(Time(109), &settings, false).is_empty());
        assert_eq!(gather.take(Time(110), &settings, false), ['a', 'b']);
        assert_eq!(gather.due(), Time::NEVER);

        gather.push(Time(120), &settings, 'c');
        assert_eq!(gather.take(Time(120), &settings, true), ['c']);
        for one in ['d', 'e', 'f'] {
            gather.push(Time(130), &settings, one);
        }
        assert_eq!(gather.take(Time(130), &settings, false).len(), 3);
    }
}
