//! Bars for work that takes long.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on stderr, hidden unless it is `watched`.
pub(super) fn bar(length: u64, what: &'static str, watched: bool) -> ProgressBar {
    let target = if watched {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style =
        ProgressStyle::with_template("{msg:>12} [{bar:40}] {human_pos}/{human_len}, {eta} left")
            .expect("the template is a constant");
    ProgressBar::with_draw_target(Some(length), target)
        .with_style(style.progress_chars("=> "))
        .with_message(what)
}
