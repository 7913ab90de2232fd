//! Why a command failed, and what to try.

use std::error::Error;

use serde_json::json;

use crate::config::ConfigError;
use crate::trace::TraceError;

/// An error on its way to the user: what failed, why, and what may help.
#[derive(Debug)]
pub struct Failure {
    what: String,
    causes: Vec<String>,
    remedy: Option<String>,
}

impl Failure {
    /// Says what failed, in a lower-case phrase with the names and numbers that matter.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            causes: Vec::new(),
            remedy: None,
        }
    }

    /// Adds the reason, and the reasons behind it.
    #[must_use]
    pub fn because(mut self, error: impl Error) -> Self {
        let mut cause: Option<&dyn Error> = Some(&error);
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors repeat their source in their own message.
            if !self
                .causes
                .last()
                .map_or(self.what.as_str(), String::as_str)
                .contains(&text)
            {
                self.causes.push(text);
            }
            cause = error.source();
        }
        self
    }

    /// Adds a reason that is no error of its own.
    #[must_use]
    pub fn cause(mut self, reason: impl Into<String>) -> Self {
        self.causes.push(reason.into());
        self
    }

    /// Adds what the user may try.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The failure for a person.
    #[must_use]
    pub fn human(&self) -> String {
        let mut text = format!("error: {}", self.what);
        for cause in &self.causes {
            text += ": ";
            text += cause;
        }
        if let Some(remedy) = &self.remedy {
            text += "\n  try: ";
            text += remedy;
        }
        text
    }

    /// Says in front whose failure it is.
    #[must_use]
    pub fn of(mut self, who: &str) -> Self {
        self.what = format!("{who}: {}", self.what);
        self
    }

    /// The failure that a program was given by [`json`](Self::json); `None`: it is something else.
    #[must_use]
    pub fn from_json(document: &serde_json::Value) -> Option<Self> {
        let error = document.get("error")?;
        let causes = error.get("causes")?.as_array()?.iter();
        Some(Self {
            what: error.get("message")?.as_str()?.to_owned(),
            causes: causes
                .map(|cause| Some(cause.as_str()?.to_owned()))
                .collect::<Option<_>>()?,
            remedy: error.get("try")?.as_str().map(str::to_owned),
        })
    }

    /// The failure for a program.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        json!({"error": {"message": self.what, "causes": self.causes, "try": self.remedy}})
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let mut failure = Self::new(error.to_string());
        failure.remedy = error.remedy();
        match error.source() {
            Some(source) => failure.because(source),
            None => failure,
        }
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        let TraceError { file, line, kind } = error;
        let place = if line == 0 {
            file
        } else {
            format!("{file}, line {line}")
        };
        Self::new(format!("{place}: {kind}"))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_failure_says_what_why_and_what_to_try() {
        let failure = Failure::new("a.toml cannot be read")
            .because(io::Error::other("no such luck"))
            .remedy("b.toml");
        assert_eq!(
            failure.human(),
            "error: a.toml cannot be read: no such luck\n  try: b.toml"
        );
        let expected = json!({"error": {
            "message": "a.toml cannot be read", "causes": ["no such luck"], "try": "b.toml",
        }});
        assert_eq!(failure.json(), expected);
        let told = Failure::from_json(&expected).unwrap().of("node-0");
        assert_eq!(told.human(), failure.of("node-0").human());
        assert!(Failure::from_json(&json!({"ready": {}})).is_none());
    }

    #[test]
    fn what_a_message_already_says_is_not_said_twice() {
        let failure = Failure::new("lost: no such luck").because(io::Error::other("no such luck"));
        assert_eq!(failure.human(), "error: lost: no such luck");
    }
}
