//! A session of a client with a server: says what its row tells, and compares what it
//! hears, byte by byte.

use super::row::{At, Carrier, Client, Piece, Step};
use anyhow::{Context as _, Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time without a byte after which a session hangs. A takeover takes milliseconds, but a busy machine
/// has kept servers from a processor for 15 s, without Holdfast too.
pub const HANG_LIMIT: Duration = Duration::from_secs(60);

/// Bytes of an answer that a complaint shows.
const SHOWN_BYTES: usize = 60;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A session that is open.
pub struct Session {
    stream: Box<dyn Stream>,
    /// The client program that carries it.
    child: Option<Child>,
    /// What has come and was not asked for yet.
    held: Vec<u8>,
}

impl Session {
    /// Opens one from the network namespace that the calling thread is in.
    ///
    /// # Errors
    /// When the server does not let it in, or the client program cannot be started.
    pub fn open(carrier: Carrier, at: &At) -> Result<Self> {
        let (stream, child): (Box<dyn Stream>, _) = match words(carrier, at) {
            None => {
                let address = SocketAddr::new(at.host.parse()?, at.port);
                let connected = TcpStream::connect_timeout(&address, HANG_LIMIT);
                let stream = connected.map_err(Broken::of).context("connecting")?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(HANG_LIMIT))?;
                stream.set_write_timeout(Some(HANG_LIMIT))?;
                (Box::new(stream), None)
            }
            Some(words) => {
                let (ours, theirs) = UnixStream::pair()?;
                ours.set_read_timeout(Some(HANG_LIMIT))?;
                ours.set_write_timeout(Some(HANG_LIMIT))?;
                let (program, arguments) = words.split_first().context("no client program")?;
                let child = Command::new(program)
                    .args(arguments)
                    .stdin(OwnedFd::from(theirs.try_clone()?))
                    .stdout(OwnedFd::from(theirs))
                    .stderr(Stdio::null())
                    .spawn()
                    .with_context(|| format!("cannot start {program}"))?;
                (Box::new(ours), Some(child))
            }
        };
        Ok(Self { stream, child, held: Vec::new() })
    }

    /// Says a step and hears its answer, and nothing else.
    ///
    /// # Errors
    /// When a byte is wrong or too many, the connection ends, or nothing comes for
    /// [`HANG_LIMIT`]: [`Broken`] tells which.
    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.stream.write_all(&step.say).map_err(Broken::of)?;
        for piece in &step.hear {
            match piece {
                Piece::Exact(bytes) => self.exact(bytes)?,
                Piece::Status(bytes) => self.exact(bytes).map_err(Broken::into_end)?,
                Piece::Any(count) => self.any(*count)?,
                Piece::Through(end) => self.through(end)?,
                Piece::Rest => self.held.clear(),
            }
        }
        match self.held.is_empty() {
            true => Ok(()),
            false => bail!(Broken::Wrong(format!("too much: {}", shown(&self.held)))),
        }
    }

    fn exact(&mut self, wanted: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < wanted.len() {
            if self.held.is_empty() {
                self.read()?;
            }
            let count = self.held.len().min(wanted.len() - done);
            let wrong = (0..count).find(|&i| self.held[i] != wanted[done + i]);
            if let Some(at) = wrong {
                let (got, right) = (shown(&self.held[at..]), shown(&wanted[done + at..]));
                bail!(Broken::Wrong(format!("byte {}: {got} instead of {right}", done + at)));
            }
            self.held.drain(..count);
            done += count;
        }
        Ok(())
    }

    fn any(&mut self, count: usize) -> Result<()> {
        while self.held.len() < count {
            self.read()?;
        }
        self.held.drain(..count);
        Ok(())
    }

    fn through(&mut self, end: &[u8]) -> Result<()> {
        loop {
            if let Some(at) = self.held.windows(end.len()).position(|part| part == end) {
                self.held.drain(..at + end.len());
                return Ok(());
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> Result<()> {
        let mut bytes = vec![0; READ_BYTES];
        let count = loop {
            match self.stream.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.map_err(Broken::of)?,
            }
        };
        ensure!(count > 0, Broken::Ended("the connection ended".to_owned()));
        self.held.extend_from_slice(&bytes[..count]);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How a session failed.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// A byte that the server may not say.
    #[error("wrong answer: {0}")]
    Wrong(String),
    /// It is over.
    #[error("{0}")]
    Ended(String),
    /// It lives, and nothing comes.
    #[error("it hangs: nothing came for {} s", HANG_LIMIT.as_secs())]
    Hangs,
}

impl Broken {
    /// A wrong answer that only says that there is none.
    fn into_end(error: anyhow::Error) -> anyhow::Error {
        match error.downcast_ref() {
            Some(Self::Wrong(what)) => Self::Ended(format!("it was told: {what}")).into(),
            _ => error,
        }
    }

    fn of(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Hangs,
            _ => Self::Ended(error.to_string()),
        }
    }
}

/// The client program that carries a session, if one does.
fn words(carrier: Carrier, at: &At) -> Option<Vec<String>> {
    // An IPv6 address stands in brackets beside a port, and nowhere else.
    let host = if at.host.contains(':') { format!("[{}]", at.host) } else { at.host.clone() };
    let line = match carrier {
        Carrier::Tcp => return None,
        Carrier::Tls => format!("openssl s_client -quiet -connect {host}:{}", at.port),
        Carrier::Program(line) => line.to_owned(),
    };
    Some(line.split_whitespace().map(|word| at.fill(word)).collect())
}

/// The first bytes, printable.
fn shown(bytes: &[u8]) -> String {
    let some = &bytes[..bytes.len().min(SHOWN_BYTES)];
    format!("\"{}\"", some.escape_ascii())
}

/// Runs a server's own client in the namespace of the calling thread, and compares what it
/// says.
///
/// # Errors
/// When it fails, takes too long, or says something else.
pub fn client(client: &Client) -> Result<()> {
    let line = client.words.join(" ");
    let begun = Instant::now();
    let limit_s = HANG_LIMIT.as_secs().to_string();
    let done = Command::new("timeout")
        .args(["-k1", &limit_s])
        .args(&client.words)
        .stdin(Stdio::null())
        .output()?;
    let said =
        || format!("{} {}", shown(&done.stdout), String::from_utf8_lossy(&done.stderr).trim());
    ensure!(begun.elapsed() < HANG_LIMIT, "`{line}` hangs: {}", said());
    ensure!(done.status.success(), "`{line}`: {}: {}", done.status, said());
    ensure!(
        done.stdout == client.output,
        "`{line}` says {} instead of {} ({} bytes instead of {})",
        shown(&done.stdout),
        shown(&client.output),
        done.stdout.len(),
        client.output.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(bytes: &[u8], hear: Vec<Piece>) -> Result<()> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let mut session = Session { stream: Box::new(ours), child: None, held: Vec::new() };
        session.step(&Step { say: Vec::new(), hear })
    }

    #[test]
    fn an_answer_is_compared_byte_by_byte() {
        let pieces = || {
            vec![Piece::Any(2), Piece::Through(b"\r\n".to_vec()), Piece::Exact(b"body".to_vec())]
        };
        heard(b"idDate: x\r\nbody", pieces()).unwrap();
        let wrong = heard(b"idDate: x\r\nbodx", pieces()).unwrap_err().to_string();
        assert_eq!(wrong, "wrong answer: byte 3: \"x\" instead of \"y\"");
        let more = heard(b"idDate: x\r\nbody!", pieces()).unwrap_err().to_string();
        assert_eq!(more, "wrong answer: too much: \"!\"");
        let short = heard(b"idDate: x\r\nbod", pieces()).unwrap_err();
        assert!(matches!(short.downcast_ref(), Some(Broken::Ended(_))), "{short}");
    }
}
