//! The order in which one device posts slices.

use std::{collections::VecDeque, time::Duration};

use super::Priority;
use crate::Time;

/// How long slices of a lower priority let others pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aging {
    /// After so long a slice has waited enough.
    pub patience: Duration,
    /// Of those that have, one is posted after so many others.
    pub every: u32,
}

impl Default for Aging {
    /// 10 ms, and one after seven others.
    fn default() -> Self {
        Self {
            patience: Duration::from_millis(10),
            every: 7,
        }
    }
}

/// Slices that wait until a device can take them.
///
/// A slice is never posted before one of a higher priority that is here, however early it came, unless
/// it has waited for [`patience`](Aging::patience): of those, the oldest goes first once
/// [`every`](Aging::every) others went since the last of them. So what is urgent is held up by one post
/// in a few at most, and what is not is not held up for ever. Within a priority slices keep their
/// order.
///
/// It is bounded: a full one gives the slice back, and whoever came with it says *busy*.
///
/// ```
/// use mooncake_tent::{Priority, Time, spray::{Aging, PostQueue}};
///
/// let mut queue = PostQueue::new(2, Aging::default());
/// queue.push(Time(0), Priority::Low, "checkpoint").expect("there is room");
/// queue.push(Time(5), Priority::High, "first token").expect("there is room");
/// assert_eq!(queue.push(Time(5), Priority::High, "one more"), Err("one more"));
/// assert_eq!(queue.pop(Time(6)).map(|queued| queued.item), Some("first token"));
/// ```
#[derive(Clone, Debug)]
pub struct PostQueue<T> {
    /// By priority, oldest first.
    classes: [VecDeque<Waiting<T>>; Priority::ALL.len()],
    capacity: usize,
    aging: Aging,
    /// Taken since one that had waited enough was.
    others: u32,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    item: T,
    since: Time,
}

/// A slice that is to be posted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued<T> {
    /// What was queued.
    pub item: T,
    /// Its priority.
    pub priority: Priority,
    /// When it was queued.
    pub since: Time,
    /// How many others had been taken, for [`PostQueue::put_back`].
    others: u32,
}

impl<T> PostQueue<T> {
    /// An empty one for up to `capacity` slices.
    pub fn new(capacity: usize, aging: Aging) -> Self {
        Self {
            classes: Default::default(),
            capacity,
            aging,
            others: aging.every,
        }
    }

    /// Queues a slice. One that waited elsewhere before may bring an earlier time.
    ///
    /// # Errors
    ///
    /// It is full; the slice comes back.
    pub fn push(&mut self, since: Time, priority: Priority, item: T) -> Result<(), T> {
        if self.len() >= self.capacity {
            return Err(item);
        }
        self.class(priority).push_back(Waiting { item, since });
        Ok(())
    }

    /// The slice to be posted next.
    pub fn pop(&mut self, now: Time) -> Option<Queued<T>> {
        let urgent = self.waiting().next()?.0;
        let tired = self
            .waiting()
            .filter(|(_, first)| now.since(first.since) >= self.aging.patience)
            .min_by_key(|(_, first)| first.since)
            .map(|(priority, _)| priority)
            .filter(|priority| *priority != urgent && self.others >= self.aging.every);
        let others = self.others;
        self.others = match tired {
            Some(_) => 0,
            None => others.saturating_add(1),
        };
        let priority = tired.unwrap_or(urgent);
        let Waiting { item, since } = self.class(priority).pop_front()?;
        Some(Queued {
            item,
            priority,
            since,
            others,
        })
    }

    /// Undoes the last [`pop`](Self::pop): the device could not take the slice.
    pub fn put_back(&mut self, queued: Queued<T>) {
        self.others = queued.others;
        let (item, since) = (queued.item, queued.since);
        self.class(queued.priority)
            .push_front(Waiting { item, since });
    }

    /// Takes out all, the most urgent first, so that they go elsewhere.
    pub fn drain(&mut self) -> impl Iterator<Item = (Priority, Time, T)> {
        let classes = Priority::ALL.into_iter().zip(&mut self.classes);
        classes.flat_map(|(priority, class)| {
            let all = class.drain(..);
            all.map(move |Waiting { item, since }| (priority, since, item))
        })
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.classes.iter().map(VecDeque::len).sum()
    }

    /// None waits.
    pub fn is_empty(&self) -> bool {
        self.classes.iter().all(VecDeque::is_empty)
    }

    /// The first of each class that has any, the most urgent first.
    fn waiting(&self) -> impl Iterator<Item = (Priority, &Waiting<T>)> {
        let classes = Priority::ALL.into_iter().zip(&self.classes);
        classes.filter_map(|(priority, class)| Some((priority, class.front()?)))
    }

    fn class(&mut self, priority: Priority) -> &mut VecDeque<Waiting<T>> {
        &mut self.classes[usize::from(priority.level())]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGING: Aging = Aging {
        patience: Duration::from_micros(1000),
        every: 7,
    };

    fn priority() -> impl Strategy<Value = Priority> {
        prop::sample::select(&Priority::ALL[..])
    }

    /// What waits, as a plain list in the order of arrival.
    type Model = Vec<(Priority, Time, usize)>;

    proptest! {
        #[test]
        fn priority_inversion_is_impossible_and_so_is_starvation(
            // Pauses, and what comes: `None` is a post.
            events in prop::collection::vec((0..300u64, prop::option::weighted(0.6, priority())), 0..400)
        ) {
            let mut queue = PostQueue::new(1000, AGING);
            let (mut model, mut now) = (Model::new(), Time::ZERO);
            // Posts since one that had waited enough went before something more urgent.
            let mut others = u32::MAX;
            // For each slice, the posts since it had waited enough.
            let mut passed = vec![0u32; events.len()];
            for (number, (pause, event)) in events.into_iter().enumerate() {
                now += Duration::from_micros(pause);
                let Some(priority) = event else {
                    let posted = queue.pop(now).map(|queued| (queued.priority, queued.since, queued.item));
                    let Some(posted) = posted else {
                        prop_assert!(model.is_empty());
                        continue;
                    };
                    let at = model.iter().position(|waiting| *waiting == posted);
                    prop_assert!(at.is_some(), "it was queued, once");
                    model.remove(at.unwrap());
                    let (priority, since, _) = posted;
                    prop_assert!(
                        !model.iter().any(|other| other.0 == priority && other.2 < posted.2),
                        "a priority keeps its order"
                    );
                    if model.iter().any(|other| other.0 < priority) {
                        prop_assert!(now.since(since) >= AGING.patience, "an inversion");
                        prop_assert!(others >= AGING.every, "two of those that waited in a row");
                        others = 0;
                    } else {
                        others = others.saturating_add(1);
                    }
                    let tired: Vec<_> = model.iter().filter(|other| now.since(other.1) >= AGING.patience).collect();
                    for waiting in &tired {
                        passed[waiting.2] += 1;
                        // All that were here before it go before it at worst, each after `every` others.
                        prop_assert!(passed[waiting.2] <= (AGING.every + 1) * (waiting.2 as u32 + 1));
                    }
                    continue;
                };
                prop_assert_eq!(queue.push(now, priority, number), Ok(()));
                model.push((priority, now, number));
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.drain().count(), model.len());
            prop_assert!(queue.is_empty());
        }
    }

    #[test]
    fn under_endless_urgent_slices_others_get_one_post_in_eight_after_their_patience() {
        let mut queue = PostQueue::new(100_000, AGING);
        for number in 0..10 {
            queue.push(Time(0), Priority::Low, number).unwrap();
        }
        let mut low = Vec::new();
        for tick in 0..2000u64 {
            queue.push(Time(tick), Priority::High, 1000).unwrap();
            let posted = queue.pop(Time(tick)).unwrap();
            if posted.priority == Priority::Low {
                low.push(tick);
            }
        }
        let expected: Vec<u64> = (0..10).map(|number| 1000 + 8 * number).collect();
        assert_eq!(low, expected);
    }

    #[test]
    fn what_a_device_cannot_take_goes_back_to_where_it_was() {
        let mut queue = PostQueue::new(10, AGING);
        for (number, priority) in [Priority::Low, Priority::High, Priority::High]
            .into_iter()
            .enumerate()
        {
            queue.push(Time(number as u64), priority, number).unwrap();
        }
        // The old one is due at once, again and again, for as long as it is not posted.
        for _ in 0..3 {
            let first = queue.pop(Time(5000)).unwrap();
            assert_eq!(first.item, 0);
            queue.put_back(first);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop(Time(5000)))
            .map(|queued| queued.item)
            .collect();
        assert_eq!(order, [0, 1, 2]);
    }

    #[test]
    fn law_11_a_full_queue_gives_back_what_it_cannot_keep() {
        let mut queue = PostQueue::new(1, AGING);
        queue.push(Time(0), Priority::Low, 'a').unwrap();
        assert_eq!(queue.push(Time(0), Priority::High, 'b'), Err('b'));
        assert_eq!(queue.drain().next(), Some((Priority::Low, Time(0), 'a')));
    }
}
