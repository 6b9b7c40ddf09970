//! How the members meet: both say hello, and each pairs only if the other one
//! speaks a version that it understands and has the same fingerprint (decision 25).
//! Differences are shown, and pairing is tried again: nobody need restart a
//! daemon after copying a file.

use crate::host::{End, Hosted, Turn, hear_out_of_step};
use crate::nanos;
use crate::timing::pairing::{COMPARE_EVERY, LOOK_EVERY};
use holdfast_cluster::Nanos;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{FingerprintPart, LogKey, Message, is_understood};

/// Which end of the pair's channel a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It waits, and answers a hello.
    Primary,
    /// Like a primary, but its server already runs: a member that comes joins
    /// it.
    Alone,
    /// It connects, and says hello first.
    Backup,
}

/// Why two members do not pair.
#[derive(Debug, PartialEq, Eq)]
pub enum Apart<'a> {
    /// The other member refuses, in its own words. `again`: it may agree later;
    /// otherwise its server has ended.
    TurnedAway {
        reason: &'a str,
        again: bool,
    },
    OtherRelease,
    OtherFingerprint(&'a [FingerprintPart<'a>]),
}

/// What pairing asks of its host.
pub trait PairingHost: Hosted {
    /// Turns the channel to the other member; a later channel replaces an earlier
    /// one. True if a channel has just opened.
    fn turn_peer(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool;
    /// Whether a primary can answer a hello at once. If not, it begins to look at its host's
    /// files, which takes long, while clients may wait for its turns.
    fn is_ready_to_greet(&mut self) -> bool;
    /// Says hello there, with this host's fingerprint as it is now: files may have been
    /// repaired meanwhile. False if the channel does not take it.
    ///
    /// # Errors
    /// When the host cannot tell its own fingerprint. `runs`: this member's server
    /// already runs.
    fn say_hello(&mut self, runs: bool) -> Result<bool, String>;
    /// Whether the other member's fingerprint is the one that was said last.
    fn is_own_fingerprint(&self, theirs: &[FingerprintPart<'_>]) -> bool;
    /// What the backup uses as the key of the hashes in the log; `None`: the primary does not tell
    /// it (it speaks version 11), and both derive it from the group's key.
    fn learn_key(&mut self, key: Option<LogKey>);
    /// Keeps messages that came right behind the other's hello, encoded, for
    /// the role.
    fn keep(&mut self, early: Vec<Vec<u8>>);
    fn hang_up(&mut self);
    fn show_apart(&mut self, why: &Apart<'_>);
}

/// A member that does not know the other one yet.
#[derive(Debug)]
pub struct Pairing {
    side: Side,
    /// Whether the backup has said hello on the open channel.
    greeted: bool,
    /// The backup's hello, encoded, which the primary is not ready to answer yet.
    unanswered: Option<Vec<u8>>,
    /// When the backup tries again.
    again_at: Nanos,
    /// Since when nobody has come to the primary.
    nobody_since: Option<Nanos>,
}

/// What came in one turn.
#[derive(Default)]
struct Came {
    /// The reason for a refusal, and whether to ask again.
    turned_away: Option<(String, bool)>,
    /// The other's hello, encoded.
    hello: Option<Vec<u8>>,
    early: Vec<Vec<u8>>,
}

impl Came {
    fn handle_message(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        match message {
            Message::Hello { .. } => self.hello = Some(bytes),
            Message::Refused { reason, again } => {
                self.turned_away = Some(((*reason).to_owned(), *again));
            }
            _ if self.hello.is_some() => self.early.push(bytes),
            _ => {}
        }
    }
}

impl Pairing {
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, greeted: false, unanswered: None, again_at: Nanos(0), nobody_since: None }
    }

    /// Takes what has come, until the members have met. `stop`: the operator ends
    /// this member.
    pub fn turn(&mut self, stop: bool, host: &mut impl PairingHost) -> Turn {
        if stop {
            return Turn::End(End::Stopped);
        }
        hear_out_of_step(host, &mut |_| {});
        if host.now() < self.again_at {
            return Turn::Until(self.again_at);
        }
        match self.meet(host) {
            Ok(Some(runs)) => Turn::End(End::Met { runs }),
            Ok(None) if self.nobody_comes(host) => Turn::End(End::Unmet),
            Ok(None) => Turn::after(LOOK_EVERY, host.now()),
            Err(error) => Turn::End(End::Failed(error)),
        }
    }

    /// Whether a primary has waited for long enough. A member that comes and does not
    /// fit is being repaired: the wait begins anew.
    fn nobody_comes(&mut self, host: &mut impl PairingHost) -> bool {
        let now = host.now();
        let since = *self.nobody_since.get_or_insert(now);
        let waits = self.side == Side::Primary && self.unanswered.is_none();
        waits && now.since(since) >= host.member().alone_after
    }

    /// Finishes once the members have met: returns whether the primary's server
    /// already runs.
    fn meet(&mut self, host: &mut impl PairingHost) -> Result<Option<bool>, String> {
        let mut came = Came::default();
        if host.turn_peer(&mut |message| came.handle_message(message)) {
            (self.nobody_since, self.unanswered) = (None, None);
            let asks = self.side == Side::Backup && came.turned_away.is_none();
            self.greeted = asks && host.say_hello(false)?;
        }
        let turned_away = came.turned_away.filter(|_| self.side == Side::Backup);
        if let Some((reason, again)) = turned_away {
            self.part(&Apart::TurnedAway { reason: &reason, again }, host);
            return Ok(None);
        }
        let Some(bytes) = came.hello.or_else(|| self.unanswered.take()) else { return Ok(None) };
        if self.side != Side::Backup && !host.is_ready_to_greet() {
            self.unanswered = Some(bytes);
            return Ok(None);
        }
        let runs = self.side == Side::Alone;
        // The other member is to know the differences as well.
        let greeted = match self.side {
            Side::Backup => self.greeted,
            Side::Primary | Side::Alone => host.say_hello(runs)?,
        };
        let Ok(hello) = Message::decode(&bytes) else { return Ok(None) };
        let Message::Hello { version, log_version, fingerprint, .. } = &hello else {
            return Ok(None);
        };
        if !greeted {
            host.hang_up();
        } else if !is_understood(*version) || *log_version != LOG_VERSION {
            self.part(&Apart::OtherRelease, host);
        } else if !host.is_own_fingerprint(fingerprint) {
            self.part(&Apart::OtherFingerprint(fingerprint), host);
        } else {
            let joins = self.side == Side::Backup;
            return Ok(Some(if joins { follow(&hello, came.early, host) } else { runs }));
        }
        Ok(None)
    }

    fn part(&mut self, why: &Apart<'_>, host: &mut impl PairingHost) {
        host.show_apart(why);
        host.hang_up();
        self.greeted = false;
        if self.side == Side::Backup {
            self.again_at = host.now().plus(nanos(COMPARE_EVERY));
        }
    }
}

/// Takes what a backup needs of its primary's hello; returns whether the server already runs.
fn follow(hello: &Message<'_>, early: Vec<Vec<u8>>, host: &mut impl PairingHost) -> bool {
    let Message::Hello { epoch, speaks, hash_key, .. } = hello else { return false };
    // What it does from now on counts in the primary's epoch, whatever the edge has said
    // before or says later.
    host.member().epoch = *epoch;
    host.learn_key(*hash_key);
    host.keep(early);
    *speaks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Bench;
    use crate::standing::{hello, keyed_hello};
    use holdfast_wire::message::{VERSION, VERSION_OLDEST};

    /// Takes messages from a list; what is said is noted.
    struct Host {
        context: Bench,
        /// Whether a channel opens, and what it brings, in the next turn.
        next: Option<(bool, Vec<Message<'static>>)>,
        is_ready: bool,
        /// Whether it says hello, or why it cannot.
        says: Result<bool, String>,
        /// The key that it has learnt.
        key: Option<Option<LogKey>>,
        lines: Vec<String>,
    }

    impl Hosted for Host {
        type Context = Bench;
        fn context(&self) -> &Bench {
            &self.context
        }
        fn context_mut(&mut self) -> &mut Bench {
            &mut self.context
        }
    }

    impl PairingHost for Host {
        fn turn_peer(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
            let (opened, messages) = self.next.take().unwrap_or_default();
            messages.iter().for_each(each);
            opened
        }
        fn is_ready_to_greet(&mut self) -> bool {
            self.is_ready
        }
        fn say_hello(&mut self, runs: bool) -> Result<bool, String> {
            self.lines.push(if runs { "hello, it runs" } else { "hello" }.to_owned());
            self.says.clone()
        }
        fn is_own_fingerprint(&self, theirs: &[FingerprintPart<'_>]) -> bool {
            theirs.is_empty()
        }
        fn learn_key(&mut self, key: Option<LogKey>) {
            self.key = Some(key);
        }
        fn keep(&mut self, early: Vec<Vec<u8>>) {
            self.lines.push(format!("{} early", early.len()));
        }
        fn hang_up(&mut self) {
            self.lines.push("hangs up".to_owned());
        }
        fn show_apart(&mut self, why: &Apart<'_>) {
            self.lines.push(format!("{why:?}"));
        }
    }

    fn host() -> Host {
        let mut context = Bench::new("b", "a");
        (context.now, context.member.epoch) = (Nanos(0), 0);
        let (next, key, lines) = (None, None, Vec::new());
        Host { context, next, is_ready: true, says: Ok(true), key, lines }
    }

    fn said(host: &mut Host) -> Vec<String> {
        std::mem::take(&mut host.lines)
    }

    const BEAT: Message<'_> = Message::Beat { number: 1, echo: 1, executed: 0 };
    const TURNED_AWAY: Message<'_> = Message::Refused { reason: "late", again: true };

    fn greets(version_more: u32) -> Message<'static> {
        let mut message = hello("demo", "a", (7, false), Vec::new());
        if let Message::Hello { log_version, .. } = &mut message {
            *log_version += version_more;
        }
        message
    }

    /// A primary whose clients wait for its turns looks at its files meanwhile.
    #[test]
    fn a_hello_that_cannot_be_answered_yet_waits_for_its_answer() {
        let (mut host, mut pairing) = (host(), Pairing::new(Side::Alone));
        (host.is_ready, host.next) = (false, Some((true, vec![greets(0)])));
        for _ in 0..3 {
            assert_eq!(pairing.turn(false, &mut host), Turn::Until(nanos(LOOK_EVERY)));
        }
        assert!(said(&mut host).is_empty());
        // Nobody is left alone meanwhile.
        let mut primary = Pairing::new(Side::Primary);
        host.next = Some((true, vec![greets(0)]));
        host.context.member.alone_after = Nanos(0);
        assert!(matches!(primary.turn(false, &mut host), Turn::Until(_)));
        // Another one comes in its place.
        host.next = Some((true, vec![]));
        pairing.turn(false, &mut host);
        host.is_ready = true;
        pairing.turn(false, &mut host);
        assert!(said(&mut host).is_empty());
        (host.is_ready, host.next) = (false, Some((false, vec![greets(0)])));
        pairing.turn(false, &mut host);
        host.is_ready = true;
        assert_eq!(pairing.turn(false, &mut host), Turn::End(End::Met { runs: true }));
        assert_eq!(said(&mut host), ["hello, it runs"]);
    }

    #[test]
    fn a_backup_greets_first_and_joins_the_primarys_epoch() {
        let (mut host, mut pairing) = (host(), Pairing::new(Side::Backup));
        host.next = Some((false, vec![greets(0)]));
        assert!(matches!(pairing.turn(false, &mut host), Turn::Until(_)), "nobody was greeted");
        assert_eq!(said(&mut host), ["hangs up"]);
        host.next = Some((true, vec![]));
        assert_eq!(pairing.turn(false, &mut host), Turn::Until(nanos(LOOK_EVERY)));
        assert_eq!(said(&mut host), ["hello"]);
        host.next = Some((false, vec![BEAT, greets(0), BEAT, BEAT]));
        assert_eq!(pairing.turn(false, &mut host), Turn::End(End::Met { runs: false }));
        assert_eq!((said(&mut host), host.context.member.epoch), (vec!["2 early".to_owned()], 7));
    }

    /// One of an older release that is understood tells no key.
    #[test]
    fn a_backup_takes_the_key_of_its_primarys_log() {
        let secret = LogKey([9; 8]);
        for (its, key) in [(VERSION, Some(secret)), (VERSION_OLDEST, None)] {
            let (mut host, mut pairing) = (host(), Pairing::new(Side::Backup));
            let mut greets = keyed_hello(("demo", "a"), (7, true), Vec::new(), key);
            if let Message::Hello { version, .. } = &mut greets {
                *version = its;
            }
            host.next = Some((true, vec![greets]));
            assert_eq!(pairing.turn(false, &mut host), Turn::End(End::Met { runs: true }));
            assert_eq!(host.key, Some(key), "version {its}");
        }
    }

    #[test]
    fn members_of_two_releases_meet_if_each_understands_the_other() {
        for (its, meets) in [
            (VERSION, true),
            (VERSION_OLDEST, true),
            (VERSION_OLDEST - 1, false),
            (VERSION + 1, false),
        ] {
            for side in [Side::Primary, Side::Alone, Side::Backup] {
                let (mut host, mut pairing) = (host(), Pairing::new(side));
                let mut greets = hello("demo", "a", (7, side == Side::Backup), Vec::new());
                if let Message::Hello { version, .. } = &mut greets {
                    *version = its;
                }
                host.next = Some((true, vec![greets]));
                let met = matches!(pairing.turn(false, &mut host), Turn::End(End::Met { .. }));
                assert_eq!(met, meets, "{side:?}, version {its}");
                assert_eq!(said(&mut host).contains(&"OtherRelease".to_owned()), !meets);
                assert_eq!(host.key.is_some(), meets && side == Side::Backup);
            }
        }
    }

    #[test]
    fn a_primary_answers_and_stays_in_its_epoch() {
        let (mut host, mut pairing) = (host(), Pairing::new(Side::Primary));
        host.context.member.epoch = 9;
        host.next = Some((true, vec![TURNED_AWAY]));
        assert!(matches!(pairing.turn(false, &mut host), Turn::Until(_)));
        assert!(said(&mut host).is_empty(), "nobody has greeted it");
        host.next = Some((false, vec![greets(0)]));
        assert_eq!(pairing.turn(false, &mut host), Turn::End(End::Met { runs: false }));
        assert_eq!((said(&mut host), host.context.member.epoch), (vec!["hello".to_owned()], 9));
    }

    #[test]
    fn a_primary_to_whom_nobody_comes_serves_without_a_backup() {
        for side in [Side::Primary, Side::Alone, Side::Backup] {
            let (mut host, mut pairing) = (host(), Pairing::new(side));
            host.context.member.alone_after = Nanos::from_ms(1000);
            assert!(matches!(pairing.turn(false, &mut host), Turn::Until(_)));
            host.context.now = Nanos::from_ms(999);
            // A member that comes may be repaired, and come again.
            host.next = Some((true, vec![greets(1)]));
            assert!(matches!(pairing.turn(false, &mut host), Turn::Until(_)));
            host.context.now = Nanos::from_ms(1998);
            assert!(matches!(pairing.turn(false, &mut host), Turn::Until(_)));
            host.context.now = Nanos::from_ms(5000);
            let is_unmet = pairing.turn(false, &mut host) == Turn::End(End::Unmet);
            assert_eq!(is_unmet, side == Side::Primary, "{side:?}");
        }
    }

    #[test]
    fn both_tell_what_differs_and_only_the_backup_waits() {
        let other = [FingerprintPart {
            kind: holdfast_wire::message::FingerprintKind::Library,
            name: "libc.so.6",
            hash: 1,
        }];
        let fingerprint = hello("demo", "a", (7, false), other.to_vec());
        let strange = format!("{:?}", Apart::OtherFingerprint(&other));
        for (message, shown) in [(greets(1), "OtherRelease"), (fingerprint, &strange)] {
            for side in [Side::Primary, Side::Backup] {
                let (mut host, mut pairing) = (host(), Pairing::new(side));
                host.next = Some((true, vec![message.clone()]));
                assert_eq!(pairing.turn(false, &mut host), Turn::Until(nanos(LOOK_EVERY)));
                assert_eq!(said(&mut host), ["hello", shown, "hangs up"], "{side:?}");
                assert_eq!(host.context.member.epoch, 0);
                host.next = Some((true, vec![greets(0)]));
                let again = pairing.turn(false, &mut host);
                assert_eq!(
                    again == Turn::End(End::Met { runs: false }),
                    side == Side::Primary,
                    "{again:?}"
                );
                host.context.now = nanos(COMPARE_EVERY);
                host.next = Some((true, vec![greets(0)]));
                assert_eq!(pairing.turn(false, &mut host), Turn::End(End::Met { runs: false }));
            }
        }
    }

    #[test]
    fn a_backup_that_is_turned_away_says_so_and_comes_again() {
        let (mut host, mut pairing) = (host(), Pairing::new(Side::Backup));
        host.next = Some((true, vec![TURNED_AWAY]));
        pairing.turn(false, &mut host);
        assert_eq!(said(&mut host), ["TurnedAway { reason: \"late\", again: true }", "hangs up"]);
        assert_eq!(pairing.turn(false, &mut host), Turn::Until(nanos(COMPARE_EVERY)));
        assert_eq!(pairing.turn(true, &mut host), Turn::End(End::Stopped));
    }

    #[test]
    fn a_member_that_cannot_tell_its_own_fingerprint_meets_nobody() {
        for side in [Side::Primary, Side::Alone, Side::Backup] {
            let (mut host, mut pairing) = (host(), Pairing::new(side));
            host.says = Err("no such library".to_owned());
            host.next = Some((true, vec![greets(0)]));
            let failed = Turn::End(End::Failed("no such library".to_owned()));
            assert_eq!(pairing.turn(false, &mut host), failed, "{side:?}");
        }
    }

    #[test]
    fn a_channel_that_takes_no_hello_is_of_no_use() {
        for side in [Side::Primary, Side::Backup] {
            let (mut host, mut pairing) = (host(), Pairing::new(side));
            host.says = Ok(false);
            host.next = Some((true, vec![greets(0)]));
            assert_eq!(pairing.turn(false, &mut host), Turn::Until(nanos(LOOK_EVERY)), "{side:?}");
            assert_eq!(said(&mut host), ["hello", "hangs up"]);
        }
    }

    /// It joins the server, instead of starting its own.
    #[test]
    fn a_server_that_runs_is_joined() {
        let (mut host, mut pairing) = (host(), Pairing::new(Side::Alone));
        host.next = Some((true, vec![greets(0)]));
        assert_eq!(pairing.turn(false, &mut host), Turn::End(End::Met { runs: true }));
        assert_eq!(said(&mut host), ["hello, it runs"]);
        let (mut host, mut pairing) = (self::host(), Pairing::new(Side::Backup));
        let runs = hello("demo", "a", (7, true), Vec::new());
        host.next = Some((true, vec![runs]));
        assert_eq!(pairing.turn(false, &mut host), Turn::End(End::Met { runs: true }));
    }

    /// An edge that has just started waits for that word.
    #[test]
    fn who_waits_for_the_other_member_hears_its_edge_and_says_that_it_is_not_in_step() {
        let (mut host, mut pairing) = (host(), Pairing::new(Side::Backup));
        host.context.edge.push(BEAT);
        (host.context.opens, host.context.member.epoch) = (true, 7);
        pairing.turn(false, &mut host);
        assert!(host.context.edge.is_empty());
        assert_eq!(host.context.take(), ["to the edge: InStep { epoch: 7, yes: false }"]);
    }

    #[test]
    fn who_was_turned_away_has_met_nobody_whatever_else_came() {
        let (mut host, mut pairing) = (host(), Pairing::new(Side::Backup));
        host.next = Some((true, vec![]));
        pairing.turn(false, &mut host);
        said(&mut host);
        host.next = Some((false, vec![greets(0), TURNED_AWAY]));
        assert!(matches!(pairing.turn(false, &mut host), Turn::Until(_)));
        let lines = said(&mut host);
        assert_eq!(lines.iter().filter(|line| *line == "hangs up").count(), 1, "{lines:?}");
    }

    /// What still comes on a channel that it has left is no answer.
    #[test]
    fn who_has_left_greets_before_it_meets_anybody() {
        let (mut host, mut pairing) = (host(), Pairing::new(Side::Backup));
        host.next = Some((true, vec![greets(1)]));
        pairing.turn(false, &mut host);
        host.context.now = nanos(COMPARE_EVERY);
        host.next = Some((false, vec![greets(0)]));
        assert!(matches!(pairing.turn(false, &mut host), Turn::Until(_)));
        assert_eq!(host.context.member.epoch, 0);
    }
}
