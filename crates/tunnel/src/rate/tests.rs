use super::*;

#[test]
fn counts_that_grow_are_news() {
    assert_eq!(settled_and_lost((10, 2), (30, 5)), (20.0, 3.0));
    assert_eq!(settled_and_lost((10, 2), (10, 1)), (0.0, -1.0));
}
