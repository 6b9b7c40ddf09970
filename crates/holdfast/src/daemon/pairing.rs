//! The hosts of the pairing machine (`member::pairing`): a primary that accepts its backup
//! (`Door`), and a backup that connects to its primary (`Seeker`). Also what a member answers
//! when there is nothing to join.

use super::dialer::{Dialer, LinkEvent};
use super::drive::{Role, drive};
use super::member::MemberContext;
use super::{advice, heed};
use crate::channel::{Channel, ChannelError, Listener};
use crate::fingerprint::{Fingerprint, FingerprintError, Part};
use crate::key::GroupKey;
use crate::poll::Interest;
use crate::status::{self, State};
use holdfast_member::host::{End, Hosted};
use holdfast_member::pairing::{Apart, Pairing, PairingHost, Side};
use holdfast_member::primary::AGAIN;
use holdfast_member::standing::keyed_hello;
use holdfast_wire::message::{FingerprintPart, LogKey, Message, VERSION};
use std::thread::JoinHandle;
use std::time::Instant;

/// Remedy for a member that is turned away.
const LATER: &str =
    "it asks again and again; look at the other member's status if that does not end";

/// The member that has connected to a primary, and the fingerprint that it was sent.
#[derive(Default)]
pub struct Doorway {
    candidate: Option<Channel>,
    gathering: Option<JoinHandle<Result<Fingerprint, FingerprintError>>>,
    fingerprint: Option<Fingerprint>,
}

/// A primary that waits for its backup.
struct Door<'n, 'a, 'l> {
    node: &'n mut MemberContext<'a>,
    listener: &'l mut Listener,
    token: u64,
    way: Doorway,
}

/// A backup that connects to its primary.
struct Seeker<'n, 'a, 'l> {
    node: &'n mut MemberContext<'a>,
    link: &'l mut Dialer,
    fingerprint: Option<Fingerprint>,
    early: Vec<Vec<u8>>,
}

/// The result of a primary's wait for its backup.
pub enum Came {
    Backup(Box<Channel>),
    Nobody,
    /// The daemon is to stop.
    Stop,
}

/// Waits until a suitable backup has connected, and answers its hello; gives up when it has
/// waited long enough. `token` is the event loop's token for the channel.
///
/// # Errors
/// When the event loop fails, or this host cannot tell its own fingerprint.
pub fn wait_for_backup(
    node: &mut MemberContext<'_>,
    listener: &mut Listener,
    token: u64,
) -> anyhow::Result<Came> {
    let mut pairing = Pairing::new(Side::Primary);
    let mut door = Door { node, listener, token, way: Doorway::default() };
    let end = drive(&mut door, |stop, door| pairing.turn(stop, door))?;
    Ok(match (end, door.way.take()) {
        (End::Met { .. }, Some(channel)) => Came::Backup(Box::new(channel)),
        (End::Unmet, _) => Came::Nobody,
        _ => Came::Stop,
    })
}

/// Connects to a suitable primary: returns whether its server already runs, and the messages
/// that came right behind its hello, encoded. `None`: the daemon is to stop.
///
/// # Errors
/// When the event loop fails, or this host cannot tell its own fingerprint.
pub fn reach_primary(
    node: &mut MemberContext<'_>,
    link: &mut Dialer,
) -> anyhow::Result<Option<(bool, Vec<Vec<u8>>)>> {
    let mut pairing = Pairing::new(Side::Backup);
    let mut seeker = Seeker { node, link, fingerprint: None, early: Vec::new() };
    let end = drive(&mut seeker, |stop, seeker| pairing.turn(stop, seeker))?;
    let Seeker { node, early, .. } = seeker;
    node.set_epoch(node.member.epoch);
    let End::Met { runs } = end else { return Ok(None) };
    // The members have met: an earlier refusal does not count any more.
    node.put_off = None;
    Ok(Some((runs, early)))
}

impl<'a> Hosted for Door<'_, 'a, '_> {
    type Context = MemberContext<'a>;

    fn context(&self) -> &MemberContext<'a> {
        self.node
    }

    fn context_mut(&mut self) -> &mut MemberContext<'a> {
        self.node
    }
}

impl<'a> Role<'a> for Door<'_, 'a, '_> {}

impl Doorway {
    /// Accepts a connection; true if there was one, which is the candidate now.
    fn answer(
        &mut self,
        node: &mut MemberContext<'_>,
        listener: &mut Listener,
        token: u64,
    ) -> bool {
        match listener.accept(Instant::now()) {
            Ok(None) => false,
            Ok(Some(channel)) => {
                node.doubt(None);
                note_version(node, channel.version());
                let added = node.poll.add(&channel, token, Interest::Read);
                // Files may have been repaired since the last one came.
                (self.candidate, self.gathering) = (added.is_ok().then_some(channel), None);
                self.candidate.is_some()
            }
            // Failed handshakes from elsewhere are strangers', and are not reported.
            Err(ChannelError::Refused { from, why, .. }) if from == node.comes_from() => {
                let distrust = why.distrust(&node.other.name);
                node.doubt(distrust);
                false
            }
            Err(_) => false,
        }
    }

    /// See [`PairingHost::turn_peer`].
    pub fn turn(
        &mut self,
        (node, listener, token): (&mut MemberContext<'_>, &mut Listener, u64),
        each: &mut dyn FnMut(&Message<'_>),
    ) -> bool {
        let opened = self.answer(node, listener, token);
        if let Some(channel) = &mut self.candidate
            && let Err(error) = listen(channel, each)
        {
            self.refused(node, &error);
        }
        opened
    }

    fn refused(&mut self, node: &mut MemberContext<'_>, error: &ChannelError) {
        node.events.add("backup refused", error.to_string());
        self.candidate = None;
    }

    /// See [`PairingHost::is_ready_to_greet`].
    pub fn is_ready_to_greet(&mut self, node: &MemberContext<'_>) -> bool {
        let gathering = self.gathering.get_or_insert_with(|| {
            let (config, key) = (node.config.clone(), opened_by(self.candidate.as_ref(), node));
            std::thread::spawn(move || Fingerprint::gather(&config, &key))
        });
        gathering.is_finished()
    }

    /// See [`PairingHost::say_hello`].
    pub fn say_hello(&mut self, node: &mut MemberContext<'_>, runs: bool) -> Result<bool, String> {
        let fingerprint = match self.gathering.take().map(JoinHandle::join) {
            Some(Ok(gathered)) => gathered.map_err(|error| unknown_files(&error))?,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => {
                let key = opened_by(self.candidate.as_ref(), node);
                own_fingerprint(node, &key)?
            }
        };
        let fingerprint = self.fingerprint.insert(fingerprint);
        let Some(channel) = &mut self.candidate else { return Ok(false) };
        let greeting = greeting(node, runs, fingerprint, Some(LogKey(node.hash_key)));
        let said = channel.send(&greeting);
        let said = said.and_then(|()| channel.flush());
        Ok(said.map_err(|error| self.refused(node, &error)).is_ok())
    }

    /// See [`PairingHost::is_own_fingerprint`].
    pub fn is_own_fingerprint(
        &self,
        node: &MemberContext<'_>,
        theirs: &[FingerprintPart<'_>],
    ) -> bool {
        self.fingerprint.as_ref().is_some_and(|own| difference(node, own, theirs).is_none())
    }

    /// Reason and remedy of why the members do not pair.
    pub fn apart(&self, node: &MemberContext<'_>, why: &Apart<'_>) -> (String, String) {
        apart(node, self.fingerprint.as_ref(), why)
    }

    pub fn hang_up(&mut self) {
        self.candidate = None;
    }

    /// Takes the channel of the member that has connected, once the members have met.
    pub fn take(&mut self) -> Option<Channel> {
        self.candidate.take()
    }
}

impl PairingHost for Door<'_, '_, '_> {
    fn turn_peer(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        self.way.turn((self.node, self.listener, self.token), each)
    }

    fn is_ready_to_greet(&mut self) -> bool {
        self.way.is_ready_to_greet(self.node)
    }

    fn say_hello(&mut self, runs: bool) -> Result<bool, String> {
        self.way.say_hello(self.node, runs)
    }

    fn is_own_fingerprint(&self, theirs: &[FingerprintPart<'_>]) -> bool {
        self.way.is_own_fingerprint(self.node, theirs)
    }

    fn learn_key(&mut self, _: Option<LogKey>) {
        // It is this member's server that writes the log.
    }

    fn keep(&mut self, _: Vec<Vec<u8>>) {
        // A backup waits for the answer.
    }

    fn hang_up(&mut self) {
        self.way.hang_up();
    }

    fn show_apart(&mut self, why: &Apart<'_>) {
        let (reason, remedy) = self.way.apart(self.node, why);
        self.node.set_state(status::Role::Primary, State::Waiting, &reason, &remedy);
    }
}

impl<'a> Hosted for Seeker<'_, 'a, '_> {
    type Context = MemberContext<'a>;

    fn context(&self) -> &MemberContext<'a> {
        self.node
    }

    fn context_mut(&mut self) -> &mut MemberContext<'a> {
        self.node
    }
}

impl<'a> Role<'a> for Seeker<'_, 'a, '_> {}

impl PairingHost for Seeker<'_, '_, '_> {
    fn turn_peer(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        let Self { node, link, .. } = self;
        let event = link.turn(Instant::now(), &node.poll, |message| each(&message));
        match &event {
            LinkEvent::Failed(error) => {
                let distrust = node.distrust_of(error);
                node.doubt(distrust);
                // What the other member answered last does not count any more.
                let remedy = "start the other member's daemon, or look at the way to it";
                let reason = "the primary does not answer";
                node.put_off = None;
                node.set_state(status::Role::Backup, State::Waiting, reason, remedy);
            }
            LinkEvent::Lost(error) => {
                let distrust = error.distrust(&node.other.name);
                node.doubt(distrust);
            }
            LinkEvent::Opened => {
                node.doubt(None);
                note_version(node, link.version());
                node.seek_prepared();
            }
            LinkEvent::Nothing => {}
        }
        matches!(event, LinkEvent::Opened)
    }

    fn is_ready_to_greet(&mut self) -> bool {
        true
    }

    fn say_hello(&mut self, runs: bool) -> Result<bool, String> {
        let key = self.link.secret().cloned().unwrap_or_else(|| spoken(self.node));
        let fingerprint = self.fingerprint.insert(own_fingerprint(self.node, &key)?);
        let said = self.link.send(&greeting(self.node, runs, fingerprint, None));
        self.link.flush(Instant::now(), &self.node.poll);
        Ok(said)
    }

    fn is_own_fingerprint(&self, theirs: &[FingerprintPart<'_>]) -> bool {
        self.fingerprint.as_ref().is_some_and(|own| difference(self.node, own, theirs).is_none())
    }

    fn learn_key(&mut self, key: Option<LogKey>) {
        self.node.hash_key = key.map_or_else(|| spoken(self.node).hash_key(), |key| key.0);
    }

    fn keep(&mut self, early: Vec<Vec<u8>>) {
        self.early = early;
    }

    fn hang_up(&mut self) {
        self.link.close(Instant::now());
    }

    fn show_apart(&mut self, why: &Apart<'_>) {
        let (reason, remedy) = apart(self.node, self.fingerprint.as_ref(), why);
        match why {
            Apart::TurnedAway { again: false, .. } => {
                self.node.set_answered(State::Ended, &reason, &remedy);
            }
            // This member knows better why its last attempt has failed.
            Apart::TurnedAway { reason: AGAIN, .. } if self.node.put_off.is_some() => {
                self.node.seek(&reason, &remedy);
            }
            _ => self.node.set_put_off(&reason, &remedy),
        }
    }
}

fn listen(channel: &mut Channel, each: &mut dyn FnMut(&Message<'_>)) -> Result<(), ChannelError> {
    channel.tick(Instant::now())?;
    channel.recv(|message| each(&message))?;
    channel.flush()
}

/// This member's hello; `runs`: its server already runs. A primary tells the key of its log.
fn greeting<'m>(
    node: &'m MemberContext<'_>,
    runs: bool,
    fingerprint: &'m Fingerprint,
    key: Option<LogKey>,
) -> Message<'m> {
    let (epoch, names) = (node.member.epoch, (&*node.config.group.name, &*node.me.name));
    keyed_hello(names, (epoch, runs), fingerprint.wire(node.path_differs.get()), key)
}

/// Says so when the other member speaks an older version of messages: an upgrade is half done.
fn note_version(node: &mut MemberContext<'_>, version: u32) {
    if version < VERSION && node.older != version {
        let what = format!(
            "{} speaks version {version} of messages, this host {VERSION}: install the same \
             release on both",
            node.other.name
        );
        node.events.add("older release", what);
    }
    node.older = version;
}

/// The difference between two fingerprints, as reason and remedy.
fn difference(
    node: &MemberContext<'_>,
    own: &Fingerprint,
    theirs: &[FingerprintPart<'_>],
) -> Option<(String, String)> {
    let theirs: Vec<Part> = theirs.iter().map(Part::from).collect();
    let (me, other) = (&node.me.name, &node.other.name);
    let difference = own.difference(&theirs, me, other);
    node.path_differs.set(difference.as_ref().is_some_and(|it| it.of_path));
    let difference = difference?;
    Some((format!("{me} and {other} differ: {}", difference.what), difference.remedy))
}

/// Why the members do not meet: reason and remedy.
fn apart(node: &MemberContext<'_>, own: Option<&Fingerprint>, why: &Apart<'_>) -> (String, String) {
    match why {
        Apart::TurnedAway { reason, again } => {
            // Some of the other member's reasons begin with its name already.
            let is_named = reason.starts_with(node.other.name.as_str());
            let name = if is_named { String::new() } else { format!("{}: ", node.other.name) };
            let reason = format!("{name}{reason}");
            let remedy = match again {
                true => advice::not_joined(&reason, LATER),
                false => advice::AFTER_BAD_START.to_owned(),
            };
            (reason, remedy)
        }
        Apart::OtherRelease => (
            format!("{} speaks another version", node.other.name),
            "run the same release on both members".to_owned(),
        ),
        Apart::OtherFingerprint(theirs) => {
            own.and_then(|own| difference(node, own, theirs)).unwrap_or_default()
        }
    }
}

/// Accepts every member that connects, tells it the `reason` why it cannot join, and hangs up.
pub fn turn_away(node: &mut MemberContext<'_>, listener: &mut Listener, reason: &str) {
    let again = node.own().state != State::Ended;
    while let Ok(Some(mut channel)) = listener.accept(Instant::now()) {
        let what = format!("{}: {reason}", channel.peer());
        // Who comes again and again is told the same.
        if node.turned_away != what {
            node.events.add("turned away", what.clone());
            node.turned_away = what;
        }
        let told = channel.send(&Message::Refused { reason, again });
        heed("turning away", told.and_then(|()| channel.flush()));
    }
}

/// The reason that a returning member is told when it cannot join.
pub fn no_rejoin(node: &MemberContext<'_>) -> String {
    let MemberContext { me, status, .. } = node;
    match status.state {
        State::Unprotected => {
            format!("{} runs alone in epoch {}, and nobody can join it yet", me.name, status.epoch)
        }
        _ => format!("{} does not serve: {}", me.name, status.reason),
    }
}

/// Gathers this host's fingerprint again for each attempt, because files may have been repaired
/// since. That takes longer than the edge waits for a heartbeat, or a caller for the status, so
/// both are served meanwhile. Signals wait.
///
/// `key` is that of the channel by which it is told: both ends have the same, also while the
/// group's keys are being changed.
fn own_fingerprint(node: &mut MemberContext<'_>, key: &GroupKey) -> Result<Fingerprint, String> {
    let config = node.config;
    let fingerprint = node.attend_until(|| Fingerprint::gather(config, key));
    fingerprint.map_err(|error| unknown_files(&error))
}

/// The secret that has opened a channel of the other member.
fn opened_by(channel: Option<&Channel>, node: &MemberContext<'_>) -> GroupKey {
    channel.and_then(Channel::secret).cloned().unwrap_or_else(|| spoken(node))
}

/// The secret by which this member speaks to the other one.
fn spoken(node: &MemberContext<'_>) -> GroupKey {
    node.key.with(&node.other.name).first().clone()
}

fn unknown_files(error: &FingerprintError) -> String {
    format!("{error}\n  remedy: {}", error.remedy())
}
