use super::*;

fn control(size: usize, level: i32, kind: i32, numbers: &[i32]) -> Vec<u8> {
    let mut bytes = size.to_ne_bytes().to_vec();
    bytes.extend([level, kind].iter().flat_map(|it| it.to_ne_bytes()));
    bytes.extend(numbers.iter().flat_map(|it| it.to_ne_bytes()));
    bytes
}

#[test]
fn descriptors_are_found_within_what_there_is() {
    let (level, kind) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let of = |bytes: &[u8]| Passed::of(bytes).numbers().to_vec();
    assert_eq!(of(&control(24, level, kind, &[5, 7])), [5, 7]);
    assert_eq!(of(&control(20, level, kind, &[5, 7])), [5]);
    assert_eq!(of(&control(1000, level, kind, &[5, 7])), [5, 7], "it says more than there is");
    assert_eq!(of(&control(usize::MAX, level, kind, &[1; 20])), [1; PASSED_MAX]);
    assert_eq!(of(&control(24, level, libc::SCM_CREDENTIALS, &[5, 7])), [0; 0]);
    assert_eq!(of(&control(3, level, kind, &[5])), [0; 0]);
    assert_eq!(of(&[]), [0; 0]);
    assert_eq!(of(&control(24, level, kind, &[])[..12]), [0; 0]);
}
