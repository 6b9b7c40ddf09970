//! After kill -9 of the daemons at the edges of the strings, flows stay where they are, new ones
//! are served, and restarted daemons take over what they find.

use crate::{transit, world};
use holdfast_lab::testbed::strings::{Cut, Edge};
use std::time::Duration;

#[test]
fn flows_go_on_and_new_ones_are_served() {
    let _limit = world::limit(Duration::from_secs(90));
    let plan = transit::plan(&[100, 100], "mode = \"active/active\"");
    transit::with_strings(&plan, |strings| {
        // String 1 is dead, and must stay dead.
        strings.cut(1, Cut::Both).expect("cut");
        for edge in Edge::BOTH {
            transit::wait_for_state(strings, edge, 1, "dead");
        }
        let run = transit::counting(strings, 2500);
        transit::pause(300);
        strings.kill_daemon(Edge::Far).expect("killed");
        // The other edge hears nothing any more, but gives up no string because of that.
        transit::wait_for_state(strings, Edge::Near, 0, "silent");
        transit::finish(strings, transit::counting(strings, 300));
        strings.kill_daemon(Edge::Near).expect("killed");
        transit::finish(strings, transit::counting(strings, 300));
        transit::finish(strings, run);
        for edge in Edge::BOTH {
            strings.start_daemon(edge).expect("started");
        }
        for edge in Edge::BOTH {
            world::wait_until("an answer", || strings.show(edge).is_ok());
            transit::wait_for_state(strings, edge, 0, "alive");
            assert_eq!(transit::member(strings, edge, 1)["state"], "dead");
            assert_eq!(transit::count(strings, edge, "transit.moved"), 0);
        }
        transit::finish(strings, transit::counting(strings, 300));
        strings.restore(1, Cut::Both).expect("restored");
        strings.wait_ready().expect("ready");
    });
}
