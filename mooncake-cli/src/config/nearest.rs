//! Finds the name that somebody probably meant.

/// The name of `known` that is nearest to `name`, unless none is near.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = 1 + name.len() / 4;
    known
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= most || shares_a_word(name, candidate))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Whether the one is the other with words added, as `size` is to `segment_size`.
fn shares_a_word(name: &str, candidate: &str) -> bool {
    let part =
        |short: &str, long: &str| short.len() > 3 && long.split('_').any(|word| word == short);
    part(name, candidate) || part(candidate, name)
}

/// How many bytes must be inserted, removed or replaced to turn one into the other.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_textbook() {
        for (from, to, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!(distance(from, to), expected, "{from} {to}");
        }
    }

    #[test]
    fn slips_are_understood_and_guesses_are_not() {
        let known = ["listen", "segment_size", "put_deadline"];
        assert_eq!(nearest("lissten", known), Some("listen"));
        assert_eq!(nearest("size", known), Some("segment_size"));
        assert_eq!(nearest("put-deadline", known), Some("put_deadline"));
        assert_eq!(nearest("frobnicate", known), None);
    }
}
