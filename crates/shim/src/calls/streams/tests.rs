use super::flags_of;

#[test]
fn a_mode_opens_as_libc_opens_it() {
    let cases = [
        (c"r", libc::O_RDONLY),
        (c"rb", libc::O_RDONLY),
        (c"r+", libc::O_RDWR),
        (c"rb+", libc::O_RDWR),
        (c"w", libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC),
        (c"w+", libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC),
        (c"wxe", libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL | libc::O_CLOEXEC),
        (c"a", libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND),
        (c"a+", libc::O_RDWR | libc::O_CREAT | libc::O_APPEND),
        (c"re", libc::O_RDONLY | libc::O_CLOEXEC),
    ];
    for (letters, flags) in cases {
        assert_eq!(flags_of(letters.as_ptr().cast()), flags, "{letters:?}");
    }
}
