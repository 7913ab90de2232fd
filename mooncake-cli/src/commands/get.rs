//! `mooncake get`: fetches a value.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use mooncake_store::{Client, ErrorCode, Value};

use super::Context;
use super::store::{Store, parse_key};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, Format, No, Show, bytes, key, micros, tolerate};

/// How much of a value is copied at once.
const PIECE: usize = 1 << 20;

/// The arguments of `mooncake get`.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The key.
    pub key: OsString,
    /// Where the value goes; else to standard output, and nothing but the value.
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

/// A value that was fetched into a file.
#[derive(Clone, Debug, Serialize)]
pub struct GetResult {
    /// Its key.
    pub key: String,
    /// The file.
    pub to: String,
    /// Its length.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Show for GetResult {
    fn human(&self) -> String {
        format!(
            "{}: {} in {}, written to {}",
            self.key,
            bytes(self.bytes),
            micros((self.seconds * 1e6) as u64),
            self.to
        )
    }
}

/// Runs the command; "no" when there is no such key.
///
/// # Errors
///
/// When the value cannot be fetched whole, or not be written.
pub fn run(args: &GetArgs, context: &Context) -> Result<Exit, Failure> {
    let to = args.to.as_deref().filter(|path| *path != "-");
    if context.output.format() == Format::Json && to.is_none() {
        let failure = Failure::new("standard output cannot take both the value and a JSON result");
        return Err(failure.remedy("--to FILE"));
    }
    let settings = context.sources.settle(&args.settings)?.settings;
    let wire_key = parse_key(&args.key)?;
    let shown = key(&wire_key);
    let got = Store::with(settings, async |store| {
        let begun = Instant::now();
        let mut results = store.client.get(vec![wire_key]).await;
        let value = match results.pop().expect("one result per key") {
            Ok(value) => value,
            Err(fault) if fault.code == ErrorCode::ObjectNotFound => return Ok(None),
            Err(fault) => {
                return Err(store.refused(format!("{shown} cannot be fetched"), &fault));
            }
        };
        let seconds = begun.elapsed().as_secs_f64();
        let Some(path) = to else {
            let written = write(&value, &mut io::stdout().lock());
            return tolerate(written).map(|()| Some(None));
        };
        save(&value, path).map_err(|error| {
            Failure::new(format!("{} cannot be written", path.display())).because(error)
        })?;
        Ok(Some(Some(GetResult {
            key: shown.clone(),
            to: path.display().to_string(),
            bytes: value.len(),
            seconds,
        })))
    })?;
    match got {
        Some(Some(result)) => context.output.result(&result)?,
        Some(None) => {}
        None => return context.output.no(&No::new(shown, "no such object")),
    }
    Ok(Exit::Yes)
}

fn write(value: &Value, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE.min(value.len() as usize)];
    let mut at = 0;
    while at < value.len() {
        let rest = piece.len().min((value.len() - at) as usize);
        value.read_at(at, &mut piece[..rest]);
        to.write_all(&piece[..rest])?;
        at += rest as u64;
    }
    to.flush()
}

/// Puts the value into a file that has either all of it or what it had before.
fn save(value: &Value, path: &Path) -> io::Result<()> {
    let there = fs::metadata(path).ok();
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        // A device or a pipe: it must stay what it is.
        return write(value, &mut File::options().write(true).open(path)?);
    }
    // A link stays, and what it leads to is replaced.
    let path = if there.is_some() {
        path.canonicalize()?
    } else {
        path.to_path_buf()
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let permissions =
        there.map_or_else(|| Permissions::from_mode(0o666), |file| file.permissions());
    let mut file = tempfile::Builder::new()
        .prefix(".mooncake-")
        .permissions(permissions)
        .tempfile_in(folder)?;
    write(value, file.as_file_mut())?;
    file.persist(&path)?;
    Ok(())
}
