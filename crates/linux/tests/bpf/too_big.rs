//! What a sender is told of frames that do not fit, as real kernels make them.

use crate::common::topology::{PRIMARY_MAC, Topology, VIP6};
use crate::common::{Capture, Lab, icmp6_is_right, is_root, sh};
use holdfast_linux::bpf::{BpfError, Edge, EdgeConfig, MemberPort};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const PORT: u16 = 6379;
const UPLOAD_BYTES: usize = 24 << 20;
const CLIENT_PATIENCE: Duration = Duration::from_secs(20);
/// Offsets in an ICMPv6 error of its quote, and of TCP behind the hop-by-hop header in that.
const QUOTE: usize = 14 + 40 + 8;
const QUOTED_TCP: usize = QUOTE + 40 + 8;
const HOP_BY_HOP: u8 = 0;

fn edge(topology: &Topology, lab: &Lab) -> Edge {
    let config = EdgeConfig {
        client_interfaces: vec!["ec".into()],
        members: vec![MemberPort { interface: "ep".into(), mac: PRIMARY_MAC }],
        l3_interface: Some("br0".into()),
        services: vec![(VIP6.parse().expect("address"), PORT)],
        pin_dir: lab.pin_dir.clone(),
        flows_max: 100,
    };
    let attached = topology.on("edge", move || {
        let mut edge = Edge::attach(&config)?;
        edge.set_current(1, Some(0))?;
        Ok::<_, BpfError>(edge)
    });
    attached.join().expect("thread").unwrap_or_else(|error| panic!("{error}"))
}

/// The error as it would be on a wire, where the device sums what it quotes.
fn completed(mut error: Vec<u8>) -> Vec<u8> {
    let mut sum: u32 = error[QUOTED_TCP..]
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    sum = (sum & 0xffff) + (sum >> 16);
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    error[QUOTED_TCP + 16..QUOTED_TCP + 18].copy_from_slice(&sum.to_be_bytes());
    error
}

/// Linux puts a hop-by-hop header into an IPv6 frame that is longer than 65,535 bytes, and leaves
/// its TCP checksum to the device.
#[test]
fn the_answer_to_a_frame_longer_than_its_length_field_has_a_right_checksum() {
    if !is_root() {
        return;
    }
    let (topology, lab) = (Topology::new("h"), Lab::pins_only("too-big"));
    let server: SocketAddr = (VIP6.parse::<IpAddr>().expect("address"), PORT).into();
    let edge = edge(&topology, &lab);
    let (ready, listening) = std::sync::mpsc::channel();
    let served = topology.on("pri", move || {
        let listener = TcpListener::bind(server).expect("listen");
        ready.send(()).expect("the test waits");
        let (mut stream, _) = listener.accept().expect("accept");
        for _ in 0..2 {
            stream.read_exact(&mut vec![0; UPLOAD_BYTES]).expect("upload");
            stream.write_all(&[1]).expect("write");
        }
    });
    listening.recv().expect("the server listens");
    let (narrow, is_narrow) = std::sync::mpsc::channel();
    let (opened, is_open) = std::sync::mpsc::channel();
    let client = topology.on("cli", move || {
        sh("ip link set dev c0 gso_max_size 180000");
        let mut stream = TcpStream::connect_timeout(&server, CLIENT_PATIENCE).expect("connect");
        stream.set_read_timeout(Some(CLIENT_PATIENCE)).expect("timeout");
        let mut upload = || {
            stream.write_all(&vec![7; UPLOAD_BYTES]).expect("write");
            stream.read_exact(&mut [0]).expect("all of it has arrived");
        };
        // After the first one, its window lets frames be long.
        upload();
        let capture = Capture::new("c0");
        opened.send(()).expect("the test waits");
        is_narrow.recv().expect("the link is narrow");
        upload();
        capture.frames(|protocol| protocol == 58)
    });
    is_open.recv().expect("the client has uploaded");
    topology.on("edge", || sh("ip link set dev ep mtu 1400")).join().expect("edge");
    narrow.send(()).expect("the client waits");
    let errors = client.join().expect("client");
    served.join().expect("server");
    drop(edge);
    let is_long = |frame: &Vec<u8>| frame[QUOTE - 8] == 2 && frame[QUOTE + 6] == HOP_BY_HOP;
    let long: Vec<_> = errors.into_iter().filter(is_long).collect();
    assert!(!long.is_empty(), "no frame was long enough");
    assert!(long.into_iter().all(|error| icmp6_is_right(&completed(error))));
}
