//! Connections that the server has not accepted when it dies, although their clients have connected
//! and sent requests. The replica answers all of them, even if they are more than the messages that
//! fit into a socket.

use crate::client::{Redis, on_client, service};
use crate::world;
use holdfast_lab::testbed::Role;
use std::time::Duration;

/// Number of clients: more than fit into a socket's ordinary buffer, fewer than redis' backlog.
const CLIENTS: usize = 450;

#[test]
fn who_was_not_accepted_yet_is_served() {
    let _limit = world::limit(Duration::from_secs(90));
    world::with_redis(|testbed, group| {
        let server = group.server_pid(Role::Primary).expect("a server");
        world::signal(server, "STOP");
        let mut clients: Vec<Redis> = on_client(testbed, || {
            let connect = |_| {
                let limit = Duration::from_secs(10);
                let mut client = Redis::try_connect(service(6379), limit).expect("a connection");
                client.send(&[b"PING"]);
                client
            };
            (0..CLIENTS).map(connect).collect()
        });
        world::signal(server, "KILL");
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.line(), "+PONG", "client {number}\n{}", group.log_tails());
        }
    });
}
