//! Connections have numbers, and their table has as many entries as connections may live at once.
//! If a connection lives for years, its number comes up again and again: a client that comes then
//! is served like any other, and so is the old one.

use crate::client::{Redis, on_client, service};
use crate::world;
use holdfast_lab::testbed::Role;
use holdfast_lab::testbed::ours::GroupOptions;
use holdfast_lab::testbed::server::Program;
use std::time::Duration;

/// Number of short connections: all entries of the table, and some of them again.
const SHORT: usize = 16_384 + 600;
const AT_ONCE: usize = 4;
/// Number of old connections, with adjacent numbers.
const OLD: usize = 3;

#[test]
fn after_all_numbers_were_used_once() {
    let _limit = world::limit(Duration::from_secs(120));
    let options = GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        on_client(testbed, || {
            let at = service(Program::Redis.port());
            let mut old: Vec<Redis> = (0..OLD).map(|_| Redis::connect(at)).collect();
            churn(SHORT);
            for one in &mut old {
                one.ping();
            }
            let status = group.status(Role::Primary).expect("the daemon answers");
            assert_eq!(status["state"], "protected", "{status}");
            let server = group.server_pid(Role::Primary).expect("a server");
            world::signal(server, "KILL");
            for one in &mut old {
                one.ping();
            }
            churn(100);
            assert_eq!(old[0].ask(&[b"INCR", b"n"]), format!(":{}", SHORT + 101));
            let status = group.status(Role::Backup).expect("the daemon answers");
            assert_eq!(status["role"], "primary", "{status}");
        });
    });
}

/// Lets `count` clients connect, count, and disconnect.
fn churn(count: usize) {
    let at = service(Program::Redis.port());
    // New threads are in the namespace of the thread that starts them.
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                for _ in 0..count / AT_ONCE {
                    let mut client = Redis::connect(at);
                    assert!(client.ask(&[b"INCR", b"n"]).starts_with(':'));
                }
            });
        }
    });
}
