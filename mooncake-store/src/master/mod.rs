//! The session.
