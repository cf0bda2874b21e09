//! Numbers as a row of blocks, for a look in the terminal. Pure.

/// From nothing to full; nothing at all is a blank.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One block a number, the largest as high as there is. What is more than nothing is always seen.
pub(super) fn bars(values: &[u64]) -> String {
    let most = values.iter().copied().max().unwrap_or(0);
    values.iter().map(|value| BLOCKS[height(*value, most)]).collect()
}

fn height(value: u64, most: u64) -> usize {
    let eighths = u128::from(value) * 8;
    usize::try_from(eighths.div_ceil(u128::from(most.max(1)))).unwrap_or(8).min(8)
}

/// Sums neighbours so that at most `columns` numbers are left; says how many went into each.
pub(super) fn folded(values: &[u64], columns: usize) -> (Vec<u64>, usize) {
    let each = values.len().div_ceil(columns.max(1)).max(1);
    let sum = |part: &[u64]| part.iter().copied().fold(0, u64::saturating_add);
    // From the end, so that the last column is a full one.
    let mut sums: Vec<_> = values.rchunks(each).map(sum).collect();
    sums.reverse();
    (sums, each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_full_and_little_is_not_nothing() {
        assert_eq!(bars(&[0, 1, 4, 8]), " ▁▄█");
        assert_eq!(bars(&[0, 1, 1_000_000]), " ▁█");
        assert_eq!(bars(&[0, 0]), "  ");
        assert_eq!(bars(&[u64::MAX, u64::MAX / 2]), "█▄");
        assert_eq!(bars(&[]), "");
    }

    #[test]
    fn neighbours_are_summed_from_the_end() {
        assert_eq!(folded(&[1, 2, 3, 4, 5], 3), (vec![1, 5, 9], 2));
        assert_eq!(folded(&[1, 2], 60), (vec![1, 2], 1));
        assert_eq!(folded(&[], 60), (vec![], 1));
        assert_eq!(folded(&[u64::MAX, 1], 1), (vec![u64::MAX], 2));
    }
}
