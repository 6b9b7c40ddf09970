use super::*;
use crate::arbiter::{Mode, Owner};

const SETTINGS: ClientSettings =
    ClientSettings { endpoints: 3, poll: Nanos::from_ms(1000), ..ClientSettings::STANDARD };
const MS: fn(u64) -> Nanos = Nanos::from_ms;

/// What was asked last: whether it was a change, and the call.
#[derive(Default)]
struct Asked(Vec<(bool, Call)>);

impl Arbiter for Asked {
    fn read(&mut self, call: Call, _: &Asker) {
        self.0.push((false, call));
    }
    fn compare_and_swap(&mut self, call: Call, _: &Asker, _: Option<&Record>, _: &Record) {
        self.0.push((true, call));
    }
}

fn record(epoch: u64) -> Record {
    Record { epoch, owner: Owner { name: "a".to_owned(), life: 1 }, mode: Mode::Solo }
}

/// An answer whose ticket is 5.
fn says(outcome: Result<Option<Record>, Refusal>) -> Reply {
    Reply { lineage: 1, ticket: 5, outcome }
}

fn client() -> Client {
    let from = Owner { name: "a".to_owned(), life: 1 };
    let (group, peer) = ("g".to_owned(), "b".to_owned());
    Client::new(MS(0), SETTINGS, Asker { group, from, peer, lineage: 0, known: None, ticket: 0 })
}

/// What is asked at this time, if anything is.
fn asks(client: &mut Client, now: Nanos) -> Option<(bool, usize, u64)> {
    let mut asked = Asked::default();
    client.handle_timeout(now, &mut asked);
    assert!(asked.0.len() < 2, "one at a time");
    asked.0.first().map(|(swaps, call)| (*swaps, call.endpoint, call.number))
}

#[test]
fn the_record_is_read_now_and_then() {
    let mut client = client();
    assert_eq!(asks(&mut client, MS(0)), Some((false, 0, 1)));
    assert!(!client.is_answered());
    assert_eq!(asks(&mut client, MS(50)), None, "one is under way");
    assert!(client.handle_answer(MS(60), 1, &says(Ok(None))));
    assert!(client.is_answered());
    assert_eq!(client.next_deadline(), MS(1060));
    assert_eq!(asks(&mut client, MS(1059)), None);
    assert_eq!(asks(&mut client, MS(1060)), Some((false, 0, 2)));
}

#[test]
fn a_try_that_is_not_answered_is_read_back_elsewhere_before_it_is_repeated() {
    let mut client = client();
    client.change(MS(0), MS(0), Some(record(1)), record(2));
    assert!(client.is_changing());
    assert_eq!(asks(&mut client, MS(0)), Some((true, 0, 1)));
    assert_eq!(client.next_deadline(), MS(100));
    assert_eq!(asks(&mut client, MS(100)), Some((false, 1, 2)));
    assert_eq!(client.unanswered(), 1);
    assert_eq!(asks(&mut client, MS(200)), Some((false, 2, 3)), "not read yet");
    assert!(!client.handle_answer(MS(201), 1, &says(Ok(Some(record(2))))), "given up long ago");
    assert!(client.is_changing());
    // The record is as before: it is asked for again, at once.
    assert!(client.handle_answer(MS(202), 3, &says(Ok(Some(record(1))))));
    assert_eq!((client.unanswered(), client.next_deadline()), (0, MS(202)));
    assert_eq!(asks(&mut client, MS(202)), Some((true, 2, 4)));
    assert_eq!(asks(&mut client, MS(302)), Some((false, 0, 5)));
    assert!(client.handle_answer(MS(303), 5, &says(Ok(Some(record(2))))));
    assert!(!client.is_changing());
    assert_eq!(client.next_deadline(), MS(1303));
}

#[test]
fn a_change_is_over_when_the_record_is_another_one_whoever_has_won() {
    for read in [Some(record(2)), Some(record(5)), None] {
        let mut client = client();
        client.change(MS(0), MS(0), Some(record(1)), record(2));
        assert_eq!(asks(&mut client, MS(0)), Some((true, 0, 1)));
        assert!(client.handle_answer(MS(1), 1, &says(Ok(read))));
        assert!(!client.is_changing());
    }
}

#[test]
fn a_wish_ends_a_read_that_is_under_way_and_another_wish_the_first() {
    let mut client = client();
    assert_eq!(asks(&mut client, MS(0)), Some((false, 0, 1)));
    client.change(MS(5), MS(0), None, record(1));
    assert_eq!(asks(&mut client, MS(5)), Some((true, 0, 2)));
    client.change(MS(6), MS(0), Some(record(1)), record(2));
    assert_eq!(asks(&mut client, MS(6)), Some((true, 0, 3)));
    assert!(!client.handle_answer(MS(7), 2, &says(Ok(Some(record(1))))));
    assert!(!client.handle_answer(MS(7), 1, &says(Ok(None))));
    assert!(client.is_changing());
}

#[test]
fn who_gives_up_reads_what_has_come_of_it() {
    let mut client = client();
    client.give_up(MS(0));
    client.change(MS(0), MS(0), None, record(1));
    assert_eq!(asks(&mut client, MS(0)), Some((true, 0, 1)));
    client.give_up(MS(3));
    assert!(!client.is_changing());
    assert_eq!(asks(&mut client, MS(3)), Some((false, 0, 2)));
    // A read that is under way is not hurried, and one that is due not put off.
    client.poll_now(MS(4));
    assert_eq!(client.next_deadline(), MS(103));
    assert!(client.handle_answer(MS(5), 2, &says(Ok(None))));
    client.poll_now(MS(9));
    client.poll_now(MS(20));
    assert_eq!(client.next_deadline(), MS(9));
    client.give_up(MS(10));
    assert_eq!(client.next_deadline(), MS(9), "nothing was wanted");
}

#[test]
fn a_refusal_is_tried_again_after_a_pause_and_a_final_one_seldom() {
    let mut client = client();
    client.change(MS(0), MS(0), None, record(1));
    assert_eq!(asks(&mut client, MS(0)), Some((true, 0, 1)));
    assert!(client.handle_answer(MS(1), 1, &says(Err(Refusal::Settling))));
    assert_eq!((client.is_changing(), client.next_deadline()), (true, MS(11)));
    assert_eq!(asks(&mut client, MS(11)), Some((true, 0, 2)));
    assert!(client.handle_answer(MS(12), 2, &says(Err(Refusal::Barred))));
    assert_eq!((client.is_changing(), client.next_deadline()), (true, MS(1012)));
}

#[test]
fn what_it_says_of_itself_is_what_it_was_told() {
    let mut client = client();
    assert_eq!((client.asker().epoch(), client.asker().lineage), (0, 0));
    client.set_known(record(4));
    client.set_lineage(9);
    assert_eq!((client.asker().epoch(), client.asker().lineage), (4, 9));
}

/// The ticket that is sent with what is asked now, and whether that is a change.
fn sends(client: &mut Client, now: Nanos) -> (bool, u64) {
    let (swaps, _, _) = asks(client, now).expect("something is asked");
    (swaps, client.asker().ticket)
}

#[test]
fn a_change_is_asked_for_with_the_ticket_of_the_last_answer() {
    let mut client = client();
    assert!(!client.is_heard_since(MS(0)) && !client.is_asking());
    assert_eq!(sends(&mut client, MS(0)), (false, 0));
    assert!(client.is_asking());
    assert!(client.handle_answer(MS(1), 1, &says(Ok(None))));
    assert!(client.is_heard_since(MS(1)) && !client.is_heard_since(MS(2)));
    client.change(MS(7), MS(1), None, record(1));
    assert_eq!(sends(&mut client, MS(7)), (true, 5));
    // What comes late has no ticket for anybody.
    client.change(MS(8), MS(1), None, record(1));
    assert_eq!(sends(&mut client, MS(8)), (true, 5));
    let late = Reply { ticket: 6, ..says(Ok(None)) };
    assert!(!client.handle_answer(MS(9), 2, &late));
    assert_eq!(client.asker().ticket, 5);
}

#[test]
fn a_ticket_from_before_the_doubt_is_not_sent_and_a_refusal_brings_another_at_once() {
    let mut client = client();
    assert_eq!(sends(&mut client, MS(0)), (false, 0));
    assert!(client.handle_answer(MS(1), 1, &says(Ok(None))));
    client.change(MS(7), MS(2), None, record(1));
    assert_eq!(sends(&mut client, MS(7)), (true, 0));
    let refused = Reply { ticket: 8, ..says(Err(Refusal::Unproven)) };
    assert!(client.handle_answer(MS(9), 2, &refused));
    assert!(client.is_changing());
    assert_eq!(client.next_deadline(), MS(9), "at once");
    assert_eq!(sends(&mut client, MS(9)), (true, 8));
    // An arbiter that never believes it is asked like any other that refuses.
    assert!(client.handle_answer(MS(10), 3, &refused));
    assert_eq!(client.next_deadline(), MS(20));
    // Another change is another matter.
    client.change(MS(12), MS(2), None, record(2));
    assert_eq!(sends(&mut client, MS(12)), (true, 8));
    assert!(client.handle_answer(MS(13), 4, &refused));
    assert_eq!(client.next_deadline(), MS(13));
}

#[test]
fn who_hears_nothing_never_has_a_ticket() {
    let mut client = client();
    assert_eq!(sends(&mut client, MS(0)), (false, 0));
    assert!(client.handle_answer(MS(1), 1, &says(Ok(None))));
    client.change(MS(7), MS(2), None, record(1));
    let mut sent = Vec::new();
    for ms in 7..500 {
        if asks(&mut client, MS(ms)).is_some() {
            sent.push(client.asker().ticket);
        }
    }
    assert_eq!(sent, [0; 5]);
}
