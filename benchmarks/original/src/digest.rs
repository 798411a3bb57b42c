//! What an answer holds, whatever the order: the number of its rows, and the sum of their hashes.
//!
//! A row's hash is what Spark's `xxhash64` gives of its columns, so that Python, or Spark, computes
//! the same of another answer:
//!
//!     SELECT count(*), sum(CAST(xxhash64(a, b) AS DECIMAL(38, 0))) FROM answer

use std::ops::Add;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Digest {
    pub records: i128,
    pub hashes: i128,
}

impl Digest {
    /// A row that comes as often as `diff` says, or goes.
    pub fn of(row: &[i64], diff: isize) -> Self {
        let diff = diff as i128;
        Digest { records: diff, hashes: xxhash64(row) as i128 * diff }
    }
}

impl Add for Digest {
    type Output = Digest;

    fn add(self, other: Digest) -> Digest {
        Digest { records: self.records + other.records, hashes: self.hashes + other.hashes }
    }
}

const PRIME_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME_5: u64 = 0x27D4_EB2F_1656_67C5;
const SEED: u64 = 42;

/// XXH64 of eight bytes for each column, of which the hash so far is the seed.
fn xxhash64(row: &[i64]) -> i64 {
    row.iter().fold(SEED, |seed, value| {
        let mixed = (*value as u64).wrapping_mul(PRIME_2).rotate_left(31).wrapping_mul(PRIME_1);
        let mut hash = seed.wrapping_add(PRIME_5).wrapping_add(8) ^ mixed;
        hash = hash.rotate_left(27).wrapping_mul(PRIME_1).wrapping_add(PRIME_4);
        hash = (hash ^ (hash >> 33)).wrapping_mul(PRIME_2);
        hash = (hash ^ (hash >> 29)).wrapping_mul(PRIME_3);
        hash ^ (hash >> 32)
    }) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SELECT xxhash64(a, b)` in Spark, of these pairs.
    #[test]
    fn hashes_are_those_of_spark() {
        assert_eq!(xxhash64(&[0, 0]), -9199931545335556226);
        assert_eq!(xxhash64(&[1, 2]), -8198029865082835910);
        assert_eq!(xxhash64(&[-1, 5]), 2340019948095573385);
        assert_eq!(xxhash64(&[7, 1 << 40]), 2458864258550689643);
    }

    #[test]
    fn what_comes_and_goes_leaves_nothing() {
        let row = [3, 4];
        assert_eq!(Digest::of(&row, 2) + Digest::of(&row, -2), Digest::default());
    }
}
