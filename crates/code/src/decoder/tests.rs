use crate::fuzz::decode_hostile;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn nothing_that_comes_in_breaks_it(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        decode_hostile(&bytes);
    }
}

#[test]
fn shapes_of_every_kind_are_reached() {
    let mut complete = 0;
    for seed in 0..2000u32 {
        let bytes: Vec<u8> = (0..400u32)
            .map(|i| (seed.wrapping_mul(2_654_435_761).wrapping_add(i * i * 31) >> 11) as u8)
            .collect();
        complete += u32::from(decode_hostile(&bytes));
    }
    assert!(complete > 200, "only {complete} segments were completed");
}
