//! Compactions that a crash ended: before the commit nothing happened, after it all of it.

use std::io;

use crate::{
    bucket::read_footer,
    disk::{Disk, read_exact},
    error::{OpenError, flaw_of},
    format::{
        BLOCK, Flaw,
        control::Control,
        file_name::{FileName, QUARANTINED},
        head::{self, Head},
    },
    recover::survey::{Survey, damaged, read_control},
};

/// Ends all of them. The survey says afterwards what there is.
pub(crate) fn resolve(
    disk: &dyn Disk,
    survey: &mut Survey,
    identity: [u8; 16],
) -> Result<u64, OpenError> {
    let mut resolved = 0;
    for number in std::mem::take(&mut survey.transitions) {
        let name = FileName::Transition(number);
        let Control::Transition {
            committed,
            target,
            sources,
        } = read_control(disk, name)?
        else {
            return Err(damaged(name, Flaw::Header));
        };
        if target != number {
            return Err(damaged(name, Flaw::Place));
        }
        let failed = |what: &str| OpenError::io(format!("{what} of {}", name.text()));
        if committed {
            commit(disk, survey, identity, target, &sources)
                .map_err(failed("ending what was begun"))?;
        } else {
            // What it wrote is worth nothing; the sources have all.
            survey.targets.remove(&target);
            survey.buckets.remove(&target);
            for rubbish in [
                FileName::Target(target),
                FileName::Open(target),
                FileName::Sealed(target),
            ] {
                remove(disk, rubbish).map_err(failed("undoing what was begun"))?;
            }
        }
        disk.sync().map_err(failed("syncing the directory"))?;
        remove(disk, name).map_err(failed("removing"))?;
        survey.controls.retain(|(other, _)| *other != name);
        resolved += 1;
    }
    if resolved > 0 {
        disk.sync()
            .map_err(OpenError::io("syncing the directory"))?;
    }
    // Nobody knows what these were to be.
    for target in std::mem::take(&mut survey.targets) {
        quarantine(disk, survey, FileName::Target(target))
            .map_err(OpenError::io("setting aside a target without a transition"))?;
    }
    Ok(resolved)
}

fn commit(
    disk: &dyn Disk,
    survey: &mut Survey,
    identity: [u8; 16],
    target: u32,
    sources: &[u32],
) -> io::Result<()> {
    let here = if survey.targets.remove(&target) {
        Some(FileName::Target(target))
    } else {
        survey.buckets.get(&target).map(|(name, _)| *name)
    };
    let whole = here.map_or(Ok(None), |name| whole_bytes(disk, name, target, identity))?;
    if let (Some(name), Some(bytes)) = (here, whole) {
        let sealed = FileName::Sealed(target);
        if name != sealed {
            disk.rename(&name.text(), &sealed.text())?;
        }
        survey.buckets.insert(target, (sealed, bytes));
        for source in sources {
            survey.buckets.remove(source);
            remove(disk, FileName::Sealed(*source))?;
            remove(disk, FileName::Open(*source))?;
        }
        return Ok(());
    }
    // The copies are damaged, and of the originals it is not known which are dead since. Nothing is served.
    tracing::error!(
        target,
        ?sources,
        "a compaction was committed, but what it wrote is damaged"
    );
    let originals = sources
        .iter()
        .filter_map(|source| survey.buckets.get(source));
    let all: Vec<_> = here
        .into_iter()
        .chain(originals.map(|(name, _)| *name))
        .collect();
    for name in all {
        quarantine(disk, survey, name)?;
    }
    survey.buckets.remove(&target);
    for source in sources {
        survey.buckets.remove(source);
    }
    Ok(())
}

/// The length of a sealed bucket that is what it should be; `None`: it is not.
pub(crate) fn whole_bytes(
    disk: &dyn Disk,
    name: FileName,
    id: u32,
    identity: [u8; 16],
) -> io::Result<Option<u64>> {
    let looked = || {
        let file = disk.open(&name.text())?;
        let bytes = file.len()?;
        let head = read_exact(&*file, 0, BLOCK as usize)?;
        let flawed = |flaw| io::Error::new(io::ErrorKind::InvalidData, flaw);
        let head = Head::decode(&head, head::BUCKET).map_err(flawed)?;
        if head.id != id || head.storage != identity {
            return Err(flawed(Flaw::Place));
        }
        read_footer(&*file, head.stamp, id, bytes)?;
        Ok(bytes)
    };
    match looked() {
        Ok(bytes) => Ok(Some(bytes)),
        // It is whole, and for a program that knows it.
        Err(error) if matches!(flaw_of(&error), Some(Flaw::Version(_))) => Err(error),
        Err(error) => match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

fn remove(disk: &dyn Disk, name: FileName) -> io::Result<()> {
    match disk.remove(&name.text()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Sets a file aside, where nothing touches it and an operator finds it.
pub(crate) fn quarantine(disk: &dyn Disk, survey: &mut Survey, name: FileName) -> io::Result<()> {
    let text = name.text();
    let bytes = disk.open(&text)?.len()?;
    disk.rename(&text, &(text.clone() + QUARANTINED))?;
    survey.quarantined_files += 1;
    survey.quarantined_bytes += bytes;
    tracing::warn!(file = text, bytes, "a file was set aside");
    Ok(())
}
