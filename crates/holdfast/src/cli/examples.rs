//! Whole files with comments to start from, one for each kind of group: `config example` prints
//! them, and the page holdfast.toml(5) is made of them.

/// A pair behind an edge.
pub const EXAMPLE: &str = include_str!("../../../../docs/example.toml");
/// A pair without an edge.
pub const EXAMPLE_SEGMENT: &str = include_str!("../../../../docs/example-segment.toml");
/// A spread group.
pub const EXAMPLE_SPREAD: &str = include_str!("../../../../docs/example-spread.toml");
/// Edges with strings between them.
pub const EXAMPLE_TRANSIT: &str = include_str!("../../../../docs/example-transit.toml");

/// All of them, each with what it is for.
pub const ALL: [(&str, &str); 4] = [
    ("A pair behind an edge", EXAMPLE),
    ("A pair without an edge", EXAMPLE_SEGMENT),
    ("A spread group: one address, many host servers", EXAMPLE_SPREAD),
    ("A transit group: strings of middleboxes between two edges", EXAMPLE_TRANSIT),
];

#[cfg(test)]
mod tests {
    use super::ALL;
    use crate::config::GroupFile;
    use std::path::Path;

    #[test]
    fn each_example_is_a_valid_file() {
        for (what, text) in ALL {
            let file = GroupFile::parse(Path::new("/etc/holdfast/demo.toml"), text);
            assert!(file.is_ok(), "{what}: {file:?}");
        }
    }
}
