//! Two members, the program in each one's kernel, and a switch between them.

use super::*;

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 0, 0xb]];
const A: usize = 0;
const B: usize = 1;
/// A port of the switch where no member is.
const THIRD: usize = 2;
const STEP_MS: u64 = 10;

struct Bed {
    machines: [Segment; 2],
    views: [View; 2],
    relays: [Relay; 2],
    /// Whether each daemon runs; the kernel does, whatever becomes of it.
    runs: [bool; 2],
    floods: bool,
    /// The port at which the switch knows V, and whether somebody has written that down.
    port: Option<usize>,
    is_static: bool,
    /// Whether the switch refuses to learn V at this port.
    refuses: Option<usize>,
    now_ms: u64,
    announced: [u64; 2],
}

impl Bed {
    /// Both run, `A` leads, and they are a pair.
    fn new(mode: Mode) -> Self {
        let view = View { pair: true, hears_other: true, has_link: true, ..View::default() };
        Self {
            machines: [A, B].map(|side| Segment::new(mode, side as u8, Nanos(0))),
            views: [View { leads: true, speaks: true, ..view }, View { follows: true, ..view }],
            relays: [Relay::Nothing; 2],
            runs: [true; 2],
            floods: mode == Mode::Flood,
            port: None,
            is_static: false,
            refuses: None,
            now_ms: 0,
            announced: [0; 2],
        }
    }

    fn run(&mut self, ms: u64) -> &mut Self {
        for _ in 0..ms / STEP_MS {
            self.now_ms += STEP_MS;
            // What one says the other one answers in the same turn.
            for side in [A, B, A, B] {
                self.turn(side);
            }
        }
        self
    }

    fn turn(&mut self, side: usize) {
        if !self.runs[side] {
            return;
        }
        let now = Nanos::from_ms(self.now_ms);
        let (relay, kinds) = self.machines[side].turn(now, &self.views[side]);
        self.relays[side] = relay;
        let has_link = self.views[side].has_link;
        for kind in kinds.into_iter().filter(|_| has_link) {
            let frame = Frame { kind, side: side as u8, mac: MACS[side], number: 0 };
            match kind {
                Kind::Announcement => {
                    self.announced[side] += 1;
                    if !self.is_static && self.refuses != Some(side) {
                        self.port = Some(side);
                    }
                }
                Kind::Hello(_) => self.deliver(1 - side, &frame),
                Kind::Probe => {
                    for to in self.reached(side).concat() {
                        self.deliver(to, &frame);
                    }
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, frame: &Frame) {
        if self.runs[to] && self.views[to].has_link {
            let now = Nanos::from_ms(self.now_ms);
            self.machines[to].handle_frame(now, frame);
        }
    }

    /// Whom a frame to V reaches that comes from `port`: by the switch, and by another member.
    fn reached(&self, port: usize) -> [Vec<usize>; 2] {
        let by_switch: Vec<usize> = match self.port {
            Some(at) => [A, B].into_iter().filter(|side| *side == at && at != port).collect(),
            None => [A, B].into_iter().filter(|side| self.floods && *side != port).collect(),
        };
        let by_switch: Vec<usize> =
            by_switch.into_iter().filter(|side| self.views[*side].has_link).collect();
        let handed = by_switch.iter().filter_map(|side| {
            let speaks = self.views[*side].speaks;
            let to = match self.relays[*side] {
                Relay::HandOn(mac) if !speaks => mac,
                Relay::Copy(mac) if speaks => mac,
                _ => return None,
            };
            MACS.iter().position(|mac| *mac == to)
        });
        let handed = handed.collect();
        [by_switch, handed]
    }

    /// Whether a client's frame reaches each member.
    fn reaches(&self) -> [bool; 2] {
        let all = self.reached(THIRD).concat();
        [A, B].map(|side| all.contains(&side))
    }

    fn faults(&self) -> [Option<Fault>; 2] {
        self.machines.each_ref().map(|it| it.fault(Nanos::from_ms(self.now_ms)))
    }

    /// B is gone: not heard by other ways either, and the record says so soon.
    fn lose_b(&mut self) -> &mut Self {
        self.runs[B] = false;
        self.views[A].hears_other = false;
        self.run(STEP_MS);
        self.views[A].pair = false;
        self
    }

    /// B takes over from A, which is gone.
    fn take_over(&mut self) -> &mut Self {
        self.runs[A] = false;
        self.views[A].speaks = false;
        self.views[B].hears_other = false;
        self.run(STEP_MS);
        let view = &mut self.views[B];
        (view.leads, view.follows, view.speaks, view.pair) = (true, false, true, false);
        self.run(STEP_MS)
    }
}

#[test]
fn a_flood_needs_nobody_to_hold_the_address() {
    let mut bed = Bed::new(Mode::Flood);
    bed.run(10_000);
    assert_eq!((bed.port, bed.relays, bed.faults()), (None, [Relay::Nothing; 2], [None; 2]));
    assert_eq!(bed.reaches(), [true; 2]);
    bed.take_over().run(5_000);
    assert_eq!((bed.port, bed.announced), (None, [0, 0]));
}

#[test]
fn in_a_chain_the_backup_holds_it_and_hands_it_on() {
    let mut bed = Bed::new(Mode::Chain);
    bed.run(5_000);
    assert_eq!((bed.port, bed.reaches(), bed.faults()), (Some(B), [true; 2], [None; 2]));
    let announced = bed.announced;
    bed.run(5_000);
    assert_eq!(bed.announced[A], announced[A], "one of them alone");
    assert_eq!(bed.announced[B], announced[B] + 10);
    bed.take_over();
    assert_eq!((bed.port, bed.reaches()[B]), (Some(B), true), "nothing has moved");
}

#[test]
fn when_the_backup_is_gone_the_primary_holds_it_at_once() {
    let mut bed = Bed::new(Mode::Chain);
    bed.run(1_000).lose_b();
    assert_eq!((bed.port, bed.reaches()[A]), (Some(A), true));
    // Its kernel does not know, and another daemon begins: not in step, but it hands on.
    bed.run(2_000);
    bed.machines[B] = Segment::new(Mode::Chain, B as u8, Nanos::from_ms(bed.now_ms));
    (bed.runs[B], bed.views[A].hears_other) = (true, true);
    bed.run(STEP_MS);
    assert_eq!((bed.port, bed.reaches()), (Some(B), [true; 2]));
    bed.machines[B].part();
    bed.run(STEP_MS);
    assert_eq!(bed.port, Some(A), "it has said that it leaves");
}

/// The members still hear each other, by another link.
#[test]
fn a_chain_that_hands_nothing_on_is_given_up_and_tried_again() {
    let mut bed = Bed::new(Mode::Chain);
    bed.run(1_000);
    bed.views[B].has_link = false;
    bed.run(150);
    assert_eq!(bed.port, Some(A), "within some probes");
    bed.run(1_000);
    bed.views[B].has_link = true;
    bed.run(3_000);
    assert_eq!((bed.port, bed.reaches()), (Some(B), [true; 2]));
    // A switch that lets only A use the address.
    (bed.port, bed.refuses) = (Some(A), Some(B));
    bed.views[A].hears_other = false;
    bed.run(STEP_MS);
    bed.views[A].hears_other = true;
    bed.run(60_000);
    assert_eq!(bed.faults()[A], Some(Fault::NotHandedOn));
    assert!(bed.reaches()[A]);
}

#[test]
fn a_clone_is_made_by_who_speaks_and_moves_with_the_right_to() {
    let mut bed = Bed::new(Mode::Clone);
    bed.run(5_000);
    assert_eq!((bed.port, bed.reaches(), bed.faults()), (Some(A), [true; 2], [None; 2]));
    assert_eq!(bed.announced[B], 0);
    bed.take_over();
    assert_eq!((bed.port, bed.reaches()[B]), (Some(B), true));
    // Who was deposed and wakes up announces nothing.
    let announced = bed.announced[A];
    (bed.runs[A], bed.views[A].speaks) = (true, false);
    bed.run(5_000);
    assert_eq!((bed.announced[A], bed.port), (announced, Some(B)));
}

#[test]
fn what_somebody_else_holds_is_named() {
    for (mode, fault) in [(Mode::Clone, Fault::NotCopied), (Mode::Chain, Fault::NotHandedOn)] {
        let mut bed = Bed::new(mode);
        (bed.port, bed.is_static) = (Some(THIRD), true);
        bed.run(10_000);
        assert!(bed.faults().contains(&Some(fault)), "{mode:?}: {:?}", bed.faults());
        // What learns as it should is moved back within half a second.
        let mut bed = Bed::new(mode);
        bed.run(1_000);
        bed.port = Some(THIRD);
        bed.run(600);
        assert_eq!(bed.reaches(), [true; 2], "{mode:?}");
        assert_eq!(bed.run(5_000).faults(), [None; 2]);
    }
}

/// A switch that has learnt the address, though it ought to flood.
#[test]
fn the_members_help_each_other_where_a_switch_has_learnt() {
    for (port, relay) in [(A, A), (B, B), (THIRD, A)] {
        let mut bed = Bed::new(Mode::Flood);
        bed.run(5_000).port = Some(port);
        bed.run(4_000);
        assert_eq!(bed.reaches(), [true; 2], "learnt at {port}");
        assert_ne!(bed.relays[relay], Relay::Nothing);
        bed.run(4_000);
        assert_eq!(bed.faults()[1 - relay], Some(Fault::Helped), "{port}");
        assert!(!bed.machines[A].is_deaf(Nanos::from_ms(bed.now_ms)));
        // The switch forgets it: nobody has announced it meanwhile.
        bed.port = None;
        bed.run(4_000);
        assert_eq!((bed.port, bed.relays), (None, [Relay::Nothing; 2]), "{port}");
        assert_eq!((bed.faults(), bed.reaches()), ([None; 2], [true; 2]));
    }
}

#[test]
fn who_takes_over_where_a_switch_has_learnt_has_it_learn_again() {
    let mut bed = Bed::new(Mode::Flood);
    bed.run(5_000).port = Some(A);
    bed.run(5_000).take_over();
    assert_eq!((bed.port, bed.reaches()[B]), (Some(B), true));
}

/// A network that does not flood at all, whatever the file says.
#[test]
fn what_never_floods_is_taken_twice_and_then_kept() {
    let mut bed = Bed::new(Mode::Flood);
    bed.floods = false;
    for _ in 0..4 {
        bed.run(10_000);
        assert_eq!((bed.port, bed.reaches()), (Some(A), [true; 2]));
        bed.port = None;
    }
    bed.run(600);
    assert_eq!(bed.port, Some(A), "it waits for nobody any more");
    // Where somebody has written down another port, nothing helps.
    let mut bed = Bed::new(Mode::Flood);
    (bed.port, bed.is_static) = (Some(THIRD), true);
    bed.run(10_000);
    assert_eq!(bed.faults(), [Some(Fault::Lost); 2]);
    assert!(bed.machines[A].is_deaf(Nanos::from_ms(bed.now_ms)));
}

#[test]
fn only_pairs_that_hear_each_other_miss_anything() {
    let mut bed = Bed::new(Mode::Flood);
    bed.run(1_000).floods = false;
    bed.is_static = true;
    bed.port = Some(THIRD);
    bed.views.iter_mut().for_each(|view| view.pair = false);
    assert_eq!(bed.run(10_000).faults(), [None; 2]);
    bed.views.iter_mut().for_each(|view| view.pair = true);
    assert_eq!(bed.run(2_000).faults(), [None; 2], "it has just begun");
    assert_eq!(bed.run(2_000).faults(), [Some(Fault::Lost); 2]);
}
