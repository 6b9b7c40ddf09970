//! The second line of defence: a primary of a pair without an edge that goes on speaking when
//! another one has taken over, because nothing in its kernel keeps it from it.

use crate::world;
use std::time::Duration;

/// What its kernel says by itself is what the gate lets out, and that harms no client.
#[test]
fn frames_of_two_members_reach_the_clients_and_nobody_is_harmed() {
    let _limit = world::limit(Duration::from_secs(180));
    let kinds = [
        "--segment flood --no-fence --fault daemon-kill --workload churn",
        "--segment flood --no-fence --fault daemon-kill --workload churn --ipv6",
        "--segment flood --no-fence --fault daemon-kill --workload echo",
        "--segment flood --no-fence --fault daemon-kill --workload upload --ipv6",
        "--segment flood --no-fence --fault freeze --workload download",
        "--segment flood --no-fence --fault freeze --workload churn",
        "--segment chain --no-fence --fault daemon-kill --workload churn",
        "--segment clone --no-fence --fault daemon-kill --workload churn",
    ];
    world::all_survive(&kinds, 1);
    let heard = world::outcome(kinds[0], world::first_seed()).expect("a takeover").fenced_packets;
    assert!(heard > 0, "its fence was open");
}
