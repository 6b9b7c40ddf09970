//! The servers of the tests, as Debian ships them. Each gets a config, a private directory and the
//! service addresses, and nothing that tells it whether it is protected.

use super::SETUP_LIMIT;
use super::host::Host;
use super::topology::addresses::{CLIENT, SERVICE_V4, SERVICE_V6};
use crate::command::{descendants_running, wait_for};
use crate::load::pattern;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// User that servers run as.
const USER: &str = "nobody";

/// Sizes in bytes of the documents that the HTTP servers offer.
pub const DOCUMENT_BYTES: [u64; 3] = [1 << 10, 256 << 10, 64 << 20];

/// A server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// redis-server without persistence.
    Redis,
    /// mosquitto without persistence.
    Mosquitto,
    /// lighttpd.
    Lighttpd,
    /// nginx as one process.
    Nginx,
    /// memcached with one worker thread, beside six that help it.
    #[serde(rename = "memcached-1")]
    #[clap(name = "memcached-1")]
    Memcached1,
    /// memcached with four worker threads.
    #[serde(rename = "memcached-4")]
    #[clap(name = "memcached-4")]
    Memcached4,
    /// `python3 -m http.server`: a thread for each connection.
    Python,
    /// BIRD, a BGP speaker that waits for the client.
    Bird,
    /// tinyproxy, which fetches from elsewhere: a thread for each connection.
    Tinyproxy,
}

impl Program {
    /// Port on which the program listens.
    pub fn port(self) -> u16 {
        match self {
            Program::Redis => 6379,
            Program::Mosquitto => 1883,
            Program::Lighttpd | Program::Nginx | Program::Python => 8080,
            Program::Memcached1 | Program::Memcached4 => 11211,
            // Port 179 is reserved to root.
            Program::Bird => 1790,
            Program::Tinyproxy => 8888,
        }
    }

    /// Path at which Debian installs the program.
    pub fn path(self) -> &'static str {
        match self {
            Program::Redis => "/usr/bin/redis-server",
            Program::Mosquitto => "/usr/sbin/mosquitto",
            Program::Lighttpd => "/usr/sbin/lighttpd",
            Program::Nginx => "/usr/sbin/nginx",
            Program::Memcached1 | Program::Memcached4 => "/usr/bin/memcached",
            Program::Python => "/usr/bin/python3",
            Program::Bird => "/usr/sbin/bird",
            Program::Tinyproxy => "/usr/bin/tinyproxy",
        }
    }

    /// Whether the program listens on IPv6, too.
    fn has_ipv6(self) -> bool {
        !matches!(self, Program::Bird | Program::Tinyproxy)
    }

    /// Whether the program serves documents.
    fn is_http(self) -> bool {
        matches!(self, Program::Lighttpd | Program::Nginx | Program::Python)
    }
}

/// A server that is prepared to be started, the same on every host.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// What its process runs, which is not the first word of the command where that is a script.
    pub program: PathBuf,
    /// The port it listens on.
    pub port: u16,
    /// Whether it listens at the IPv6 address of the service, too.
    pub has_ipv6: bool,
    /// Its command line.
    pub command: Vec<String>,
    /// Working directory, as the host's processes see it.
    pub directory: PathBuf,
    /// User that the server runs as.
    pub user: &'static str,
    /// Variables of its environment, besides those of its daemon.
    pub env: Vec<(String, String)>,
    /// Folders that are copied together with its memory.
    pub state_dirs: Vec<PathBuf>,
}

impl Recipe {
    /// Writes the server's config and documents into the host's private directory. `documents`:
    /// size in bytes up to which documents are made.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn prepare(program: Program, host: &Host, documents: u64) -> Result<Self> {
        let directory = host.inside().join("server");
        let outside = host.outside().join("server");
        fs::create_dir_all(&outside)?;
        let own = directory.display().to_string();
        if program.is_http() {
            write_documents(&outside.join("www"), documents)?;
        }
        fs::write(outside.join("server.conf"), config(program, &own))?;
        give_away(&outside)?;
        let arguments = arguments(program, &own);
        let command = [program.path().to_owned()].into_iter().chain(arguments).collect();
        Ok(Self {
            program: program.path().into(),
            port: program.port(),
            has_ipv6: program.has_ipv6(),
            command,
            directory,
            user: USER,
            env: Vec::new(),
            state_dirs: Vec::new(),
        })
    }

    /// The same server at addresses of its own, IPv4 and IPv6, in the place of the service's. It
    /// must be prepared on `host`.
    ///
    /// # Errors
    /// When its config cannot be changed.
    pub fn bound_to(&self, host: &Host, addresses: [&str; 2]) -> Result<Self> {
        let moved =
            |text: &str| text.replace(SERVICE_V4, addresses[0]).replace(SERVICE_V6, addresses[1]);
        let config = host.outside().join("server/server.conf");
        let text = fs::read_to_string(&config)?;
        fs::write(&config, moved(&text))?;
        let command = self.command.iter().map(|word| moved(word)).collect();
        Ok(Self { command, ..self.clone() })
    }

    /// Starts the server on `host` without Holdfast, and waits until it listens.
    ///
    /// # Errors
    /// When it does not start or does not listen.
    pub fn start_plain(&self, host: &Host) -> Result<PlainServer> {
        let log = fs::File::create(host.outside().join("server.log"))?;
        let child = host
            .command("setpriv")
            .args(["--reuid", self.user, "--regid", group_of(self.user)?.trim(), "--clear-groups"])
            .args(["env", "-C", &self.directory.display().to_string()])
            .args(self.env.iter().map(|(name, value)| format!("{name}={value}")))
            .args(&self.command)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start the server")?;
        let mut server = PlainServer { child, pid: 0 };
        server.pid = wait_for("the server's process", SETUP_LIMIT, || {
            descendants_running(server.child.id(), &self.program).first().copied()
        })?;
        wait_for("a listening server", SETUP_LIMIT, || {
            listens(host.holder(), self.port).then_some(())
        })
        .with_context(|| {
            fs::read_to_string(host.outside().join("server.log")).unwrap_or_default()
        })?;
        Ok(server)
    }
}

/// A server that runs without Holdfast.
pub struct PlainServer {
    child: Child,
    pid: u32,
}

impl PlainServer {
    /// The pid of the server, as seen from outside.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for PlainServer {
    fn drop(&mut self) {
        // A server that cannot be killed ends with its host.
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process listens on `port` in this process's network.
pub fn listens(pid: u32, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let local = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let here = words.next().is_some_and(|address| address.ends_with(&local));
            here && words.nth(1) == Some(LISTEN)
        })
    })
}

fn write_documents(directory: &Path, limit: u64) -> Result<()> {
    fs::create_dir_all(directory)?;
    let mut content = Vec::new();
    for size in DOCUMENT_BYTES.into_iter().filter(|size| *size <= limit) {
        content.clear();
        pattern::append(&mut content, crate::load::http_salt(size), 0, size);
        fs::write(directory.join(crate::load::http_file(size)), &content)?;
    }
    Ok(())
}

/// The group that a user belongs to, by number.
fn group_of(user: &str) -> Result<String> {
    crate::command::output("id", &["-g", user])
}

/// Makes `nobody` the owner of a directory and everything in it.
fn give_away(directory: &Path) -> Result<()> {
    let path = directory.display().to_string();
    crate::command::output("chown", &["-R", &format!("{USER}:nogroup"), &path]).map(drop)
}

/// Text of the config file; `own` is the server's directory.
fn config(program: Program, own: &str) -> String {
    match program {
        Program::Mosquitto => mosquitto_config(),
        Program::Lighttpd => lighttpd_config(own),
        Program::Nginx => nginx_config(own),
        Program::Bird => bird_config(),
        Program::Tinyproxy => tinyproxy_config(),
        Program::Redis | Program::Memcached1 | Program::Memcached4 | Program::Python => {
            String::new()
        }
    }
}

/// Arguments after the program's name on the command line.
fn arguments(program: Program, own: &str) -> Vec<String> {
    let conf = format!("{own}/server.conf");
    let memcached =
        |workers| format!("-l {SERVICE_V4},{SERVICE_V6} -p 11211 -U 0 -t {workers} -m 64");
    let words = match program {
        // The empty argument of `--save ""` cannot stand in a line.
        Program::Redis => {
            let line = format!(
                "--appendonly no --protected-mode no --bind {SERVICE_V4} {SERVICE_V6} \
                 --port 6379 --dir {own}"
            );
            return ["--save", ""].into_iter().chain(line.split(' ')).map(str::to_owned).collect();
        }
        Program::Mosquitto => format!("-c {conf}"),
        Program::Lighttpd => format!("-D -f {conf}"),
        Program::Nginx => format!("-p {own} -e stderr -c {conf}"),
        Program::Memcached1 => memcached(1),
        Program::Memcached4 => memcached(4),
        Program::Python => {
            format!("-m http.server 8080 --bind :: --protocol HTTP/1.1 --directory {own}/www")
        }
        Program::Bird => format!("-f -c {conf} -s {own}/bird.ctl"),
        Program::Tinyproxy => format!("-d -c {conf}"),
    };
    words.split(' ').map(str::to_owned).collect()
}

fn mosquitto_config() -> String {
    format!(
        "listener 1883 {SERVICE_V4}\nlistener 1883 {SERVICE_V6}\nallow_anonymous true\n\
         persistence false\nmax_queued_messages 0\nlog_type error\nlog_type warning\n"
    )
}

fn lighttpd_config(own: &str) -> String {
    format!(
        "server.document-root = \"{own}/www\"\nserver.bind = \"{SERVICE_V4}\"\nserver.port = 8080\n\
         $SERVER[\"socket\"] == \"[{SERVICE_V6}]:8080\" {{ }}\n\
         server.max-keep-alive-requests = 65535\nserver.max-keep-alive-idle = 60\n\
         server.max-connections = 1024\n\
         mimetype.assign = ( \"\" => \"application/octet-stream\" )\n"
    )
}

fn nginx_config(own: &str) -> String {
    format!(
        "daemon off;\nmaster_process off;\npid {own}/nginx.pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  keepalive_requests 100000000;\n\
         client_body_temp_path {own}/body;\n  proxy_temp_path {own}/proxy;\n\
         fastcgi_temp_path {own}/fastcgi;\n  uwsgi_temp_path {own}/uwsgi;\n\
         scgi_temp_path {own}/scgi;\n\
         server {{ listen {SERVICE_V4}:8080; listen [{SERVICE_V6}]:8080; root {own}/www; }}\n}}\n"
    )
}

fn tinyproxy_config() -> String {
    let port = Program::Tinyproxy.port();
    format!("Port {port}\nListen {SERVICE_V4}\nTimeout 60\nMaxClients 64\nLogLevel Critical\n")
}

/// BIRD's config, with the shortest hold time that BGP allows, so that a lost session shows soon.
fn bird_config() -> String {
    let port = Program::Bird.port();
    format!(
        "log stderr all;\nrouter id {SERVICE_V4};\nprotocol device {{ }}\n\
         protocol static {{ ipv4; route 192.0.2.0/24 blackhole; }}\n\
         protocol bgp neighbor1 {{\n  local {SERVICE_V4} port {port} as 65000;\n\
         neighbor {CLIENT} as 65001;\n  multihop;\n  passive;\n  hold time 3;\n\
         keepalive time 1;\n  ipv4 {{ import all; export all; }};\n}}\n"
    )
}
