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
    Keyring::in_pairs(("demo", me), lines(own), &publics).unwrap()
}

/// Lines of a key file that are its host's alone.
fn lines(keys: &[GroupKey]) -> Vec<KeyLine> {
    keys.iter().cloned().map(KeyLine::from).collect()
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
            before_a.note("b");
            let (own, theirs) = (
                ring("a", [at_a, std::slice::from_ref(&b)]),
                ring("b", [at_b, std::slice::from_ref(&b)]),
            );
            assert!(understands(&own.with("b"), &theirs.with("a")));
            assert_eq!(before_a.would_lose(&own), None);
            let [one, two] = [at_a, at_b].map(|lines| Keyring::shared(lines.clone()));
            assert!(understands(&one.with("b"), &two.with("a")));
            let now = Keyring::shared(before.clone());
            now.note("");
            assert_eq!(now.would_lose(&one), None);
        }
    }
    for (from, to) in [(0, 3), (0, 2), (1, 3)] {
        let of = |step: usize| ring("a", [&steps[step], std::slice::from_ref(&b)]);
        let now = of(from);
        assert_eq!(now.would_lose(&of(to)), None, "nobody has ever understood it");
        now.note("b");
        assert_eq!(now.would_lose(&of(to)).as_deref(), Some("b"), "{from} to {to}");
        let of = |step: usize| Keyring::shared(steps[step].clone());
        let now = of(from);
        now.note("anybody");
        assert!(now.would_lose(&of(to)).is_some(), "{from} to {to}");
    }
    let [shared, pairs] = [Keyring::shared(steps[0].clone()), ring("a", [&steps[0], &[b]])];
    shared.note("");
    assert!(shared.would_lose(&pairs).is_some() && pairs.would_lose(&shared).is_none());
    pairs.note("b");
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
    clone.note("x");
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
    let lines = |of: &[&GroupKey]| of.iter().map(|it| (*it).clone().into()).collect::<Vec<_>>();
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
    let ring = Keyring::in_pairs(("demo", "a"), vec![a.clone().into()], &publics).unwrap();
    let found = ring.candidates(&names);
    let peers: Vec<_> = found.iter().filter_map(|it| it.peer.as_deref()).collect();
    assert_eq!(peers, names);
    assert!(found[0].secret == *ring.with("b").first());
    let shared = Keyring::shared(vec![a, b]).candidates(&names);
    assert!(shared.len() == 2 && shared.iter().all(|it| it.peer.is_none()));
}

/// The rings of `a` in each step from the key `of_all` to keys of their own, and back: what the key
/// files of both have, a letter for each line (`s`: the key of all, `o`: the host's own).
fn steps(of_all: &GroupKey, own: [&GroupKey; 2], me: &str) -> Vec<Keyring> {
    let publics = own.map(|it| [it.public()]);
    let publics = [("a", &publics[0][..]), ("b", &publics[1][..])];
    let own = own[usize::from(me == "b")];
    let line = |letter: char| match letter {
        's' => KeyLine { key: of_all.clone(), of_all: true },
        _ => own.clone().into(),
    };
    let of = |file: &str| file.chars().map(line).collect::<Vec<_>>();
    let in_pairs = |file: &str| Keyring::in_pairs(("demo", me), of(file), &publics).unwrap();
    let first = Keyring::shared(KeyLine::of_all(of("s")));
    [first].into_iter().chain(["so", "os", "o"].map(in_pairs)).collect()
}

#[test]
fn each_step_from_one_key_for_all_to_one_of_each_is_understood_and_back() {
    let [all, a, b] = [(); 3].map(|()| key());
    let of = |me| steps(&all, [&a, &b], me);
    for forward in [true, false] {
        for step in 0..3 {
            let (before, after) = if forward { (step, step + 1) } else { (step + 1, step) };
            for (at_a, at_b) in [(before, after), (after, before), (after, after)] {
                let (one, two) = (&of("a")[at_a], &of("b")[at_b]);
                assert!(understands(&one.with("b"), &two.with("a")), "{at_a} {at_b}");
            }
            let now = &of("a")[before];
            now.note("b");
            let next = &of("a")[after];
            assert_eq!(now.would_lose(next), None, "{before} to {after}");
            now.take_over(next);
            assert!(now.is_same(next));
            // That it was heard is not forgotten on the way.
            let stranger = Keyring::shared(vec![key()]);
            assert!(now.would_lose(&stranger).is_some(), "{before} to {after}");
        }
    }
    for (from, to) in [(0, 2), (0, 3), (1, 3), (3, 1), (3, 0), (2, 0)] {
        let now = &of("a")[from];
        assert_eq!(now.would_lose(&of("a")[to]), None, "nobody has ever understood it");
        now.note("b");
        assert_eq!(now.would_lose(&of("a")[to]).as_deref(), Some("b"), "{from} to {to}");
    }
}

#[test]
fn the_key_of_all_is_nobodys_own_and_is_tried_once() {
    let [all, a, b, c] = [(); 4].map(|()| key());
    let publics = [&a, &b, &c].map(|it| [it.public()]);
    let publics = [("a", &publics[0][..]), ("b", &publics[1][..]), ("c", &publics[2][..])];
    let marked = KeyLine { key: all.clone(), of_all: true };
    let ring = |lines| Keyring::in_pairs(("demo", "a"), lines, &publics);
    let first = ring(vec![marked.clone(), a.clone().into()]).unwrap();
    let peers = ["b".to_owned(), "c".to_owned()];
    let found = first.candidates(&peers);
    let of: Vec<_> = found.iter().map(|it| it.peer.as_deref()).collect();
    assert_eq!(of, [None, Some("b"), Some("c")]);
    assert!(found[0].secret == all);
    let second = ring(vec![a.clone().into(), marked.clone()]).unwrap();
    // Who begins speaks with its own first.
    let of: Vec<_> = second.candidates(&peers[..1]).into_iter().map(|it| it.peer).collect();
    assert_eq!(of, [Some("b".to_owned()), None]);
    assert!(first.own() == all && second.own() != all && second.own() != a);
    let nobodys = first.with("nobody");
    assert!(nobodys.iter().all(|it| *it != all && *it != a) && nobodys == second.with("nobody"));
    let error = ring(vec![marked]).unwrap_err();
    assert!(matches!(&error, KeyError::NoneOfItsOwn { host } if host == "a"));
    let remedy = error.remedy(std::path::Path::new("/k"));
    assert!(remedy.contains("holdfast key gen >> /k"), "{remedy}");
}

/// Whoever has it could be that host, also when its mark is gone.
#[test]
fn the_key_of_all_is_no_hosts_own() {
    let [all, a, b] = [(); 3].map(|()| key());
    let publics = |a: &GroupKey, b: &GroupKey| [[a.public()], [b.public()]];
    let ring = |publics: &[[PublicKey; 1]; 2]| {
        let lines = vec![
            KeyLine { key: all.clone(), of_all: true },
            KeyLine { key: b.clone(), of_all: false },
        ];
        let publics = [("a", &publics[0][..]), ("b", &publics[1][..])];
        Keyring::in_pairs(("demo", "b"), lines, &publics).map(|_| ())
    };
    assert!(ring(&publics(&a, &b)).is_ok());
    assert!(matches!(ring(&publics(&all, &b)), Err(KeyError::ListedOfAll)));
}
