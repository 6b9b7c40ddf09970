use super::*;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Both ends of a connection, that of the server second.
fn pair(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let room: c_int = 1 << 20;
    sockopt::set(listener.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &room).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn pattern(range: Range<u64>) -> Vec<u8> {
    range.map(|at| (at * 7 + at / 251) as u8).collect()
}

fn wait_for(server: &TcpStream, end: u64, fin: bool) {
    let begun = Instant::now();
    while standing(server.as_fd()).unwrap() != Some(Standing { end, fin }) {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", standing(server.as_fd()));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn found(server: &TcpStream, range: Range<u64>) -> (Unread, Vec<u8>) {
    let mut bytes = vec![99];
    let unread = look(server.as_fd(), range, &mut bytes).unwrap();
    (unread, bytes)
}

#[test]
fn unread_bytes_are_found_by_their_offsets_and_stay() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (mut client, mut server) = pair(address);
        client.write_all(&pattern(0..300_000)).unwrap();
        wait_for(&server, 300_000, false);
        let mut buffer = vec![0; 1000];
        server.read_exact(&mut buffer).unwrap();
        for range in [1000..1001, 1000..70_000, 150_000..150_100, 299_000..300_000] {
            assert_eq!(found(&server, range.clone()), (Unread::Bytes, pattern(range)));
        }
        assert_eq!(found(&server, 299_999..400_000), (Unread::Bytes, pattern(299_999..300_000)));
        // These are bytes that were read already, and bytes that are not here yet.
        assert_eq!(found(&server, 999..2000), (Unread::Nothing, vec![]));
        assert_eq!(found(&server, 300_000..300_001), (Unread::Nothing, vec![]));
        assert_eq!(found(&server, 900_000..900_001), (Unread::Nothing, vec![]));
        let mut rest = vec![0; 299_000];
        server.read_exact(&mut rest).unwrap();
        assert_eq!(rest, pattern(1000..300_000));
    }
}

#[test]
fn a_fin_is_no_byte() {
    let (mut client, mut server) = pair("127.0.0.1:0");
    client.write_all(&pattern(0..10)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    wait_for(&server, 10, true);
    assert_eq!(found(&server, 0..5), (Unread::Bytes, pattern(0..5)));
    assert_eq!(found(&server, 3..11), (Unread::Last, pattern(3..10)));
    assert_eq!(found(&server, 10..11), (Unread::Last, vec![]));
    assert_eq!(found(&server, 11..12), (Unread::Nothing, vec![]));
    let mut all = Vec::new();
    server.read_to_end(&mut all).unwrap();
    assert_eq!(found(&server, 10..11), (Unread::Last, vec![]), "also when it was read");
    assert_eq!(found(&server, 9..11), (Unread::Nothing, vec![]));
    server.shutdown(Shutdown::Write).unwrap();
    assert!(matches!(found(&server, 10..11), (Unread::Last | Unread::Nothing, _)));
}

#[test]
fn while_the_owner_reads_nothing_wrong_is_found() {
    const ALL: u64 = 8 << 20;
    let (mut client, mut server) = pair("127.0.0.1:0");
    let over = AtomicBool::new(false);
    let twin = server.try_clone().unwrap();
    let (hits, mut at) = (AtomicU32::new(0), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| client.write_all(&pattern(0..ALL)).unwrap());
        scope.spawn(|| {
            let mut buffer = vec![0; 3001];
            let mut left = ALL as usize;
            while left > 0 {
                // An owner that is always faster than the looking thread would leave nothing, so
                // the second half is read only after something was found.
                while left < ALL as usize / 2 && hits.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                left -= server.read(&mut buffer).unwrap();
            }
            over.store(true, Ordering::Release);
        });
        while !over.load(Ordering::Acquire) {
            let (unread, bytes) = found(&twin, at..at + 500);
            assert_eq!(bytes, pattern(at..at + bytes.len() as u64));
            hits.fetch_add(u32::from(unread == Unread::Bytes), Ordering::Release);
            let received = standing(twin.as_fd()).unwrap().map_or(0, |standing| standing.end);
            at = received.saturating_sub(2000);
        }
    });
}

#[test]
fn a_pending_error_stays_for_the_owner() {
    let (client, mut server) = pair("127.0.0.1:0");
    server.write_all(b"unread").unwrap();
    // Closing a socket with unread data sends a reset.
    while queued(client.as_fd()).unwrap() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(client);
    while standing(server.as_fd()).unwrap().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(found(&server, 0..10), (Unread::Nothing, vec![]));
    let error = server.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_socket_whose_owner_peeks_from_an_offset_is_left_alone() {
    let (mut client, server) = pair("127.0.0.1:0");
    client.write_all(b"hello").unwrap();
    wait_for(&server, 5, false);
    assert_eq!(found(&server, 0..5).0, Unread::Bytes);
    // Kernels before 6.9 do not support SO_PEEK_OFF for TCP.
    if sockopt::set(server.as_fd(), libc::SOL_SOCKET, SO_PEEK_OFF, &0).is_ok() {
        assert_eq!(found(&server, 0..5).0, Unread::Nothing);
    }
}

#[test]
fn sockets_have_names_of_their_own() {
    let (client, server) = pair("127.0.0.1:0");
    let [a, b] = [client.as_fd(), server.as_fd()].map(|fd| cookie(fd).unwrap());
    assert_ne!(a, b);
    assert_eq!(cookie(server.try_clone().unwrap().as_fd()).unwrap(), b);
}
