//! The redirector's decisions and rewrites, frame by frame.

use crate::common::assert_too_big;
use crate::common::redirector::{
    CLIENT4, CLIENT6, Fixture, HOSTS, VIP4, VIP6, icmp_error, outer, request, request6,
};
use crate::common::{ACK, FIN, Frame, PASS, REDIRECT, RST, STOLEN, SYN, is_root, sums_are_right};
use holdfast_linux::bpf::{
    CopyPolicy, HostState, How, MAGLEV_ENTRIES, Question, ServiceKey, Verdict,
};

#[test]
fn a_hit_is_encapsulated_and_a_miss_goes_the_plain_way() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("hit");
    f.serve(&[0]);
    for frame in [request(40000), request6(40000)] {
        let frame = frame.flags(SYN);
        let (verdict, out) = f.send(&frame.build());
        assert_eq!(verdict, REDIRECT);
        let (header, inner) = outer(&out);
        assert_eq!(header.target, if frame.source.0.is_ipv4() { HOSTS[0].0 } else { HOSTS[0].1 });
        assert!(f.is_outer(header.source), "{}", header.source);
        assert_eq!(inner, frame.clone().ttl(63).build()[14..]);
        let plain = [&out[..14], &inner].concat();
        assert!(sums_are_right(&plain));
    }
    let mut elsewhere = request(40000);
    elsewhere.target.1 = 22;
    let mut origin = request(40000);
    origin.target.0 = "10.9.0.101".parse().expect("address");
    for frame in [elsewhere, origin, request(40000).ttl(1)] {
        assert_eq!(f.send(&frame.build()), (PASS, frame.build()));
    }
    assert_eq!(f.count("redirected"), 2);
}

#[test]
fn syns_are_copied_as_they_came_and_the_end_of_a_handshake_is_told() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("syns");
    f.serve(&[1]);
    let mut copies = f.redirect.take_copies().expect("the first time");
    assert!(f.redirect.take_copies().is_none());
    let syn = |port: u16| request(port).flags(SYN);
    f.send(&syn(40000).build());
    copies.set(CopyPolicy::Syns).expect("on");
    let mut seen = |f: &mut Fixture, frame: &Frame| {
        f.send(&frame.build());
        let mut all = Vec::new();
        copies.drain(|copied| {
            let packet = [copied.headers, copied.head].concat();
            all.push((copied.into, copied.is_opened, copied.way, packet));
            true
        });
        assert!(all.len() <= 1);
        all.pop()
    };
    for frame in [syn(40001), syn(40002).payload(100), request6(40001).flags(SYN)] {
        let whole = frame.build()[14..].to_vec();
        assert_eq!(seen(&mut f, &frame), Some((true, false, 1, whole)));
    }
    for frame in [request(40001), request6(40001)] {
        let told = seen(&mut f, &frame.clone().flags(ACK)).expect("it is told");
        assert_eq!((told.0, told.1, told.2), (true, true, 1));
        assert_eq!(seen(&mut f, &frame.payload(9).flags(ACK)), None, "once");
    }
    assert_eq!(seen(&mut f, &request(40009).flags(RST)), None);
}

#[test]
fn tos_and_ecn_are_copied_and_df_is_kept() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("tos");
    f.serve(&[0]);
    for tos in [0, 0xb8, 1, 2, 3] {
        let mut frame = request(40000).build();
        frame[15] = tos;
        fix_ipv4(&mut frame);
        let (verdict, out) = f.send(&frame);
        assert_eq!((verdict, out[15]), (REDIRECT, tos));
        assert_eq!(out[20] & 0x40, 0x40, "DF");
        frame[20] = 0;
        fix_ipv4(&mut frame);
        assert_eq!(f.send(&frame).1[20] & 0x40, 0, "no DF");
        let mut frame = request6(40000).build();
        frame[14] = 0x60 | tos >> 4;
        frame[15] = tos << 4;
        assert_eq!(f.send(&frame).1[14..16], frame[14..16]);
    }
}

/// Computes the checksum of an IPv4 header anew.
fn fix_ipv4(frame: &mut [u8]) {
    let end = 14 + usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let sum = holdfast_wire::packet::internet_checksum(&frame[14..end]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn the_outer_source_varies_with_the_flow_and_stays_with_it() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("source");
    f.serve(&[0, 1]);
    let mut sources: Vec<_> = (0..64)
        .map(|i| {
            let first = outer(&f.send(&request(40000 + i).build()).1).0.source;
            assert_eq!(outer(&f.send(&request(40000 + i).payload(9).build()).1).0.source, first);
            first
        })
        .collect();
    sources.sort();
    sources.dedup();
    assert!(sources.len() > 56, "{}", sources.len());
}

#[test]
fn without_encapsulation_only_the_hop_is_counted() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("layer2");
    f.set_host(0, |host| host.layer2 = true);
    f.serve(&[0]);
    for frame in [request(40000).payload(1460), request6(40000).payload(1440)] {
        let (verdict, out) = f.send(&frame.build());
        assert_eq!(verdict, REDIRECT);
        assert!(sums_are_right(&out));
        assert_eq!(out, frame.ttl(63).build());
    }
}

#[test]
fn ip_options_and_tcp_options_are_no_hindrance() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("options");
    f.serve(&[0]);
    let plain = request(40000).options(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]).payload(7).build();
    let mut frame = [&plain[..34], &[7, 4, 4, 0, 0, 0, 0, 0], &plain[34..]].concat();
    frame[14] = 0x47;
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    fix_ipv4(&mut frame);
    let (verdict, out) = f.send(&frame);
    assert_eq!(verdict, REDIRECT);
    let (_, inner) = outer(&out);
    frame[22] -= 1;
    fix_ipv4(&mut frame);
    assert_eq!(inner, frame[14..]);
}

#[test]
fn established_flows_stay_and_new_ones_follow_the_table() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("stay");
    f.serve(&[0]);
    for port in 40000..40010 {
        f.send(&request(port).flags(SYN).build());
        f.send(&request(port).build());
    }
    let host = |f: &Fixture, port: u16, flags| {
        outer(&f.send(&request(port).flags(flags).build()).1).0.target
    };
    f.serve(&[1]);
    f.set_host(0, |host| host.state = HostState::Draining);
    for port in 40000..40010 {
        assert_eq!(host(&f, port, ACK), HOSTS[0].0, "established");
        assert_eq!(host(&f, port, SYN), HOSTS[0].0, "a SYN does not move it");
    }
    assert_eq!(host(&f, 41000, SYN), HOSTS[1].0, "new");
    // The connection was closed and begun anew, so it is no longer at the host server that is
    // drained.
    host(&f, 40000, FIN | ACK);
    assert_eq!(host(&f, 40000, ACK), HOSTS[0].0);
    assert_eq!(host(&f, 40000, SYN), HOSTS[1].0);
    f.set_host(0, |host| host.state = HostState::Dead);
    assert_eq!(host(&f, 40001, ACK), HOSTS[0].0, "it may come back");
    assert_eq!(host(&f, 40001, SYN), HOSTS[1].0, "nobody waits for it");
    let flows = f.redirect.flows();
    assert_eq!((flows.count(), flows.per_host[0], flows.per_host[1]), (10, 8, 2));
}

#[test]
fn a_full_table_refuses_new_connections_and_harms_no_old_one() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("full");
    f.serve(&[0]);
    let established: Vec<u16> = (0..64)
        .map(|i| 40000 + i)
        .filter(|&port| {
            let syn = f.send(&request(port).flags(SYN).build()).0;
            f.send(&request(port).build()).0 == REDIRECT && syn == REDIRECT
        })
        .collect();
    assert_eq!(established.len(), 16, "as many as the table holds");
    assert_eq!(f.send(&request(50000).flags(SYN).build()).0, STOLEN, "refused at once");
    // One host server is being drained.
    f.set_host(0, |host| host.state = HostState::Draining);
    f.serve(&[1]);
    for &port in &established {
        let (verdict, out) = f.send(&request(port).payload(5).build());
        assert_eq!((verdict, outer(&out).0.target), (REDIRECT, HOSTS[0].0));
    }
    assert!(f.count("refused_flows") >= 48, "{}", f.count("refused_flows"));
    // There is room again: reset flows are forgotten after ten seconds, and not before.
    f.send(&request(established[0]).flags(RST).build());
    assert_eq!(f.redirect.age_flows().expect("ages"), 0);
    for _ in 0..11 {
        f.redirect.tick().expect("ticks");
    }
    assert_eq!(f.redirect.age_flows().expect("ages"), 1);
    assert_eq!(f.send(&request(50000).flags(SYN).build()).0, REDIRECT);
    assert_eq!(f.send(&request(50000).build()).0, REDIRECT);
}

#[test]
fn each_family_has_room_of_its_own() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("families");
    f.serve(&[0]);
    let begin = |f: &Fixture, frame: &Frame| {
        f.send(&frame.clone().flags(SYN).build());
        f.send(&frame.build()).0
    };
    for port in 40000..40016 {
        assert_eq!(begin(&f, &request(port)), REDIRECT);
    }
    assert_eq!(begin(&f, &request(50000)), STOLEN, "IPv4 is full");
    assert_eq!(begin(&f, &request6(50000)), REDIRECT);
    let flows = f.redirect.flows();
    assert_eq!((flows.count(), flows.per_host[0]), (17, 17));
    f.send(&request6(50000).flags(RST).build());
    for _ in 0..11 {
        f.redirect.tick().expect("ticks");
    }
    assert_eq!(f.redirect.age_flows().expect("ages"), 1);
    assert_eq!(f.redirect.flows().count(), 16);
}

#[test]
fn every_service_is_found_and_nothing_else() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("services");
    let services: Vec<ServiceKey> = (0..64u8)
        .map(|i| {
            let address = if i % 2 == 0 { [10, 9, 1, i].into() } else { vip6_of(i) };
            ServiceKey { address, port: 80 + u16::from(i % 5), udp: i % 4 > 1 }
        })
        .collect();
    for service in &services {
        f.redirect.set_service(service, &[0; MAGLEV_ENTRIES]).expect("service");
    }
    let one_more = ServiceKey { port: 99, ..services[0] };
    assert!(f.redirect.set_service(&one_more, &[0; MAGLEV_ENTRIES]).is_err());
    let verdict = |f: &Fixture, service: &ServiceKey| {
        let client = if service.address.is_ipv4() { CLIENT4 } else { CLIENT6 };
        let question = Question {
            from: (client.parse::<std::net::IpAddr>().expect("address"), 40000).into(),
            to: (service.address, service.port).into(),
            udp: service.udp,
            syn: true,
            payload_bytes: 0,
        };
        f.redirect.trace(&question).expect("asked").verdict
    };
    for service in &services {
        assert_eq!(verdict(&f, service), Verdict::Redirected, "{service:?}");
        let other = ServiceKey { udp: !service.udp, ..*service };
        assert_eq!(verdict(&f, &other), Verdict::Plain, "{other:?}");
        let other = ServiceKey { port: 90, ..*service };
        assert_eq!(verdict(&f, &other), Verdict::Plain, "{other:?}");
    }
    f.redirect.remove_service(&services[7]).expect("removed");
    for service in &services {
        let expected = if *service == services[7] { Verdict::Plain } else { Verdict::Redirected };
        assert_eq!(verdict(&f, service), expected, "{service:?}");
    }
    f.redirect.set_service(&one_more, &[0; MAGLEV_ENTRIES]).expect("there is room again");
}

fn vip6_of(number: u8) -> std::net::IpAddr {
    std::net::Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 1, number.into()).into()
}

/// A flood of SYNs displaces only other SYNs.
#[test]
fn a_flood_of_syns_fills_nothing() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("flood");
    f.serve(&[0, 1]);
    for port in 1024..3024 {
        assert_eq!(f.send(&request(port).flags(SYN).build()).0, REDIRECT);
    }
    assert_eq!(f.redirect.flows().count(), 0);
    assert_eq!(f.send(&request(1024).build()).0, REDIRECT);
    assert_eq!(f.redirect.flows().count(), 1);
}

#[test]
fn datagrams_stay_while_they_come() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("udp");
    f.serve(&[0]);
    let to = |f: &Fixture| outer(&f.send(&f.datagram(5353, 100)).1).0.target;
    assert_eq!(to(&f), HOSTS[0].0);
    f.serve(&[1]);
    assert_eq!(to(&f), HOSTS[0].0);
    for _ in 0..31 {
        f.redirect.tick().expect("ticks");
    }
    assert_eq!(to(&f), HOSTS[1].0, "after half a minute");
    f.set_host(1, |host| host.state = HostState::Dead);
    f.serve(&[0]);
    assert_eq!(to(&f), HOSTS[0].0, "at once where its host is dead");
}

#[test]
fn what_does_not_fit_is_answered_from_the_service_address() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("toobig");
    f.serve(&[0]);
    let fits = request(40000).payload(1440).build();
    assert_eq!(f.send(&fits).0, REDIRECT);
    let frame = request(40000).payload(1441).build();
    let (verdict, out) = f.send(&frame);
    assert_eq!(verdict, REDIRECT);
    assert_too_big(&out, &frame, 1480);

    let frame = request6(40000).payload(1401).build();
    let (verdict, out) = f.send(&frame);
    assert_eq!(verdict, REDIRECT);
    assert_too_big(&out, &frame, 1460);
    assert_eq!(f.count("too_big"), 2);
}

/// A test run cannot say what kind of GSO frame it has, which the kernel must know to encapsulate
/// it; the tests in namespaces cover that.
#[test]
fn a_gso_frame_is_judged_by_its_segments() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("gso");
    f.set_host(0, |host| host.layer2 = true);
    f.serve(&[0]);
    let frame = request(40000).payload(3000);
    let bytes = frame.build();
    assert_eq!(f.send_gso(&bytes, 1460), (REDIRECT, frame.ttl(63).build()));
    let (verdict, out) = f.send_gso(&bytes, 1461);
    assert_eq!((verdict, out[34]), (REDIRECT, 3), "answered");
    assert_eq!(out.len(), 14 + 28 + 80);
    assert_eq!((f.count("redirected"), f.count("too_big")), (1, 1));
}

#[test]
fn answers_are_limited() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("limit");
    f.serve(&[0]);
    let frame = request(40000).payload(1441).build();
    let answered = (0..1000).filter(|_| f.send(&frame).0 == REDIRECT).count();
    assert!(answered < 1000, "{answered}");
    assert_eq!(f.count("too_big") as usize, answered);
    assert_eq!(f.count("too_big_limited") as usize, 1000 - answered);
}

#[test]
fn what_may_be_cut_is_cut() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("cut");
    f.serve(&[0]);
    for (mtu, payload, pieces) in
        [(1500, 1452, 1), (1500, 1453, 2), (1280, 3000, 3), (620, 3000, 6)]
    {
        f.set_host(0, |host| host.v4.as_mut().expect("a way").mtu = mtu);
        let frame = f.datagram(5353, payload);
        let before = f.captured();
        assert!(before.is_empty());
        let (verdict, first) = f.send(&frame);
        assert_eq!(verdict, REDIRECT);
        let mut all = vec![first];
        all.extend(f.wait_for(pieces - 1));
        let mut datagram = vec![None; payload + 8];
        for piece in &all {
            let (header, inner) = outer(piece);
            assert_eq!(header.target, HOSTS[0].0);
            assert_eq!(holdfast_wire::packet::internet_checksum(&inner[..20]), 0);
            assert!(inner.len() + 20 <= mtu as usize, "{}", inner.len());
            let fragment = u16::from_be_bytes([inner[6], inner[7]]);
            let at = usize::from(fragment & 0x1fff) * 8;
            let more = fragment & 0x2000 != 0;
            assert_eq!(more, at + inner.len() - 20 < payload + 8);
            for (i, byte) in inner[20..].iter().enumerate() {
                assert_eq!(datagram[at + i].replace(*byte), None, "twice");
            }
        }
        let datagram: Vec<u8> = datagram.into_iter().map(|b| b.expect("every byte")).collect();
        assert_eq!(datagram, frame[34..], "{payload}");
    }
    assert_eq!(f.count("cut"), 3);
}

#[test]
fn later_fragments_follow_the_first() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("fragments");
    f.serve(&[0]);
    let whole = f.datagram(5353, 992);
    let piece = |from: usize, to: usize, more: bool| {
        let mut frame = [&whole[..34], &whole[34 + from..34 + to]].concat();
        let total = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        let word = (from / 8) as u16 | if more { 0x2000 } else { 0 };
        frame[20..22].copy_from_slice(&word.to_be_bytes());
        fix_ipv4(&mut frame);
        frame
    };
    let late = piece(504, 1000, false);
    assert_eq!(f.send(&late), (PASS, late.clone()), "nobody knows it yet");
    assert_eq!(f.send(&piece(0, 504, true)).0, REDIRECT);
    f.serve(&[1]);
    let (verdict, out) = f.send(&late);
    assert_eq!((verdict, outer(&out).0.target), (REDIRECT, HOSTS[0].0));
    assert_eq!(f.count("fragments_followed"), 1);
}

#[test]
fn icmp_errors_follow_what_they_quote() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("icmp");
    f.serve(&[0]);
    for frame in [request(40000), request6(40000)] {
        f.send(&frame.clone().flags(SYN).build());
        f.send(&frame.build());
    }
    f.serve(&[1]);
    for (client, v6) in [(request(40000), false), (request6(40000), true)] {
        let error = icmp_error(&client, 8);
        let (verdict, out) = f.send(&error);
        let (header, inner) = outer(&out);
        let host = if v6 { HOSTS[0].1 } else { HOSTS[0].0 };
        assert_eq!((verdict, header.target), (REDIRECT, host));
        assert_eq!(inner[if v6 { 40 } else { 20 }..], error[if v6 { 54 } else { 34 }..]);
        // One quote has no ports, the other is of somebody else's packet.
        let short = icmp_error(&client, 3);
        assert_eq!(f.send(&short).0, PASS);
        let mut other = client.clone();
        other.target.1 = 22;
        assert_eq!(f.send(&icmp_error(&other, 8)).0, PASS);
    }
    assert_eq!(f.count("icmp_followed"), 2);
}

#[test]
fn truncated_and_hostile_frames_go_the_plain_way_or_nowhere() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("hostile");
    f.serve(&[0, 1]);
    for whole in [request(40000).payload(30).build(), request6(40000).payload(30).build()] {
        // The kernel runs no program on less than an IP header.
        let header = if whole[14] >> 4 == 4 { 34 } else { 54 };
        for length in header..whole.len() {
            let (verdict, _) = f.send(&whole[..length]);
            assert_eq!(verdict, PASS, "{length} bytes");
        }
        for at in 14..whole.len() {
            for value in [0, 1, 0x0f, 0x45, 0x7f, 0xff] {
                let mut frame = whole.clone();
                frame[at] = value;
                let (verdict, out) = f.send(&frame);
                assert!([PASS, REDIRECT, STOLEN].contains(&verdict), "{verdict}");
                if verdict == PASS {
                    assert_eq!(out, frame);
                }
            }
        }
    }
}

#[test]
fn a_trace_says_what_would_happen_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("trace");
    f.serve(&[1]);
    let question = |port: u16, syn: bool, payload_bytes: u16| Question {
        from: format!("10.8.0.2:{port}").parse().expect("address"),
        to: format!("{VIP4}:80").parse().expect("address"),
        udp: false,
        syn,
        payload_bytes,
    };
    let before = f.redirect.counters();
    let traced = f.redirect.trace(&question(40000, true, 0)).expect("asked");
    assert_eq!(
        (traced.verdict, traced.how, traced.member),
        (Verdict::Redirected, How::New, Some(1))
    );
    assert_eq!(outer(&traced.after).0.target, HOSTS[1].0);
    let traced = f.redirect.trace(&question(40000, false, 0)).expect("asked");
    assert_eq!((traced.how, traced.member), (How::Stray, Some(1)));
    assert_eq!((f.redirect.counters(), f.redirect.flows().count()), (before, 0));
    f.send(&request(40000).flags(SYN).build());
    assert_eq!(f.redirect.trace(&question(40000, false, 0)).expect("asked").how, How::Embryo);
    f.send(&request(40000).build());
    f.serve(&[0]);
    let traced = f.redirect.trace(&question(40000, false, 0)).expect("asked");
    assert_eq!((traced.how, traced.member), (How::Flow, Some(1)));
    let traced = f.redirect.trace(&question(40000, false, 1441)).expect("asked");
    assert_eq!((traced.verdict, traced.after[34]), (Verdict::Redirected, 3), "an ICMP error");
    let mut elsewhere = question(40000, true, 0);
    elsewhere.to.set_port(22);
    assert_eq!(f.redirect.trace(&elsewhere).expect("asked").verdict, Verdict::Plain);
    let six = Question {
        from: "[fd00:8::2]:40000".parse().expect("address"),
        to: format!("[{VIP6}]:80").parse().expect("address"),
        ..question(0, true, 0)
    };
    assert_eq!(f.redirect.trace(&six).expect("asked").member, Some(0));
}

#[test]
fn a_redirector_that_starts_again_finds_what_it_left() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("again");
    f.serve(&[0]);
    f.send(&request(40000).flags(SYN).build());
    f.send(&request(40000).build());
    let (hosts, mut services) = (f.redirect.hosts(), f.redirect.services());
    f.attach_again();
    assert_eq!(f.redirect.hosts(), hosts);
    let mut after = f.redirect.services();
    after.sort();
    services.sort();
    assert_eq!(after, services);
    assert_eq!(f.redirect.flows().count(), 1);
    let service = ServiceKey { address: VIP4.parse().expect("address"), port: 80, udp: false };
    f.redirect.remove_service(&service).expect("removed");
    assert_eq!(f.send(&request(40000).build()).0, PASS);
}
