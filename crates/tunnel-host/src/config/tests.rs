//! What is right and what is wrong with files.

use super::*;
use holdfast_tunnel::Class;
use holdfast_tunnel::secure::SecretKey;
use proptest::prelude::*;

fn peer() -> String {
    SecretKey::from_random([5; 32]).public().to_string()
}

fn tun() -> String {
    format!(
        "[tunnel]\nkey = \"a.key\"\nlisten = \"[::]:51900\"\nmode = \"tun\"\n\
         address = [\"10.9.0.1/30\", \"fd09::1/64\"]\nrun_dir = \"/run/x\"\n\
         [peer]\nkey = \"{}\"\n",
        peer()
    )
}

fn udp() -> String {
    format!(
        "[tunnel]\nkey = \"a.key\"\nmode = \"udp\"\nforward = [\"udp 127.0.0.1:53 -> 10.0.0.5:53\"]\n\
         run_dir = \"/run/x\"\n[peer]\nkey = \"{}\"\naddress = \"192.0.2.1:51900\"\n",
        peer()
    )
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("/etc/holdfast/tunnel/wan.toml"), text)
        .map_err(|errors| errors.to_string())
}

/// What is told about a file with one line instead of another.
fn told(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from} is not in the file");
    parse(&text.replacen(from, to, 1)).expect_err("a mistake")
}

#[test]
fn a_short_file_is_enough() {
    let config = parse(&tun()).expect("a good file");
    assert_eq!(config.name, "wan");
    assert_eq!(config.key, Path::new("/etc/holdfast/tunnel/a.key"));
    assert_eq!((config.interface.as_str(), config.inner_mtu), ("hf-wan", 1420));
    assert_eq!(config.addresses.len(), 2);
    assert_eq!(config.machine().path_loss, PathLoss::Measure);
    assert!((config.machine().overhead_max - 0.35).abs() < 1e-9);
    assert_eq!(config.socket(), Path::new("/run/x/tunnel-wan.sock"));
    let config = parse(&udp()).expect("a good file");
    assert_eq!(config.forwards[0].target, "10.0.0.5:53".parse().expect("an address"));
    assert_eq!(config.idle, Duration::from_secs(120));
}

#[test]
fn classes_have_rules() {
    let rules =
        "[class.now]\nmatch = [\"udp 53\", \"dscp 46\"]\n[class.bulk]\nmatch = [\"port 873\"]\n";
    let config = parse(&(tun() + rules)).expect("a good file");
    let classes: Vec<Class> = config.rules.iter().map(|rule| rule.class).collect();
    assert_eq!(classes, [Class::Bulk, Class::Now, Class::Now], "in the order of their names");
    assert_eq!((config.rules[1].protocol, config.rules[1].port), (Some(17), Some(53)));
    let wrong = |lines: &str| parse(&(tun() + lines)).expect_err("a mistake");
    assert!(wrong("[class.nov]\nmatch = []\n").contains("did you mean `now`?"));
    for text in ["", "udp 0", "udp 70000", "dscp 64", "dscp", "port", "icmp", "tcp 1 2"] {
        let told = wrong(&format!("[class.now]\nmatch = [\"{text}\"]\n"));
        assert!(told.contains(&format!("\"{text}\" matches nothing")), "{told}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place_and_a_remedy() {
    let cases = [
        ("mode = \"tun\"", "mode = \"tan\"", ":4:", "did you mean `tun`?"),
        ("listen =", "lisen =", ":3:", "did you mean `listen`?"),
        ("key = \"a.key\"\n", "", "", "`key` is missing"),
        ("[::]:51900", "[::]", ":3:", "write \"[::]:51900\""),
        ("10.9.0.1/30", "10.9.0.1", ":5:", "is not an address with a prefix"),
        ("10.9.0.1/30", "10.9.0.1/33", ":5:", "is not an address with a prefix"),
        ("fd09::1/64", "10.9.0.5/30", ":5:", "more than one IPv4 address"),
        ("address =", "inner_mtu = 100\naddress =", ":5:", "576 to 65535 bytes"),
        ("address =", "inner_mtu = 1000\naddress =", ":5:", "too small for IPv6"),
        ("address =", "overhead_max = \"35\"\naddress =", ":5:", "write \"35%\""),
        ("address =", "overhead_max = \"900%\"\naddress =", ":5:", "is not a share"),
        ("address =", "path_loss = \"guess\"\naddress =", ":5:", "`measure`"),
        ("address =", "interface = \"a/b\"\naddress =", ":5:", "cannot be the name"),
        ("address =", "interface = \"..\"\naddress =", ":5:", "cannot be the name"),
        ("fd09::1/64\"", "fd09::1/64\", \"fd09::1/80\"", ":5:", "is in `address` already"),
        (
            "address =",
            "forward = [\"udp [::1]:1 -> [::2]:2\"]\naddress =",
            ":5:",
            "has no forwards",
        ),
        ("listen = \"[::]:51900\"\n", "", "", "they never meet"),
        ("mode = \"tun\"", "mode = \"udp\"", "", "mode = \"udp\" has no interface"),
    ];
    for (from, to, place, says) in cases {
        let told = told(&tun(), from, to);
        assert!(told.contains(place) && told.contains(says), "{to}: {told}");
        assert!(told.contains("remedy: "), "{told}");
    }
}

#[test]
fn forwards_that_cannot_be_are_told() {
    let forward = "udp 127.0.0.1:53 -> 10.0.0.5:53";
    for wrong in [
        "udp 127.0.0.1:53",
        "udp 127.0.0.1:53 -> db:53",
        "icmp 127.0.0.1:1 -> 10.0.0.5:1",
        "udp 127.0.0.1:53 -> 0.0.0.0:53",
        "udp 127.0.0.1:53 -> 10.0.0.5:0",
    ] {
        assert!(told(&udp(), forward, wrong).contains("is no forward"), "{wrong}");
    }
    let tcp = told(&udp(), forward, "tcp 127.0.0.1:5432 -> 10.0.0.5:5432");
    assert!(tcp.contains("carries no TCP") && tcp.contains("mode = \"forward\""), "{tcp}");
    let both = udp()
        .replace("\"udp\"", "\"forward\"")
        .replace("[\"udp", "[\"tcp [::1]:1 -> [fd09::1]:1\", \"udp");
    assert_eq!(parse(&both).expect("a good file").forwards.len(), 2);
    let none = told(&udp(), &format!("forward = [\"{forward}\"]\n"), "");
    assert!(none.contains("nothing is forwarded and nothing allowed"), "{none}");
    let allow = told(&udp(), "forward = ", "allow = [\"udp dns\"]\nforward = ");
    assert!(allow.contains("\"udp dns\" is no target"), "{allow}");
}

#[test]
fn what_cannot_be_listened_at_together_is_told() {
    let forwards = |more: &str| {
        let forward = "forward = [\"udp 127.0.0.1:53 -> 10.0.0.5:53\"";
        let text = udp().replace("\"udp\"", "\"forward\"");
        parse(&text.replace(forward, &format!("{forward}, {more}")))
    };
    for twice in ["udp 127.0.0.1:53 -> 10.0.0.6:53", "udp 0.0.0.0:53 -> 10.0.0.6:53"] {
        let told = forwards(&format!("\"{twice}\"")).expect_err("listens twice");
        assert!(told.contains(":4:47: another forward listens at udp 127.0.0.1:53"), "{told}");
        assert!(told.contains("remedy: each forward listens at a port of its own"), "{told}");
    }
    for beside in ["tcp 127.0.0.1:53", "udp 127.0.0.1:54", "udp 127.0.0.2:53", "udp [::]:53"] {
        forwards(&format!("\"{beside} -> 10.0.0.6:53\"")).expect("ports of their own");
    }
    let own = told(&udp(), "mode =", "listen = \"0.0.0.0:53\"\nmode =");
    assert!(own.contains("udp 127.0.0.1:53 is where this end listens for its peer"), "{own}");
    assert!(own.contains("remedy: choose another port"), "{own}");
    let tcp = udp().replace("\"udp\"", "\"forward\"").replace("[\"udp", "[\"tcp");
    parse(&tcp.replace("mode =", "listen = \"0.0.0.0:53\"\nmode =")).expect("another kind of port");
}

#[test]
fn a_peer_is_not_this_end() {
    let with = |listen: &str, peer: &str| {
        let text = udp().replace("mode =", &format!("listen = \"{listen}\"\nmode ="));
        parse(&text.replace("192.0.2.1:51900", peer))
    };
    for (listen, peer) in [
        ("192.0.2.9:51900", "192.0.2.9:51900"),
        ("[::]:51900", "127.0.0.1:51900"),
        ("[::]:51900", "[::1]:51900"),
    ] {
        let told = with(listen, peer).expect_err("it would speak to itself");
        assert!(told.contains("is where this end itself listens") && told.contains("remedy: "));
    }
    with("[::]:51900", "192.0.2.9:51900").expect("another host");
    with("127.0.0.1:51901", "127.0.0.1:51900").expect("another end on this host");
}

#[test]
fn a_secret_in_the_place_of_a_public_key_is_not_repeated() {
    let secret = "ab".repeat(32);
    let found = told(&tun(), &peer(), &secret);
    assert!(found.contains("this is a secret key") && !found.contains(&secret), "{found}");
    let unknown = told(&tun(), &peer(), "abc");
    assert!(unknown.contains("this is not a public key"), "{unknown}");
}

#[test]
fn the_name_of_the_file_becomes_that_of_the_tunnel() {
    let errors = Config::parse(Path::new("/etc/My Tunnel.toml"), &tun()).expect_err("a bad name");
    assert!(errors.to_string().contains("rename the file"), "{errors}");
}

/// A whole file, with every key that there is.
fn whole() -> String {
    tun()
        + "keepalive_s = 25\n[class.now]\nmatch = [\"udp 53\", \"dscp 46\"]\n\
           [class.bulk]\nmatch = [\"port 873\"]\n"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Bytes of a file that were changed, doubled or cut: it is understood, or told where it is wrong.
    #[test]
    fn a_file_that_was_spoilt_is_told_of(
        changes in prop::collection::vec((any::<u16>(), any::<u8>(), 0u8..4), 1..6),
        is_udp: bool,
    ) {
        let mut bytes = if is_udp { udp() } else { whole() }.into_bytes();
        for (place, byte, deed) in changes {
            let at = usize::from(place) % bytes.len().max(1);
            match deed {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, byte),
                2 => bytes.extend_from_within(at..),
                _ => if let Some(place) = bytes.get_mut(at) { *place = byte },
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Err(errors) = Config::parse(Path::new("/etc/holdfast/tunnel/wan.toml"), &text) {
            prop_assert!(!errors.0.is_empty());
            let lines = text.lines().count() + 1;
            prop_assert!(errors.0.iter().all(|it| it.line <= lines && !it.remedy.is_empty()));
        }
    }

    #[test]
    fn anything_at_all_is_told_of(text in ".{0,300}") {
        prop_assert!(Config::parse(Path::new("/etc/holdfast/tunnel/wan.toml"), &text).is_err());
    }
}
