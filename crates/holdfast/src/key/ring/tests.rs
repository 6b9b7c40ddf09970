use super::*;

fn key() -> GroupKey {
    GroupKey::generate().unwrap()
}

/// The ring of the host `me` of a pair, `a` and `b`, with their key files, and with the public
/// keys of the same order.
fn ring(me: &str, [a, b]: [&[GroupKey]; 2]) -> Keyring {
    let publics = [a, b].map(|its| its.iter().map(GroupKey::public).collect::<Vec<_>>());
    let own = if me == "a" { a } else { b };
    let publics = [("a", &publics[0][..]), ("b", &publics[1][..])];
    Keyring::in_pairs(("demo", me), own.to_vec(), &publics).unwrap()
}

fn understands(one: &Secrets, two: &Secrets) -> bool {
    two.iter().any(|it| it == one.first()) && one.iter().any(|it| it == two.first())
}

#[test]
fn two_hosts_share_what_no_third_one_has() {
    let [a, b, c] = [(); 3].map(|()| [key()]);
    let (at_a, at_b, at_c) = (
        ring("a", [&a, &b]).with("b"),
        ring("b", [&a, &b]).with("a"),
        ring("b", [&a, &c]).with("a"),
    );
    assert!(at_a == at_b && at_a != at_c);
    let stranger = ring("a", [&a, &b]).with("nobody");
    assert!(stranger != at_a && stranger != ring("b", [&a, &b]).with("nobody"));
    assert_eq!(stranger.iter().count(), 1);
}

#[test]
fn each_step_of_a_rotation_is_understood_by_hosts_that_are_a_step_behind() {
    let [a, b, new] = [(); 3].map(|()| key());
    let step = |of: &[&GroupKey]| of.iter().map(|it| (*it).clone()).collect::<Vec<_>>();
    let steps = [step(&[&a]), step(&[&a, &new]), step(&[&new, &a]), step(&[&new])];
    for pair in steps.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        for (at_a, at_b) in [(before, after), (after, before), (after, after)] {
            let before_a = ring("a", [before, std::slice::from_ref(&b)]);
            before_a.with("b").proven().note();
            let (own, theirs) = (
                ring("a", [at_a, std::slice::from_ref(&b)]),
                ring("b", [at_b, std::slice::from_ref(&b)]),
            );
            assert!(understands(&own.with("b"), &theirs.with("a")));
            assert_eq!(before_a.would_lose(&own), None);
            let [one, two] = [at_a, at_b].map(|lines| Keyring::shared(lines.clone()));
            assert!(understands(&one.with("b"), &two.with("a")));
            let now = Keyring::shared(before.clone());
            now.with("").proven().note();
            assert_eq!(now.would_lose(&one), None);
        }
    }
    for (from, to) in [(0, 3), (0, 2), (1, 3)] {
        let of = |step: usize| ring("a", [&steps[step], std::slice::from_ref(&b)]);
        let now = of(from);
        assert_eq!(now.would_lose(&of(to)), None, "nobody has ever understood it");
        now.with("b").proven().note();
        assert_eq!(now.would_lose(&of(to)).as_deref(), Some("b"), "{from} to {to}");
        let of = |step: usize| Keyring::shared(steps[step].clone());
        let now = of(from);
        now.candidates(&[])[0].proven.note();
        assert!(now.would_lose(&of(to)).is_some(), "{from} to {to}");
    }
    let [shared, pairs] = [Keyring::shared(steps[0].clone()), ring("a", [&steps[0], &[b]])];
    shared.with("").proven().note();
    assert!(shared.would_lose(&pairs).is_some() && pairs.would_lose(&shared).is_none());
    pairs.with("b").proven().note();
    assert!(pairs.would_lose(&shared).is_some());
}

#[test]
fn clones_hold_what_one_of_them_has_taken_over() {
    let (old, new) = (Keyring::shared(vec![key()]), Keyring::shared(vec![key(), key()]));
    let clone = old.clone();
    assert!(!clone.is_same(&new));
    old.take_over(&new);
    assert!(clone.is_same(&new) && clone.with("x") == new.with("y"));
    // Whoever was heard before would be missed now.
    clone.with("x").proven().note();
    old.take_over(&Keyring::shared(vec![key()]));
    assert!(clone.would_lose(&new).is_some());
    let text = new.with("x").first().to_text();
    assert!(!format!("{clone:?}").contains(text.lines().last().unwrap()));
}

#[test]
fn a_host_with_a_key_that_is_not_listed_is_told_its_public_key() {
    let [a, b, other] = [(); 3].map(|()| key());
    let listed = [a.public()];
    let publics = [("a", &listed[..])];
    let lines = |of: &[&GroupKey]| of.iter().map(|it| (*it).clone()).collect::<Vec<_>>();
    let refused =
        |of: &[&GroupKey]| Keyring::in_pairs(("demo", "a"), lines(of), &publics).unwrap_err();
    assert!(matches!(refused(&[&b, &a]), KeyError::NotListed { ours, .. } if ours == b.public()));
    assert!(Keyring::in_pairs(("demo", "a"), lines(&[&a, &b]), &publics).is_ok());
    let listed = [other.public(), a.public()];
    let publics = [("a", &listed[..])];
    let error = Keyring::in_pairs(("demo", "a"), lines(&[&a]), &publics).unwrap_err();
    assert!(matches!(error, KeyError::NotHeld { listed, .. } if listed == other.public()));
    let remedy = error.remedy(std::path::Path::new("/k"));
    assert!(remedy.contains(&a.public().to_string()), "{remedy}");
}

#[test]
fn callers_are_tried_with_what_they_may_have() {
    let [a, b, c] = [(); 3].map(|()| key());
    let names = ["b".to_owned(), "c".to_owned()];
    let publics = [&a, &b, &c].map(|it| [it.public()]);
    let publics = [("a", &publics[0][..]), ("b", &publics[1][..]), ("c", &publics[2][..])];
    let ring = Keyring::in_pairs(("demo", "a"), vec![a.clone()], &publics).unwrap();
    let found = ring.candidates(&names);
    let peers: Vec<_> = found.iter().filter_map(|it| it.peer.as_deref()).collect();
    assert_eq!(peers, names);
    assert!(found[0].secret == *ring.with("b").first());
    let shared = Keyring::shared(vec![a, b]).candidates(&names);
    assert!(shared.len() == 2 && shared.iter().all(|it| it.peer.is_none()));
}
