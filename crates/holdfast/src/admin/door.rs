//! One of a daemon's sockets with its clients: the admin socket itself, or the one for those who
//! only look.

use super::{CLIENTS_MAX, REQUEST_BYTES_MAX, Request, SILENT_MAX, make_folder, refusal};
use crate::lock;
use crate::poll::{Epoll, Interest};
use serde_json::Value;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Work that those who only look may cause in each of these periods.
pub(super) const PERIOD: Duration = Duration::from_millis(100);
/// That work: one for each time that a client is served, and one more for so many bytes of an
/// answer. A status takes some 50 µs of the daemon's time, and one that counts a large table is
/// counted seldom (`Redirect::flows`).
const WORK_MAX: usize = 32;
const WORK_BYTES: usize = 16 << 10;
/// Refusal of whatever changes something.
const LOOKS_ONLY: &str =
    "this socket only shows: status, events and show\n  remedy: ask at the admin socket, as root";

/// Whom a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// The daemon's user, who may do everything.
    Owner,
    /// Those of a group of users, or the daemon's user; they may look, and cause so much work and
    /// no more.
    Watchers { gid: Option<u32> },
}

/// A listening socket and its clients.
#[derive(Debug)]
pub(super) struct Door {
    whom: For,
    listener: UnixListener,
    /// Device and number of the socket's file.
    place: (u64, u64),
    path: PathBuf,
    clients: [Option<Client>; CLIENTS_MAX],
    /// Token of the listener; those of the clients follow.
    first_token: u64,
    /// Work that is left in the period that began then.
    work: usize,
    since: Instant,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// When it came, or was last served.
    served: Instant,
    /// Whether it is not watched, for its door has done enough for now.
    waits: bool,
}

impl Door {
    /// Number of tokens of a door.
    pub const TOKENS: u64 = 1 + CLIENTS_MAX as u64;

    /// Listens at `path`, in the place of what is there.
    pub fn open(path: PathBuf, whom: For, first_token: u64, epoll: &Epoll) -> io::Result<Self> {
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = listen(&path, whom)?;
        epoll.add(&listener, first_token, Interest::Read)?;
        let place = lock::place(&std::fs::metadata(&path)?);
        let (clients, work, since) = (Default::default(), WORK_MAX, Instant::now());
        Ok(Self { whom, listener, place, path, clients, first_token, work, since })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its file is still there.
    pub fn is_in_place(&self) -> bool {
        let found = std::fs::symlink_metadata(&self.path).map(|found| lock::place(&found));
        found.is_ok_and(|place| place == self.place)
    }

    /// Listens again, in the place of what is at its path now. Its clients stay.
    pub fn mend(&mut self, epoll: &Epoll) -> io::Result<()> {
        make_folder(&self.path)?;
        let _absent = std::fs::remove_file(&self.path);
        let listener = listen(&self.path, self.whom)?;
        epoll.add(&listener, self.first_token, Interest::Read)?;
        self.place = lock::place(&std::fs::metadata(&self.path)?);
        self.listener = listener;
        Ok(())
    }

    /// Serves what is ready under one of its tokens, and returns whether it was too much: then
    /// [`Self::resume`] is to be called after a pause.
    pub fn serve(
        &mut self,
        token: u64,
        epoll: &Epoll,
        answer: &mut impl FnMut(Request) -> Value,
    ) -> bool {
        let Some(number) = token.checked_sub(self.first_token) else { return false };
        let may = self.may_work();
        match number.checked_sub(1) {
            None if may => self.accept(epoll),
            None => self.accept_later(epoll),
            Some(client) if may => {
                self.serve_client(client as usize, epoll, answer);
                false
            }
            Some(client) => self.serve_later(client as usize, epoll),
        }
    }

    /// Watches everything again that had to wait.
    pub fn resume(&mut self, epoll: &Epoll) {
        let _ = epoll.modify(&self.listener, self.first_token, Interest::Read);
        for (token, slot) in (self.first_token + 1..).zip(&mut self.clients) {
            let Some(client) = slot.as_mut().filter(|client| client.waits) else { continue };
            client.waits = false;
            if epoll.add(&client.stream, token, client.interest()).is_err() {
                *slot = None;
            }
        }
    }

    fn accept_later(&self, epoll: &Epoll) -> bool {
        // What fails here is tried again with the next connection.
        let _ = epoll.modify(&self.listener, self.first_token, Interest::Nothing);
        true
    }

    /// A client that has hung up would be reported whatever it is watched for.
    fn serve_later(&mut self, index: usize, epoll: &Epoll) -> bool {
        let Some(Some(client)) = self.clients.get_mut(index) else { return false };
        client.waits = epoll.remove(&client.stream).is_ok();
        client.waits
    }

    /// Counts one more piece of work; false if it has to wait for the next period.
    fn may_work(&mut self) -> bool {
        if self.whom == For::Owner {
            return true;
        }
        let now = Instant::now();
        if now - self.since >= PERIOD {
            (self.work, self.since) = (WORK_MAX, now);
        }
        let may = self.work > 0;
        self.work = self.work.saturating_sub(1);
        may
    }

    fn serve_client(
        &mut self,
        index: usize,
        epoll: &Epoll,
        answer: &mut impl FnMut(Request) -> Value,
    ) {
        let (whom, token) = (self.whom, self.first_token + 1 + index as u64);
        let Some(slot) = self.clients.get_mut(index) else { return };
        let Some(client) = slot else { return };
        let mut allowed = |request: Request| match whom == For::Owner || request.only_looks() {
            true => answer(request),
            false => refusal(LOOKS_ONLY),
        };
        let mut bytes = 0;
        let served = client
            .serve(&mut allowed, &mut bytes)
            .and_then(|()| epoll.modify(&client.stream, token, client.interest()));
        if served.is_err() {
            *slot = None;
        }
        self.work = self.work.saturating_sub(bytes / WORK_BYTES);
    }

    /// Takes those who wait; true if the host cannot take one now.
    fn accept(&mut self, epoll: &Epoll) -> bool {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => {
                    // Out of descriptors or memory: the client waits in the queue.
                    return self.accept_later(epoll);
                }
            };
            if let Some(free) = self.place_for_one_more() {
                let token = self.first_token + 1 + free as u64;
                let watched = stream
                    .set_nonblocking(true)
                    .and_then(|()| epoll.add(&stream, token, Interest::Read));
                if watched.is_ok() {
                    self.clients[free] = Some(Client::new(stream));
                }
            }
            if !self.may_work() {
                return self.accept_later(epoll);
            }
        }
    }

    /// A free place, or that of the client that has been silent longest.
    fn place_for_one_more(&self) -> Option<usize> {
        let silent = |(index, client): (usize, &Option<Client>)| match client {
            None => Some((Duration::MAX, index)),
            Some(client) => Some((client.served.elapsed(), index)),
        };
        let longest = self.clients.iter().enumerate().filter_map(silent).max()?;
        (longest.0 > SILENT_MAX).then_some(longest.1)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            request: Vec::new(),
            answer: Vec::new(),
            served: Instant::now(),
            waits: false,
        }
    }

    fn interest(&self) -> Interest {
        if self.is_served() { Interest::Read } else { Interest::Write }
    }

    /// Reads, answers once and writes; an error ends the client. A client that asks
    /// without reading the answers waits. `bytes` is set to the length of the answer.
    fn serve(
        &mut self,
        answer: &mut impl FnMut(Request) -> Value,
        bytes: &mut usize,
    ) -> io::Result<()> {
        self.write()?;
        if self.is_served() {
            self.read()?;
        }
        let end = self.end_of_request().filter(|_| self.answer.is_empty());
        if let Some(end) = end {
            // A client that asks byte by byte keeps nobody else out.
            self.served = Instant::now();
            let value = match serde_json::from_slice(&self.request[..end]) {
                Ok(request) => answer(request),
                Err(error) => refusal(&format!("not a request: {error}")),
            };
            serde_json::to_writer(&mut self.answer, &value)?;
            self.answer.push(b'\n');
            self.request.drain(..=end);
            *bytes = self.answer.len();
        }
        self.write()
    }

    /// Whether nothing is left to answer or to write.
    fn is_served(&self) -> bool {
        self.answer.is_empty() && self.end_of_request().is_none()
    }

    fn end_of_request(&self) -> Option<usize> {
        self.request.iter().position(|&byte| byte == b'\n')
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; REQUEST_BYTES_MAX];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.request.extend_from_slice(&buffer[..count]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
        let is_endless = self.end_of_request().is_none() && self.request.len() >= REQUEST_BYTES_MAX;
        if is_endless { Err(ErrorKind::InvalidData.into()) } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.answer.is_empty() {
            match self.stream.write(&self.answer) {
                Ok(count) => drop(self.answer.drain(..count)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Listens for those whom it is for, only.
fn listen(path: &Path, whom: For) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    let mode = match whom {
        For::Watchers { gid: Some(gid) } => {
            chown(path, None, Some(gid))?;
            0o660
        }
        _ => 0o600,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
