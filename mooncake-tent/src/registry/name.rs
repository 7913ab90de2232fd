//! What names of segments may be.

/// The longest name, in bytes.
const MOST: usize = 200;

/// It is the address of a control service, and no registry is asked.
pub(crate) fn is_address(name: &str) -> bool {
    name.contains(':')
}

/// It may be the address of a control service: `host:port`.
pub(crate) fn is_place(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else {
        return false;
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]%".contains(&byte);
    !host.is_empty() && host.bytes().all(plain) && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// What is wrong with a name that an engine wants, if anything.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if !(1..=MOST).contains(&name.len()) {
        return Err(format!("a name has 1 to {MOST} bytes, not {}", name.len()));
    }
    if is_address(name) {
        return Err(format!("{name:?} has a colon, as only addresses have"));
    }
    if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(format!("{name:?} has spaces or control characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_addresses() {
        assert_eq!(check_name("prefill/rack-7/näme"), Ok(()));
        for bad in [
            "",
            "10.0.0.1:80",
            "file:///x",
            "a b",
            "a\n",
            &"x".repeat(201),
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(is_address("[::1]:80") && !is_address("node-1"));
    }
}
