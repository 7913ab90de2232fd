//! What is here, with keys: page by page, read from the records.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use crate::{
    bucket::Bucket,
    disk::{DiskFile, read_exact},
    error::GetError,
    format::{Flaw, footer::FooterEntry},
    get::check_place,
    index::Entry,
    name::Incarnation,
    storage::Storage,
};

/// A record that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Whose it is.
    pub tenant: Vec<u8>,
    /// Its key among that tenant's.
    pub key: Vec<u8>,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// How long its value is.
    pub value_bytes: u32,
    /// Which bucket it is in now.
    pub bucket: u32,
}

/// Where a listing goes on. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    bucket: u32,
    /// Where in its file, since sealing changes the order in which its records are known.
    at: u64,
}

/// A bucket whose records cannot be listed.
#[derive(Debug)]
pub struct Unlisted {
    /// Which one.
    pub bucket: u32,
    /// Records in it that the index knows.
    pub records: u64,
    /// Why.
    pub error: GetError,
}

/// Some of what is here.
#[derive(Debug)]
pub struct Page {
    /// Records that can be read.
    pub records: Vec<Listed>,
    /// Records that cannot, since they are damaged: they are here, but not under any name that is known.
    pub damaged: u64,
    /// Buckets that cannot be listed, and how many records they have: these are here as well.
    pub unlisted: Vec<Unlisted>,
    /// Where it goes on; `None`: that was all.
    pub next: Option<Cursor>,
}

impl Storage {
    /// Lists about `most` records from `from` on. What was here all the time is listed once or, if a compaction moved
    /// it, twice; what came or went meanwhile, or not.
    pub(crate) fn list(&self, from: Cursor, most: usize) -> Page {
        let mut page = Page {
            records: Vec::new(),
            damaged: 0,
            unlisted: Vec::new(),
            next: None,
        };
        let mut from = from;
        // Compactions move records to buckets with greater numbers, so they are met there.
        while let Some(bucket) = self.bucket_from(from.bucket) {
            let at = if bucket.id == from.bucket { from.at } else { 0 };
            let at = match self.list_bucket(&bucket, at, most, &mut page) {
                Ok(at) => at,
                Err(error) => {
                    tracing::warn!(bucket = bucket.id, %error, "a bucket cannot be listed");
                    page.unlisted.push(Unlisted {
                        bucket: bucket.id,
                        records: bucket.live_records.load(Ordering::Relaxed),
                        error,
                    });
                    u64::MAX
                }
            };
            if page.records.len() >= most {
                let bucket = bucket.id;
                page.next = Some(Cursor { bucket, at });
                return page;
            }
            let Some(bucket) = bucket.id.checked_add(1) else {
                break;
            };
            from = Cursor { bucket, at: 0 };
        }
        page
    }

    /// Lists all that can be read in one bucket.
    pub(crate) fn list_one(&self, bucket: u32) -> Result<Vec<Listed>, GetError> {
        let mut page = Page {
            records: Vec::new(),
            damaged: 0,
            unlisted: Vec::new(),
            next: None,
        };
        if let Some(bucket) = self.bucket(bucket) {
            self.list_bucket(&bucket, 0, usize::MAX, &mut page)?;
        }
        Ok(page.records)
    }

    fn bucket_from(&self, id: u32) -> Option<Arc<Bucket>> {
        let buckets = self.buckets.read();
        buckets
            .range(id..)
            .next()
            .map(|(_, bucket)| Arc::clone(bucket))
    }

    /// Looks at the bucket's records from byte `from` of its file on; returns from where on it did not.
    fn list_bucket(
        &self,
        bucket: &Bucket,
        from: u64,
        most: usize,
        page: &mut Page,
    ) -> Result<u64, GetError> {
        let failed = |source| GetError::Io {
            bucket: bucket.id,
            source,
        };
        let looked = (|| -> io::Result<u64> {
            let mut entries = self.load_entries(bucket)?;
            let file = self.open_file(bucket)?;
            entries.retain(|record| record.layout.at >= from);
            entries.sort_unstable_by_key(|record| record.layout.at);
            let mut next = from;
            for record in &entries {
                if page.records.len() >= most {
                    break;
                }
                next = record.layout.at + 1;
                if !self.index.is_live(&Entry::new(bucket.id, record)) {
                    continue;
                }
                match read_name(&*file, bucket, record) {
                    Ok(Ok(listed)) => page.records.push(listed),
                    Ok(Err(_)) => page.damaged += 1,
                    // A place that the disk cannot read says nothing of the others.
                    Err(error) => {
                        tracing::warn!(bucket = bucket.id, %error, "a record cannot be listed");
                        page.damaged += 1;
                    }
                }
            }
            Ok(next)
        })();
        match looked {
            // It went while we looked: what was alive in it is listed with the bucket that it is in now.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && self.bucket(bucket.id).is_none() =>
            {
                Ok(from)
            }
            looked => looked.map_err(failed),
        }
    }
}

fn read_name(
    file: &dyn DiskFile,
    bucket: &Bucket,
    record: &FooterEntry,
) -> io::Result<Result<Listed, Flaw>> {
    let layout = &record.layout;
    let header = match read_exact(file, layout.at, layout.header_bytes() as usize) {
        Ok(header) => header,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Err(Flaw::Short)),
        Err(error) => return Err(error),
    };
    Ok(
        check_place(&header, bucket.stamp, layout).map(|found| Listed {
            tenant: found.name.tenant.to_vec(),
            key: found.name.key.to_vec(),
            incarnation: found.incarnation,
            value_bytes: layout.value_bytes,
            bucket: bucket.id,
        }),
    )
}
