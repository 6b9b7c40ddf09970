//! Servers that pass messages on.

use super::super::row::{Carrier, Client, Place, Row, Step, Talk};
use super::{V4, V6, letters, words, write};
use anyhow::Result;

/// Bytes of a message.
const MESSAGE_BYTES: u64 = 300;

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            port: 1883,
            prepare: |place| mosquitto(place, 1883, ""),
            arguments: |place| words(place, "-c {}/server.conf"),
            state: &["data"],
            talk: Talk { opening: mqtt_opening, ..Talk::new(Carrier::Tcp, publish) },
            clients: |at| {
                vec![
                    Client::new(
                        at,
                        "mosquitto_pub -h {host} -p {port} -q 2 -r -t check -m value",
                        "",
                    ),
                    Client::new(
                        at,
                        "mosquitto_sub -h {host} -p {port} -q 2 -t check -C 1",
                        "value\n",
                    ),
                ]
            },
            ..Row::new("mosquitto", &["mosquitto", "mosquitto-clients"], "/usr/sbin/mosquitto")
        },
        Row {
            port: 8883,
            prepare: |place| {
                place.certificate()?;
                mosquitto(place, 8883, "certfile {}/tls.pem\nkeyfile {}/tls.key\n")
            },
            arguments: |place| words(place, "-c {}/server.conf"),
            state: &["data"],
            talk: Talk { opening: mqtt_opening, ..Talk::new(Carrier::Tls, publish) },
            clients: |at| {
                let to = "-h {host} -p {port} --insecure --cafile {files}/tls.pem -q 2 -t check";
                vec![
                    Client::new(at, &format!("mosquitto_pub {to} -r -m value"), ""),
                    Client::new(at, &format!("mosquitto_sub {to} -C 1"), "value\n"),
                ]
            },
            ..Row::new(
                "mosquitto-tls",
                &["mosquitto", "mosquitto-clients", "openssl"],
                "/usr/sbin/mosquitto",
            )
        },
        Row {
            runs: "/usr/bin/lua5.4",
            port: 5222,
            prepare: prosody,
            arguments: |place| words(place, "-F --config {}/prosody.cfg.lua"),
            state: &["data"],
            talk: Talk {
                opening: xmpp_opening,
                ..Talk::new(Carrier::Tcp, |session, turn| {
                    let body = letters(session, turn, MESSAGE_BYTES);
                    let ask = format!(
                        "<message to='alice@test/s{session}' type='chat' id='m{turn}'><body>{body}</body></message>"
                    );
                    let mut step = Step::through(ask, "<body>");
                    step.hear.extend(Step::exact("", format!("{body}</body></message>")).hear);
                    step
                })
            },
            clients: |at| {
                let line = "printf \"<stream:stream to='test' xmlns='jabber:client' \
                            xmlns:stream='http://etherx.jabber.org/streams' version='1.0'></stream:stream>\" \
                            | nc {host} {port} | tail -c 16";
                vec![Client::shell(at, line, "</stream:stream>")]
            },
            ..Row::new("prosody", &["prosody", "netcat-openbsd"], "/usr/bin/prosody")
        },
    ]
}

fn mosquitto(place: &Place<'_>, port: u16, more: &str) -> Result<()> {
    write(
        place,
        "server.conf",
        &format!(
            "listener {port} {V4}\n{more}listener {port} {V6}\n{more}allow_anonymous true\n\
             persistence true\npersistence_location {{}}/data/\nlog_type error\nlog_type warning\n"
        ),
    )
}

/// An MQTT packet; MQTT 3.1.1, 2.2.
fn mqtt(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut packet = vec![kind];
    let mut left = body.len();
    loop {
        let (low, high) = ((left % 128) as u8, left / 128);
        packet.push(if high > 0 { low | 0x80 } else { low });
        left = high;
        if left == 0 {
            break;
        }
    }
    packet.extend(body);
    packet
}

/// A text of MQTT, with its length.
fn mqtt_text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

/// Connects, and subscribes to a topic of its own.
fn mqtt_opening(session: u64) -> Vec<Step> {
    let name = mqtt_text(&format!("client{session}"));
    let connect = mqtt(0x10, &[&mqtt_text("MQTT"), &[4, 2, 0, 0], &name]);
    let subscribe = mqtt(0x82, &[&[0, 1], &mqtt_text(&format!("own/{session}")), &[0]]);
    vec![Step::exact(connect, [0x20, 2, 0, 0]), Step::exact(subscribe, [0x90, 3, 0, 1, 0])]
}

/// A message to itself.
fn publish(session: u64, turn: u64) -> Step {
    let body = letters(session, turn, MESSAGE_BYTES);
    let packet = mqtt(0x30, &[&mqtt_text(&format!("own/{session}")), body.as_bytes()]);
    Step::exact(packet.clone(), packet)
}

fn prosody(place: &Place<'_>) -> Result<()> {
    place.write("data/test/accounts/alice.dat", "return { [\"password\"] = \"secret\"; };\n")?;
    write(
        place,
        "prosody.cfg.lua",
        &format!(
            "modules_enabled = {{ \"roster\", \"saslauth\", \"disco\", \"ping\" }}\n\
             modules_disabled = {{ \"s2s\" }}\nc2s_require_encryption = false\n\
             allow_unencrypted_plain_auth = true\nauthentication = \"internal_plain\"\n\
             interfaces = {{ \"{V4}\", \"{V6}\" }}\nc2s_ports = {{ 5222 }}\n\
             data_path = \"{{}}/data\"\npidfile = \"{{}}/data/prosody.pid\"\n\
             log = {{ info = \"*console\" }}\nVirtualHost \"test\"\n"
        ),
    )
}

/// Alice comes, with a resource for each session; RFC 6120.
fn xmpp_opening(session: u64) -> Vec<Step> {
    let stream = "<stream:stream to='test' xmlns='jabber:client' \
                  xmlns:stream='http://etherx.jabber.org/streams' version='1.0'>";
    // "\0alice\0secret"
    let auth = "<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>AGFsaWNlAHNlY3JldA==</auth>";
    let bind = format!(
        "<iq type='set' id='b'><bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'>\
         <resource>s{session}</resource></bind></iq>"
    );
    vec![
        Step::through(stream, "</stream:features>"),
        Step::through(auth, "<success xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>"),
        Step::through(stream, "</stream:features>"),
        Step::through(bind, "</iq>"),
    ]
}
