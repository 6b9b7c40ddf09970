use super::*;

fn asked(name: &CStr, flags: i32) -> *mut Item {
    // SAFETY: plain numbers and null pointers.
    let mut hints: Item = unsafe { core::mem::zeroed() };
    (hints.ai_flags, hints.ai_socktype) = (flags | libc::AI_NUMERICHOST, libc::SOCK_STREAM);
    let mut out = core::ptr::null_mut();
    // SAFETY: C strings, and a place for the list.
    let code =
        unsafe { libc::getaddrinfo(name.as_ptr(), c"80".as_ptr(), &raw const hints, &raw mut out) };
    assert_eq!(code, 0);
    out
}

#[test]
fn another_answer_is_given_as_libc_would_have_made_it() {
    for (own, logged) in [(c"::1", c"127.0.0.1"), (c"192.0.2.1", c"2001:db8::7")] {
        let mut list = asked(own, 0);
        let mut others = asked(logged, libc::AI_CANONNAME);
        let wanted = Answer::of(0, &raw const others);
        assert!(wanted.as_bytes() != Answer::of(0, &raw const list).as_bytes());
        assert_eq!(replace(0, &raw mut list, wanted.as_bytes()), 0);
        assert!(Answer::of(0, &raw const list).as_bytes() == wanted.as_bytes());
        // SAFETY: both lists are as libc makes them.
        unsafe {
            assert_eq!(CStr::from_ptr((*list).ai_canonname), logged);
            libc::freeaddrinfo(list);
            libc::freeaddrinfo(core::mem::replace(&mut others, core::ptr::null_mut()));
        }
    }
}

#[test]
fn a_failure_is_given_with_its_error_and_half_an_answer_is_one() {
    let failed = Head { code: libc::EAI_SYSTEM, errno: libc::EIO, items: 0, name_bytes: 0 };
    // SAFETY: plain numbers.
    let logged =
        unsafe { core::slice::from_raw_parts((&raw const failed).cast::<u8>(), size_of::<Head>()) };
    let mut list = asked(c"127.0.0.1", 0);
    assert_eq!(replace(0, &raw mut list, logged), libc::EAI_SYSTEM);
    assert_eq!(errno(), libc::EIO);
    assert_eq!(replace(libc::EAI_NONAME, &raw mut list, &logged[..3]), libc::EAI_MEMORY);
}
