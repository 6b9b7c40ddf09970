//! `holdfast top --once` tells of a pair what its daemon says, and that nobody answers where none
//! runs.

use crate::world;
use holdfast_lab::testbed::Role;
use holdfast_lab::testbed::ours::Signal;
use std::time::Duration;

#[test]
fn by_one_frame_as_text() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_mut(|_, group| {
        let frame = |group: &holdfast_lab::testbed::ours::Group<'_>, role| {
            let done = group.verb(role, &["top", "--once"]).expect("it runs");
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            (done.status.code(), text + &said)
        };
        let (code, text) = frame(group, Role::Primary);
        assert_eq!(code, Some(0), "{text}");
        for part in ["PROTECTED", "this host: primary a", "b             backup   heard", "log "] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "it is plain: {text}");
        let (code, text) = frame(group, Role::Edge);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("hosts for 10.9.0.100:6379"), "{text}");
        group.stop_daemon(Role::Backup, Signal::TERM).expect("it ends");
        let (code, text) = frame(group, Role::Backup);
        assert_eq!(code, Some(4), "{text}");
        assert!(text.contains("NO ANSWER") && text.contains("remedy  start it"), "{text}");
        world::wait_for_group(group, "the loss of the backup", || {
            let (code, text) = frame(group, Role::Primary);
            code == Some(1) && text.contains("UNPROTECTED")
        });
    });
}
