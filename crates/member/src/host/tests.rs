use super::*;
use crate::bench::{EPOCH, Lone, key};
use crate::standing::Ask;

fn speaking() -> Lone {
    let mut host = Lone::new("a", "b");
    host.bench.member.speaks = true;
    host
}

fn lines(host: &mut Lone) -> Vec<String> {
    host.bench.take()
}

#[test]
fn a_fault_has_the_name_that_the_other_member_is_told() {
    let words = [
        (Fault::Diverged, "diverged"),
        (Fault::Hung, "hung"),
        (Fault::Fenced, "fenced"),
        (Fault::Ended, "ended"),
        (Fault::Unkept, "unkept"),
        (Fault::Outgrown, "outgrown"),
        (Fault::Unreachable, "unreachable"),
        (Fault::Cut, "cut off"),
    ];
    for (fault, word) in words {
        assert_eq!(fault.word(), word);
    }
}

#[test]
fn the_kernel_of_a_lone_server_says_which_clients_have_vanished() {
    use ConnState::{Living, Over, SynReceived};
    let keys = vec![key(1), key(2), key(3)];
    let told = format!("to the edge: NotAlive {{ epoch: {EPOCH}, keys: {:?} }}", vec![key(2)]);
    for (states, told) in [
        (Some(vec![Living, Over, SynReceived]), Some(told)),
        (Some(vec![Living; 3]), None),
        // A kernel that does not answer ends nobody's connection.
        (None, None),
    ] {
        let mut host = speaking();
        host.states = states;
        host.bench.edge.push(Message::AreAlive { epoch: EPOCH, keys: keys.clone() });
        assert_eq!(stand_alone(false, &mut host), None);
        assert_eq!(lines(&mut host)[1..], Vec::from_iter(told));
        stand_alone(false, &mut host);
        assert_eq!(lines(&mut host), ["refuses who comes"], "it was asked once");
        assert_eq!(host.asked, 1, "and so was the kernel");
    }
}

#[test]
fn a_lone_member_that_was_replaced_ends_its_server_and_is_silent() {
    for (epoch, is_replaced) in [(EPOCH, false), (EPOCH + 1, true)] {
        let mut host = speaking();
        host.bench.edge.push(Message::Epoch { epoch, current: "b" });
        assert_eq!(stand_alone(false, &mut host), None);
        let killed = ["kill", "shows Replaced"];
        assert_eq!(lines(&mut host)[1..], killed[..if is_replaced { 2 } else { 0 }]);
        assert_eq!((host.bench.member.speaks, host.bench.member.epoch), (!is_replaced, epoch));
        stand_alone(false, &mut host);
        assert_eq!(lines(&mut host).len(), 1, "said once");
    }
    // Who does not speak has nothing to give up.
    let mut host = speaking();
    host.bench.member.speaks = false;
    host.bench.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "b" });
    stand_alone(false, &mut host);
    assert_eq!(lines(&mut host).len(), 1);
}

#[test]
fn a_member_whose_lone_server_has_ended_speaks_no_more() {
    let mut host = speaking();
    host.has_ended = true;
    assert_eq!(stand_alone(false, &mut host), None);
    assert_eq!(lines(&mut host), ["refuses who comes", "shows EndedAlone"]);
    assert!(!host.bench.member.speaks);
}

#[test]
fn a_found_server_is_looked_at_now_and_then_until_it_is_stopped() {
    let mut host = speaking();
    assert_eq!(turn_found(false, &mut host), Turn::Until(Nanos::from_ms(201)));
    lines(&mut host);
    assert_eq!(turn_found(true, &mut host), Turn::End(End::Stopped));
    assert_eq!(lines(&mut host), ["refuses who comes", "kill"]);
}

#[test]
fn in_seclusion_no_edge_is_asked_nor_heard() {
    struct Host(Secluded);
    impl Hosted for Host {
        type Context = Secluded;
        fn context(&self) -> &Secluded {
            &self.0
        }
        fn context_mut(&mut self) -> &mut Secluded {
            &mut self.0
        }
    }
    let now = Nanos::from_ms(50);
    let member = Member::new("demo", "a", "b", Nanos::from_ms(10), Nanos(0));
    let mut host = Host(Secluded { now, member });
    let mut ask = Ask::new("a", "b", true, now);
    assert_eq!(ask.turn(false, &mut host), Turn::Until(Nanos::from_ms(60)), "no channel opens");
    assert!(!host.turn_edge(&mut |_| panic!("nobody speaks")));
}
