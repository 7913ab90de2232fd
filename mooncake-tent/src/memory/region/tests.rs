//! What a region must keep.

use super::*;

#[test]
fn what_was_written_is_read_back_from_each_kind_of_region() {
    for memory in [
        Memory::allocate(10_007).unwrap(),
        Memory::from_vec(vec![0; 10_007]).unwrap(),
    ] {
        memory.prefault().unwrap();
        let data: Vec<u8> = (0..5_003).map(|i| (i % 251) as u8).collect();
        memory.write_at(5_004, &data);
        let mut back = vec![0; 5_003];
        memory.read_at(5_004, &mut back);
        assert_eq!(back, data);
        memory.read_at(0, &mut back);
        assert!(back.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn whoever_maps_the_file_sees_the_same_bytes_and_cannot_cut_it() {
    let memory = Memory::allocate(10_007).unwrap();
    memory.write_at(9_000, b"moon");
    let file = File::from(memory.file().unwrap().try_clone_to_owned().unwrap());
    assert_eq!(file.metadata().unwrap().len(), 10_007);
    let mut seen = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut seen, 9_000).unwrap();
    assert_eq!(&seen, b"moon");
    for len in [0, 20_000] {
        let refused = file.set_len(len).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
    assert!(Memory::from_vec(vec![0]).unwrap().file().is_none());
}

#[test]
fn huge_pages_are_had_or_the_error_says_why_not() {
    let wanted = MemoryOptions::new((2 << 20) + 1).huge_pages(HugePages::TwoMiB);
    match Memory::allocate_with(&wanted.prefault()) {
        Ok(memory) => {
            assert_eq!(memory.huge_pages(), Some(HugePages::TwoMiB));
            memory.write_at(2 << 20, b"x");
            assert_eq!(memory.address() % (2 << 20), 0);
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.starts_with("no huge pages of 2 MiB: "), "{error}");
        }
    }
    // More than any machine has set aside.
    let wanted = MemoryOptions::new(1 << 46);
    let error = Memory::allocate_with(&wanted.huge_pages(HugePages::OneGiB)).unwrap_err();
    assert!(
        error.to_string().starts_with("no huge pages of 1 GiB: "),
        "{error}"
    );
}

#[test]
fn ordinary_pages_take_the_place_of_huge_ones_only_where_that_was_asked_for() {
    let wanted = MemoryOptions::new(1 << 40);
    let memory = Memory::allocate_with(&wanted.huge_pages_if_any(HugePages::TwoMiB)).unwrap();
    assert_eq!((memory.huge_pages(), memory.len()), (None, 1 << 40));
    memory.write_at((1 << 40) - 1, b"x");
    assert!(Memory::allocate_with(&wanted.huge_pages(HugePages::TwoMiB)).is_err());
}

/// Says that a test could not run: `./test` counts the lines of the file that MOONCAKE_SKIP_LOG
/// names.
fn skip(reason: &str) {
    let Some(log) = std::env::var_os("MOONCAKE_SKIP_LOG") else {
        return;
    };
    let mut log = File::options().append(true).create(true).open(log).unwrap();
    io::Write::write_all(&mut log, format!("skipped: {reason}\n").as_bytes()).unwrap();
}

#[test]
fn memory_comes_from_the_node_that_it_is_bound_to() {
    let nodes = crate::platform::Topology::probe().unwrap().nodes;
    for node in nodes.iter().filter(|node| node.memory_bytes > Some(0)) {
        let options = MemoryOptions::new(10_007).numa_node(node.id).prefault();
        let memory = match Memory::allocate_with(&options) {
            Ok(memory) => memory,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return skip(&format!("a sandbox forbids it: {error}"));
            }
            Err(error) => panic!("{error}"),
        };
        // SAFETY: the address is that of a live region.
        let found = unsafe { numa::node_of(memory.base) };
        assert_eq!(found.unwrap(), i32::try_from(node.id).unwrap());
    }
    for strange in [1023, 1024, u32::MAX] {
        let error = Memory::allocate_with(&MemoryOptions::new(1).numa_node(strange)).unwrap_err();
        assert!(
            error.to_string().contains(&format!("NUMA node {strange}")),
            "{error}"
        );
    }
}

#[test]
fn an_empty_region_is_refused() {
    assert!(Memory::allocate(0).is_err());
    assert!(Memory::from_vec(Vec::new()).is_err());
}

#[test]
#[should_panic(expected = "outside of a region")]
fn a_range_beyond_the_end_panics_before_it_touches_memory() {
    Memory::allocate(10).unwrap().write_at(6, &[0; 5]);
}
