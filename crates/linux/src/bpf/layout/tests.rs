//! Compares `layout.rs` with `bpf/layout.h`: a C compiler checks the place of every field, and
//! the value of every constant and counter.

use super::super::capture::What;
use super::super::redirect::{HostState, host_of};
use super::super::trace::{How, answer};
use super::*;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

/// Assertions on a structure and its fields; `=` where the field has another name
/// in C.
macro_rules! fields {
    ($c:ident, $structure:literal, $rust:ty: $($field:ident $(= $other:ident)?),+) => {{
        let size = size_of::<$rust>();
        claim($c, &format!("sizeof(struct {}) == {size}", $structure));
        $(
            let name = [$(stringify!($other),)? stringify!($field)][0];
            let offset = offset_of!($rust, $field);
            claim($c, &format!("offsetof(struct {}, {name}) == {offset}", $structure));
        )+
    }};
}

/// Assertions on constants of the same name.
macro_rules! constants {
    ($c:ident: $($name:ident),+) => {
        $(claim($c, &format!("{} == {}", stringify!($name), $name));)+
    };
}

fn claim(c: &mut String, what: &str) {
    let _ = writeln!(c, "_Static_assert({what}, \"layout.rs\");");
}

/// Asserts that each counter's number in C is its name's index.
fn counters(c: &mut String, prefix: &str, names: &[&str]) {
    for (index, name) in names.iter().enumerate() {
        claim(c, &format!("{prefix}_{} == {index}", name.to_uppercase()));
    }
    claim(c, &format!("{prefix}_COUNTERS == {}", names.len()));
}

#[test]
fn every_field_constant_and_counter_is_where_the_programs_have_it() {
    let mut c = "#include <stddef.h>\n#include \"layout.h\"\n".to_owned();
    pair(&mut c);
    strings(&mut c);
    spread(&mut c);
    kinds(&mut c);
    for (prefix, names) in [
        ("GATE", &GATE_COUNTERS[..]),
        ("TAPDROP", &TAPDROP_COUNTERS),
        ("SPEAK", &SPEAK_COUNTERS),
        ("EDGE", &EDGE_COUNTERS),
        ("TRANSIT", &TRANSIT_COUNTERS),
        ("SPREAD", &SPREAD_COUNTERS),
        ("HOST", &HOST_COUNTERS),
        ("BIND", &BIND_COUNTERS),
    ] {
        counters(&mut c, prefix, names);
    }
    assert_eq!(compile(&c), "");
    claim(&mut c, "sizeof(struct edge_flow) == 41");
    assert!(compile(&c).contains("layout.rs"), "the compiler objects to nothing");
}

fn pair(c: &mut String) {
    fields!(c, "service_key", ServiceKey: address, port);
    fields!(c, "conn_key", RawKey: server, client, server_port, client_port);
    fields!(c, "gate_slot", GateSlot: stable, generation = gen, open_generation = open_gen,
        fin_generation = fin_gen, free_generation = free_gen, iss, irs, snd_una, snd_nxt,
        right_edge, rcv_nxt, last_ack, last_edge, tsval, tsecr, mss, peer_mss, window,
        rcv_wscale, snd_wscale, sack, has_ts, key);
    fields!(c, "gate_event", GateEvent: socket, index, generation = gen, iss, irs, tsval, tsecr,
        mss, peer_mss, window, rcv_wscale, snd_wscale, sack, has_ts, packet_len, passed, key,
        packet);
    fields!(c, "captured", RawCaptured: at_ns, ifindex, what, wire_bytes, bytes, data);
    fields!(c, "speak_macs", RawSpeakMacs: service, own);
    fields!(c, "speak_relay", RawSpeakRelay: peer, hand_on, clone);
    fields!(c, "edge_fence", RawFence: epoch, current, armed);
    fields!(c, "edge_member", RawMember: ifindex, l3_ifindex, mac, port_mac, tap);
    fields!(c, "edge_flow", RawFlow: seen_ns, iss, seq_end, right_edge, tsval, client_ack,
        server_ack, flags, wscale);
    fields!(c, "recovered", Recovered: payload, tail_at, direction, way, headers, head_bytes,
        tail_bytes, tail_from, gso_size);
    fields!(c, "recover_count", RawRecoverCount: copied, lost);
    constants!(c: SERVICES_MAX, GROUP_NAME_BYTES, MEMBERS_MAX, GATE_SLOTS_DEFAULT, EDGE_FLOWS_DEFAULT,
        SYN_ACK_BYTES_MAX, CAPTURE_BYTES_MAX, CAPTURE_RING_BYTES, RECOVER_RING_BYTES,
        RECOVER_INTO, RECOVER_HELD, RECOVER_OPENED, RECOVER_HOLDS, TRACE_MARK, TRACE_BYTE,
        NO_MEMBER, FLOW_SERVER_FIN, FLOW_CLIENT_FIN, FLOW_RESET, FLOW_ESTABLISHED, FLOW_LEARNT,
        FLOW_OPENED);
    claim(c, &format!("RECOVER_FROM_NOW == {RECOVER_FROM_NOW}ULL"));
}

fn strings(c: &mut String) {
    fields!(c, "regulate_flow", RawRegulateFlow: seen_ns, turn_ns, turn_us, turn_from, turn_bytes,
        sent_end, right_edge, session, interval, near_scale, far_scale, flags);
    fields!(c, "regulate_string", RawRegulateString: bytes, flows, free_bytes, free_flows);
    fields!(c, "regulate_count", RawRegulateCount: clamped, refused);
    fields!(c, "string_row", RawString: ifindex, families, next_hop4, next_hop6);
    fields!(c, "transit_table", RawTable: epoch, armed, usable, flags, seed, strings, slots);
    fields!(c, "transit_key", RawTransitKey: low, high, low_port, high_port, protocol);
    fields!(c, "transit_flow", RawTransitFlow: seen_ns, string, home, flags);
    fields!(c, "transit_traffic", RawTraffic: packets, bytes);
    constants!(c: REGULATE_FLOWS_DEFAULT, STRINGS_MAX, TRANSIT_SLOTS, TRANSIT_FLOWS_DEFAULT,
        NO_STRING, REGULATE_UNCAPPED, REGULATE_NEAR_FIN, REGULATE_FAR_FIN, REGULATE_RESET,
        STRING_V4, STRING_V6, TRANSIT_LEADS, TRANSIT_RETURN_ALL, TRANSIT_CLOSED,
        TRANSIT_FROM_OUTSIDE, TRANSIT_FROM_STRING, TRANSIT_OUTSIDE_FIN, TRANSIT_STRING_FIN, TRANSIT_RESET);
}

fn spread(c: &mut String) {
    fields!(c, "spread_service", SpreadService: address, port, protocol, table);
    fields!(c, "spread_directory", SpreadDirectory: factors, services, buckets);
    fields!(c, "spread_way", SpreadWay: address, next_hop, ifindex, mtu);
    fields!(c, "spread_host", SpreadHost: v4, v6, state, layer2);
    fields!(c, "spread_config", SpreadConfig: seed, outer4, outer4_mask, outer6, outer6_mask,
        tick, directory);
    fields!(c, "spread_key4", SpreadKey4: server, client, ports);
    fields!(c, "spread_flow", SpreadFlow: tick, hash, host, flags, lived);
    fields!(c, "host_config", HostConfig: tunnel4, outer4, outer4_mask, mtu, tunnel6, outer6,
        outer6_mask);
    constants!(c: SPREAD_HOSTS_MAX, SPREAD_SERVICES_MAX, SPREAD_FLOWS_DEFAULT, MAGLEV_ENTRIES,
        SPREAD_TABLES, SPREAD_DIRECTORIES, SPREAD_BUCKETS, SPREAD_EMBRYOS_MAX,
        SPREAD_DATAGRAMS_MAX, SPREAD_FRAGMENTS_MAX, NO_SERVICE);
    claim(c, &format!("sizeof(struct spread_table) == {}", size_of::<SpreadTable>()));
    claim(c, &format!("sizeof(struct spread_fragment) == {SPREAD_FRAGMENT_BYTES}"));
}

/// Asserts the numbers of the kinds that programs report, by their names in C.
fn kinds(c: &mut String) {
    let mut named = |name: &str, is_it: &dyn Fn(u32) -> bool| {
        let number = (0..10).find(|number| is_it(*number)).expect("a number that is read so");
        claim(c, &format!("{name} == {number}"));
    };
    for (name, what) in [
        ("CAPTURE_REDIRECTED", What::Redirected),
        ("CAPTURE_CLAMPED", What::Clamped),
        ("CAPTURE_DROPPED", What::Dropped),
        ("CAPTURE_ANSWERED", What::Answered),
        ("CAPTURE_RESENT", What::Resent),
    ] {
        named(name, &|number| What::of(number) == what);
    }
    for (name, how) in [
        ("TRACE_UNKNOWN", How::Unknown),
        ("TRACE_FLOW", How::Flow),
        ("TRACE_EMBRYO", How::Embryo),
        ("TRACE_NEW", How::New),
        ("TRACE_STRAY", How::Stray),
    ] {
        named(name, &|number| answer(TRACE_BYTE << 24 | number << 8).0 == how);
    }
    let way = SpreadWay { address: [0; 16], next_hop: [0; 16], ifindex: 0, mtu: 0 };
    for (name, state) in [
        ("SPREAD_FREE", HostState::Free),
        ("SPREAD_UP", HostState::Up),
        ("SPREAD_DRAINING", HostState::Draining),
        ("SPREAD_DEAD", HostState::Dead),
        ("SPREAD_DEAD_DRAINED", HostState::DeadDrained),
    ] {
        let host = |number| SpreadHost { v4: way, v6: way, state: number, layer2: 0 };
        named(name, &|number| host_of(&host(number)).state == state);
    }
}

/// The messages of the programs' C compiler about a source.
fn compile(source: &str) -> String {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut clang = Command::new("clang");
    clang.args(["-x", "c", "-target", "bpf", "-fsyntax-only", "-Wall", "-"]);
    clang.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    clang.arg(format!("-I{}", manifest.join("../../bpf").display()));
    let mut running =
        clang.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("clang runs");
    let mut input = running.stdin.take().expect("its input");
    input.write_all(source.as_bytes()).expect("it reads");
    drop(input);
    let done = running.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&done.stderr).into_owned()
}
