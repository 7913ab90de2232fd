//! Power lost at every step of random lives, and damage that is no loss of power.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use rand::{SeedableRng as _, rngs::SmallRng};

use super::{
    codec::{decode, encode},
    frame::HEADER,
    recover::log_name,
    sim::SimFiles,
    *,
};
use crate::state::{Incarnation, Key, Record, StorageId};

fn held(sequence: u64) -> Record {
    Record::Held {
        storage: StorageId([7; 16]),
        tenant: "tenant".to_owned(),
        key: Key::from(format!("key-{sequence}").into_bytes()),
        incarnation: Incarnation { epoch: 3, sequence },
        length: 4096 + sequence,
    }
}

fn left(sequence: u64) -> Record {
    let Record::Held {
        storage,
        tenant,
        key,
        incarnation,
        ..
    } = held(sequence)
    else {
        unreachable!("it was made above");
    };
    Record::Left {
        storage,
        tenant,
        key,
        incarnation,
    }
}

/// What records leave, by incarnation.
type Known = BTreeMap<u64, Record>;

fn fold(known: &mut Known, records: &[Record]) {
    for record in records {
        match record {
            Record::Held { incarnation, .. } => {
                known.insert(incarnation.sequence, record.clone());
            }
            Record::Left { incarnation, .. } => {
                known.remove(&incarnation.sequence);
            }
            other => panic!("{other:?} was never written"),
        }
    }
}

fn read(files: &SimFiles) -> Result<(Known, Recovered), LogError> {
    let mut known = Known::new();
    let recovered = recover(files, |records| fold(&mut known, &records))?;
    Ok((known, recovered))
}

/// What was promised, and what was under way when power was lost.
#[derive(Clone, Debug, Default)]
struct Promised {
    known: Known,
    next: Option<Known>,
    epoch: u64,
    epoch_under_way: u64,
}

/// Lives of a log until power is lost, if it is.
fn lives(files: &SimFiles, rng: &mut SmallRng, promised: &mut Promised) -> Result<(), LogError> {
    for _ in 0..3 {
        let (known, recovered) = read(files)?;
        if let Some(next) = promised.next.take()
            && known == next
        {
            promised.known = next;
        }
        assert_eq!(known, promised.known);
        assert!(recovered.epoch == promised.epoch || recovered.epoch == promised.epoch_under_way);
        let epoch = recovered.epoch + 1;
        promised.epoch_under_way = epoch;
        let mut writer = Writer::begin(Arc::new(files.clone()), &recovered, epoch)?;
        promised.epoch = epoch;
        for _ in 0..rng.random_range(0..12) {
            if rng.random_ratio(1, 5) {
                checkpoint(files, &mut writer, epoch, promised)?;
                continue;
            }
            let records: Vec<_> = (0..rng.random_range(1..6))
                .map(|_| {
                    let sequence = rng.random_range(0..20);
                    match rng.random_ratio(1, 3) {
                        true => left(sequence),
                        false => held(sequence),
                    }
                })
                .collect();
            commit(&mut writer, &records, promised)?;
        }
    }
    Ok(())
}

fn commit(
    writer: &mut Writer,
    records: &[Record],
    promised: &mut Promised,
) -> Result<(), LogError> {
    let mut next = promised.known.clone();
    fold(&mut next, records);
    promised.next = Some(next.clone());
    let mut bytes = Vec::new();
    for record in records {
        encode(record, &mut bytes);
    }
    writer.commit(&bytes)?;
    promised.known = next;
    promised.next = None;
    Ok(())
}

/// A checkpoint that shows part of what is told while it is written.
fn checkpoint(
    files: &SimFiles,
    writer: &mut Writer,
    epoch: u64,
    promised: &mut Promised,
) -> Result<(), LogError> {
    let number = writer.prepare().and_then(|next| writer.rotate(next))?;
    let mut checkpoint = Checkpoint::begin(Arc::new(files.clone()), epoch, number)?;
    let before: Vec<_> = promised.known.values().cloned().collect();
    let (first, second) = before.split_at(before.len() / 2);
    checkpoint.add(first)?;
    commit(writer, &[left(3), held(21), left(11)], promised)?;
    let gone = |record: &&Record| ![&held(3), &held(11)].contains(record);
    let second: Vec<_> = second.iter().filter(gone).cloned().collect();
    checkpoint.add(&second)?;
    commit(writer, &[left(21)], promised)?;
    checkpoint.finish()?;
    Ok(())
}

#[test]
fn law_14_what_was_promised_survives_power_loss_at_any_step() {
    for seed in 0..60 {
        let whole = SimFiles::default();
        let mut promised = Promised::default();
        lives(&whole, &mut SmallRng::seed_from_u64(seed), &mut promised).unwrap();
        for cut in 0..whole.steps() {
            let files = SimFiles::default();
            files.lose_power_after(cut);
            let mut promised = Promised::default();
            let mut rng = SmallRng::seed_from_u64(seed);
            let ended = lives(&files, &mut rng, &mut promised);
            assert!(
                ended.is_err() && !files.has_power(),
                "seed {seed}, cut {cut}"
            );
            // Power may go once more while it is read.
            let mut chance = SmallRng::seed_from_u64(seed << 32 | cut);
            let files = files.after_loss(|below| chance.random_range(0..below));
            let files = match cut % 3 {
                0 => files,
                again => {
                    files.lose_power_after(again - 1);
                    let _ = read(&files);
                    files.after_loss(|below| chance.random_range(0..below))
                }
            };
            let (known, recovered) =
                read(&files).unwrap_or_else(|error| panic!("seed {seed}, cut {cut}: {error}"));
            let next = promised.next.as_ref() == Some(&known);
            assert!(
                known == promised.known || next,
                "seed {seed}, cut {cut}: {known:?}"
            );
            assert!(
                [promised.epoch, promised.epoch_under_way].contains(&recovered.epoch),
                "seed {seed}, cut {cut}"
            );
            // And life goes on.
            let mut promised = Promised {
                known,
                next: None,
                epoch: recovered.epoch,
                epoch_under_way: recovered.epoch,
            };
            lives(&files, &mut rng, &mut promised).unwrap();
        }
    }
}

/// A directory with a checkpoint, and two log files after it.
fn directory() -> (SimFiles, Promised) {
    let files = SimFiles::default();
    let mut promised = Promised::default();
    let (_, recovered) = read(&files).unwrap();
    let mut writer = Writer::begin(Arc::new(files.clone()), &recovered, 1).unwrap();
    commit(&mut writer, &[held(1), held(2), held(3)], &mut promised).unwrap();
    checkpoint(&files, &mut writer, 1, &mut promised).unwrap();
    let (_, recovered) = read(&files).unwrap();
    let mut writer = Writer::begin(Arc::new(files.clone()), &recovered, 2).unwrap();
    commit(&mut writer, &[held(5)], &mut promised).unwrap();
    commit(&mut writer, &[held(6)], &mut promised).unwrap();
    (files, promised)
}

#[test]
fn what_somebody_named_like_a_group_is_torn_with_the_group_that_it_is_in() {
    use super::frame::{group, is_followed};
    let (file, torn) = (3, 7);
    let like = |number| group(file, number, b"a record");
    // A key that looks like an earlier group, or like the one that is cut.
    let mut bytes = Vec::new();
    for number in [0, torn, torn + 2] {
        let records = [b"before".to_vec(), like(number), b"after".to_vec()];
        bytes = group(file, torn, &records.concat());
        bytes.truncate(bytes.len() - 2);
        assert!(!is_followed(file, torn, &bytes), "{number}");
    }
    // Behind it goes on what was acknowledged.
    bytes.extend(like(torn + 1));
    assert!(is_followed(file, torn, &bytes));
}

#[test]
fn damage_in_the_middle_is_an_error_and_not_a_torn_tail() {
    let (files, promised) = directory();
    assert_eq!(read(&files).unwrap().0, promised.known);
    let names = files.list().unwrap();
    assert_eq!(names.len(), 3, "{names:?}");
    let last = log_name(3);
    for name in names {
        let (files, promised) = directory();
        let len = files.read(&name).unwrap().len();
        for at in 0..len {
            files.damage(&name, at);
            match read(&files) {
                Err(LogError::Damaged { file, .. } | LogError::Version { file, .. }) => {
                    assert_eq!(file, name);
                }
                Err(other) => panic!("byte {at} of {name}: {other}"),
                // The last group of all could have been torn.
                Ok((known, recovered)) => {
                    assert!(name == last && at > HEADER, "byte {at} of {name}");
                    assert!(recovered.torn_bytes > 0);
                    let mut all = known;
                    fold(&mut all, &[held(6)]);
                    assert_eq!(all, promised.known);
                    break;
                }
            }
            files.damage(&name, at);
        }
    }
}

#[test]
fn a_file_that_is_missing_is_missed() {
    for name in [log_name(2), log_name(3)] {
        let (files, _) = directory();
        files.remove(&name).unwrap();
        match read(&files) {
            Err(LogError::Missing { file }) => assert_eq!(file, log_name(2)),
            Ok((known, _)) => assert!(name == log_name(3) && !known.contains_key(&6)),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_later_version_is_refused_by_its_number() {
    for name in ["log-0000000000000003", "checkpoint-0000000000000002"] {
        let (files, _) = directory();
        let mut bytes = files.read(name).unwrap();
        bytes[8..12].copy_from_slice(&9u32.to_le_bytes());
        files.write(name, bytes);
        let said = read(&files).unwrap_err().to_string();
        assert!(said.contains("version 9") && said.contains(name), "{said}");
    }
}

#[test]
fn version_1_keeps_its_form() {
    let (files, _) = directory();
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let bytes = files.read(&log_name(3)).unwrap();
    assert_eq!(hex(&bytes), GOLDEN);
}

const GOLDEN: &str = "4d434d535441544501000000010000000300000000000000020000000000000040d8cecb4d434d4737000000000000000000000085792e6f02070707070707070707070707070707070674656e616e7405006b65792d350300000000000000050000000000000005100000000000004d434d47370000000100000000000000f124bbcf02070707070707070707070707070707070674656e616e7405006b65792d36030000000000000006000000000000000610000000000000";

fn record() -> impl Strategy<Value = Record> {
    let storage = any::<[u8; 16]>().prop_map(StorageId);
    let object = || {
        let life = (any::<u64>(), any::<u64>());
        (
            "[a-z]{0,128}",
            prop::collection::vec(any::<u8>(), 0..4096),
            life,
        )
            .prop_map(|(tenant, key, (epoch, sequence))| {
                (tenant, Key::from(key), Incarnation { epoch, sequence })
            })
    };
    let tasks = || {
        let pair = (any::<[u8; 16]>().prop_map(StorageId), any::<u64>());
        prop::collection::vec(pair, 0..5)
    };
    prop_oneof![
        (storage.clone(), any::<bool>())
            .prop_map(|(id, adopting)| Record::Storage { id, adopting }),
        (storage.clone(), object(), any::<u64>()).prop_map(
            |(storage, (tenant, key, incarnation), length)| {
                Record::Held {
                    storage,
                    tenant,
                    key,
                    incarnation,
                    length,
                }
            }
        ),
        (storage.clone(), object()).prop_map(|(storage, (tenant, key, incarnation))| {
            Record::Left {
                storage,
                tenant,
                key,
                incarnation,
            }
        }),
        (object(), tasks()).prop_map(|((tenant, key, incarnation), tasks)| {
            Record::Removed {
                tenant,
                key,
                incarnation,
                tasks,
            }
        }),
        (object(), tasks()).prop_map(|((tenant, _, last), tasks)| Record::RemovedAll {
            tenant,
            last,
            tasks
        }),
        (storage.clone(), prop::collection::vec(any::<u64>(), 0..9))
            .prop_map(|(storage, tasks)| Record::Acknowledged { storage, tasks }),
        storage.prop_map(|storage| Record::Forgotten { storage }),
        object().prop_map(|(tenant, key, last)| Record::Gone { tenant, key, last }),
        any::<u64>().prop_map(|last| Record::Tasks { last }),
    ]
}

proptest! {
    #[test]
    fn records_survive_as_bytes_and_their_parts_are_none(record in record(), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        encode(&record, &mut bytes);
        let part = &bytes[..cut.index(bytes.len())];
        prop_assert_eq!(decode(&mut &*part), None);
        let mut rest = &*bytes;
        prop_assert_eq!(decode(&mut rest), Some(record));
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn law_04_noise_is_decoded_or_refused(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&mut &*noise);
    }
}
