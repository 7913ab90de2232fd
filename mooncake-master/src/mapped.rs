//! Memory in pages that are mapped when they are needed and unmapped when nothing is in them: what
//! is removed goes back to the system at once, whatever an allocator would keep. Nothing moves when
//! it grows, so that no growth takes long.

use std::{collections::VecDeque, fmt, marker::PhantomData};

use memmap2::MmapMut;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Pages are no larger: one of them is mapped, touched and unmapped in well under a millisecond.
const PAGE_BYTES: usize = 1 << 20;

const NONE: u32 = u32::MAX;

/// Values that are nothing but their bytes.
pub(crate) trait Plain: FromBytes + IntoBytes + KnownLayout + Immutable + Copy {}

impl<T: FromBytes + IntoBytes + KnownLayout + Immutable + Copy> Plain for T {}

fn map(bytes: usize) -> MmapMut {
    MmapMut::map_anon(bytes).expect("the system has memory left")
}

struct Page {
    map: Option<MmapMut>,
    /// First of the places that were given back; each names the next in its first bytes.
    vacant: u32,
    /// First of those that were never taken.
    fresh: u32,
    taken: u32,
    /// Stands in `Pool::roomy`.
    roomy: bool,
}

/// Places of one size.
pub(crate) struct Pool {
    stride: usize,
    /// Places in a page, as a power of two.
    bits: u32,
    pages: Vec<Page>,
    /// Pages with a place to give.
    roomy: Vec<u32>,
}

impl Pool {
    /// `stride` has 4 bytes at least.
    pub(crate) fn new(stride: usize) -> Self {
        Self {
            stride,
            bits: (PAGE_BYTES / stride).ilog2(),
            pages: Vec::new(),
            roomy: Vec::new(),
        }
    }

    /// A place whose bytes are anything.
    pub(crate) fn take(&mut self) -> u32 {
        let at = self.roomy.last().copied().unwrap_or_else(|| {
            let at = self.pages.len() as u32;
            self.pages.push(Page {
                map: None,
                vacant: NONE,
                fresh: 0,
                taken: 0,
                roomy: true,
            });
            self.roomy.push(at);
            at
        });
        let page = &mut self.pages[at as usize];
        let within = if page.vacant == NONE {
            page.map
                .get_or_insert_with(|| map(self.stride << self.bits));
            page.fresh += 1;
            page.fresh - 1
        } else {
            page.vacant
        };
        let place = at << self.bits | within;
        if page.vacant != NONE {
            let next = *u32::ref_from_bytes(&self.bytes(place)[..4]).expect("it is aligned");
            self.pages[at as usize].vacant = next;
        }
        let page = &mut self.pages[at as usize];
        page.taken += 1;
        if page.taken == 1 << self.bits {
            page.roomy = false;
            self.roomy.pop();
        }
        assert!(place < NONE >> 1, "places are counted in 31 bits");
        place
    }

    pub(crate) fn give(&mut self, place: u32) {
        let (at, within) = (place >> self.bits, place & ((1 << self.bits) - 1));
        let vacant = self.pages[at as usize].vacant;
        self.bytes_mut(place)[..4].copy_from_slice(vacant.as_bytes());
        let page = &mut self.pages[at as usize];
        page.vacant = within;
        page.taken -= 1;
        if !page.roomy {
            page.roomy = true;
            self.roomy.push(at);
        }
        // While little of it was touched it is kept, lest a value that comes and goes costs a page
        // each time.
        let small = page.fresh >> (self.bits - 3) == 0;
        if page.taken == 0 && !small {
            page.map = None;
            (page.vacant, page.fresh) = (NONE, 0);
        }
    }

    /// One past the highest place that may be taken.
    pub(crate) fn end(&self) -> u32 {
        let last = self.pages.len().saturating_sub(1) as u32;
        self.pages
            .last()
            .map_or(0, |page| (last << self.bits) + page.fresh)
    }

    /// Whether the place was ever taken since its page is there.
    pub(crate) fn is_touched(&self, place: u32) -> bool {
        let within = place & ((1 << self.bits) - 1);
        let page = self.pages.get((place >> self.bits) as usize);
        page.is_some_and(|page| within < page.fresh)
    }

    #[inline]
    pub(crate) fn bytes(&self, place: u32) -> &[u8] {
        let page = &self.pages[(place >> self.bits) as usize];
        let start = (place & ((1 << self.bits) - 1)) as usize * self.stride;
        let map = page.map.as_ref().expect("a taken place is mapped");
        &map[start..start + self.stride]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self, place: u32) -> &mut [u8] {
        let page = &mut self.pages[(place >> self.bits) as usize];
        let start = (place & ((1 << self.bits) - 1)) as usize * self.stride;
        let map = page.map.as_mut().expect("a taken place is mapped");
        &mut map[start..start + self.stride]
    }

    #[cfg(test)]
    pub(crate) fn mapped_pages(&self) -> usize {
        self.pages.iter().filter(|page| page.map.is_some()).count()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("stride", &self.stride)
            .finish_non_exhaustive()
    }
}

/// Values of one type in a row, of which the last come and go.
pub(crate) struct Row<T> {
    pages: Vec<MmapMut>,
    /// How many values there were at most since the first page is there.
    most: u32,
    of: PhantomData<T>,
}

impl<T: Plain> Row<T> {
    const BITS: u32 = (PAGE_BYTES / size_of::<T>()).ilog2();

    pub(crate) const fn new() -> Self {
        Self {
            pages: Vec::new(),
            most: 0,
            of: PhantomData,
        }
    }

    /// Makes `0..len` of it available, new ones as zeros, unless they were there before.
    pub(crate) fn resize(&mut self, len: u32) {
        self.most = self.most.max(len);
        let pages = (len as usize).div_ceil(1 << Self::BITS);
        self.pages.truncate(pages);
        while self.pages.len() < pages {
            self.pages.push(map(size_of::<T>() << Self::BITS));
        }
        // What little is left is moved to a fresh page, but not each time that a few come and go.
        if len == 1 && self.most >> (Self::BITS - 3) > 0 {
            let first = *self.at(0);
            self.pages[0] = map(size_of::<T>() << Self::BITS);
            *self.at_mut(0) = first;
            self.most = 1;
        }
    }

    #[inline]
    pub(crate) fn at(&self, at: u32) -> &T {
        let page = &self.pages[(at >> Self::BITS) as usize];
        let start = (at & ((1 << Self::BITS) - 1)) as usize * size_of::<T>();
        T::ref_from_bytes(&page[start..start + size_of::<T>()]).expect("it is aligned")
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, at: u32) -> &mut T {
        let page = &mut self.pages[(at >> Self::BITS) as usize];
        let start = (at & ((1 << Self::BITS) - 1)) as usize * size_of::<T>();
        T::mut_from_bytes(&mut page[start..start + size_of::<T>()]).expect("it is aligned")
    }
}

impl<T> fmt::Debug for Row<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("pages", &self.pages.len())
            .finish_non_exhaustive()
    }
}

/// First in, first out.
pub(crate) struct Queue<T> {
    pages: VecDeque<MmapMut>,
    /// Places in the first page that were taken out.
    start: usize,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Plain> Queue<T> {
    const EACH: usize = PAGE_BYTES / 16 / size_of::<T>();

    pub(crate) const fn new() -> Self {
        Self {
            pages: VecDeque::new(),
            start: 0,
            len: 0,
            of: PhantomData,
        }
    }

    fn range(at: usize) -> (usize, std::ops::Range<usize>) {
        let start = at % Self::EACH * size_of::<T>();
        (at / Self::EACH, start..start + size_of::<T>())
    }

    pub(crate) fn push(&mut self, value: T) {
        let (page, range) = Self::range(self.start + self.len);
        if page == self.pages.len() {
            self.pages.push_back(map(Self::EACH * size_of::<T>()));
        }
        self.pages[page][range].copy_from_slice(value.as_bytes());
        self.len += 1;
    }

    pub(crate) fn front(&self) -> Option<T> {
        let (page, range) = Self::range(self.start);
        let bytes = (self.len > 0).then(|| &self.pages[page][range])?;
        Some(T::read_from_bytes(bytes).expect("it has the size"))
    }

    pub(crate) fn pop(&mut self) {
        self.start += 1;
        self.len -= 1;
        if self.start == Self::EACH {
            self.pages.pop_front();
            self.start = 0;
        }
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_are_apart_and_keep_what_they_hold(
            stride in 1usize..400,
            steps in prop::collection::vec((any::<bool>(), 0usize..900), 1..60),
        ) {
            let stride = stride * 4;
            let mut pool = Pool::new(stride);
            let mut taken: Vec<(u32, u8)> = Vec::new();
            for (grow, n) in steps {
                for i in 0..n {
                    if grow {
                        let place = pool.take();
                        pool.bytes_mut(place).fill(i as u8);
                        taken.push((place, i as u8));
                    } else if !taken.is_empty() {
                        let (place, held) = taken.swap_remove(i * 7 % taken.len());
                        prop_assert!(pool.bytes(place).iter().all(|byte| *byte == held));
                        pool.give(place);
                    }
                }
            }
            for (place, held) in &taken {
                prop_assert!(pool.is_touched(*place) && *place < pool.end());
                prop_assert!(pool.bytes(*place).iter().all(|byte| byte == held));
            }
        }
    }

    #[test]
    fn empty_pages_go_back_to_the_system() {
        let mut pool = Pool::new(64);
        let all: Vec<_> = (0..110_000).map(|_| pool.take()).collect();
        assert_eq!(pool.mapped_pages(), 7);
        for &place in &all[..109_999] {
            pool.give(place);
        }
        assert_eq!(pool.mapped_pages(), 1);
        pool.give(all[109_999]);
        assert_eq!(pool.mapped_pages(), 0);
        let place = pool.take();
        pool.give(place);
        assert_eq!(
            pool.mapped_pages(),
            1,
            "one that comes and goes costs no page"
        );
    }

    #[test]
    fn a_row_that_shrinks_to_one_value_keeps_it_and_gives_its_first_page_back() {
        let mut row = Row::<u64>::new();
        for most in [100, 100_000, 500_000] {
            row.resize(most);
            for at in 0..most {
                *row.at_mut(at) = 7;
            }
            row.resize(1);
            row.resize(2);
            let fresh = most > 100;
            assert_eq!((*row.at(0), *row.at(1)), (7, if fresh { 0 } else { 7 }));
        }
    }

    #[test]
    fn a_queue_gives_in_order_and_returns_its_pages() {
        let mut queue = Queue::<u64>::new();
        for n in 0..100_000 {
            queue.push(n);
        }
        assert!(queue.pages.len() > 10);
        for n in 0..100_000 {
            assert_eq!(queue.front(), Some(n));
            queue.pop();
        }
        assert_eq!(queue.front(), None);
        assert!(queue.pages.len() <= 1);
    }
}
