//! Metrics as text in the format of Prometheus.

use std::{
    fmt::{self, Write},
    time::Duration,
};

use super::{Histogram, LinkMetrics, Metrics, ServedMetrics};

impl Metrics {
    /// As text in OpenMetrics, the format of Prometheus, without the line that ends a page: names begin
    /// with `tent_`, times are in seconds. Peers without numbers of their own have the label `peer=""`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text)
            .expect("writing to a string does not fail");
        text
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let tasks = [
            ("completed", of(|it| it.completed)),
            ("failed", of(|it| it.failed)),
            ("cancelled", of(|it| it.cancelled)),
            ("timed_out", of(|it| it.timed_out)),
        ];
        family(out, "tent_tasks", "counter", "Tasks that ended")?;
        for link in &self.links {
            for (outcome, count) in tasks {
                let labels = format!("{},outcome=\"{outcome}\"", labels(link));
                writeln!(out, "tent_tasks_total{{{labels}}} {}", count(link))?;
            }
        }
        let counters = [
            (
                "tent_bytes",
                "Bytes that arrived, of reads here and of writes there",
                of(|it| it.bytes),
            ),
            (
                "tent_retries",
                "Attempts that were posted once more over the same link",
                of(|it| it.retries),
            ),
        ];
        for (name, help, count) in counters {
            family(out, name, "counter", help)?;
            for link in &self.links {
                writeln!(out, "{name}_total{{{}}} {}", labels(link), count(link))?;
            }
        }
        let served = [
            (
                "tent_served_requests",
                "Requests of peers that were done here",
                served(|it| it.requests),
            ),
            (
                "tent_served_bytes",
                "Bytes that peers read here or wrote here",
                served(|it| it.bytes),
            ),
            (
                "tent_served_refusals",
                "Requests of peers that were refused or broken off",
                served(|it| it.refused),
            ),
        ];
        for (name, help, count) in served {
            family(out, name, "counter", help)?;
            for link in &self.served {
                let (transport, op) = (escaped(link.transport), link.op);
                let labels = format!("transport=\"{transport}\",op=\"{op}\"");
                writeln!(out, "{name}_total{{{labels}}} {}", count(link))?;
            }
        }
        let name = "tent_task_latency_seconds";
        family(
            out,
            name,
            "histogram",
            "From submission to completion, of some tasks",
        )?;
        for link in &self.links {
            histogram(out, name, &labels(link), &link.latency)?;
        }
        let help = "Tasks that went on over another link";
        family(out, "tent_failovers", "counter", help)?;
        for failovers in &self.failovers {
            let (from, to) = (escaped(failovers.from), escaped(failovers.to));
            let labels = format!("from=\"{from}\",to=\"{to}\"");
            writeln!(out, "tent_failovers_total{{{labels}}} {}", failovers.tasks)?;
        }
        let name = "tent_admission_wait_seconds";
        family(
            out,
            name,
            "histogram",
            "How long requests waited until they might go",
        )?;
        histogram(out, name, "", &self.admission.waits)?;
        self.write_counts(out)
    }

    /// What is counted for the engine as a whole.
    fn write_counts(&self, out: &mut String) -> fmt::Result {
        let (refreshes, registrations) = (&self.refreshes, &self.registrations);
        let (admission, notifications) = (&self.admission, &self.notifications);
        let counts: [Counts<'_>; 4] = [
            (
                "tent_refreshes",
                "Descriptors of segments that were fetched anew",
                &[("fetched", refreshes.fetched), ("failed", refreshes.failed)],
            ),
            (
                "tent_registrations",
                "What became of buffers of this process",
                &[
                    ("registered", registrations.registered),
                    ("refused", registrations.refused),
                    ("unregistered", registrations.unregistered),
                    ("renewed", registrations.renewed),
                ],
            ),
            (
                "tent_admission_refusals",
                "Submissions that were refused, and requests that waited for too long",
                &[
                    ("no_room", admission.refused),
                    ("infeasible", admission.infeasible),
                    ("waited_too_long", admission.waited_too_long),
                ],
            ),
            (
                "tent_notifications",
                "Notifications that came in",
                &[
                    ("accepted", notifications.accepted),
                    ("repeated", notifications.repeated),
                    ("busy", notifications.busy),
                    ("refused", notifications.refused),
                ],
            ),
        ];
        for (name, help, counts) in counts {
            family(out, name, "counter", help)?;
            for (what, count) in counts {
                writeln!(out, "{name}_total{{outcome=\"{what}\"}} {count}")?;
            }
        }
        Ok(())
    }
}

/// A name, what it is, and numbers by outcome.
type Counts<'a> = (&'a str, &'a str, &'a [(&'a str, u64)]);

fn of(number: fn(&LinkMetrics) -> u64) -> fn(&LinkMetrics) -> u64 {
    number
}

fn served(number: fn(&ServedMetrics) -> u64) -> fn(&ServedMetrics) -> u64 {
    number
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# HELP {name} {help}.")?;
    writeln!(out, "# TYPE {name} {kind}")?;
    match name.ends_with("_seconds") {
        true => writeln!(out, "# UNIT {name} seconds"),
        false => Ok(()),
    }
}

fn labels(link: &LinkMetrics) -> String {
    let peer = escaped(link.peer.as_deref().unwrap_or_default());
    let (transport, op) = (escaped(link.transport), link.op);
    format!("transport=\"{transport}\",peer=\"{peer}\",op=\"{op}\"")
}

fn histogram(out: &mut String, name: &str, labels: &str, times: &Histogram) -> fmt::Result {
    let comma = if labels.is_empty() { "" } else { "," };
    let braced = match labels {
        "" => String::new(),
        labels => format!("{{{labels}}}"),
    };
    let mut up_to = 0;
    for (bound, count) in times.buckets() {
        up_to += count;
        let le = bound.map_or_else(|| "+Inf".to_owned(), seconds);
        writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{le}\"}} {up_to}")?;
    }
    writeln!(out, "{name}_sum{braced} {}", seconds(times.sum()))?;
    writeln!(out, "{name}_count{braced} {up_to}")
}

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}

/// A label's value; peers choose their names.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{metrics::Failovers, transport::Op};

    #[test]
    fn the_text_has_every_number_once_and_peers_cannot_break_it() {
        let mut metrics = Metrics::default();
        metrics.failovers.push(Failovers {
            from: "shm",
            to: "tcp",
            tasks: 3,
        });
        metrics.served.push(ServedMetrics {
            transport: "tcp",
            op: Op::Write,
            requests: 11,
            bytes: 12,
            refused: 13,
        });
        metrics.links.push(LinkMetrics {
            transport: "tcp",
            peer: Some("a\"} 1\nb\\".into()),
            op: Op::Read,
            completed: 5,
            bytes: 6,
            failed: 7,
            cancelled: 8,
            timed_out: 9,
            retries: 10,
            latency: Histogram::default(),
        });
        let text = metrics.text();
        let labels = r#"transport="tcp",peer="a\"} 1\nb\\",op="read""#;
        for line in [
            format!("tent_tasks_total{{{labels},outcome=\"completed\"}} 5"),
            format!("tent_tasks_total{{{labels},outcome=\"timed_out\"}} 9"),
            format!("tent_bytes_total{{{labels}}} 6"),
            format!("tent_retries_total{{{labels}}} 10"),
            format!("tent_task_latency_seconds_bucket{{{labels},le=\"0.000001\"}} 0"),
            format!("tent_task_latency_seconds_bucket{{{labels},le=\"+Inf\"}} 0"),
            "tent_served_requests_total{transport=\"tcp\",op=\"write\"} 11".to_owned(),
            "tent_served_bytes_total{transport=\"tcp\",op=\"write\"} 12".to_owned(),
            "tent_served_refusals_total{transport=\"tcp\",op=\"write\"} 13".to_owned(),
            "tent_failovers_total{from=\"shm\",to=\"tcp\"} 3".to_owned(),
            "tent_admission_wait_seconds_count 0".to_owned(),
        ] {
            assert_eq!(
                text.lines().filter(|it| **it == line).count(),
                1,
                "{line}\n{text}"
            );
        }
        let series: Vec<_> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.rsplit_once(' ').unwrap())
            .collect();
        assert!(series.iter().all(|(_, value)| value.parse::<f64>().is_ok()));
        let distinct: std::collections::BTreeSet<_> = series.iter().map(|(name, _)| name).collect();
        assert_eq!(distinct.len(), series.len());
    }
}
