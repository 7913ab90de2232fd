//! What a directory tells of earlier lives.

use super::{
    Files, LogError,
    codec::decode,
    frame::{BadHeader, HEADER, Header, Kind, VERSION, group_len, is_followed, read_group},
};
use crate::state::Record;

pub(super) fn log_name(number: u64) -> String {
    format!("log-{number:016x}")
}

pub(super) fn checkpoint_name(number: u64) -> String {
    format!("checkpoint-{number:016x}")
}

/// A file that was not finished.
pub(super) const UNFINISHED: &str = ".tmp";

/// What was found, but the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Of the latest life that wrote here; 0: none did.
    pub(crate) epoch: u64,
    /// The number of the last log file; 0: there is none.
    pub(super) last: u64,
    /// What log files have that the checkpoint need not know.
    pub(super) log_bytes: u64,
    pub(super) checkpoint_bytes: u64,
    pub(crate) records: u64,
    /// Cut off at the end.
    pub(crate) torn_bytes: u64,
}

/// Reads what was durable, gives it to `take` in order and in parts, and cuts off what was not.
pub(crate) fn recover(
    files: &dyn Files,
    mut take: impl FnMut(Vec<Record>),
) -> Result<Recovered, LogError> {
    let mut names = files
        .list()
        .map_err(LogError::io("list", "the state directory"))?;
    names.sort();
    let mut found = Recovered::default();
    let mut remove = Vec::new();
    let numbered = |prefix: &str, name: &str| {
        let number = name.strip_prefix(prefix)?;
        let number = (number.len() == 16).then(|| u64::from_str_radix(number, 16).ok())?;
        number.filter(|number| *number > 0)
    };
    let (mut logs, mut checkpoints) = (Vec::new(), Vec::new());
    for name in names {
        if name.ends_with(UNFINISHED) {
            remove.push(name);
        } else if let Some(number) = numbered("log-", &name) {
            logs.push(number);
        } else if let Some(number) = numbered("checkpoint-", &name) {
            checkpoints.push(number);
        } else {
            tracing::warn!(
                name,
                "a file in the state directory is not the master's; it stays"
            );
        }
    }
    let first = match checkpoints.pop() {
        Some(number) => {
            read_checkpoint(files, number, &mut found, &mut take)?;
            number
        }
        None => 1,
    };
    remove.extend(checkpoints.into_iter().map(checkpoint_name));
    remove.extend(
        logs.iter()
            .filter(|log| **log < first)
            .map(|log| log_name(*log)),
    );
    logs.retain(|log| *log >= first);
    for (expected, number) in (first..).zip(&logs) {
        if expected != *number {
            let file = log_name(expected);
            return Err(LogError::Missing { file });
        }
    }
    if logs.is_empty() && first > 1 {
        let file = log_name(first);
        return Err(LogError::Missing { file });
    }
    for &number in &logs {
        let last = logs.last() == Some(&number);
        read_log(files, (number, last), &mut found, &mut take)?;
    }
    for name in remove {
        files.remove(&name).map_err(LogError::io("remove", &name))?;
    }
    files
        .sync()
        .map_err(LogError::io("sync", "the state directory"))?;
    Ok(found)
}

fn read_checkpoint(
    files: &dyn Files,
    number: u64,
    found: &mut Recovered,
    take: &mut impl FnMut(Vec<Record>),
) -> Result<(), LogError> {
    let file = checkpoint_name(number);
    let bytes = files.read(&file).map_err(LogError::io("read", &file))?;
    let header = header(&bytes, &file, Kind::Checkpoint, number)?;
    let mut at = HEADER;
    let mut groups = 0;
    // It got its name when all of it was durable.
    loop {
        let Some((count, records)) = read_group(number, &bytes[at..]) else {
            return Err(damaged(&file, at, "a group of records cannot be read"));
        };
        if count != groups {
            return Err(damaged(&file, at, "a group of records is missing"));
        }
        groups += 1;
        let start = at;
        at += group_len(records.len());
        if records.is_empty() {
            break;
        }
        found.records += give(records, (&file, start), take)?;
    }
    if at != bytes.len() {
        return Err(damaged(&file, at, "something follows its end"));
    }
    found.epoch = found.epoch.max(header.epoch);
    found.checkpoint_bytes = bytes.len() as u64;
    Ok(())
}

fn read_log(
    files: &dyn Files,
    (number, last): (u64, bool),
    found: &mut Recovered,
    take: &mut impl FnMut(Vec<Record>),
) -> Result<(), LogError> {
    let file = log_name(number);
    let bytes = files.read(&file).map_err(LogError::io("read", &file))?;
    let header = header(&bytes, &file, Kind::Log, number)?;
    found.epoch = found.epoch.max(header.epoch);
    let mut at = HEADER;
    let mut groups = 0;
    while at < bytes.len() {
        match read_group(number, &bytes[at..]) {
            Some((count, records)) if count == groups => {
                found.records += give(records, (&file, at), take)?;
                groups += 1;
                at += group_len(records.len());
            }
            Some(_) => return Err(damaged(&file, at, "a group of records is missing")),
            None if last && !is_followed(number, groups, &bytes[at..]) => {
                found.torn_bytes += (bytes.len() - at) as u64;
                tracing::info!(file, at, "what was not durable is cut off");
                files
                    .cut(&file, at as u64)
                    .map_err(LogError::io("cut", &file))?;
                break;
            }
            None => return Err(damaged(&file, at, "a group of records cannot be read")),
        }
    }
    found.last = number;
    found.log_bytes += at as u64;
    Ok(())
}

fn give(
    mut bytes: &[u8],
    (file, at): (&str, usize),
    take: &mut impl FnMut(Vec<Record>),
) -> Result<u64, LogError> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let Some(record) = decode(&mut bytes) else {
            return Err(damaged(
                file,
                at,
                "a record is of no kind that this master knows",
            ));
        };
        records.push(record);
    }
    let count = records.len() as u64;
    take(records);
    Ok(count)
}

fn header(bytes: &[u8], file: &str, kind: Kind, number: u64) -> Result<Header, LogError> {
    Header::decode(bytes, kind, number).map_err(|bad| bad_header(file, bad))
}

fn bad_header(file: &str, bad: BadHeader) -> LogError {
    match bad {
        BadHeader::Version(version) => LogError::Version {
            file: file.to_owned(),
            version,
            known: VERSION,
        },
        BadHeader::Unreadable => damaged(file, 0, "its header cannot be read"),
    }
}

fn damaged(file: &str, at: usize, what: &str) -> LogError {
    LogError::Damaged {
        file: file.to_owned(),
        at: at as u64,
        what: what.to_owned(),
    }
}
