//! What the logs are told of a submission, at level debug.

use smallvec::SmallVec;
use tracing::{Level, Span, field};

use super::{Request, parts::To, routing::Errand, tent::Shared};

/// Somebody listens; otherwise nothing is computed for it.
#[inline]
pub(super) fn is_wanted() -> bool {
    tracing::enabled!(Level::DEBUG)
}

impl Shared {
    /// A span of the submission of `requests`: what the first one asks, and how many bytes all of them
    /// move.
    #[cold]
    pub(super) fn span(&self, requests: &[Request]) -> Span {
        let Some(first) = requests.first() else {
            return Span::none();
        };
        let mixed = requests.iter().any(|other| other.op != first.op);
        let elsewhere = |other: &Request| other.segment.name() != first.segment.name();
        let others = requests.iter().filter(|other| elsewhere(other)).count();
        let span = tracing::debug_span!(
            "submission",
            segment = first.segment.name(),
            op = if mixed {
                "mixed".to_owned()
            } else {
                first.op.to_string()
            },
            tasks = requests.len(),
            bytes = requests.iter().map(Request::length).sum::<u64>(),
            link = field::Empty,
            why = field::Empty,
            // Tasks that go to other segments than the first.
            elsewhere = field::Empty,
        );
        if !span.is_disabled() {
            let errand = Errand::of(first, first.length(), None);
            let why = self.why(&errand, &first.segment);
            span.record("why", field::display(why));
            if others > 0 {
                span.record("elsewhere", others);
            }
        }
        span
    }

    /// Tells `span` which links were chosen.
    #[cold]
    pub(super) fn record_links(&self, span: &Span, links: &[To]) {
        let mut names = SmallVec::<[&str; 4]>::new();
        for link in links {
            let name = match link {
                To::Link(link) => self.parts.links[*link].name(),
                To::Later | To::Nowhere => "none",
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        span.record("link", names.join(","));
    }
}
