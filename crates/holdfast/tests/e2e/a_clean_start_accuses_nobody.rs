//! A primary that starts its server keeps its daemon busy for a while, which nobody takes for a
//! death.

use crate::world;
use holdfast_lab::testbed::Role;
use std::time::Duration;

#[test]
fn a_clean_start_accuses_nobody() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|_, group| {
        let events = group.events(Role::Edge);
        let accused = |what: &str| ["suspect", "declare", "silent"].contains(&what);
        assert!(!events.iter().any(|(_, what)| accused(what)), "{events:?}");
        assert!(events.iter().any(|(_, what)| what == "in step"), "{events:?}");
    });
}
