//! Which member a new flow goes to: Maglev hashing (Eisenbud et al., NSDI 2016,
//! §3.4) with weights. Every edge of a group that has the same members computes
//! the same table, and a member that joins or leaves moves few entries of the
//! others.

/// Entries of a table: a prime, as the members' permutations need, and large
/// enough that shares of a hundred members differ from their weights by less
/// than 1 %.
pub const ENTRIES: usize = 65_537;
/// Most members of one table: an entry is one byte, and 255 means nobody.
pub const MEMBERS_MAX: usize = 255;
/// Entry of a table that has no members.
pub const NOBODY: u8 = 255;

/// One member of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share<'a> {
    /// Number of the member, which its entries in the table contain.
    pub number: u8,
    /// Name that determines the member's permutation: the same on all edges and
    /// after restarts.
    pub name: &'a [u8],
    /// Weight of its share compared with the others'; 0 gets none.
    pub weight: u32,
}

struct Turn {
    number: u8,
    weight: u64,
    /// The next entry of the member's permutation, and the step to the one
    /// after it.
    next: usize,
    skip: usize,
    /// Taken entries times the largest weight: the member takes another entry
    /// when its own weight times the rounds so far reaches this.
    due: u64,
}

/// Fills a table of [`ENTRIES`] entries, each the number of a member. The order
/// of `members` does not matter; members beyond [`MEMBERS_MAX`] get no share.
#[must_use]
pub fn table(members: &[Share<'_>]) -> Vec<u8> {
    let mut table = vec![NOBODY; ENTRIES];
    let mut ordered: Vec<&Share<'_>> = members.iter().filter(|m| m.weight > 0).collect();
    ordered.sort_by_key(|m| (m.name, m.number));
    ordered.truncate(MEMBERS_MAX);
    let largest = u64::from(ordered.iter().map(|m| m.weight).max().unwrap_or(0));
    let mut turns: Vec<Turn> = ordered.into_iter().map(turn).collect();
    let mut empty = if turns.is_empty() { 0 } else { ENTRIES };
    let mut round = 0;
    while empty > 0 {
        round += 1;
        for turn in &mut turns {
            if empty == 0 || round * turn.weight < turn.due {
                continue;
            }
            turn.due += largest;
            while table[turn.next] != NOBODY {
                turn.next = (turn.next + turn.skip) % ENTRIES;
            }
            table[turn.next] = turn.number;
            empty -= 1;
        }
    }
    table
}

/// Offset and skip of the paper, from the two halves of a hash of the name.
fn turn(member: &Share<'_>) -> Turn {
    let hash = hash(member.name);
    let (low, high) = ((hash & 0xffff_ffff) as usize, (hash >> 32) as usize);
    Turn {
        number: member.number,
        weight: u64::from(member.weight),
        next: low % ENTRIES,
        skip: high % (ENTRIES - 1) + 1,
        due: 0,
    }
}

/// FNV-1a, and the finalizer of SplitMix64, so that names which differ in one
/// character have unrelated permutations. The edges must agree on it.
fn hash(name: &[u8]) -> u64 {
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let mut z = name.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Largest share of the entries that may change beyond those that have to.
    const DISRUPTION_MAX: f64 = 0.02;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("10.9.0.{i}")).collect()
    }

    fn shares<'a>(names: &'a [String], weights: &[u32]) -> Vec<Share<'a>> {
        let pairs = names.iter().zip(weights).enumerate();
        pairs
            .map(|(i, (name, &weight))| Share { number: i as u8, name: name.as_bytes(), weight })
            .collect()
    }

    fn share_of(table: &[u8], number: u8) -> f64 {
        table.iter().filter(|&&n| n == number).count() as f64 / ENTRIES as f64
    }

    fn changed(before: &[u8], after: &[u8]) -> f64 {
        before.iter().zip(after).filter(|(a, b)| a != b).count() as f64 / ENTRIES as f64
    }

    /// Number of entries that must change between two sets of shares.
    fn ideal(before: &[u8], after: &[u8]) -> f64 {
        let loss = |n: u8| (share_of(before, n) - share_of(after, n)).max(0.0);
        (0..=254).map(loss).sum()
    }

    #[test]
    fn nobody_serves_what_nobody_serves() {
        assert!(table(&[]).iter().all(|&n| n == NOBODY));
        let idle = Share { number: 3, name: b"a", weight: 0 };
        assert!(table(&[idle]).iter().all(|&n| n == NOBODY));
    }

    /// Edges of another release must agree on it, too.
    #[test]
    fn a_name_has_one_hash_for_ever() {
        let hashes = [b"".as_slice(), b"a", b"10.9.0.1"].map(hash);
        assert_eq!(hashes, [0xf52a_15e9_a9b5_e89b, 0x02c0_bdbf_4814_20f8, 0x3075_40d3_73d9_46a2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn shares_follow_the_weights(weights in proptest::collection::vec(1_u32..=1000, 1..24)) {
            let names = names(weights.len());
            let found = table(&shares(&names, &weights));
            let total: u32 = weights.iter().sum();
            for (i, &weight) in weights.iter().enumerate() {
                let wanted = f64::from(weight) / f64::from(total);
                prop_assert!((share_of(&found, i as u8) - wanted).abs() < 0.001, "{weights:?}");
            }
        }

        #[test]
        fn the_order_of_members_does_not_matter(
            weights in proptest::collection::vec(0_u32..=9, 1..12),
        ) {
            let names = names(weights.len());
            let mut members = shares(&names, &weights);
            let before = table(&members);
            members.reverse();
            prop_assert_eq!(before, table(&members));
        }

        #[test]
        fn draining_or_adding_a_member_moves_little_else(
            weights in proptest::collection::vec(1_u32..=100, 2..16),
            gone in any::<prop::sample::Index>(),
        ) {
            let names = names(weights.len());
            let all = table(&shares(&names, &weights));
            let mut fewer = weights.clone();
            fewer[gone.index(weights.len())] = 0;
            let without = table(&shares(&names, &fewer));
            for (before, after) in [(&all, &without), (&without, &all)] {
                let extra = changed(before, after) - ideal(before, after);
                prop_assert!(extra < DISRUPTION_MAX, "{extra} for {weights:?}");
            }
        }
    }
}
