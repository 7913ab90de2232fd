//! Figures that stand alone, each beside its bar.

use serde::Serialize;

use crate::output::{Align, Table, count};

/// On which side of a bar is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// No less than the bar.
    AtLeast,
    /// No more than the bar.
    AtMost,
}

/// What a figure should reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// The worst value that is good enough.
    pub bar: f64,
    /// On which side is good.
    pub bar_is: Direction,
}

impl Goal {
    /// No less than this.
    #[must_use]
    pub const fn at_least(bar: f64) -> Self {
        let bar_is = Direction::AtLeast;
        Self { bar, bar_is }
    }

    /// No more than this.
    #[must_use]
    pub const fn at_most(bar: f64) -> Self {
        let bar_is = Direction::AtMost;
        Self { bar, bar_is }
    }

    const fn is_met_by(self, value: f64) -> bool {
        match self.bar_is {
            Direction::AtLeast => value >= self.bar,
            Direction::AtMost => value <= self.bar,
        }
    }
}

/// One number, and what it should be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Of what.
    pub name: String,
    /// How much.
    pub value: f64,
    /// In which unit.
    pub unit: &'static str,
    /// What it should be.
    #[serde(flatten)]
    pub goal: Option<Goal>,
    /// Whether it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// The command that measures it again.
    pub repeat: String,
}

impl Figure {
    /// A number that is only told.
    #[must_use]
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            goal: None,
            met: None,
            repeat: String::new(),
        }
    }

    /// Says what it should be.
    #[must_use]
    pub fn should_be(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self.met = Some(goal.is_met_by(self.value));
        self
    }
}

/// The figures for a person.
pub(in crate::bench) fn table(figures: &[Figure]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("figure", Left),
        ("value", Right),
        ("unit", Left),
        ("bar", Right),
        ("", Left),
    ]);
    for figure in figures {
        table.row([
            figure.name.clone(),
            digits(figure.value),
            figure.unit.to_owned(),
            figure.goal.map_or_else(String::new, |goal| {
                let sign = match goal.bar_is {
                    Direction::AtLeast => "≥",
                    Direction::AtMost => "≤",
                };
                format!("{sign} {}", digits(goal.bar))
            }),
            match figure.met {
                None => "",
                Some(true) => "yes",
                Some(false) => "NO",
            }
            .to_owned(),
        ]);
    }
    table.text()
}

/// Three digits that matter, or all before the point.
pub(super) fn digits(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        n if n < 10.0 => format!("{n:.2}"),
        n if n < 100.0 => format!("{n:.1}"),
        n => count(n.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_on_one_side_of_its_bar() {
        let low = Figure::new("time", 9.0, "ms").should_be(Goal::at_most(10.0));
        let high = Figure::new("rate", 9.0, "keys/s").should_be(Goal::at_least(10.0));
        assert_eq!((low.met, high.met), (Some(true), Some(false)));
        let text = table(&[low, high.clone(), Figure::new("told", 1_234.0, "")]);
        assert!(
            text.contains("≤ 10.0") && text.contains("NO") && text.contains("1,234"),
            "{text}"
        );
        let json = serde_json::to_value(high).unwrap();
        assert_eq!(
            (&json["bar"], &json["bar_is"], &json["met"]),
            (&10.0.into(), &"at_least".into(), &false.into())
        );
    }
}
