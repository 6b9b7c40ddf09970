//! An end whose address changes is followed, while a connection goes on.

use crate::bed::{A, B, Bed, INSIDE, OUTSIDE, at, wait};
use crate::traffic::{ping, tcp};
use std::time::Duration;

const ELSEWHERE: &str = "10.77.0.5";

#[test]
fn the_peer_is_where_it_was_heard_last() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write(A, &bed.tun(A, ""), &format!("address = \"{}\"", at(OUTSIDE[B])));
    // B does not know where A is.
    bed.write(B, &bed.tun(B, ""), "");
    bed.start_both();
    assert_eq!(ping(&bed, INSIDE[B], 5, 56), 5);
    let told =
        |bed: &Bed| bed.status(B).and_then(|it| it["peer"]["address"].as_str().map(str::to_owned));
    assert_eq!(told(&bed), Some(at(OUTSIDE[A])));

    bed.ip(A, &["address", "add", &format!("{ELSEWHERE}/24"), "dev", "w0"]);
    bed.ip(A, &["address", "delete", &format!("{}/24", OUTSIDE[A]), "dev", "w0"]);
    // With its first address the second one may have gone, too.
    let _there = bed
        .command(A, "ip")
        .args(["address", "replace", &format!("{ELSEWHERE}/24"), "dev", "w0"])
        .output();
    wait("a ping from elsewhere", Duration::from_secs(10), || ping(&bed, INSIDE[B], 3, 56) > 0);
    assert_eq!(ping(&bed, INSIDE[B], 10, 56), 10);
    assert_eq!(told(&bed), Some(at(ELSEWHERE)));
    tcp(&bed, INSIDE[B], 1 << 20);
    let status = bed.status(B).expect("an answer");
    assert_eq!(status["security"]["roamed"], 1);
    assert_eq!(status["security"]["peer_restarts"], 0);
}
