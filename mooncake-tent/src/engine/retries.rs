//! When the installation of a link is tried again.

use std::{io::ErrorKind, time::Duration};

use rustix::io::Errno;

use crate::error::{Error, Retry};

/// Pauses that grow, up to a number of attempts and an amount of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retries {
    pause: Duration,
    longest: Duration,
    attempts: u32,
    budget: Duration,
}

impl Retries {
    /// While somebody waits for it: `budget` is all the time that there is, for all links.
    pub(super) fn while_waited_for(budget: Duration) -> Self {
        Self {
            pause: Duration::from_millis(10),
            longest: Duration::from_secs(1),
            attempts: 12,
            budget,
        }
    }

    /// While an engine goes on without it.
    pub(super) fn in_the_background() -> Self {
        Self {
            pause: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            attempts: u32::MAX,
            budget: Duration::MAX,
        }
    }

    /// How long to wait for the next attempt after `attempts`, the last of which ended in `error`,
    /// `spent` after the beginning; `None`: there is none.
    pub(super) fn next(
        &mut self,
        error: &Error,
        attempts: u32,
        spent: Duration,
    ) -> Option<Duration> {
        let pause = self.pause;
        let in_time = spent.saturating_add(pause) < self.budget;
        if !may_pass(error) || attempts >= self.attempts || !in_time {
            return None;
        }
        self.pause = (pause * 2).min(self.longest);
        Some(pause)
    }
}

/// The machine may be such in a while that the link can be installed.
pub(super) fn may_pass(error: &Error) -> bool {
    match error {
        Error::System { source, .. } => {
            let kinds = [
                ErrorKind::AddrInUse,
                ErrorKind::AddrNotAvailable,
                ErrorKind::Interrupted,
                ErrorKind::NotFound,
                ErrorKind::OutOfMemory,
                ErrorKind::ResourceBusy,
                ErrorKind::TimedOut,
                ErrorKind::WouldBlock,
            ];
            // Devices that are not there yet, and what others have used up.
            let errnos = [
                Errno::NODEV,
                Errno::NXIO,
                Errno::MFILE,
                Errno::NFILE,
                Errno::NOBUFS,
                Errno::NOSPC,
            ];
            let errno = source.raw_os_error().map(Errno::from_raw_os_error);
            kinds.contains(&source.kind()) || errno.is_some_and(|errno| errnos.contains(&errno))
        }
        other => matches!(other.retry(), Retry::Here | Retry::Later(_)),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn system(errno: Errno) -> Error {
        Error::system("it")(io::Error::from(errno))
    }

    #[test]
    fn what_others_have_now_may_pass_and_what_is_forbidden_does_not() {
        for errno in [
            Errno::ADDRINUSE,
            Errno::NODEV,
            Errno::NOENT,
            Errno::MFILE,
            Errno::NOMEM,
            Errno::BUSY,
        ] {
            assert!(may_pass(&system(errno)), "{errno:?}");
        }
        for errno in [Errno::PERM, Errno::ACCESS, Errno::NOSYS, Errno::INVAL] {
            assert!(!may_pass(&system(errno)), "{errno:?}");
        }
        let message = "no".to_owned();
        assert!(!may_pass(&Error::Install {
            link: "a",
            message: message.clone()
        }));
        assert!(may_pass(&Error::NotYet { link: "a", message }));
    }

    #[test]
    fn pauses_grow_and_end_with_the_time_or_the_attempts() {
        let busy = system(Errno::ADDRINUSE);
        let mut retries = Retries::while_waited_for(Duration::from_secs(2));
        let (mut spent, mut attempts, mut last) = (Duration::ZERO, 1, Duration::ZERO);
        while let Some(pause) = retries.next(&busy, attempts, spent) {
            assert!(pause > last, "{pause:?} after {last:?}");
            (spent, attempts, last) = (spent + pause, attempts + 1, pause);
        }
        assert!(spent < Duration::from_secs(2) && spent > Duration::from_secs(1));

        let mut retries = Retries::while_waited_for(Duration::MAX);
        let tried = (1..).find(|tried| retries.next(&busy, *tried, Duration::ZERO).is_none());
        assert_eq!(tried, Some(12));
        let mut retries = Retries::while_waited_for(Duration::ZERO);
        assert_eq!(retries.next(&busy, 1, Duration::ZERO), None);

        let mut retries = Retries::in_the_background();
        let pauses: Vec<_> = (1..100)
            .map(|tried| retries.next(&busy, tried, Duration::ZERO).unwrap())
            .collect();
        assert_eq!(pauses[98], Duration::from_secs(10), "it never gives up");
    }
}
