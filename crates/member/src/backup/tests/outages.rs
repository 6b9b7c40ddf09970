//! A network that fails for everybody: what breaks in it says nothing of the primary.

use super::*;

/// A backup whose network fails for everybody for `ms`; then the edge is heard again, and of the
/// primary nothing but what the edge says.
fn after_silence(ms: u64) -> Bed {
    let mut bed = Bed::served();
    (bed.book.beats, bed.book.mute) = (None, true);
    bed.pass(ms);
    assert_eq!(bed.book.take(), Vec::<String>::new(), "it accuses nobody");
    bed.book.mute = false;
    bed.book.edge.push(Message::Reach { member: "a", yes: true });
    bed.pass(1);
    bed
}

#[test]
fn a_channel_that_breaks_in_an_outage_is_left_to_a_primary_that_lives() {
    for at_once in [true, false] {
        let mut bed = after_silence(1500);
        // Heartbeats beside the channel.
        bed.book.is_lost = at_once;
        bed.pass(20);
        assert_eq!(bed.book.take(), Vec::<String>::new(), "it waits for what others say");
        for _ in 0..62 {
            bed.book.edge.push(Message::Alone { member: "a" });
            bed.pass(1);
        }
        assert_eq!(bed.gave_up().as_deref(), Some("gave up: Cut"));
        assert_eq!(bed.book.reason, CUT);
        assert_eq!(bed.book.member.given_up, 0, "it was no fault");
    }
}

#[test]
fn a_primary_that_died_in_an_outage_is_taken_over() {
    let mut bed = after_silence(1500);
    bed.book.is_lost = true;
    for _ in 0..200 {
        bed.book.edge.push(Message::Reach { member: "a", yes: false });
        bed.pass(1);
    }
    assert_eq!(bed.book.take()[0], "promotes: Silent");
}

#[test]
fn a_channel_that_has_outlived_an_outage_tells_of_the_primary_again() {
    for (ms, heard) in [(1500, true), (900, false)] {
        let mut bed = after_silence(ms);
        bed.book.beats = heard.then_some(100);
        bed.pass(1);
        bed.book.is_lost = true;
        bed.turn();
        assert_eq!(bed.book.take()[0], "promotes: ChannelLost", "{ms} ms");
    }
}
