//! Binds to the group's addresses are noticed: only these, only in this network namespace, and only
//! while a daemon wants to know.

use crate::common::{Lab, counter, is_root, sh};
use holdfast_linux::bpf::{BindWatch, Watched};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::thread;

const VIP4: &str = "10.9.0.100";
const VIP6: &str = "fd00:9::100";

fn vips() -> [IpAddr; 2] {
    [VIP4, VIP6].map(|address| address.parse().expect("address"))
}

/// A network namespace in which the group's addresses can be bound.
fn namespace(name: &str) -> Lab {
    let lab = Lab::new(name);
    sh("ip link set lo up");
    sh(&format!("ip addr add {VIP4}/32 dev lo"));
    sh(&format!("ip addr add {VIP6}/128 dev lo nodad"));
    lab
}

fn watch(watched: Watched<'_>) -> BindWatch {
    BindWatch::attach(watched).unwrap_or_else(|error| panic!("{error}"))
}

fn binds(watch: &BindWatch) -> u64 {
    counter(&watch.counters(), "binds")
}

#[test]
fn a_bind_of_the_groups_addresses_is_noticed_and_no_other() {
    if !is_root() {
        return;
    }
    let _lab = namespace("bind");
    let mut watched = watch(Watched::Addresses(&vips()));
    assert!(!watched.take(), "nothing has happened");
    let meant: [fn(); 4] = [
        || drop(TcpListener::bind((VIP4, 80)).expect("bound")),
        || drop(TcpListener::bind((VIP6, 80)).expect("bound")),
        || drop(UdpSocket::bind((VIP4, 53)).expect("bound")),
        // The same address as IPv6 sockets write it is bound.
        || drop(TcpListener::bind((format!("::ffff:{VIP4}").as_str(), 81)).expect("bound")),
    ];
    for (number, bind) in (1..).zip(meant) {
        bind();
        assert!(watched.take(), "bind {number}");
        assert_eq!(binds(&watched), number);
        assert!(!watched.take(), "it was told once");
    }
    for other in ["127.0.0.1:80", "0.0.0.0:80", "[::]:80", "[::1]:53", "0.0.0.0:0"] {
        let other: SocketAddr = other.parse().expect("address");
        drop(TcpListener::bind(other).expect("bound"));
        drop(UdpSocket::bind(other).expect("bound"));
    }
    // The same address is bound on another host of this kernel.
    thread::spawn(|| {
        let _lab = namespace("bind-elsewhere");
        drop(TcpListener::bind((VIP4, 80)).expect("bound"));
    })
    .join()
    .expect("the other namespace was well");
    assert!(!watched.take());
    assert_eq!(binds(&watched), 4);
}

#[test]
fn a_named_service_may_be_bound_by_all_addresses() {
    if !is_root() {
        return;
    }
    let _lab = namespace("bind-named");
    let named: [SocketAddr; 2] = [(vips()[0], 80).into(), (vips()[1], 443).into()];
    let mut watched = watch(Watched::Services(&named));
    for meant in ["10.9.0.100:80", "0.0.0.0:80", "[::]:80", "[fd00:9::100]:443"] {
        drop(TcpListener::bind(meant).expect("bound"));
        assert!(watched.take(), "{meant}");
    }
    for other in ["10.9.0.100:81", "0.0.0.0:81", "0.0.0.0:0", "[fd00:9::100]:80"] {
        drop(TcpListener::bind(other).expect("bound"));
        assert!(!watched.take(), "{other}");
    }
    assert!(!watch(Watched::Services(&[])).take(), "nothing may be named");
}

#[test]
fn many_may_watch_beside_one_another() {
    if !is_root() {
        return;
    }
    let _lab = namespace("bind-many");
    let mut first = watch(Watched::Addresses(&vips()));
    let mut second = watch(Watched::Addresses(&vips()));
    // These are more events than fit into the ring: the last one counts as much as the first.
    for _ in 0..1000 {
        drop(TcpListener::bind((VIP4, 80)).expect("bound"));
    }
    assert!(first.take() && second.take());
    assert!(!first.take());
    drop(first);
    drop(TcpListener::bind((VIP4, 80)).expect("bound"));
    assert!(second.take());
    assert_eq!(binds(&second), 1001);
}
