use super::{Handed, parse, take};
use core::ffi::CStr;

fn three(descriptors: [i32; 3]) -> Option<Handed> {
    Some(Handed { descriptors, carried: None })
}

#[test]
fn three_or_four_numbers_are_read_and_nothing_else() {
    assert_eq!(parse(b"1000,1001,1002"), three([1000, 1001, 1002]));
    assert_eq!(parse(b"0000001000,7,8"), three([1000, 7, 8]));
    let four = Handed { descriptors: [5, 6, 7], carried: Some(8) };
    assert_eq!(parse(b"5,6,7,0000000008"), Some(four));
    assert_eq!(parse(b"5,6,7,x"), None);
    for wrong in [&b""[..], b"1,2", b"1,,3", b"a,b,c", b"1 ,2,3", b"1,2,99999999999", b"\xff,1,2"] {
        assert_eq!(parse(wrong), None, "{wrong:?}");
    }
}

/// What `take` finds in an environment, and what it leaves there.
fn taken(variables: &[&CStr]) -> (Option<Handed>, Vec<&'static str>) {
    let mut environment: Vec<*mut u8> =
        variables.iter().map(|it| it.as_ptr().cast_mut().cast()).collect();
    environment.extend([core::ptr::null_mut(); 2]);
    let found = take(environment.as_mut_ptr());
    let left = environment.iter().take_while(|it| !it.is_null());
    // SAFETY: the strings of the caller, which are constants.
    let left = left.map(|it| unsafe { CStr::from_ptr(it.cast()) }.to_str().expect("text"));
    (found, left.collect())
}

#[test]
fn the_variable_is_taken_out() {
    let (found, left) = taken(&[c"A=1", c"HOLDFAST_SHIM=5,6,7", c"B=2"]);
    assert_eq!((found, left), (three([5, 6, 7]), vec!["A=1", "B=2"]));
    assert_eq!(taken(&[c"A=1"]), (None, vec!["A=1"]));
    assert_eq!(taken(&[c"HOLDFAST_SHIM=x"]), (None, vec![]));
    assert_eq!(taken(&[]), (None, vec![]));
}
