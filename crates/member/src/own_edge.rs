//! What stands in the edge's place where a pair has none: a member of such a pair asks, hears and
//! obeys as any other, and this machine beside it answers with what the lease and the arbiter's
//! record say. So the primary, the backup and the takeover are the same with an edge and without.
//!
//! An edge hears the members with an ear of its own; this one hears the other member as its own
//! member does, and so never says that it lost it alone.

use holdfast_cluster::Nanos;
use holdfast_wire::message::Message;

/// Whose the record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This life's of the member.
    Mine,
    /// An earlier life's of it, whose connections are lost.
    Earlier,
    Other,
}

/// The arbiter's record, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub epoch: u64,
    pub whose: Whose,
    /// Whether it names the other member as one that could take over.
    pub pair: bool,
}

/// What is known besides what the member says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight<'a> {
    pub record: Option<Seen>,
    /// Whether this host's kernel lets the service speak now.
    pub speaks: bool,
    /// Whether the other member is heard.
    pub hears_other: bool,
    /// The epoch in which the other member says that it is in step.
    pub other_follows: Option<u64>,
    /// Whether clients do not reach this host, as it sees itself.
    pub is_cut: bool,
    /// Whether this host has fallen silent for good in this epoch.
    pub has_resigned: bool,
    /// Why nobody could take over now; `None`: the arbiter answers.
    pub unheard: Option<&'a str>,
}

/// What the lease is to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// Whether both are in step, and in which epoch.
    pub in_step: Option<(u64, bool)>,
    /// The member is to take over.
    pub claim: bool,
    /// It is to begin a group that has no record.
    pub begin: bool,
    /// It is alone already, and begins another epoch.
    pub anew: bool,
    /// It speaks no more.
    pub resign: bool,
    /// It could speak again, if nobody has taken over.
    pub resume: bool,
}

const EARLIER: &str =
    "the other member may hold its connections, and has the time to take them over";
const UNPAIRED: &str = "the arbiter's record does not name this member as the other one's backup";
const NOT_YET: &str = "the other member may speak for some milliseconds more";
const ASKED: &str = "the arbiter is being asked";
const NOBODY: &str = "no member has begun yet";

/// The machine; see the module.
///
/// # Contract
/// Give it every message of the member, then call [`OwnEdge::turn`]; also at
/// [`OwnEdge::next_deadline`], and whenever what it sees has changed.
#[derive(Clone, Debug)]
pub struct OwnEdge {
    me: String,
    other: String,
    period: Nanos,
    beat_at: Nanos,
    beats: u64,
    /// Whether the member wants to know who is current.
    asks: bool,
    /// The epoch that the member wants, until it is granted or refused for good.
    wants: Option<u64>,
    /// Why it has not been granted, as the member was told; empty: it has just asked.
    waits: String,
    /// The newest epoch that it was granted.
    given: u64,
    /// What it says of being in step.
    in_step: Option<(u64, bool)>,
    /// Whether its server speaks, as it last said.
    speaks: bool,
    told: Option<(u64, String)>,
    hears_other: bool,
}

impl OwnEdge {
    /// A machine that has heard nothing; the member is alive for every `period`.
    #[must_use]
    pub fn new(me: &str, other: &str, period: Nanos, now: Nanos) -> Self {
        Self {
            me: me.to_owned(),
            other: other.to_owned(),
            period,
            beat_at: now,
            beats: 0,
            asks: false,
            wants: None,
            waits: String::new(),
            given: 0,
            in_step: None,
            speaks: false,
            told: None,
            hears_other: true,
        }
    }

    /// Takes what the member says to its edge.
    pub fn handle_message(&mut self, message: &Message<'_>) {
        match *message {
            Message::Hello { .. } | Message::Ask => self.asks = true,
            Message::Promote { epoch } | Message::GoAlone { epoch } => {
                (self.wants, self.waits) = (Some(epoch), String::new());
            }
            Message::InStep { epoch, yes } => self.in_step = Some((epoch, yes)),
            _ => {}
        }
    }

    /// When [`OwnEdge::turn`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        self.beat_at
    }

    /// The epoch in which its member says that it is in step.
    #[must_use]
    pub fn follows(&self) -> Option<u64> {
        self.in_step.filter(|(_, yes)| *yes).map(|(epoch, _)| epoch)
    }

    /// What the lease is to be told at once where its member is in step no more.
    #[must_use]
    pub fn withdrawal(&self) -> Orders {
        Orders { in_step: self.in_step.filter(|(_, yes)| !yes), ..Orders::default() }
    }

    /// Tells the member what is new, and returns what the lease is to be told. `speaks`: whether
    /// the member's server speaks.
    pub fn turn(
        &mut self,
        now: Nanos,
        sight: &Sight<'_>,
        speaks: bool,
        say: &mut dyn FnMut(&Message<'_>),
    ) -> Orders {
        if now >= self.beat_at {
            self.beat_at = now.plus(self.period);
            self.beats += 1;
            say(&Message::Beat { number: self.beats, echo: 0, executed: 0 });
        }
        if std::mem::replace(&mut self.hears_other, sight.hears_other) != sight.hears_other {
            say(&Message::Reach { member: &self.other, yes: sight.hears_other });
        }
        self.tell_epoch(sight, say);
        let has_ended = std::mem::replace(&mut self.speaks, speaks) && !speaks;
        let mut orders = Orders {
            in_step: self.in_step_in(sight),
            resign: has_ended || sight.is_cut && has_heir(sight),
            resume: sight.has_resigned && speaks && !sight.is_cut,
            ..Orders::default()
        };
        if let Some(epoch) = self.wants {
            self.answer(epoch, sight, &mut orders, say);
        }
        orders
    }

    /// Says who is current, if that has changed or the member asks.
    fn tell_epoch(&mut self, sight: &Sight<'_>, say: &mut dyn FnMut(&Message<'_>)) {
        let told = match sight.record {
            // Nothing is known before the arbiter has answered.
            None if sight.unheard.is_some() => return,
            None => (0, String::new()),
            // What was not granted yet the member has to ask for.
            Some(Seen { epoch, whose: Whose::Mine, .. }) if epoch > self.given => {
                (epoch - 1, self.me.clone())
            }
            Some(Seen { epoch, whose: Whose::Mine | Whose::Earlier, .. }) => {
                (epoch, self.me.clone())
            }
            Some(Seen { epoch, whose: Whose::Other, .. }) => (epoch, self.other.clone()),
        };
        if std::mem::take(&mut self.asks) || self.told.as_ref() != Some(&told) {
            say(&Message::Epoch { epoch: told.0, current: &told.1 });
            self.told = Some(told);
        }
    }

    /// Whether both are in step: the backup knows it of itself, and the primary of the other one.
    fn in_step_in(&self, sight: &Sight<'_>) -> Option<(u64, bool)> {
        match sight.record {
            Some(Seen { epoch, whose: Whose::Mine, .. }) => {
                sight.other_follows.filter(|of| *of == epoch).map(|epoch| (epoch, true))
            }
            _ => self.in_step,
        }
    }

    /// Answers the member, which wants `epoch`.
    fn answer(
        &mut self,
        epoch: u64,
        sight: &Sight<'_>,
        orders: &mut Orders,
        say: &mut dyn FnMut(&Message<'_>),
    ) {
        let Some(record) = sight.record else {
            orders.begin = epoch == 1 && sight.unheard.is_none();
            return self.put_off(sight.unheard.unwrap_or(NOBODY), say);
        };
        let is_next = record.epoch.checked_add(1) == Some(epoch);
        let reason = match record.whose {
            Whose::Mine if record.epoch == epoch && sight.speaks => {
                assert!(epoch >= self.given, "L3: epoch {epoch} after {}", self.given);
                (self.given, self.wants) = (epoch, None);
                say(&Message::Granted { epoch });
                return say(&Message::Bounds { flows: Vec::new(), last: true });
            }
            Whose::Mine if record.epoch == epoch => NOT_YET,
            Whose::Mine if is_next => {
                orders.anew = !record.pair;
                ASKED
            }
            Whose::Earlier if is_next => EARLIER,
            Whose::Other if is_next && record.pair => {
                orders.claim = true;
                ASKED
            }
            Whose::Other if is_next => UNPAIRED,
            _ => {
                self.wants = None;
                let reason = "another member has been granted that epoch since";
                return say(&Message::Refused { reason, again: false });
            }
        };
        self.put_off(sight.unheard.unwrap_or(reason), say);
    }

    /// Tells the member why it has to wait, if that is new or it has just asked.
    fn put_off(&mut self, reason: &str, say: &mut dyn FnMut(&Message<'_>)) {
        if self.waits != reason {
            reason.clone_into(&mut self.waits);
            say(&Message::Refused { reason, again: true });
        }
    }
}

/// Whether the other member could take over from this one.
fn has_heir(sight: &Sight<'_>) -> bool {
    let epoch = |record: Seen| (record.whose == Whose::Mine && record.pair).then_some(record.epoch);
    sight.record.and_then(epoch).is_some_and(|epoch| sight.other_follows == Some(epoch))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGHT: Sight<'_> = Sight {
        record: None,
        speaks: false,
        hears_other: true,
        other_follows: None,
        is_cut: false,
        has_resigned: false,
        unheard: None,
    };

    fn seen(epoch: u64, whose: Whose, pair: bool) -> Sight<'static> {
        Sight { record: Some(Seen { epoch, whose, pair }), ..SIGHT }
    }

    struct Bench {
        machine: OwnEdge,
        now: u64,
        speaks: bool,
    }

    impl Bench {
        fn new() -> Self {
            let machine = OwnEdge::new("a", "b", Nanos::from_ms(20), Nanos::from_ms(20));
            Self { machine, now: 0, speaks: false }
        }

        fn says(&mut self, message: &Message<'_>, sight: &Sight<'_>) -> (Vec<String>, Orders) {
            self.machine.handle_message(message);
            self.turn(sight)
        }

        fn turn(&mut self, sight: &Sight<'_>) -> (Vec<String>, Orders) {
            let mut lines = Vec::new();
            let (now, speaks) = (Nanos::from_ms(self.now), self.speaks);
            let orders =
                self.machine.turn(now, sight, speaks, &mut |it| lines.push(format!("{it:?}")));
            (lines, orders)
        }
    }

    fn epoch(epoch: u64, current: &str) -> String {
        format!("{:?}", Message::Epoch { epoch, current })
    }

    fn refused(reason: &str, again: bool) -> String {
        format!("{:?}", Message::Refused { reason, again })
    }

    fn granted(epoch: u64) -> [String; 2] {
        let bounds = Message::Bounds { flows: Vec::new(), last: true };
        [format!("{:?}", Message::Granted { epoch }), format!("{bounds:?}")]
    }

    #[test]
    fn who_is_in_step_no_more_says_so_at_once() {
        let mut bench = Bench::new();
        for (yes, told) in [(true, None), (false, Some((4, false)))] {
            bench.machine.handle_message(&Message::InStep { epoch: 4, yes });
            let orders = Orders { in_step: told, ..Orders::default() };
            assert_eq!(bench.machine.withdrawal(), orders);
        }
    }

    #[test]
    fn nothing_is_said_of_a_record_that_nobody_has_read() {
        let mut bench = Bench::new();
        let silent = Sight { unheard: Some("the witness does not answer"), ..SIGHT };
        assert_eq!(bench.says(&Message::Ask, &silent), (vec![], Orders::default()));
        let (lines, orders) = bench.says(&Message::Promote { epoch: 1 }, &silent);
        assert_eq!(
            (lines, orders.begin),
            (vec![refused("the witness does not answer", true)], false)
        );
        let told = [epoch(0, ""), refused(NOBODY, true)];
        assert_eq!(bench.turn(&SIGHT).0, told, "it asked before, and wants it still");
    }

    #[test]
    fn the_first_member_begins_and_is_granted_what_the_record_then_says() {
        let mut bench = Bench::new();
        let (lines, orders) = bench.says(&Message::Promote { epoch: 1 }, &SIGHT);
        assert_eq!(lines, [epoch(0, ""), refused(NOBODY, true)]);
        assert!(orders.begin);
        let mine = seen(1, Whose::Mine, false);
        let (lines, orders) = bench.says(&Message::Promote { epoch: 1 }, &mine);
        assert_eq!(lines, [epoch(0, "a"), refused(NOT_YET, true)], "its kernel is silent still");
        assert_eq!(orders, Orders::default());
        assert!(bench.turn(&mine).0.is_empty(), "it was told");
        assert_eq!(
            bench.turn(&Sight { speaks: true, ..mine }).0,
            granted(1),
            "it need not ask again"
        );
        assert_eq!(bench.turn(&mine).0, [epoch(1, "a")]);
        assert!(bench.turn(&mine).0.is_empty(), "once");
        assert_eq!(bench.says(&Message::Ask, &mine).0, [epoch(1, "a")]);
    }

    #[test]
    fn a_backup_takes_over_what_the_record_names_it_for() {
        let mut bench = Bench::new();
        let wish = Message::Promote { epoch: 8 };
        let alone = seen(7, Whose::Other, false);
        let (lines, orders) = bench.says(&wish, &alone);
        assert_eq!(lines, [epoch(7, "b"), refused(UNPAIRED, true)]);
        assert!(!orders.claim);
        let (lines, orders) = bench.says(&wish, &seen(7, Whose::Other, true));
        assert_eq!((lines, orders.claim), (vec![refused(ASKED, true)], true));
        let lost = bench.says(&wish, &seen(8, Whose::Other, false)).0;
        let reason = "another member has been granted that epoch since";
        assert_eq!(lost, [epoch(8, "b"), refused(reason, false)]);
    }

    #[test]
    fn who_is_alone_already_begins_another_epoch() {
        let mut bench = Bench::new();
        let mine = Sight { speaks: true, ..seen(3, Whose::Mine, false) };
        bench.says(&Message::Promote { epoch: 3 }, &mine);
        let (lines, orders) = bench.says(&Message::GoAlone { epoch: 4 }, &mine);
        assert_eq!((lines, orders.anew), (vec![epoch(3, "a"), refused(ASKED, true)], true));
        let pair = Sight { speaks: true, ..seen(3, Whose::Mine, true) };
        assert!(!bench.says(&Message::GoAlone { epoch: 4 }, &pair).1.anew, "the lease sees to it");
    }

    #[test]
    fn who_comes_back_waits_for_a_backup_that_may_take_over() {
        let mut bench = Bench::new();
        let earlier = seen(5, Whose::Earlier, true);
        let (lines, orders) = bench.says(&Message::Promote { epoch: 6 }, &earlier);
        assert_eq!(
            (lines, orders),
            (vec![epoch(5, "a"), refused(EARLIER, true)], Orders::default())
        );
    }

    #[test]
    fn both_ends_tell_the_lease_who_is_in_step() {
        let mut bench = Bench::new();
        let theirs = seen(4, Whose::Other, false);
        for yes in [true, false] {
            let (_, orders) = bench.says(&Message::InStep { epoch: 4, yes }, &theirs);
            assert_eq!(orders.in_step, Some((4, yes)));
        }
        let mine = seen(4, Whose::Mine, false);
        for (follows, told) in [(None, None), (Some(3), None), (Some(4), Some((4, true)))] {
            let sight = Sight { other_follows: follows, ..mine };
            assert_eq!(bench.turn(&sight).1.in_step, told, "{follows:?}");
        }
    }

    /// A host that serves nobody leaves the service to one that does.
    #[test]
    fn who_has_lost_its_clients_resigns_for_an_heir_and_comes_back_if_there_is_none() {
        let mut bench = Bench::new();
        bench.speaks = true;
        for (pair, follows, resigns) in [
            (true, Some(4), true),
            (true, Some(3), false),
            (false, Some(4), false),
            (true, None, false),
        ] {
            let cut = Sight { is_cut: true, other_follows: follows, ..seen(4, Whose::Mine, pair) };
            assert_eq!(bench.turn(&cut).1.resign, resigns, "{pair} {follows:?}");
            assert!(!bench.turn(&Sight { is_cut: false, ..cut }).1.resign);
        }
        let resigned = Sight { has_resigned: true, ..seen(4, Whose::Mine, true) };
        assert!(!bench.turn(&Sight { is_cut: true, ..resigned }).1.resume);
        assert!(bench.turn(&resigned).1.resume);
        bench.speaks = false;
        assert!(!bench.turn(&resigned).1.resume, "its server has ended");
    }

    #[test]
    fn it_beats_tells_who_is_heard_and_resigns_once() {
        let mut bench = Bench::new();
        bench.turn(&SIGHT);
        bench.now = 20;
        assert!(bench.turn(&SIGHT).0[0].starts_with("Beat { number: 1"));
        assert!(bench.turn(&SIGHT).0.is_empty());
        assert_eq!(bench.machine.next_deadline(), Nanos::from_ms(40));
        let deaf = Sight { hears_other: false, ..SIGHT };
        let reach = |yes| format!("{:?}", Message::Reach { member: "b", yes });
        assert_eq!(bench.turn(&deaf).0, [reach(false)]);
        assert_eq!(bench.turn(&SIGHT).0, [reach(true)]);
        bench.speaks = true;
        assert!(!bench.turn(&SIGHT).1.resign);
        bench.speaks = false;
        assert!(bench.turn(&SIGHT).1.resign);
        assert!(!bench.turn(&SIGHT).1.resign);
    }
}
