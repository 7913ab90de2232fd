//! What the way of a task was chosen with.

use crate::selector::DeviceMask;

/// What a link must keep to, or may make use of, for a task: as the policy and the request say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Terms {
    /// The only devices that may carry it, by their places among those that the link
    /// [names](super::Transport::devices); `None`: all may.
    pub devices: Option<DeviceMask>,
    /// The pool of connections, for links that have pools.
    pub pool: Option<String>,
    /// The service level, for links that have one: at most 15.
    pub service_level: Option<u8>,
    /// The traffic class, for links that have one.
    pub traffic_class: Option<u8>,
}
