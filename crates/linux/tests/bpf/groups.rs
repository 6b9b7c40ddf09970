//! Two groups on one interface: their filters have the same places, and each would put
//! its own into the other's. The second one is refused, and told whose it is.

use crate::common::{REDIRECT, is_root, redirector, transit};
use holdfast_linux::bpf::{Redirect, RedirectConfig, Transit, TransitConfig, remove_pin_dir};

#[test]
fn an_interface_of_a_redirector_belongs_to_one_group() {
    if !is_root() {
        return;
    }
    let mut f = redirector::Fixture::new("groups-redirect");
    f.serve(&[0]);
    let (group, pin_dir) = ("mail".to_owned(), f.lab.pin_dir.with_extension("other"));
    let other = RedirectConfig { group, pin_dir, ..f.config.clone() };
    let refused = Redirect::attach(&other).map(drop).expect_err("two groups").to_string();
    assert!(refused.starts_with("ec belongs to another group, `web`: give each"), "{refused}");
    assert!(!other.pin_dir.exists(), "nothing is left of it");
    let removed = Redirect::detach_stale(&["ec"], &other.group, &other.pin_dir);
    assert_eq!(removed.expect("nothing of it"), []);
    assert_eq!(f.send(&redirector::request(40000).build()).0, REDIRECT);
    // What lost its pins is known by its name.
    std::fs::remove_dir_all(f.lab.pin_dir.join("redirect")).expect("the pins");
    f.attach_again();
    f.redirect.detach().expect("detach");
    Redirect::attach(&other).expect("nobody's").detach().expect("detach");
    remove_pin_dir(&other.pin_dir).expect("nothing is left of it");
}

#[test]
fn an_interface_of_an_edge_of_strings_belongs_to_one_group() {
    if !is_root() {
        return;
    }
    let mut f = transit::Fixture::new("groups-transit", true, false);
    f.use_strings(0b001);
    let (group, pin_dir) = ("mail".to_owned(), f.lab.pin_dir.with_extension("other"));
    let other = TransitConfig { group, pin_dir, ..f.config.clone() };
    let refused = Transit::attach(&other).map(drop).expect_err("two groups").to_string();
    assert!(refused.starts_with("n0 belongs to another group, `web`: give each"), "{refused}");
    assert!(!other.pin_dir.exists(), "nothing is left of it");
    let free = Transit::is_free(&["n1"], &other.group, &other.pin_dir);
    assert!(free.is_err_and(|error| error.to_string().starts_with("n1 belongs")));
    let removed = Transit::detach_stale(&["n0", "n1", "nc"], &other.group, &other.pin_dir);
    assert_eq!(removed.expect("nothing of it"), []);
    assert_eq!(f.string_of(&transit::request(1).build()), 0);
    f.transit = Transit::attach(&f.config).expect("its own");
    f.transit.detach().expect("detach");
    Transit::attach(&other).expect("nobody's").detach().expect("detach");
    remove_pin_dir(&other.pin_dir).expect("nothing is left of it");
}
