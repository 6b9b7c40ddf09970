//! Servers of several processes, as Debian starts them.

use super::super::row::{Carrier, Client, Lasts, Piece, Place, Row, Step, Talk};
use super::{
    LARGE, V4, V6, curl, document, documents, get, http, letters, names, web, words, write,
};
use crate::testbed::config::ServerRun;
use anyhow::Result;

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            port: 8080,
            prepare: |place| web::nginx(place, "", ""),
            arguments: web::nginx_arguments,
            talk: Talk::new(Carrier::Tcp, http),
            clients: curl,
            run: ServerRun::Parallel,
            ..Row::new("nginx-workers", &["nginx-light", "curl"], "/usr/sbin/nginx")
        },
        apache("apache-prefork", |place| web::apache(place, "prefork")),
        apache("apache-event", |place| web::apache(place, "event")),
        Row {
            port: 8080,
            setting: "`nbthread 1`",
            prepare: |place| web::haproxy(place, "nbthread 1"),
            arguments: |place| words(place, "-W -f {}/server.conf"),
            talk: Talk::new(Carrier::Tcp, |_, _| get("", super::SMALL)),
            clients: |at| {
                let line = "curl -sS http://{host}:{port}/small";
                vec![Client::new(at, line, document(super::SMALL))]
            },
            run: ServerRun::Parallel,
            ..Row::new("haproxy-w", &["haproxy", "curl"], "/usr/sbin/haproxy")
        },
        Row {
            runs: "/usr/bin/python3",
            port: 8080,
            prepare: |place| {
                documents(place)?;
                place.write("app.py", WSGI)
            },
            arguments: |place| words(place, &format!("-w 2 -b {V4}:8080 -b [{V6}]:8080 app:app")),
            // Its workers end every connection.
            talk: Talk { lasts: Lasts::Turns(1), ..Talk::new(Carrier::Tcp, http) },
            clients: curl,
            run: ServerRun::Parallel,
            ..Row::new("gunicorn", &["gunicorn", "curl"], "/usr/bin/gunicorn")
        },
        vsftpd(),
        Row {
            port: 5300,
            prepare: names::dnsmasq,
            arguments: |place| words(place, "-k -C {}/dnsmasq.conf"),
            // It ends a connection after a hundred questions.
            talk: Talk { lasts: Lasts::Turns(100), ..Talk::new(Carrier::Tcp, names::query) },
            clients: names::dig,
            run: ServerRun::Parallel,
            ..Row::new("dnsmasq", &["dnsmasq-base", "bind9-dnsutils"], "/usr/sbin/dnsmasq")
        },
        postgresql(),
        sshd(),
        Row {
            user: "root",
            port: 2222,
            prepare: |place| {
                place.run("ssh-keygen -q -t ed25519 -N '' -f {}/key && dropbearconvert openssh dropbear {}/key {}/host.key")
            },
            arguments: |place| {
                words(
                    place,
                    &format!(
                        "-F -E -r {{}}/host.key -P {{}}/dropbear.pid -p {V4}:2222 -p [{V6}]:2222"
                    ),
                )
            },
            talk: Talk { lasts: Lasts::Turns(1), ..Talk::new(Carrier::Tcp, banner) },
            clients: |at| vec![keyscan(at)],
            run: ServerRun::Parallel,
            ..Row::new("dropbear", &["dropbear-bin", "openssh-client"], "/usr/sbin/dropbear")
        },
        samba(),
    ]
}

fn apache(name: &'static str, prepare: fn(&Place<'_>) -> Result<()>) -> Row {
    Row {
        port: 8080,
        prepare,
        arguments: |place| words(place, "-DFOREGROUND -d {} -f {}/server.conf"),
        talk: Talk::new(Carrier::Tcp, http),
        clients: curl,
        run: ServerRun::OneAtATime,
        ..Row::new(name, &["apache2-bin", "curl"], "/usr/sbin/apache2")
    }
}

const WSGI: &str = "
def app(environ, start):
    with open('www' + environ['PATH_INFO'], 'rb') as file:
        body = file.read()
    start('200 OK', [('Content-Length', str(len(body)))])
    return [body]
";

fn vsftpd() -> Row {
    Row {
        user: "root",
        port: 2121,
        has_ipv6: false,
        prepare: |place| {
            documents(place)?;
            place.folders(&["empty"])?;
            write(
                place,
                "vsftpd.conf",
                &format!(
                    "listen=YES\nlisten_address={V4}\nlisten_port=2121\nbackground=NO\n\
                     anonymous_enable=YES\nlocal_enable=NO\nanon_root={{}}/www\n\
                     secure_chroot_dir={{}}/empty\nxferlog_enable=NO\n"
                ),
            )
        },
        arguments: |place| words(place, "{}/vsftpd.conf"),
        talk: Talk {
            opening: |_| {
                vec![
                    Step::through("", "220 (vsFTPd 3.0.3)\r\n"),
                    Step::through("USER anonymous\r\n", "331 Please specify the password.\r\n"),
                    Step::through("PASS x\r\n", "230 Login successful.\r\n"),
                ]
            },
            ..Talk::new(Carrier::Tcp, |_, _| {
                Step::exact("SIZE large\r\n", format!("213 {}\r\n", LARGE.1))
            })
        },
        clients: |at| {
            let line = "curl -sSI ftp://{host}:{port}/large | grep -a Content-Length";
            vec![Client::shell(at, line, format!("Content-Length: {}\r\n", LARGE.1))]
        },
        run: ServerRun::Parallel,
        ..Row::new("vsftpd", &["vsftpd", "curl"], "/usr/sbin/vsftpd")
    }
}

const POSTGRES: &str = "/usr/lib/postgresql/15/bin/postgres";

fn postgresql() -> Row {
    Row {
        user: "postgres",
        port: 5432,
        prepare: |place| {
            place.run(
                "mkdir data && chown postgres data && runuser -u postgres -- \
                 /usr/lib/postgresql/15/bin/initdb -A trust -D {}/data && \
                 echo 'host all all all trust' >> {}/data/pg_hba.conf",
            )
        },
        arguments: |place| words(place, &format!("-D {{}}/data -h {V4},{V6} -p 5432 -k {{}}")),
        state: &["data"],
        talk: Talk::new(
            Carrier::Program(
                "/usr/lib/postgresql/15/bin/psql -XqtA -U postgres -h {host} -p {port}",
            ),
            |session, turn| {
                let text = letters(session, turn, 200);
                Step::exact(format!("select '{text}';\n"), format!("{text}\n"))
            },
        ),
        clients: |at| {
            let line = "/usr/lib/postgresql/15/bin/psql -XqtA -U postgres -h {host} -p {port} -c 'select 6*7'";
            vec![Client::shell(at, line, "42\n")]
        },
        run: ServerRun::OneAtATime,
        ..Row::new("postgresql", &["postgresql-15"], POSTGRES)
    }
}

fn sshd() -> Row {
    Row {
        user: "root",
        port: 2222,
        prepare: |place| {
            write(
                place,
                "sshd_config",
                &format!(
                    "Port 2222\nListenAddress {V4}\nListenAddress {V6}\nHostKey {{}}/key\n\
                     PidFile {{}}/sshd.pid\nPermitRootLogin yes\nStrictModes no\n\
                     Subsystem sftp internal-sftp\n\
                     AuthorizedKeysFile {{}}/client.pub\n"
                ),
            )?;
            place.run(
                "mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f {}/key && \
                 ssh-keygen -q -t ed25519 -N '' -f {}/client",
            )
        },
        arguments: |place| words(place, "-D -e -f {}/sshd_config"),
        talk: Talk {
            opening: |_| vec![Step::through([0, 0, 0, 5, 1, 0, 0, 0, 3], SFTP_ENDS)],
            ..Talk::new(
                Carrier::Program(
                    "ssh -q -i {files}/client -o StrictHostKeyChecking=no \
                     -o UserKnownHostsFile=/dev/null -o BatchMode=yes -p {port} -s root@{host} sftp",
                ),
                sftp_realpath,
            )
        },
        clients: |at| vec![keyscan(at)],
        ..Row::new("sshd", &["openssh-server", "openssh-client"], "/usr/sbin/sshd")
    }
}

/// The last of OpenSSH 9.2's extensions to SFTP, with which its greeting ends.
const SFTP_ENDS: &str = "users-groups-by-id@openssh.com\0\0\0\u{1}1";

/// What `/` is, by SFTP; draft-ietf-secsh-filexfer-02, 6.11 and 7. No shell stands between,
/// which would read what the machine's root has configured.
fn sftp_realpath(_: u64, turn: u64) -> Step {
    let id = (turn as u32).to_be_bytes();
    let packet = |kind: u8, rest: &[u8]| {
        let length = (5 + rest.len() as u32).to_be_bytes();
        [&length[..], &[kind], &id, rest].concat()
    };
    let root = [0, 0, 0, 1, b'/'];
    let names = [&[0, 0, 0, 1][..], &root, &root, &[0; 4]].concat();
    Step::exact(packet(16, &root), packet(104, &names))
}

/// The first line of an SSH server; its proposals follow.
fn banner(_: u64, _: u64) -> Step {
    let mut step = Step::through("", "SSH-2.0-dropbear_2022.83\r\n");
    step.hear.push(Piece::Rest);
    step
}

/// The host's key, as ssh-keyscan tells it.
fn keyscan(at: &super::At) -> Client {
    let key = at.read("key.pub");
    let key = key.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let line = "ssh-keyscan -t ed25519 -p {port} {host} 2>/dev/null";
    Client::shell(at, line, at.fill(&format!("[{{host}}]:{{port}} {key}\n")))
}

fn samba() -> Row {
    Row {
        user: "root",
        port: 4450,
        prepare: |place| {
            documents(place)?;
            place.folders(&["private", "lock", "state", "cache", "pid", "rpc"])?;
            write(
                place,
                "smb.conf",
                "[global]\nsmb ports = 4450\nmap to guest = Bad User\nserver role = standalone server\n\
                 disable netbios = yes\nload printers = no\nprinting = bsd\nprintcap name = /dev/null\nnetbios name = test\nlog file = {}/smbd.log\n\
                 private dir = {}/private\nlock directory = {}/lock\nstate directory = {}/state\n\
                 cache directory = {}/cache\npid directory = {}/pid\nncalrpc dir = {}/rpc\n\
                 [share]\npath = {}/www\nguest ok = yes\nread only = no\nforce user = root\n",
            )
        },
        arguments: |place| words(place, "--foreground --no-process-group -s {}/smb.conf"),
        talk: Talk {
            // Into a pipe it writes no prompt, and nothing before its end.
            opening: |_| vec![Step::through("", "commands.\n")],
            ..Talk::new(
                Carrier::Program("stdbuf -o0 smbclient -N -p {port} -I {host} //test/share"),
                |_, _| {
                    let size = format!("stream: [::$DATA], {} bytes\n", LARGE.1);
                    Step::through("allinfo large\n", &size)
                },
            )
        },
        clients: |at| {
            let line = "smbclient -N -p {port} -I {host} //test/share -c 'get large /dev/stdout' 2>/dev/null | head -c 262144";
            vec![Client::shell(at, line, document(LARGE))]
        },
        run: ServerRun::Parallel,
        is_copied: true,
        ..Row::new("samba", &["samba", "smbclient"], "/usr/sbin/smbd")
    }
}
