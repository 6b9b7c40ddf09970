//! What programs read of a status, and what people see.

use super::*;
use std::time::Duration;

#[test]
fn times_are_rfc_3339() {
    let at = |secs| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(secs));
    assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
    assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
    assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.000000Z");
    assert_eq!(at(1_795_219_200), "2026-11-21T00:00:00.000000Z");
}

#[test]
fn the_schema_is_what_it_was() {
    let mut status = Status::new("demo", "a");
    status.at = "2026-11-21T00:00:00.000000Z".to_owned();
    (status.version, status.build) = ("0".to_owned(), "0 (1)".to_owned());
    status.rights = Rights::default();
    status.role = Role::Primary;
    status.state = State::Unprotected;
    status.peers.push(Peer { name: "b".to_owned(), connected: true, note: String::new() });
    status.counters.insert("gate.acks_clamped".to_owned(), 3);
    status.last_takeover = Some(Takeover { total_us: 1234, ..Takeover::default() });
    let json = serde_json::to_string(&status).unwrap();
    assert_eq!(
        json,
        concat!(
            r#"{"schema":"holdfast.status/2","version":"0","build":"0 (1)","group":"demo","member":"a","role":"primary","#,
            r#""mode":"","buffering":"","arbiter":"","epoch":0,"state":"unprotected","reason":"","remedy":"","rebuild":"","server_pid":null,"connections":0,"at_risk":0,"one_at_a_time":false,"overlaps":0,"#,
            r#""lag":{"frames":0,"bytes":0,"executed":0},"#,
            r#""peers":[{"name":"b","connected":true,"note":""}],"members":[],"counters":{"gate.acks_clamped":3},"#,
            r#""last_takeover":{"cause":"","phases_us":{"detect":0,"fence":0,"drain":0,"probe":0,"repair":0,"#,
            r#""address":0,"kick":0},"total_us":1234,"connections":0,"at":""},"#,
            r#""rights":{"capabilities":[],"no_new_privileges":false,"filtered":false,"starts_nothing":false},"#,
            r#""at":"2026-11-21T00:00:00.000000Z"}"#
        )
    );
    assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
}

#[test]
fn no_server_has_no_process_id_whatever_release_says_so() {
    let mut status = Status::new("demo", "edge");
    let mut told = serde_json::to_value(&status).unwrap();
    assert_eq!(told["server_pid"], serde_json::Value::Null);
    told["server_pid"] = 0.into();
    assert_eq!(serde_json::from_value::<Status>(told.clone()).unwrap(), status);
    told["server_pid"] = 77.into();
    status.server_pid = Some(77);
    assert_eq!(serde_json::from_value::<Status>(told).unwrap(), status);
}

#[test]
fn people_see_the_word_and_the_remedy() {
    let mut status = Status::new("demo", "b");
    status.state = State::Unprotected;
    status.reason = "the backup does not answer".to_owned();
    status.remedy = "start holdfast on it".to_owned();
    status.lag.bytes = 5 << 19;
    let text = status.render(Style::Plain);
    assert!(!text.contains("buffering"), "{text}");
    status.buffering = "commit".to_owned();
    assert_eq!(status.render(Style::Plain), text, "that is as it should be");
    status.buffering = "pr".to_owned();
    assert!(status.render(Style::Plain).contains("buffering pr: answers may be lost"));
    status.buffering.clear();
    status.server_pid = Some(77);
    assert!(status.render(Style::Plain).contains("server  process 77"));
    status.overlaps = 2;
    assert!(status.render(Style::Plain).contains("overlaps 2: threads"));
    status.overlaps = 0;
    for part in ["UNPROTECTED", "reason  the backup", "remedy  start", "2.5 MiB"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(status.render(Style::Colour).contains("\x1b[1;31mUNPROTECTED\x1b[0m"));
    assert_eq!(status.exit_code(), exit::DEGRADED);
    assert!(!status.is_lost_for_good(), "a backup may come");
    status.remedy = format!("look at it; {RESTART_BOTH}");
    assert!(status.is_lost_for_good());
    (status.remedy, status.state) = (String::new(), State::Ended);
    assert!(status.is_lost_for_good());
    assert_eq!("unprotected".parse(), Ok(State::Unprotected));
    assert!("fine".parse::<State>().is_err());
}
