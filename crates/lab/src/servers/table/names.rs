//! Name servers, asked over TCP.

use super::super::row::{At, Carrier, Client, Lasts, Piece, Row, Step, Talk};
use super::{V4, V6, words, write};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            port: 5300,
            prepare: |place| {
                write(
                    place,
                    "server.conf",
                    &format!(
                        "server:\ninterface: {V4}@5300\ninterface: {V6}@5300\ndo-daemonize: no\n\
                         username: \"\"\nchroot: \"\"\ndirectory: \"{{}}\"\npidfile: \"{{}}/unbound.pid\"\n\
                         use-syslog: no\naccess-control: 0.0.0.0/0 allow\naccess-control: ::/0 allow\n\
                         local-zone: \"test.\" static\nlocal-data: \"host.test. A 192.0.2.1\"\n"
                    ),
                )
            },
            arguments: |place| words(place, "-d -c {}/server.conf"),
            talk: Talk::new(Carrier::Tcp, query),
            clients: dig,
            ..Row::new("unbound", &["unbound", "bind9-dnsutils"], "/usr/sbin/unbound")
        },
        Row {
            port: 5300,
            prepare: |place| {
                place.write(
                    "test.zone",
                    "$TTL 3600\n@ SOA ns hostmaster 1 3600 600 86400 3600\n@ NS ns\n\
                     ns A 192.0.2.2\nhost A 192.0.2.1\n",
                )?;
                write(
                    place,
                    "named.conf",
                    &format!(
                        "options {{ directory \"{{}}\"; pid-file \"{{}}/named.pid\";\n\
                         session-keyfile \"{{}}/session.key\"; recursion no; minimal-responses yes;\n\
                         listen-on port 5300 {{ {V4}; }}; listen-on-v6 port 5300 {{ {V6}; }}; }};\n\
                         controls {{ }};\nzone \"test\" {{ type primary; file \"{{}}/test.zone\"; }};\n"
                    ),
                )
            },
            arguments: |place| words(place, "-f -c {}/named.conf"),
            talk: Talk::new(Carrier::Tcp, query),
            clients: dig,
            ..Row::new("named", &["bind9", "bind9-dnsutils"], "/usr/sbin/named")
        },
        Row {
            setting: "`-d`",
            port: 5300,
            prepare: dnsmasq,
            arguments: |place| words(place, "-d -C {}/dnsmasq.conf"),
            // It serves one connection at a time.
            talk: Talk { sessions: 1, lasts: Lasts::Turns(1), ..Talk::new(Carrier::Tcp, query) },
            clients: dig,
            ..Row::new("dnsmasq-d", &["dnsmasq-base", "bind9-dnsutils"], "/usr/sbin/dnsmasq")
        },
    ]
}

pub fn dnsmasq(place: &super::Place<'_>) -> anyhow::Result<()> {
    write(
        place,
        "dnsmasq.conf",
        &format!(
            "port=5300\nlisten-address={V4}\nlisten-address={V6}\nbind-interfaces\nno-resolv\nno-hosts\n\
             pid-file={{}}/dnsmasq.pid\nuser=nobody\naddress=/host.test/192.0.2.1\n"
        ),
    )
}

pub fn dig(at: &At) -> Vec<Client> {
    vec![Client::new(at, "dig +tcp +short -p {port} @{host} host.test", "192.0.2.1\n")]
}

/// The address of host.test; RFC 1035, 4.1 and 4.2.2.
pub fn query(_: u64, turn: u64) -> Step {
    let id = (turn as u16).to_be_bytes();
    let question: &[u8] = b"\x04host\x04test\x00\x00\x01\x00\x01";
    let message = |parts: &[&[u8]]| {
        let body = parts.concat();
        [&(body.len() as u16).to_be_bytes()[..], &body].concat()
    };
    let say = message(&[&id, &[0x01, 0, 0, 1, 0, 0, 0, 0, 0, 0], question]);
    // Name, type, class, and after the lifetime length and address.
    let (record, address): (&[u8], &[u8]) = (&[0xc0, 12, 0, 1, 0, 1], &[0, 4, 192, 0, 2, 1]);
    let bytes = 12 + question.len() + record.len() + 4 + address.len();
    let hear = vec![
        Piece::Exact([&(bytes as u16).to_be_bytes()[..], &id].concat()),
        // Its flags tell whether it is an authority, and recurses.
        Piece::Any(2),
        Piece::Exact([&[0, 1, 0, 1, 0, 0, 0, 0], question, record].concat()),
        Piece::Any(4),
        Piece::Exact(address.to_vec()),
    ];
    Step { say, hear }
}
