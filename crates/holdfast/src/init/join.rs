//! `holdfast join` on a real socket: it tells what this host is, and writes what it is given.

use super::facts::{self, Facts};
use super::files::{Places, Staged};
use super::meeting::{Code, Lack, Link, LinkError, SILENCE, ToGuest, ToHost, parse};
use super::neighbours::Neighbours;
use super::{InitError, Told, finish};
use crate::check::Verdict;
use crate::check::program;
use crate::config::{Config, Server, Settings as _};
use crate::fingerprint;
use crate::key::{GroupKey, PublicKey};
use holdfast_program::BUILD;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(10);
/// How often it is tried again when a crowd of strangers has pushed this guest out.
const TRIES: u32 = 4;
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// What `join` was asked for.
#[derive(Clone, Debug)]
pub struct Join {
    pub address: SocketAddr,
    pub code: Code,
    /// The interface that shall carry the service.
    pub interface: Option<String>,
    /// Where file and key go.
    pub directory: PathBuf,
    /// Whether files that are there are replaced.
    pub force: bool,
}

/// What this host has become.
#[derive(Clone, Debug)]
pub struct Joined {
    pub group: String,
    /// Its name in the file.
    pub role: String,
    pub file: PathBuf,
    pub key: PathBuf,
    /// The public half of its own key; `None` where all hosts have the same.
    pub public: Option<PublicKey>,
}

/// Connects to where `init` waits, and stays until the files are written.
///
/// # Errors
/// Why this host is no member; then nothing was written here.
pub fn join(asked: &Join, tell: &mut dyn FnMut(Told)) -> Result<Joined, InitError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut guest = Guest::connect(asked)?;
        match guest.stay(asked, tell) {
            Err(Ends::Early) if tries < TRIES => std::thread::sleep(TRY_AGAIN),
            Err(Ends::Early) => return Err(InitError::Unreachable(closed_early(asked.address))),
            Err(Ends::For(why)) => return Err(why),
            Ok(joined) => return Ok(joined),
        }
    }
}

/// Why a guest does not stay.
enum Ends {
    /// The connection was closed before anybody had shown the code.
    Early,
    For(InitError),
}

impl From<Lack> for Ends {
    fn from(lack: Lack) -> Self {
        Self::For(InitError::Misfit(lack))
    }
}

struct Guest {
    socket: TcpStream,
    link: Link,
    /// This host's own, made for this meeting. It is never sent.
    key: GroupKey,
    /// The group's name and where its files go, once they are known.
    group: Option<(String, Places)>,
    staged: Option<Waiting>,
}

/// What is written and has no name yet.
struct Waiting {
    files: Staged,
    /// This host's name in the file.
    role: String,
    /// Whether the key is this host's own.
    is_own: bool,
}

impl Guest {
    fn connect(asked: &Join) -> Result<Self, InitError> {
        let at = asked.address;
        let socket = TcpStream::connect_timeout(&at, CONNECT).map_err(|error| {
            InitError::Unreachable(Lack::new(
                format!("nobody answers at {at}: {error}"),
                "is init still waiting there? compare the address, and look at packet filters for that \
                 TCP port",
            ))
        })?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE))?;
        socket.set_write_timeout(Some(SILENCE))?;
        let mut out = Vec::new();
        let link = Link::guest(&asked.code, &mut out).map_err(|why| misfit(at, &why))?;
        let key = GroupKey::generate()?;
        let mut guest = Self { socket, link, key, group: None, staged: None };
        guest.socket.write_all(&out)?;
        Ok(guest)
    }

    /// Answers all that the host says.
    fn stay(&mut self, asked: &Join, tell: &mut dyn FnMut(Told)) -> Result<Joined, Ends> {
        let mut buffer = [0; 16 << 10];
        loop {
            let taken = self.read(&mut buffer).map_err(|error| self.lost(asked.address, &error))?;
            let was_open = self.link.is_open();
            let messages = self.link.take(&buffer[..taken], &mut Vec::new());
            let messages = messages.map_err(|why| Ends::For(misfit(asked.address, &why)))?;
            if self.link.is_open() && !was_open {
                let facts = self.facts(asked).map_err(|error| Ends::For(error.into()))?;
                self.say(&ToHost::Hello { build: BUILD.to_owned(), facts })?;
            }
            for message in messages {
                let said = parse(&message).map_err(|why| Ends::For(misfit(asked.address, &why)))?;
                if let Some(joined) = self.hear(asked, said, tell)? {
                    return Ok(joined);
                }
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn lost(&self, at: SocketAddr, error: &io::Error) -> Ends {
        if !self.link.is_open() && error.kind() != ErrorKind::WouldBlock {
            return Ends::Early;
        }
        let why = match error.kind() {
            ErrorKind::UnexpectedEof => "init has ended there".to_owned(),
            ErrorKind::WouldBlock => format!("it was silent for {} s", SILENCE.as_secs()),
            _ => error.to_string(),
        };
        Ends::For(InitError::Unreachable(Lack::new(
            format!("{at} is not heard any more: {why}; nothing was written here"),
            "say init again there, and join with the code that it prints",
        )))
    }

    fn facts(&self, asked: &Join) -> io::Result<Facts> {
        let address = self.socket.local_addr()?.ip();
        // Which of the files there is that of the group is not known yet.
        let facts = Facts::gather(address, asked.interface.clone(), &asked.directory, "")?;
        Ok(facts.for_a_message())
    }

    fn say(&mut self, message: &ToHost) -> Result<(), Ends> {
        let mut out = Vec::new();
        self.link.say(message, &mut out).map_err(|why| {
            Ends::For(InitError::Misfit(Lack::new(why.to_string(), "say join again")))
        })?;
        self.socket.write_all(&out).map_err(|error| Ends::For(error.into()))
    }

    fn hear(
        &mut self,
        asked: &Join,
        said: ToGuest,
        tell: &mut dyn FnMut(Told),
    ) -> Result<Option<Joined>, Ends> {
        match said {
            ToGuest::Here => self.say(&ToHost::Here)?,
            ToGuest::Refused { why } => return Err(why.into()),
            ToGuest::Wanted { group, text } => self.look(asked, group, &text, tell)?,
            ToGuest::Offer { offer, role, text, key } => {
                self.stage(offer, &role, &text, key.as_deref())?;
            }
            ToGuest::Commit => return self.write().map(Some),
        }
        Ok(None)
    }

    /// Tells what this host lacks for the server and the files.
    fn look(
        &mut self,
        asked: &Join,
        group: String,
        text: &str,
        tell: &mut dyn FnMut(Told),
    ) -> Result<(), Ends> {
        let places = Places::new(&asked.directory, &group, asked.force);
        let config = understood(&places.file, text, &group)?;
        let neighbours = Neighbours::of(&asked.directory, &group);
        let mut lacks = lacking(&config.server);
        lacks.extend(places.occupied().or_else(|| finish::in_use(&group, &places.file)));
        let facts = self.facts(asked).map_err(|error| Ends::For(error.into()))?;
        lacks.extend(neighbours.against(&config.group.services, &facts));
        let taken = facts::taken(&neighbours).map_err(|error| Ends::For(error.into()))?;
        let public = self.key.public();
        self.say(&ToHost::Able { lacks: lacks.clone(), taken, public })?;
        if let Some(first) = lacks.first() {
            let all: Vec<String> = lacks.iter().map(ToString::to_string).collect();
            let last = lacks.last().unwrap_or(first);
            let all = all.join("\n");
            // The remedy of the last one ends the text.
            let what = all.trim_end_matches(&format!("\n  remedy: {}", last.remedy)).to_owned();
            return Err(Lack::new(what, last.remedy.clone()).into());
        }
        let text = format!("this host can be a member of `{group}`; the others are waited for");
        tell(Told { event: "accepted", host: asked.address.to_string(), text });
        self.group = Some((group, places));
        Ok(())
    }

    /// Writes both files beside their places.
    fn stage(&mut self, offer: u64, role: &str, text: &str, key: Option<&str>) -> Result<(), Ends> {
        // Of an earlier offer, which was not kept.
        self.staged = None;
        let Some((group, places)) = &self.group else {
            return Err(
                Lack::new("a file is offered that nobody has asked for", "say join again").into()
            );
        };
        let staged = understood(&places.file, text, group).and_then(|config| {
            let key = key_of(&config, role, key, &self.key)?;
            places.stage(text, &key)
        });
        match staged {
            Ok(files) => {
                let is_own = key.is_none();
                self.staged = Some(Waiting { files, role: role.to_owned(), is_own });
                self.say(&ToHost::Ready { offer })
            }
            Err(why) => {
                self.say(&ToHost::Unable { offer, why: why.clone() })?;
                Err(why.into())
            }
        }
    }

    fn write(&mut self) -> Result<Joined, Ends> {
        let (Some((group, places)), Some(staged)) = (self.group.take(), self.staged.take()) else {
            return Err(Lack::new(
                "a file is to be written that was not offered",
                "say join again",
            )
            .into());
        };
        let Waiting { files, role, is_own } = staged;
        files.commit().map_err(|error| unwritten(&places, is_own, &error))?;
        // Without this word the host says that it does not know; the files are here.
        let _ = self.say(&ToHost::Done);
        let public = is_own.then(|| self.key.public());
        Ok(Joined { group, role, file: places.file, key: places.key, public })
    }
}

/// The file that the host shows, if it is one of this group.
fn understood(path: &Path, text: &str, group: &str) -> Result<Config, Lack> {
    let config = Config::parse(path, text).map_err(|errors| {
        let first = errors.0.into_iter().next();
        let (what, remedy) = first.map(|it| (it.placed(), it.remedy)).unwrap_or_default();
        Lack::new(format!("the file that init makes is not usable here: {what}"), remedy)
    })?;
    let is_its = config.group.name == group && config.group.key_file == path.with_extension("key");
    let other = || Lack::new("the file that init shows is another group's", "say init again");
    is_its.then_some(config).ok_or_else(other)
}

/// The text of this host's key file: what was offered, or its own key, if the file names that for
/// its role and no other.
fn key_of(
    config: &Config,
    role: &str,
    offered: Option<&str>,
    own: &GroupKey,
) -> Result<String, Lack> {
    let again =
        |what: String| Lack::new(what, "say init again, with the same release on all hosts");
    config.role(role).map_err(again)?;
    let publics = config.public_keys();
    let listed = publics.iter().find(|(name, _)| *name == role).map_or(&[][..], |(_, its)| *its);
    match offered {
        Some(text) if listed.is_empty() => {
            GroupKey::parse(text).map_err(|error| again(error.to_string()))?;
            Ok(text.to_owned())
        }
        Some(_) => {
            Err(again("a key for all hosts comes with a file that names public keys".into()))
        }
        None if listed == [own.public()] => Ok(own.to_text()),
        None => {
            let what = format!(
                "the file that init makes does not name this host's public key for `{role}`"
            );
            Err(again(what))
        }
    }
}

/// What is left to do where the files have no names here, and have them on the other hosts.
fn unwritten(places: &Places, is_own: bool, error: &io::Error) -> Lack {
    let (file, key) = (places.file.display(), places.key.display());
    let remedy = match is_own {
        true => super::lost_key(&places.file, &places.key),
        false => "copy the file and the key of another host of the group to this one".to_owned(),
    };
    Lack::new(format!("{file} and {key} could not be written: {error}"), remedy)
}

/// What keeps this host from starting the server.
fn lacking(server: &Server) -> Vec<Lack> {
    let lacks = fingerprint::lacks(server).into_iter().map(|it| Lack::new(it.what, it.remedy));
    let known = program::findings(server).into_iter().filter(|it| it.verdict == Verdict::Fail);
    let shim = fingerprint::shim_path().err().map(|error| {
        Lack::new(error.to_string(), "copy it beside the program, or install the package")
    });
    lacks.chain(known.map(|it| Lack::new(it.found, it.remedy))).chain(shim).collect()
}

fn closed_early(at: SocketAddr) -> Lack {
    Lack::new(
        format!("{at} closes the connection before it has said anything"),
        "is that where init waits? a crowd of strangers there may have pushed this host out: say join \
         again",
    )
}

fn misfit(at: SocketAddr, why: &LinkError) -> InitError {
    let lack = |what: String, remedy: &str| Lack::new(what, remedy);
    match why {
        LinkError::WrongCode => InitError::Usage(lack(
            format!("{at} does not know this code"),
            "type the code that init prints there; each init has its own, and the third wrong one from \
             an address is the last that is heard",
        )),
        LinkError::ShutOut => InitError::Usage(lack(
            format!(
                "{at} hears nobody from this host's address any more: three wrong codes came from it"
            ),
            "say init again there, and join with its new code",
        )),
        LinkError::OtherProgram | LinkError::OtherVersion { .. } => InitError::Misfit(lack(
            format!("{at}: {why}"),
            "compare the address with the one that init prints, and the releases of holdfast",
        )),
        _ => InitError::Misfit(lack(format!("{at}: {why}"), "say join again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../docs/example-segment.toml");

    /// The example with public keys of its witness and its members, in the order of the file.
    fn keyed(witness: &GroupKey, members: [&GroupKey; 2]) -> Config {
        let line = |key: &GroupKey| format!("public_keys = [\"{}\"]\n", key.public());
        let mut text = EXAMPLE.replacen("[arbiter]\n", &format!("[arbiter]\n{}", line(witness)), 1);
        for (name, key) in ["name = \"a\"\n", "name = \"b\"\n"].into_iter().zip(members) {
            text = text.replacen(name, &format!("{name}{}", line(key)), 1);
        }
        Config::parse(Path::new("/etc/holdfast/web.toml"), &text).unwrap()
    }

    #[test]
    fn a_guest_writes_its_own_key_only_where_the_file_names_it() {
        let [own, other, third, of_all] = [(); 4].map(|()| GroupKey::generate().unwrap());
        let file = keyed(&third, [&own, &other]);
        assert_eq!(key_of(&file, "a", None, &own), Ok(own.to_text()));
        let refused = |file: &Config, role: &str, offered: Option<&str>| {
            key_of(file, role, offered, &own).unwrap_err().what
        };
        let told = refused(&file, "b", None);
        assert!(told.contains("does not name this host's public key for `b`"), "{told}");
        assert!(refused(&keyed(&third, [&other, &of_all]), "a", None).contains("does not name"));
        assert!(refused(&file, "a", Some(&of_all.to_text())).contains("names public keys"));
        assert!(refused(&file, "c", None).contains("no role `c`"));
        let shared = Config::parse(Path::new("/etc/holdfast/web.toml"), EXAMPLE).unwrap();
        let text = of_all.to_text();
        assert_eq!(key_of(&shared, "a", Some(&text), &own), Ok(text));
        assert!(refused(&shared, "a", Some("x")).contains("hexadecimal"));
        assert!(refused(&shared, "a", None).contains("does not name"), "no key at all");
    }

    #[test]
    fn a_key_that_is_lost_is_made_again_where_it_belongs() {
        let places = Places::new(Path::new("/etc/holdfast"), "demo", false);
        let error = io::Error::other("no room");
        let own = unwritten(&places, true, &error).remedy;
        assert!(own.contains("holdfast key gen > /etc/holdfast/demo.key"), "{own}");
        assert!(own.contains("holdfast key pub /etc/holdfast/demo.key"), "{own}");
        assert!(!own.contains("and the key of"), "{own}");
        assert!(unwritten(&places, false, &error).remedy.contains("and the key of another"));
    }
}
