use super::*;

#[test]
fn pieces_are_collected_and_what_has_no_room_is_cut() {
    let mut room = vec![0_u8; TEXT_MAX + 1];
    let mut text = Text { at: room.as_mut_ptr(), len: 0 };
    let out = (&raw mut text).cast();
    let long = [vec![b'x'; TEXT_MAX - 4], vec![0]].concat();
    for piece in [&b"one\0"[..], &long, b"two\0"] {
        // SAFETY: a text, and a C string.
        unsafe { collect(out, piece.as_ptr().cast()) };
    }
    assert_eq!(text.len, TEXT_MAX);
    assert_eq!((&room[..4], &room[TEXT_MAX - 1..]), (&b"onex"[..], &b"t\0"[..]));
}
