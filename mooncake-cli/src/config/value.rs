//! What a setting can be: each type reads itself from a text and says what it takes.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use mooncake_master::AllocationStrategy;

use super::units::{parse_duration, parse_size, size_text};

/// A type that settings can have.
pub trait SettingValue: Sized {
    /// What kind of value it is, in a word.
    const KIND: &'static str;

    /// Reads it.
    ///
    /// # Errors
    ///
    /// What is wrong with `text`, and what would be right.
    fn parse(text: &str) -> Result<Self, String>;
}

impl SettingValue for String {
    const KIND: &'static str = "text";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl SettingValue for bool {
    const KIND: &'static str = "switch";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| format!("{text:?} is neither true nor false"))
    }
}

impl SettingValue for u64 {
    const KIND: &'static str = "number";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| format!("{text:?} is no whole number"))
    }
}

impl SettingValue for SocketAddr {
    const KIND: &'static str = "ip:port";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            format!("{text:?} is no address to listen on, such as 0.0.0.0:50051 or [::]:50051")
        })
    }
}

impl SettingValue for Duration {
    const KIND: &'static str = "duration";

    fn parse(text: &str) -> Result<Self, String> {
        let duration = parse_duration(text)?;
        if duration.is_zero() {
            Err("a duration of 0 leaves no time for anything".to_owned())
        } else {
            Ok(duration)
        }
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Size(u64);

impl Size {
    /// That many bytes.
    #[must_use]
    pub const fn of(bytes: u64) -> Self {
        Self(bytes)
    }

    /// How many bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&size_text(self.0))
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_size(text).map(Self)
    }
}

impl SettingValue for Size {
    const KIND: &'static str = "size";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

/// A share of a whole, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// The share as a number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl SettingValue for Ratio {
    const KIND: &'static str = "ratio";

    fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(share) if (0.0..=1.0).contains(&share) => Ok(Self(share)),
            _ => Err(format!("{text:?} is no ratio from 0 to 1, such as 0.9")),
        }
    }
}

/// Where somebody else listens: a host name or an IP address, and a port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address(String);

impl Address {
    /// The address as `host:port`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SettingValue for Address {
    const KIND: &'static str = "host:port";

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            Err(format!(
                "{text:?} {what}; an address is host:port, such as 10.0.0.7:50051"
            ))
        };
        if text.contains("://") {
            return wrong("has a scheme");
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return wrong("has no port");
        };
        let bracketed = host.starts_with('[') && host.ends_with(']');
        if host.is_empty()
            || host.contains(char::is_whitespace)
            || (host.contains(':') && !bracketed)
        {
            return wrong("has no host that could be told from its port");
        }
        match port.parse::<u16>() {
            Ok(0) | Err(_) => wrong("has no port from 1 to 65535"),
            Ok(_) => Ok(Self(text.to_owned())),
        }
    }
}

impl SettingValue for AllocationStrategy {
    const KIND: &'static str = "strategy";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|unknown: mooncake_master::UnknownStrategy| unknown.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::super::duration_text;
    use super::*;

    #[test]
    fn addresses_need_a_host_and_a_port() {
        for good in [
            "localhost:1",
            "10.0.0.1:50051",
            "[::1]:50051",
            "mooncake-master.kv.svc:65535",
        ] {
            assert_eq!(
                Address::parse(good)
                    .map(|address| address.to_string())
                    .as_deref(),
                Ok(good)
            );
        }
        for bad in [
            "",
            "localhost",
            ":1",
            "localhost:",
            "localhost:0",
            "::1:50051",
            "a b:1",
            "http://a:1",
            "a:65536",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ratios_lie_between_nothing_and_all() {
        for good in ["0", "1", "0.90", "1e-3"] {
            assert!(Ratio::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-0.1", "1.01", "90%", "NaN", "inf"] {
            assert!(Ratio::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn text_of_a_duration_reads_back() {
        for millis in [1, 999, 1_000, 1_500, 60_000, 90_000, 3_600_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(Duration::parse(&duration_text(duration)), Ok(duration));
        }
    }
}
