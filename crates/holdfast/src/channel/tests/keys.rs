//! Which secrets open a channel.

use super::*;
use crate::key::KeyLine;

/// Of a group in which each host has keys of its own, the one called `me`.
fn in_pairs(me: &str, keys: &[(&str, &str)]) -> Identity {
    let own = |of: &str| of.chars().map(secret).collect::<Vec<_>>();
    let publics: Vec<_> = keys
        .iter()
        .map(|(name, its)| (*name, own(its).iter().map(GroupKey::public).collect::<Vec<_>>()))
        .collect();
    let publics: Vec<_> = publics.iter().map(|(name, its)| (*name, &its[..])).collect();
    let mine = keys.iter().find(|(name, _)| *name == me).unwrap().1;
    let lines = own(mine).into_iter().map(KeyLine::from).collect();
    let keyring = Keyring::in_pairs(("demo", me), lines, &publics).unwrap();
    let others = keys.iter().map(|(name, _)| (*name).to_owned()).filter(|name| name != me);
    Identity { keyring, peers: others.collect(), ..identity(me) }
}

#[test]
fn whoever_is_connected_to_takes_any_key_that_counts() {
    for (near, far, opened) in [("7", "87", '7'), ("78", "7", '7'), ("87", "78", '8')] {
        let of = |digits, me| Identity { keyring: shared(digits), ..identity(me) };
        let (mut near, mut far) = ends(&of(near, "a"), &of(far, "b"));
        let (a, b) = drive(&mut near, &mut far, |n, f| n.is_open() && f.is_open());
        a.and(b).unwrap();
        assert!(near.secret() == Some(&secret(opened)) && far.secret() == near.secret());
    }
    // A host that speaks with a key that the other one has not, or not any more, has another try.
    let of = |attempt| Identity { keyring: shared("87"), attempt, ..identity("a") };
    for (attempt, opens) in [(0, false), (1, true), (2, false)] {
        let (mut near, mut far) = ends(&of(attempt), &identity("b"));
        let (a, b) = drive(&mut near, &mut far, |n, f| n.is_open() && f.is_open());
        assert_eq!(a.and(b).is_ok(), opens, "{attempt}");
    }
}

#[test]
fn keys_that_are_taken_over_count_for_the_next_channel_and_end_none() {
    let (near, far) = (identity("a"), identity("b"));
    let (mut one, mut two) = ends(&near, &far);
    let open = |n: &Channel, f: &Channel| n.is_open() && f.is_open();
    drive(&mut one, &mut two, open).0.unwrap();
    near.keyring.take_over(&shared("8"));
    far.keyring.take_over(&shared("8"));
    one.send(&Message::Ask).unwrap();
    one.flush().unwrap();
    assert_eq!(receive(&mut two, 1).unwrap(), ["Ask"]);
    let (mut one, mut two) = ends(&near, &far);
    drive(&mut one, &mut two, open).0.unwrap();
    assert!(two.secret() == Some(&secret('8')));
}

#[test]
fn a_host_with_a_key_of_its_own_is_nobody_else() {
    let keys = [("edge", "7"), ("a", "8"), ("b", "9")];
    let edge = in_pairs("edge", &keys);
    let to_edge = |me| Identity { peers: vec!["edge".to_owned()], ..in_pairs(me, &keys) };
    let (mut near, mut far) = ends(&to_edge("b"), &edge);
    drive(&mut near, &mut far, |n, f| n.is_open() && f.is_open()).0.unwrap();
    assert_eq!((near.peer(), far.peer()), ("edge", "b"));
    let liar = Identity { me: "a".to_owned(), ..to_edge("b") };
    let (mut near, mut far) = ends(&liar, &edge);
    let (a, b) = drive(&mut near, &mut far, |_, _| false);
    assert!(matches!(b, Err(ChannelError::WrongPublicKey)), "{b:?}");
    assert!(matches!(a, Err(ChannelError::NotKnown)), "{a:?}");
    let stranger = in_pairs("a", &[("edge", "7"), ("a", "6")]);
    let (mut near, mut far) = ends(&stranger, &edge);
    let (_, b) = drive(&mut near, &mut far, |_, _| false);
    let (reason, remedy) = b.unwrap_err().distrust("a").unwrap();
    assert!(reason.contains("the public key of `a`") && remedy.contains("holdfast key pub"));
}

/// On the way from one key for all to one of each: hosts that are a step behind open channels with
/// those ahead, and who has the key of all may still say any name.
#[test]
fn the_key_of_all_opens_channels_until_it_is_removed() {
    let of_all = KeyLine { key: secret('1'), of_all: true };
    let publics = [("edge", [secret('7').public()]), ("b", [secret('9').public()])];
    let publics = publics.each_ref().map(|(name, its)| (*name, &its[..]));
    let of = |me: &str, own: char, at: usize| {
        let (own, of_all) = (KeyLine::from(secret(own)), of_all.clone());
        let lines = [vec![of_all.clone(), own.clone()], vec![own.clone(), of_all], vec![own]];
        let in_pairs = || Keyring::in_pairs(("demo", me), lines[at - 1].clone(), &publics).unwrap();
        let keyring = if at == 0 { shared("1") } else { in_pairs() };
        let peers = vec![if me == "edge" { "b" } else { "edge" }.to_owned()];
        Identity { keyring, peers, ..identity(me) }
    };
    let open = |n: &Channel, f: &Channel| n.is_open() && f.is_open();
    for (at_b, at_edge) in [(0, 0), (0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 3)] {
        let (b, edge) = (of("b", '9', at_b), of("edge", '7', at_edge));
        let (mut near, mut far) = ends(&b, &edge);
        let (one, two) = drive(&mut near, &mut far, open);
        one.and(two).unwrap_or_else(|error| panic!("{at_b} {at_edge}: {error}"));
        assert_eq!((near.peer(), far.peer()), ("edge", "b"));
        assert_eq!(near.secret() == Some(&secret('1')), at_b < 2, "{at_b} {at_edge}");
    }
    for (at_b, at_edge) in [(0, 3), (3, 0)] {
        let (mut near, mut far) = ends(&of("b", '9', at_b), &of("edge", '7', at_edge));
        let (one, two) = drive(&mut near, &mut far, open);
        assert!(one.and(two).is_err(), "{at_b} {at_edge}: a step is left out");
    }
}
