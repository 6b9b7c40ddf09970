//! What a connection has from its listener.

use super::*;

#[test]
fn a_connection_inherits_its_listeners_traffic_class() {
    // SAFETY: plain numbers, and a word of ours.
    unsafe {
        let [listener, made] = [(); 2].map(|()| libc::socket(libc::AF_INET6, libc::SOCK_STREAM, 0));
        let (class, size) = (0x28i32, size_of::<i32>() as u32);
        let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_TCLASS);
        let set = libc::setsockopt(listener, level, name, (&raw const class).cast(), size);
        assert_eq!(set, 0);
        inherit(listener, made as isize);
        let (mut found, mut len) = (0i32, size);
        libc::getsockopt(made, level, name, (&raw mut found).cast(), &raw mut len);
        assert_eq!(found, class);
        libc::close(listener);
        libc::close(made);
    }
}
