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
