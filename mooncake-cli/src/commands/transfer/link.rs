//! A link that is only talked about.

use std::str::FromStr;
use std::time::Duration;

use mooncake_tent::selector::{Health, LinkDevices, LinkFacts, RateTable};
use mooncake_tent::transport::Capabilities;

use crate::config::{parse_duration, parse_size};

/// A link as a command line describes it: `rdma,rate=25GB/s,latency=3us,device=mlx5_0`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkSpec {
    name: String,
    rates: Option<RateTable>,
    devices: Vec<String>,
    absent: Option<String>,
    failed: Option<String>,
    half_open: Option<String>,
    unreachable: bool,
    unregistered: bool,
}

/// What can be said of a link besides its name.
const WORDS: &str = "rate=25GB/s, latency=3us, device=NAME, failed=WHY, half-open=WHY, absent=WHY, \
                     unreachable and unregistered";

impl FromStr for LinkSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let mut spec = Self {
            name: words.next().unwrap_or_default().to_owned(),
            ..Self::default()
        };
        let (mut rate, mut latency) = (None, None);
        for word in words {
            let (what, value) = match word.split_once('=') {
                Some((what, value)) => (what, Some(value)),
                None => (word, None),
            };
            match (what, value) {
                ("rate", Some(value)) => rate = Some(parse_rate(value)?),
                ("latency", Some(value)) => latency = Some(parse_duration(value)?),
                ("device", Some(name)) => spec.devices.push(name.to_owned()),
                ("absent", why) => {
                    spec.absent = Some(why.unwrap_or("the reason is unknown").to_owned())
                }
                ("failed", why) => {
                    spec.failed = Some(why.unwrap_or("the reason is unknown").to_owned())
                }
                ("half-open", why) => {
                    spec.half_open = Some(why.unwrap_or("the reason is unknown").to_owned())
                }
                ("unreachable", None) => spec.unreachable = true,
                ("unregistered", None) => spec.unregistered = true,
                _ => return Err(format!("{word:?} says nothing of a link; {WORDS} do")),
            }
        }
        if spec.name.is_empty() || spec.name.contains('=') {
            return Err(format!("{text:?} does not begin with the name of a link"));
        }
        spec.rates = match (rate, latency) {
            (Some(rate), latency) => Some(RateTable::modelled(rate, latency.unwrap_or_default())),
            (None, Some(_)) => return Err("a latency alone tells no time: add a rate".to_owned()),
            (None, None) => None,
        };
        Ok(spec)
    }
}

/// `25GB/s`, in bytes a second.
fn parse_rate(text: &str) -> Result<f64, String> {
    let size = text
        .strip_suffix("/s")
        .ok_or_else(|| format!("{text:?} is no rate, such as 25GB/s"))?;
    match parse_size(size)? {
        0 => Err("a link of 0 bytes a second carries nothing".to_owned()),
        bytes => Ok(bytes as f64),
    }
}

impl LinkSpec {
    /// The link of this name, of which nothing else is known.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// The names of its devices.
    pub(super) fn devices(&self) -> Vec<&str> {
        self.devices.iter().map(String::as_str).collect()
    }

    /// What the selector is told of it. What links of its name can do is known.
    pub(super) fn facts<'a>(&'a self, devices: &'a [&'a str]) -> LinkFacts<'a> {
        let mut capabilities = Capabilities::read_write();
        capabilities.within_process = self.name == "in-process";
        let usual = LinkFacts::new(&self.name, capabilities);
        let health = match (&self.failed, &self.half_open) {
            (Some(why), _) => Health::Open {
                why,
                left: Duration::ZERO,
            },
            (None, Some(why)) => Health::HalfOpen { why },
            (None, None) => Health::Closed,
        };
        let joins: &[(&str, &str)] = match self.name.as_str() {
            "file" | "io_uring" => &[("cpu", "file")],
            "gds" => &[("cuda*", "file")],
            "nvlink" | "mnnvl" => &[("cuda*", "cuda*")],
            "rdma" | "ub" => &[
                ("cpu", "cpu"),
                ("cuda*", "cpu"),
                ("cpu", "cuda*"),
                ("cuda*", "cuda*"),
            ],
            _ => usual.joins,
        };
        LinkFacts {
            absent: self.absent.as_deref(),
            joins,
            same_machine_only: matches!(
                self.name.as_str(),
                "cma" | "in-process" | "nvlink" | "shm"
            ),
            reaches: !self.unreachable,
            accepts: !self.unregistered,
            health,
            rates: self.rates.as_ref(),
            devices: match self.name.as_str() {
                _ if !devices.is_empty() => LinkDevices::Named(devices),
                "cma" | "file" | "gds" | "in-process" | "io_uring" | "nvlink" | "shm" => {
                    LinkDevices::NotNeeded
                }
                "rdma" | "ub" => LinkDevices::Named(&[]),
                _ => usual.devices,
            },
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_what_is_said_of_it() {
        let spec: LinkSpec = "rdma,rate=1GB/s,latency=3us,device=a,device=b,half-open=reset"
            .parse()
            .unwrap();
        let devices = spec.devices();
        let facts = spec.facts(&devices);
        assert_eq!(facts.devices, LinkDevices::Named(&["a", "b"]));
        assert_eq!(facts.health, Health::HalfOpen { why: "reset" });
        let time = facts.rates.unwrap().estimate(1_000_000).unwrap();
        assert_eq!(time.as_micros(), 1_003);
        let shm = LinkSpec::named("shm");
        assert!(shm.facts(&[]).same_machine_only);
    }
}
