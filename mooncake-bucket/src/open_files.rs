//! Which buckets' files are kept open: as many as there are descriptors for, those that were opened last.

use std::collections::VecDeque;

/// The open ones and their descriptors, in the order in which they were opened.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    files: VecDeque<(u32, usize)>,
    descriptors: usize,
}

impl OpenFiles {
    /// A bucket's file was opened. Returns the buckets whose files are to be closed so that there are no more than `most`
    /// descriptors, or none but the new one's.
    pub(crate) fn opened(&mut self, id: u32, descriptors: usize, most: usize) -> Vec<u32> {
        self.files.push_back((id, descriptors));
        self.descriptors += descriptors;
        let mut close = Vec::new();
        while self.descriptors > most && self.files.len() > 1 {
            let Some((oldest, descriptors)) = self.files.pop_front() else {
                break;
            };
            self.descriptors -= descriptors;
            close.push(oldest);
        }
        close
    }

    /// A bucket is gone, and its file with it.
    pub(crate) fn gone(&mut self, id: u32) {
        self.files.retain(|(other, descriptors)| {
            if *other == id {
                self.descriptors -= descriptors;
            }
            *other != id
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_opened_first_are_closed_first_and_the_newest_never() {
        let mut files = OpenFiles::default();
        for id in 1..=3 {
            assert!(files.opened(id, 2, 6).is_empty());
        }
        assert_eq!(files.opened(4, 2, 6), [1]);
        files.gone(3);
        assert!(files.opened(5, 2, 6).is_empty());
        assert_eq!(files.opened(6, 3, 6), [2, 4]);
        assert_eq!(files.opened(7, 9, 6), [5, 6]);
    }
}
