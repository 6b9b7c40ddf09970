//! How much of a long list is run.

/// So many of a list as `make test` runs, or all of it with `HOLDFAST_MATRIX=full`, as `make soak`
/// does.
pub fn of<T>(sample: T, all: T) -> T {
    let is_full = std::env::var("HOLDFAST_MATRIX").is_ok_and(|text| text == "full");
    if is_full { all } else { sample }
}
