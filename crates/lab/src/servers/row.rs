//! What a row of the table says of a server: how Debian installs it, how it is set up
//! in a folder of its own and started, what its clients say, and what they must hear.

use crate::testbed::config::ServerRun;
use crate::testbed::server::Recipe;
use crate::testbed::{Host, Role, Testbed, addresses};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Makes the server's place on another host what it is on this one.
///
/// # Errors
/// When it cannot be copied.
pub fn copy_files(from: &Host, to: &Host) -> Result<()> {
    let [from, to] = [from, to].map(|host| host.outside().join("server"));
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    crate::command::output("cp", &["-a", &from.display().to_string(), &to.display().to_string()])?;
    Ok(())
}

/// A server of the table.
pub struct Row {
    /// Its name at the command line and in the table.
    pub name: &'static str,
    /// Debian's packages of the server, which comes first, and of its clients.
    pub packages: &'static [&'static str],
    /// What is started.
    pub program: &'static str,
    /// What the process runs then, where `program` is a script or a link to another program.
    pub runs: &'static str,
    /// What protection asks of its configuration, or `""`: it is as Debian's default.
    pub setting: &'static str,
    /// How its processes are to run.
    pub run: ServerRun,
    /// The port it listens on.
    pub port: u16,
    /// Whether it listens at the IPv6 address of the service, too.
    pub has_ipv6: bool,
    /// The user it is started as.
    pub user: &'static str,
    /// Writes its configuration and what it serves.
    pub prepare: fn(&Place<'_>) -> Result<()>,
    /// The words after the program's name.
    pub arguments: fn(&Place<'_>) -> Vec<String>,
    /// Variables of its environment.
    pub env: &'static [(&'static str, &'static str)],
    /// Whether the survivor's files must be copied to the other host before both are started
    /// again.
    pub is_copied: bool,
    /// Folders of its own, below its place, which a member that joins gets.
    pub state: &'static [&'static str],
    /// What its established connections say.
    pub talk: Talk,
    /// Its own clients, one after the other.
    pub clients: fn(&At) -> Vec<Client>,
    /// Whether its clients' host has a web server, at port [`ORIGIN_PORT`], for it to fetch from.
    pub has_origin: bool,
}

impl Row {
    /// A row of a server that needs nothing but its program.
    pub fn new(
        name: &'static str,
        packages: &'static [&'static str],
        program: &'static str,
    ) -> Self {
        Self {
            name,
            packages,
            program,
            runs: program,
            setting: "",
            run: ServerRun::Auto,
            port: 0,
            has_ipv6: true,
            user: "nobody",
            prepare: |_| Ok(()),
            arguments: |_| Vec::new(),
            env: &[],
            is_copied: false,
            state: &[],
            talk: Talk::new(Carrier::Tcp, |_, _| Step::default()),
            clients: |_| Vec::new(),
            has_origin: false,
        }
    }

    /// What protection asks of its configuration and of the group's, or `""`.
    pub fn asks(&self) -> String {
        let run = match self.run.line() {
            "" => String::new(),
            line => format!("`{line}`"),
        };
        let both = [self.setting, &run].into_iter().filter(|it| !it.is_empty());
        both.collect::<Vec<_>>().join(" and ")
    }

    /// Programs of the row that this machine lacks.
    pub fn missing(&self) -> Vec<String> {
        let clients = (self.clients)(&At::default());
        let mut needed = vec![self.program];
        needed.extend(clients.iter().filter_map(|client| client.words.first().map(String::as_str)));
        let folders =
            ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        let is_there = |word: &str| match word.starts_with('/') {
            true => Path::new(word).exists(),
            false => folders.iter().any(|folder| Path::new(folder).join(word).exists()),
        };
        needed.into_iter().filter(|word| !is_there(word)).map(str::to_owned).collect()
    }

    /// Makes the server's place on `first`, and the same on `others`.
    ///
    /// # Errors
    /// When a file cannot be written, or a program that prepares the place fails.
    pub fn install(&self, first: &Host, others: &[&Host]) -> Result<Recipe> {
        let place = Place::new(first)?;
        (self.prepare)(&place)?;
        for state in self.state {
            fs::create_dir_all(place.outside(state))?;
        }
        place.give_to(self.user)?;
        for other in others {
            copy_files(first, other)?;
        }
        let command =
            [self.program.to_owned()].into_iter().chain((self.arguments)(&place)).collect();
        Ok(Recipe {
            program: self.runs.into(),
            port: self.port,
            has_ipv6: self.has_ipv6,
            command,
            directory: place.inside.clone(),
            user: self.user,
            env: self
                .env
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
            state_dirs: self.state.iter().map(|state| place.inside.join(state)).collect(),
        })
    }
}

/// The folder of a server on its host.
pub struct Place<'a> {
    host: &'a Host,
    /// As the server sees it.
    inside: PathBuf,
}

impl<'a> Place<'a> {
    fn new(host: &'a Host) -> Result<Self> {
        fs::create_dir_all(host.outside().join("server"))?;
        Ok(Self { host, inside: host.inside().join("server") })
    }

    /// A file in it as the server sees it; `""` is the folder itself.
    pub fn path(&self, name: &str) -> String {
        let path = if name.is_empty() { self.inside.clone() } else { self.inside.join(name) };
        path.display().to_string()
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.host.outside().join("server").join(name)
    }

    /// Writes a file, and the folders above it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let path = self.outside(name);
        fs::create_dir_all(path.parent().context("a file stands in a folder")?)?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Makes folders.
    ///
    /// # Errors
    /// When one cannot be made.
    pub fn folders(&self, names: &[&str]) -> Result<()> {
        names.iter().try_for_each(|name| Ok(fs::create_dir_all(self.outside(name))?))
    }

    /// Runs a program on the server's host, in the place, as root; a path that is to be one
    /// of the place's files is written `{}/name`.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(&self, line: &str) -> Result<()> {
        let line = line.replace("{}", &self.path(""));
        let mut command = self.host.command("sh");
        command.args(["-euc", &format!("cd {} && {line}", self.path(""))]).stdin(Stdio::null());
        let done = command.output().with_context(|| format!("cannot start {line}"))?;
        let text = [done.stdout, done.stderr].concat();
        ensure!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&text));
        Ok(())
    }

    /// A certificate that signs itself, `tls.pem`, and its key, `tls.key`.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn certificate(&self) -> Result<()> {
        self.run(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test \
             -keyout {}/tls.key -out {}/tls.pem && chmod 644 {}/tls.key",
        )
    }

    fn give_to(&self, user: &str) -> Result<()> {
        let path = self.outside("").display().to_string();
        crate::command::output("chown", &["-R", &format!("{user}:"), &path]).map(drop)
    }
}

/// The port of the web server on the clients' host.
pub const ORIGIN_PORT: u16 = 9000;

/// Where clients find a server.
#[derive(Clone, Debug, Default)]
pub struct At {
    /// The address of the service.
    pub host: String,
    pub port: u16,
    /// The server's place, as clients see it.
    pub files: String,
}

impl At {
    /// Where clients on a testbed find a row's server.
    pub fn of(row: &Row, testbed: &Testbed) -> Self {
        let files = testbed.host(Role::Primary).outside().join("server");
        let files = files.display().to_string();
        Self { host: addresses::SERVICE_V4.to_owned(), port: row.port, files }
    }

    /// A word of a command line, with what stands in it for host, port and place.
    pub fn fill(&self, word: &str) -> String {
        let Self { host, port, files } = self;
        word.replace("{host}", host).replace("{port}", &port.to_string()).replace("{files}", files)
    }

    /// A file of the server's place, or nothing where there is none yet.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(Path::new(&self.files).join(name)).unwrap_or_default()
    }
}

/// How a session reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A TCP connection.
    Tcp,
    /// TLS, by `openssl s_client`.
    Tls,
    /// A client program that is told what to do by its standard input: see [`At::fill`].
    Program(&'static str),
}

/// How long a connection lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// From the first turn to the last, over every takeover.
    AllTurns,
    /// So many turns, for the server ends it after them.
    Turns(u64),
    /// One turn, and not over a takeover: it hangs on a connection from the server to somewhere
    /// else, which ends then.
    OneTurnOfAProxy,
}

/// Turn `turn` (from 0) of session `session`.
pub type Speaks = fn(u64, u64) -> Step;

/// What the established connections of a server say.
#[derive(Clone, Copy)]
pub struct Talk {
    /// How they reach the server.
    pub carrier: Carrier,
    /// How many at once.
    pub sessions: u64,
    /// How long a connection lasts.
    pub lasts: Lasts,
    /// What is said when a connection is new, step by step.
    pub opening: fn(u64) -> Vec<Step>,
    /// What is said again and again.
    pub turn: Speaks,
    /// Time between two turns, ms.
    pub pause_ms: u64,
}

impl Talk {
    /// A talk of [`SESSIONS`] connections that begins with its first turn.
    pub const fn new(carrier: Carrier, turn: Speaks) -> Self {
        Self {
            carrier,
            sessions: SESSIONS,
            lasts: Lasts::AllTurns,
            opening: |_| Vec::new(),
            turn,
            pause_ms: 0,
        }
    }
}

/// Established connections of a row, where it says nothing else: half of them over IPv6,
/// where the server listens there.
const SESSIONS: u64 = 4;

/// Something that is said, and what must be heard after it.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub say: Vec<u8>,
    pub hear: Vec<Piece>,
}

impl Step {
    /// Says `say` and hears exactly `hear`.
    pub fn exact(say: impl Into<Vec<u8>>, hear: impl Into<Vec<u8>>) -> Self {
        Self { say: say.into(), hear: vec![Piece::Exact(hear.into())] }
    }

    /// Says `say` and hears anything that ends with `end`.
    pub fn through(say: impl Into<Vec<u8>>, end: &str) -> Self {
        Self { say: say.into(), hear: vec![Piece::Through(end.as_bytes().to_vec())] }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes.
    Exact(Vec<u8>),
    /// These bytes, or others by which a proxy says that it has no answer.
    Status(Vec<u8>),
    /// So many bytes, which nobody knows.
    Any(usize),
    /// Whatever it is, until these bytes are through.
    Through(Vec<u8>),
    /// Whatever has come after them.
    Rest,
}

/// A run of a server's own client.
pub struct Client {
    pub words: Vec<String>,
    /// Its standard output, byte by byte.
    pub output: Vec<u8>,
}

impl Client {
    /// `line` is cut at its spaces.
    pub fn new(at: &At, line: &str, output: impl Into<Vec<u8>>) -> Self {
        let words = line.split_whitespace().map(|word| at.fill(word)).collect();
        Self { words, output: output.into() }
    }

    /// A line of a shell.
    pub fn shell(at: &At, line: &str, output: impl Into<Vec<u8>>) -> Self {
        let words = ["sh", "-c", line].map(|word| at.fill(word)).to_vec();
        Self { words, output: output.into() }
    }
}
