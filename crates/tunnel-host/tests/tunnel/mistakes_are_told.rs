//! Mistakes of files and keys, with the exit codes and remedies that users see.

use crate::bed::{A, Bed, OUTSIDE};
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn of_files_and_keys() {
    let Some(bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    let file = bed.path(A, "toml");
    let check = |code: i32| {
        let done = bed.verb(A, &["config", "check", &file]);
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert_eq!(done.status.code(), Some(code), "{said}");
        said
    };
    assert!(check(0).contains("a tunnel of mode tun to 10.77.0.2:51900"));

    let key = bed.path(A, "key");
    let again = bed.verb(A, &["key", "gen", &key]);
    assert_eq!(again.status.code(), Some(2), "a key is not written over");
    let public = bed.verb(A, &["key", "pub", &key]);
    assert_eq!(String::from_utf8_lossy(&public.stdout).trim(), bed.public_key(A));
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let open = check(2);
    assert!(
        open.contains("others than its owner can read it") && open.contains("chmod 600"),
        "{open}"
    );
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("a mode");

    let text = std::fs::read_to_string(&file).expect("a file");
    std::fs::write(&file, text.replace("interface =", "interfase =")).expect("a file");
    let unknown = check(2);
    assert!(unknown.contains("did you mean `interface`?") && unknown.contains(":6:"), "{unknown}");
    let own = bed.public_key(A);
    let other = bed.public_key(1 - A);
    std::fs::write(&file, text.replace(other, own)).expect("a file");
    assert!(check(2).contains("is this end's own"));
}

#[test]
fn of_plans() {
    let Some(bed) = Bed::new() else { return };
    let words = ["plan", "--loss", "10%", "--rtt", "20ms", "--rate", "200", "--size", "92"];
    let plan = bed.verb(A, &words);
    assert!(plan.status.success(), "{plan:?}");
    assert!(String::from_utf8_lossy(&plan.stdout).contains("200 packets of 92 bytes a second"));
    let json = bed.verb(A, &[&words[..], &["--json"]].concat());
    let row: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(row["schema"], "holdfast.tunnel-plan/1");
    assert!(
        row["overhead"].as_f64().is_some_and(|it| it > 0.5),
        "a lone message needs copies: {row}"
    );
    assert_eq!(bed.verb(A, &["plan", "--loss", "10"]).status.code(), Some(2));
}
