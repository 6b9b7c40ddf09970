//! The table in which a redirector's program looks services up: a perfect hash, under which no
//! two services fall into one bucket, so that one comparison decides.

use super::layout::{
    NO_SERVICE, SPREAD_BUCKETS, SPREAD_SERVICES_MAX, SpreadDirectory, SpreadService,
};

/// Most attempts to find factors without a collision. For 64 services in 4096 buckets about
/// half of all attempts succeed, for fewer services nearly all.
const TRIES_MAX: u64 = 1000;

/// The directory of `services`; `None` if there are too many.
pub(super) fn build(services: &[SpreadService]) -> Option<Box<SpreadDirectory>> {
    if services.len() > SPREAD_SERVICES_MAX {
        return None;
    }
    let mut directory = Box::new(SpreadDirectory {
        factors: [0; 3],
        services: [SpreadService::NONE; SPREAD_SERVICES_MAX],
        buckets: [NO_SERVICE; SPREAD_BUCKETS],
    });
    directory.services[..services.len()].copy_from_slice(services);
    (0..TRIES_MAX).any(|attempt| fill(&mut directory, attempt)).then_some(directory)
}

/// The services of a directory.
pub(super) fn services(directory: &SpreadDirectory) -> Vec<SpreadService> {
    directory.services.iter().filter(|service| service.protocol != 0).copied().collect()
}

/// Fills the directory with the factors of this attempt; false if two services fall into one
/// bucket.
fn fill(directory: &mut SpreadDirectory, attempt: u64) -> bool {
    directory.factors = [0, 1, 2].map(|i| mixed(3 * attempt + i) | 1);
    directory.buckets.fill(NO_SERVICE);
    for (index, service) in services(directory).iter().enumerate() {
        let bucket = &mut directory.buckets[bucket_of(&directory.factors, service)];
        if *bucket != NO_SERVICE {
            return false;
        }
        *bucket = index as u8;
    }
    true
}

/// Bucket of a service, computed as by the program (`is_of_service` in
/// `bpf/spread.h`).
fn bucket_of(factors: &[u64; 3], service: &SpreadService) -> usize {
    let [low, high] = service.address;
    let rest = u64::from(service.protocol) << 16 | u64::from(service.port);
    let products = [low, high, rest].into_iter().zip(factors).map(|(a, b)| a.wrapping_mul(*b));
    let hash = products.fold(0, u64::wrapping_add);
    (hash >> (u64::BITS - SPREAD_BUCKETS.ilog2())) as usize
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::layout::mapped;

    fn service(number: u16) -> SpreadService {
        let address = if number.is_multiple_of(2) {
            std::net::Ipv4Addr::new(10, 9, 0, number as u8).into()
        } else {
            std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number).into()
        };
        let protocol = if number.is_multiple_of(3) { 17 } else { 6 };
        SpreadService::new(mapped(address), 80 + number % 5, protocol, u32::from(number))
    }

    #[test]
    fn every_service_has_a_bucket_of_its_own() {
        for count in 0..=SPREAD_SERVICES_MAX as u16 {
            let wanted: Vec<SpreadService> = (0..count).map(service).collect();
            let directory = build(&wanted).expect("they fit");
            assert_eq!(services(&directory), wanted);
            let used = directory.buckets.iter().filter(|index| **index != NO_SERVICE).count();
            assert_eq!(used, wanted.len());
            for (index, service) in wanted.iter().enumerate() {
                let bucket = bucket_of(&directory.factors, service);
                assert_eq!(usize::from(directory.buckets[bucket]), index);
            }
        }
    }

    #[test]
    fn too_many_services_have_no_directory() {
        let many: Vec<SpreadService> = (0..=SPREAD_SERVICES_MAX as u16).map(service).collect();
        assert!(build(&many).is_none());
    }
}
