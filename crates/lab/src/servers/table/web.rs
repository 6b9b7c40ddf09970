//! Web servers and proxies of one process.

use super::super::row::{Carrier, Client, Lasts, ORIGIN_PORT, Piece, Place, Row, Step, Talk};
use super::{LARGE, SMALL, V4, V6, curl, curl_tls, document, documents, get, http, words, write};
use anyhow::Result;

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            setting: "`daemon off; master_process off;`",
            port: 8080,
            prepare: |place| nginx(place, "master_process off;", ""),
            arguments: nginx_arguments,
            talk: Talk::new(Carrier::Tcp, http),
            clients: curl,
            ..Row::new("nginx", &["nginx-light", "curl"], "/usr/sbin/nginx")
        },
        Row {
            setting: "`daemon off; master_process off;`",
            port: 8443,
            prepare: |place| {
                place.certificate()?;
                nginx(place, "master_process off;", "ssl")
            },
            arguments: nginx_arguments,
            talk: Talk::new(Carrier::Tls, http),
            clients: curl_tls,
            ..Row::new("nginx-tls", &["nginx-light", "curl", "openssl"], "/usr/sbin/nginx")
        },
        Row {
            port: 8080,
            prepare: lighttpd,
            arguments: |place| words(place, "-D -f {}/server.conf"),
            talk: Talk { lasts: Lasts::Turns(LIGHTTPD_TURNS), ..Talk::new(Carrier::Tcp, http) },
            clients: curl,
            ..Row::new("lighttpd", &["lighttpd", "curl"], "/usr/sbin/lighttpd")
        },
        Row {
            setting: "`-X`",
            port: 8080,
            prepare: |place| apache(place, "event"),
            arguments: |place| words(place, "-X -d {} -f {}/server.conf"),
            talk: Talk::new(Carrier::Tcp, http),
            clients: curl,
            ..Row::new("apache-x", &["apache2-bin", "curl"], "/usr/sbin/apache2")
        },
        Row {
            setting: "`-db` and `nbthread 1`",
            port: 8080,
            prepare: |place| haproxy(place, "nbthread 1"),
            arguments: |place| words(place, "-db -f {}/server.conf"),
            talk: Talk::new(Carrier::Tcp, |_, _| get("", SMALL)),
            clients: |at| {
                vec![Client::new(at, "curl -sS http://{host}:{port}/small", document(SMALL))]
            },
            ..Row::new("haproxy", &["haproxy", "curl"], "/usr/sbin/haproxy")
        },
        squid(),
        tinyproxy(),
        stunnel(),
    ]
}

/// nginx with a first line of its own, and with `tls` or without.
pub fn nginx(place: &Place<'_>, directives: &str, tls: &str) -> Result<()> {
    documents(place)?;
    let port = if tls.is_empty() { 8080 } else { 8443 };
    let certificate = match tls {
        "" => "",
        _ => "ssl_certificate {}/tls.pem; ssl_certificate_key {}/tls.key;",
    };
    write(
        place,
        "server.conf",
        &format!(
            "daemon off;\n{directives}\npid {{}}/nginx.pid;\nworker_processes auto;\n\
             events {{ worker_connections 768; }}\n\
             http {{\n  access_log {{}}/access.log;\n  sendfile on;\n  tcp_nopush on;\n\
             keepalive_requests 1000000;\n\
             client_body_temp_path {{}}/body;\n  proxy_temp_path {{}}/proxy;\n\
             fastcgi_temp_path {{}}/fastcgi;\n  uwsgi_temp_path {{}}/uwsgi;\n\
             scgi_temp_path {{}}/scgi;\n\
             server {{ listen {V4}:{port} {tls}; listen [{V6}]:{port} {tls}; root {{}}/www;\n\
             {certificate} }}\n}}\n"
        ),
    )
}

pub fn nginx_arguments(place: &Place<'_>) -> Vec<String> {
    words(place, "-p {} -e stderr -c {}/server.conf")
}

/// Requests of a connection of lighttpd's: as many as its configuration can allow.
const LIGHTTPD_TURNS: u64 = 65535;

fn lighttpd(place: &Place<'_>) -> Result<()> {
    documents(place)?;
    write(
        place,
        "server.conf",
        &format!(
            "server.document-root = \"{{}}/www\"\nserver.bind = \"{V4}\"\nserver.port = 8080\n\
             $SERVER[\"socket\"] == \"[{V6}]:8080\" {{ }}\n\
             server.max-keep-alive-requests = {LIGHTTPD_TURNS}\n\
             server.max-keep-alive-idle = 60\n\
             mimetype.assign = ( \"\" => \"application/octet-stream\" )\n"
        ),
    )
}

/// Debian's defaults but for the modules that this needs.
pub fn apache(place: &Place<'_>, mpm: &str) -> Result<()> {
    documents(place)?;
    write(
        place,
        "server.conf",
        &format!(
            "ServerRoot {{}}\nServerName test\nPidFile {{}}/apache.pid\nDefaultRuntimeDir {{}}\n\
             Listen {V4}:8080\nListen [{V6}]:8080\nErrorLog {{}}/error.log\n\
             LoadModule mpm_{mpm}_module /usr/lib/apache2/modules/mod_mpm_{mpm}.so\n\
             LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
             Timeout 300\nKeepAlive On\nMaxKeepAliveRequests 0\n\
             DocumentRoot {{}}/www\n<Directory {{}}/www>\nRequire all granted\n</Directory>\n"
        ),
    )
}

/// An answer of its own: nothing behind it.
pub fn haproxy(place: &Place<'_>, global: &str) -> Result<()> {
    documents(place)?;
    write(
        place,
        "server.conf",
        &format!(
            "global\n{global}\ndefaults\nmode http\ntimeout connect 5s\ntimeout client 50s\n\
             timeout server 50s\nfrontend all\nbind {V4}:8080\nbind [{V6}]:8080\n\
             http-request return status 200 content-type application/octet-stream file {{}}/www/small\n"
        ),
    )
}

/// A file that squid serves by itself.
const ICON: &str = "/usr/share/squid/icons/SN.png";

fn icon() -> Vec<u8> {
    std::fs::read(ICON).unwrap_or_default()
}

fn squid() -> Row {
    Row {
        setting: "`-N`",
        port: 3128,
        prepare: |place| {
            write(
                place,
                "server.conf",
                &format!(
                    "http_port {V4}:3128\nhttp_port [{V6}]:3128\nhttp_access allow all\n\
                     visible_hostname test\npid_filename none\ncache_log {{}}/cache.log\n\
                     access_log stdio:{{}}/access.log\nlogfile_rotate 0\ncoredump_dir {{}}\n\
                     pinger_enable off\n"
                ),
            )
        },
        arguments: |place| words(place, "-N -f {}/server.conf"),
        talk: Talk::new(Carrier::Tcp, |_, _| {
            let path = "/squid-internal-static/icons/SN.png";
            let mut step = Step::exact(
                format!("GET {path} HTTP/1.1\r\nHost: test:3128\r\n\r\n"),
                "HTTP/1.1 200 OK\r\n",
            );
            step.hear.extend(Step::through("", "\r\n\r\n").hear);
            step.hear.extend(Step::exact("", icon()).hear);
            step
        }),
        clients: |at| {
            let line = "curl -sS http://{host}:{port}/squid-internal-static/icons/SN.png";
            vec![Client::new(at, line, icon())]
        },
        ..Row::new("squid", &["squid", "curl"], "/usr/sbin/squid")
    }
}

fn tinyproxy() -> Row {
    Row {
        port: 8888,
        has_ipv6: false,
        has_origin: true,
        prepare: |place| {
            documents(place)?;
            let text = format!("Port 8888\nListen {V4}\nTimeout 600\nMaxClients 100\n");
            write(place, "server.conf", &text)
        },
        arguments: |place| words(place, "-d -c {}/server.conf"),
        talk: Talk {
            lasts: Lasts::OneTurnOfAProxy,
            ..Talk::new(Carrier::Tcp, |_, _| {
                let host = crate::testbed::addresses::CLIENT;
                let ask = format!("GET http://{host}:{ORIGIN_PORT}/large HTTP/1.0\r\n\r\n");
                let mut step = Step { say: ask.into(), hear: vec![Piece::Status(OK.into())] };
                step.hear.extend(Step::through("", "\r\n\r\n").hear);
                step.hear.extend(Step::exact("", document(LARGE)).hear);
                step
            })
        },
        clients: |at| {
            let host = crate::testbed::addresses::CLIENT;
            let line =
                format!("curl -sS -x http://{{host}}:{{port}} http://{host}:{ORIGIN_PORT}/large");
            vec![Client::new(at, &line, document(LARGE))]
        },
        ..Row::new("tinyproxy", &["tinyproxy", "curl"], "/usr/bin/tinyproxy")
    }
}

/// The first line of what comes from a document's server.
const OK: &str = "HTTP/1.0 200 OK\r\n";

fn stunnel() -> Row {
    Row {
        port: 8443,
        has_ipv6: false,
        has_origin: true,
        prepare: |place| {
            documents(place)?;
            place.certificate()?;
            let origin = crate::testbed::addresses::CLIENT;
            write(
                place,
                "server.conf",
                &format!(
                    "foreground = yes\npid =\n[web]\naccept = {V4}:8443\ncert = {{}}/tls.pem\n\
                     key = {{}}/tls.key\nconnect = {origin}:{ORIGIN_PORT}\n"
                ),
            )
        },
        arguments: |place| words(place, "{}/server.conf"),
        talk: Talk {
            lasts: Lasts::OneTurnOfAProxy,
            ..Talk::new(Carrier::Tls, |_, _| {
                let mut step = Step::exact("GET /large HTTP/1.0\r\n\r\n", OK);
                step.hear.extend(Step::through("", "\r\n\r\n").hear);
                step.hear.extend(Step::exact("", document(LARGE)).hear);
                step
            })
        },
        clients: curl_tls,
        ..Row::new("stunnel", &["stunnel4", "curl", "openssl"], "/usr/bin/stunnel4")
    }
}
