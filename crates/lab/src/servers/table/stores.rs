//! Servers that keep what clients give them.

use super::super::row::{At, Carrier, Client, Place, Row, Step, Talk};
use super::{V4, V6, letters, words};
use anyhow::Result;

/// Bytes of a value.
const VALUE_BYTES: u64 = 512;

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            port: 6379,
            arguments: |place| redis(place, ""),
            state: &["data"],
            talk: Talk::new(Carrier::Tcp, count),
            clients: redis_cli,
            ..Row::new("redis", REDIS, "/usr/bin/redis-server")
        },
        Row {
            port: 6379,
            arguments: |place| redis(place, "--appendonly yes"),
            state: &["data"],
            // A file that grows faster than a member can copy it keeps that from joining.
            talk: Talk { pause_ms: 1, ..Talk::new(Carrier::Tcp, count) },
            clients: redis_cli,
            ..Row::new("redis-aof", REDIS, "/usr/bin/redis-server")
        },
        Row {
            port: 6380,
            prepare: |place| place.certificate(),
            arguments: |place| {
                let tls = "--port 0 --tls-port 6380 --tls-auth-clients no \
                           --tls-cert-file {}/tls.pem --tls-key-file {}/tls.key";
                redis(place, tls)
            },
            state: &["data"],
            talk: Talk::new(Carrier::Tls, count),
            clients: |at| {
                let cli = "redis-cli -h {host} -p {port} --tls --insecure";
                vec![
                    Client::new(at, &format!("{cli} set check value"), "OK\n"),
                    Client::new(at, &format!("{cli} get check"), "value\n"),
                ]
            },
            ..Row::new("redis-tls", REDIS, "/usr/bin/redis-server")
        },
        Row {
            port: 11211,
            arguments: |place| words(place, &format!("-l {V4},{V6} -p 11211 -t 4 -m 64")),
            talk: Talk::new(Carrier::Tcp, |session, turn| {
                let value = letters(session, turn, VALUE_BYTES);
                let key = format!("k{session}");
                Step::exact(
                    format!("set {key} 0 0 {VALUE_BYTES}\r\n{value}\r\nget {key}\r\n"),
                    format!("STORED\r\nVALUE {key} 0 {VALUE_BYTES}\r\n{value}\r\nEND\r\n"),
                )
            }),
            clients: |at| {
                let line = "printf 'set check 0 0 5\\r\\nvalue\\r\\nget check\\r\\nquit\\r\\n' | nc {host} {port}";
                vec![Client::shell(at, line, "STORED\r\nVALUE check 0 5\r\nvalue\r\nEND\r\n")]
            },
            ..Row::new("memcached", &["memcached", "netcat-openbsd"], "/usr/bin/memcached")
        },
        mariadb("mariadb", "", |place| mariadb_arguments(place, "")),
        mariadb("mariadb-no-aio", "`innodb_use_native_aio=0`", |place| {
            mariadb_arguments(place, "--innodb-use-native-aio=0")
        }),
        Row {
            port: 3890,
            prepare: slapd,
            arguments: |place| {
                words(
                    place,
                    &format!(
                        "-d 0 -f {{}}/slapd.conf -h ldap://{V4}:3890/\u{1}ldap://[{V6}]:3890/"
                    ),
                )
                .into_iter()
                .map(|word| word.replace('\u{1}', " "))
                .collect()
            },
            state: &["data"],
            talk: Talk::new(Carrier::Tcp, |_, turn| search((turn % 100) as u8 + 1)),
            clients: |at| {
                let line =
                    "ldapsearch -x -LLL -H ldap://{host}:{port} -b cn=check,dc=test description";
                vec![Client::new(at, line, "dn: cn=check,dc=test\ndescription: value\n\n")]
            },
            ..Row::new("slapd", &["slapd", "ldap-utils"], "/usr/sbin/slapd")
        },
    ]
}

const REDIS: &[&str] = &["redis-server", "redis-tools", "openssl"];

/// Debian's defaults, with snapshots.
fn redis(place: &Place<'_>, more: &str) -> Vec<String> {
    let line = format!("--bind {V4} {V6} --port 6379 --protected-mode no --dir {{}}/data {more}");
    words(place, &line)
}

/// The connection's own counter, and a value that is given back.
fn count(session: u64, turn: u64) -> Step {
    let (key, value) = (format!("c{session}"), letters(session, turn, VALUE_BYTES));
    let ask = format!(
        "*2\r\n$4\r\nINCR\r\n${}\r\n{key}\r\n*2\r\n$4\r\nECHO\r\n${VALUE_BYTES}\r\n{value}\r\n",
        key.len()
    );
    Step::exact(ask, format!(":{}\r\n${VALUE_BYTES}\r\n{value}\r\n", turn + 1))
}

fn redis_cli(at: &At) -> Vec<Client> {
    vec![
        Client::new(at, "redis-cli -h {host} -p {port} set check value", "OK\n"),
        Client::new(at, "redis-cli -h {host} -p {port} get check", "value\n"),
    ]
}

fn mariadb(
    name: &'static str,
    setting: &'static str,
    arguments: fn(&Place<'_>) -> Vec<String>,
) -> Row {
    let client = Carrier::Program("mariadb -N -B -n -utest -h{host} -P{port}");
    Row {
        setting,
        port: 3306,
        has_ipv6: false,
        prepare: mariadb_files,
        arguments,
        state: &["data"],
        talk: Talk::new(client, |session, turn| {
            let value = letters(session, turn, VALUE_BYTES);
            Step::exact(format!("select '{value}';\n"), format!("{value}\n"))
        }),
        clients: |at| {
            let line = "mariadb -N -B -utest -h{host} -P{port} -e 'select 6*7'";
            vec![Client::shell(at, line, "42\n")]
        },
        ..Row::new(name, &["mariadb-server-core", "mariadb-client-core"], "/usr/sbin/mariadbd")
    }
}

fn mariadb_arguments(place: &Place<'_>, more: &str) -> Vec<String> {
    let line = "--no-defaults --datadir={}/data --socket={}/socket --skip-name-resolve \
                --init-file={}/users.sql";
    words(place, &format!("{line} {more} --bind-address={V4}"))
}

fn mariadb_files(place: &Place<'_>) -> Result<()> {
    place.write(
        "users.sql",
        "create user if not exists test@'%';\ngrant all on *.* to test@'%';\n",
    )?;
    place.run(
        "mariadb-install-db --no-defaults --user=nobody --datadir={}/data \
         --auth-root-authentication-method=normal --skip-test-db",
    )
}

fn slapd(place: &Place<'_>) -> Result<()> {
    place.folders(&["data"])?;
    let own = place.path("");
    place.write(
        "slapd.conf",
        format!(
            "include /etc/ldap/schema/core.schema\n\
             include /etc/ldap/schema/cosine.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n\
             pidfile {own}/slapd.pid\nargsfile {own}/slapd.args\n\
             database mdb\nsuffix dc=test\nrootdn cn=admin,dc=test\ndirectory {own}/data\n\
             maxsize 16777216\n"
        ),
    )?;
    place.write(
        "data.ldif",
        "dn: dc=test\nobjectClass: domain\ndc: test\n\n\
         dn: cn=check,dc=test\nobjectClass: organizationalRole\ncn: check\ndescription: value\n",
    )?;
    place.run("slapadd -f {}/slapd.conf -l {}/data.ldif")
}

/// A value of ASN.1, shorter than 128 bytes.
fn asn1(tag: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    let body = parts.concat();
    [vec![tag, body.len() as u8], body].concat()
}

/// LDAP: the entry's description; RFC 4511, 4.5.
fn search(id: u8) -> Step {
    const DN: &[u8] = b"cn=check,dc=test";
    let text = |tag, text: &[u8]| asn1(tag, &[text.to_vec()]);
    let message = |part| asn1(0x30, &[asn1(0x02, &[vec![id]]), part]);
    let (base, zero) = (asn1(0x0a, &[vec![0]]), asn1(0x02, &[vec![0]]));
    let request = asn1(
        0x63,
        &[
            text(0x04, DN),
            base.clone(),
            base.clone(),
            zero.clone(),
            zero,
            asn1(0x01, &[vec![0]]),
            text(0x87, b"objectClass"),
            asn1(0x30, &[text(0x04, b"description")]),
        ],
    );
    let values = asn1(0x31, &[text(0x04, b"value")]);
    let attribute = asn1(0x30, &[text(0x04, b"description"), values]);
    let entry = asn1(0x64, &[text(0x04, DN), asn1(0x30, &[attribute])]);
    let done = asn1(0x65, &[base, text(0x04, b""), text(0x04, b"")]);
    Step::exact(message(request), [message(entry), message(done)].concat())
}
