//! In the steady state the event loop allocates nothing: a run of ten times the segments only makes
//! some tables grow.

use allocation_counter::measure;
use holdfast_netsim::net::dumbbell::{Dumbbell, one_flow};
use holdfast_netsim::net::run;
use holdfast_netsim::tcp::Profile;

/// Most allocations in a run of ten times the segments: that often tables double.
const GROWTHS: u64 = 64;

#[test]
fn the_loop_allocates_nothing() {
    for profile in [Profile::NS2, Profile::NS3, Profile::MODERN] {
        let [few, many] = [2000, 20_000].map(|segments| {
            let scenario = one_flow(&Dumbbell::thesis(), profile, segments, 0, None);
            let mut sent = 0;
            let found = measure(|| sent = run(&scenario).unwrap().flows[0].counts.sent);
            assert!(sent >= u64::from(segments), "{sent}");
            found.count_total
        });
        assert!(many <= few + GROWTHS, "{profile:?}: {few}, then {many}");
    }
}
