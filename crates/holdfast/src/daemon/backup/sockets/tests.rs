use super::*;
use holdfast_linux::shm::Settings;
use holdfast_wire::shm::mode;
use proptest::prelude::*;
use std::sync::atomic::Ordering::SeqCst;

fn memory() -> SharedMemory {
    let settings = Settings {
        ring_bytes: 1 << 20,
        hash_key: [1; 8],
        ports: vec![6379],
        options: 0,
        mode: mode::REPLAY,
        name: String::new(),
    };
    SharedMemory::create(&settings).expect("memory")
}

fn ipv4(ip: [u8; 4], port: u16) -> Vec<u8> {
    let mut out = (libc::AF_INET as u16).to_ne_bytes().to_vec();
    out.extend(port.to_be_bytes());
    out.extend(ip);
    out.extend([0; 8]);
    out
}

#[test]
fn only_services_get_the_daemons_rights() {
    let services = ["10.9.0.100:443".parse().unwrap(), "[fd09::100]:443".parse().unwrap()];
    let may = |address: &[u8], as_root| may_listen(address, &services, as_root).is_ok();
    assert!(may(&ipv4([10, 9, 0, 100], 443), false));
    assert!(may(&ipv4([0; 4], 443), false));
    assert!(may(&ipv4([10, 9, 0, 7], 8443), false));
    assert!(!may(&ipv4([10, 9, 0, 7], 443), false));
    assert!(!may(&ipv4([10, 9, 0, 100], 22), false));
    assert!(!may(&ipv4([0; 4], 22), false));
    assert!(may(&ipv4([0; 4], 22), true));
    assert!(!may(&[], true) && !may(&[1, 0, 1, 187], true));
    assert!(!may(&[10, 0, 1, 187, 0, 0, 0, 0], true));
}

/// A connection whose socket is taken and not rebuilt.
fn taken() -> RestoredSocket {
    let key = ConnKey { server: [1; 16], client: [2; 16], server_port: 80, client_port: 5000 };
    let record = ConnRecord {
        key,
        iss: SeqNo(100),
        irs: SeqNo(1000),
        mss: 1460,
        peer_mss: 1460,
        rcv_wscale: 7,
        snd_wscale: 7,
        sack: true,
        tsval: Some(5),
        window: 60000,
    };
    RestoredSocket {
        fd: None,
        source: Source::default(),
        key,
        record,
        rcv_nxt: SeqNo(1001),
        unread: Vec::new(),
        snd_una: SeqNo(101),
        in_flight: Vec::new(),
        retained: Vec::new(),
        peer_window_bytes: 1000,
        right_edge: SeqNo(61_001),
        receive_window_bytes: 60_000,
        tsval: Some(70_000),
        client_clock: None,
        closing: ClosingState::Established,
        queued: false,
        reinject: Vec::new(),
        tell: Tell::Now,
        syn_ack: None,
        syn_ack_at: Instant::now(),
        cookie: 0,
        nudge: None,
        segment_bytes: usize::MAX,
        acked: SeqNo(101),
        nudged_at: Instant::now(),
        moved_at: Instant::now(),
        born: Instant::now(),
        error: None,
    }
}

/// What a client has seen from the daemon must not make the kernel's next segment an old one.
#[test]
fn a_clock_begins_when_the_kernel_has_it() {
    let mut socket = taken();
    socket.born = Instant::now().checked_sub(Duration::from_secs(50)).expect("an uptime");
    assert!(socket.timestamps().is_some_and(|(own, _)| own >= 120_000));
    socket.rebuild();
    assert!(socket.timestamps().is_some_and(|(own, _)| (70_000..100_000).contains(&own)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A table with random content gives no connection that was not asked for.
    #[test]
    fn a_table_of_noise_is_read(words in prop::collection::vec(any::<[u64; 8]>(), 1..64)) {
        let memory = memory();
        for (accept, w) in words.iter().enumerate() {
            let e = memory.entry(accept as u32);
            let other = (w[0] as u32) << 16;
            e.conn.store(if w[0] % 2 == 0 { accept as u32 } else { other }, SeqCst);
            e.state.store((w[1] % 5) as u32, SeqCst);
            e.fd.store(w[2] as i32, SeqCst);
            e.shut.store(w[3] as u32, SeqCst);
            e.in_bytes.store(w[4], SeqCst);
            e.out_bytes.store(w[5], SeqCst);
            e.keep_from.store(w[6], SeqCst);
            e.eof.store(w[7] as u32, SeqCst);
        }
        let accepts: Vec<u32> = (0..words.len() as u32).collect();
        let found = manifest(&memory, &accepts).into_iter().map(|conn| conn.accept);
        let own = |accept: &u32| words[*accept as usize][0] % 2 == 0 || *accept == 0;
        let known = |accept: &u32| matches!(words[*accept as usize][1] % 5, 1 | 2);
        prop_assert!(found.clone().all(|accept| own(&accept) && known(&accept)));
    }
}
