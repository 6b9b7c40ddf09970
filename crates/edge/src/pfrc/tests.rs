use super::*;

const CONFIG: PfrcConfig = PfrcConfig {
    capacity_bytes_per_s: 12_500_000,
    interval_ns: 250_000_000,
    rtt_ns: 100_000_000,
    alpha: 1.0,
    utilization: 0.95,
    law: Law::Printed,
    window_min_bytes: 3000,
    right_edge: RightEdge::MayShrink,
    flows_max: 1000,
};

/// The machine and the flows of a switch.
struct Controller {
    pfrc: Pfrc,
    flows: Flows<u32>,
}

impl Controller {
    fn new(config: PfrcConfig) -> Self {
        Self { pfrc: Pfrc::new(config), flows: Flows::new(&config) }
    }
    fn handle_data(&mut self, key: u32, bytes: u32) {
        self.flows.handle_data(key, bytes);
    }
    fn handle_ack(&mut self, key: u32, ack: SeqNo, window_bytes: u32) -> u32 {
        self.flows.handle_ack(key, ack, window_bytes)
    }
    fn handle_failure(&mut self, now: Ns) {
        let (capacity, flows) = (CONFIG.capacity_bytes_per_s, self.flows.len());
        self.pfrc.handle_failure(now, capacity, flows, &mut self.flows).unwrap();
    }
    fn handle_repair(&mut self) -> bool {
        self.pfrc.handle_repair(&mut self.flows).unwrap()
    }
    fn handle_timeout(&mut self, now: Ns) {
        self.pfrc.handle_timeout(now, &mut self.flows).unwrap();
    }
    fn window_bytes(&self) -> Option<f64> {
        self.pfrc.window_bytes()
    }
    fn poll_timeout(&self) -> Option<Ns> {
        self.pfrc.poll_timeout()
    }
    fn counts(&self) -> PfrcCounts {
        self.flows.counts()
    }
}

fn controller(config: PfrcConfig, flows: u32) -> Controller {
    let mut controller = Controller::new(config);
    (0..flows).for_each(|key| controller.handle_data(key, 1500));
    controller.handle_failure(0);
    controller
}

#[test]
fn it_begins_with_the_fair_share() {
    for (flows, packets) in [(20, 39.6), (40, 19.8), (60, 13.2)] {
        let share = controller(CONFIG, flows).window_bytes().unwrap() / 1500.0;
        assert!((share - packets).abs() < 0.05, "{flows} flows: {share}");
    }
}

#[test]
fn an_interval_moves_the_window_as_equation_9_says() {
    let mut controller = controller(CONFIG, 20);
    let before = controller.window_bytes().unwrap();
    // The offered load exceeds the capacity by 5 %: B = C, so the error is -0.05 C Δ.
    controller.handle_data(0, 3_125_000);
    controller.handle_timeout(250_000_000);
    let step = controller.window_bytes().unwrap() - before;
    assert!((step + 0.4 * 0.05 * 3_125_000.0 / 20.0).abs() < 1e-6, "{step}");
    controller.handle_timeout(250_000_001);
    assert_eq!(controller.poll_timeout(), Some(500_000_000), "not before its time");
}

#[test]
fn without_a_queue_it_settles_in_one_interval() {
    // The pole is 1 - α, since what is offered follows the window at once.
    let mut controller = controller(CONFIG, 10);
    // The offered load exceeds the target by half of the capacity.
    controller.handle_data(0, (1.5 * 0.95 * 3_125_000.0) as u32);
    controller.handle_timeout(250_000_000);
    for interval in 2..5u64 {
        let offered = controller.window_bytes().unwrap() * 10.0 * 2.5;
        controller.handle_data(0, offered as u32);
        controller.handle_timeout(interval * 250_000_000);
        let share = controller.window_bytes().unwrap() * 10.0 / 0.1;
        assert!((share / 11_875_000.0 - 1.0).abs() < 1e-6, "{share}");
    }
}

#[test]
fn it_never_goes_below_its_least_window_nor_winds_up() {
    let mut controller = controller(CONFIG, 900);
    assert_eq!(controller.handle_ack(3, SeqNo(0), 65_535), 3000);
    for interval in 1..2000u64 {
        controller.handle_timeout(interval * 250_000_000);
    }
    let ceiling = 0.95 * 12_500_000.0 * 0.1;
    assert!((controller.window_bytes().unwrap() - ceiling).abs() < 1.0);
    for interval in 2000..2100u64 {
        controller.handle_data(0, 100_000_000);
        controller.handle_timeout(interval * 250_000_000);
    }
    assert_eq!(controller.window_bytes(), Some(3000.0));
}

#[test]
fn it_caps_only_while_it_is_on_and_never_raises() {
    let mut controller = controller(CONFIG, 20);
    assert_eq!(controller.handle_ack(1, SeqNo(0), 64 * 1500), 59_375);
    assert_eq!(controller.handle_ack(1, SeqNo(0), 700), 700);
    assert_eq!(controller.handle_ack(77, SeqNo(0), 64 * 1500), 64 * 1500, "unknown");
    assert!(controller.handle_repair());
    assert!(!controller.handle_repair(), "said once");
    assert_eq!(controller.handle_ack(1, SeqNo(0), 64 * 1500), 64 * 1500);
    assert_eq!((controller.poll_timeout(), controller.counts().capped), (None, 1));
}

#[test]
fn a_promise_is_kept_if_it_must_be() {
    let config = PfrcConfig { right_edge: RightEdge::Keeps, ..CONFIG };
    let mut controller = Controller::new(config);
    (0..20).for_each(|key| controller.handle_data(key, 1500));
    assert_eq!(controller.handle_ack(1, SeqNo(1000), 96_000), 96_000);
    controller.handle_failure(0);
    // The right edge stays at 97,000 until acknowledgements come close enough.
    assert_eq!(controller.handle_ack(1, SeqNo(11_000), 96_000), 86_000);
    assert_eq!(controller.handle_ack(1, SeqNo(41_000), 96_000), 59_375);
    assert_eq!(controller.handle_ack(1, SeqNo(42_000), 96_000), 59_375);
}

#[test]
fn more_flows_than_it_has_room_for_are_left_alone() {
    let config = PfrcConfig { flows_max: 2, ..CONFIG };
    let mut controller = controller(config, 3);
    assert_eq!(controller.counts().refused, 1);
    assert_eq!(controller.handle_ack(2, SeqNo(0), 9_000_000), 9_000_000);
}

/// Simulates senders that use their windows in front of an infinite queue, which holds twice what
/// the string carries in an interval; their round trip is in intervals. Returns the share of its
/// capacity that the string carries in the end, and its queue.
fn closed_loop(config: PfrcConfig, flows: usize, round_trip: f64, intervals: u64) -> (f64, f64) {
    let capacity = config.capacity_bytes_per_s as f64 * config.interval_ns as f64 / 1e9;
    let mut control = WindowControl::new(config);
    control.start(0, flows);
    let (mut flight, mut sum, mut queue) = (capacity * (2.0 + round_trip), 0.0, 0.0);
    for interval in 1..=intervals {
        let leaves = (flight / round_trip).min(capacity);
        // An advertised window is not taken back: a smaller one waits until it is used up.
        let allowed = (control.window_bytes().unwrap() * flows as f64).max(flight - leaves);
        let comes = leaves + allowed - flight;
        flight = allowed;
        if interval > intervals / 2 {
            sum += leaves;
            queue = f64::max(queue, flight - capacity * round_trip);
        }
        let measured = Measurement { bytes: comes as u64, flows, ..Measurement::default() };
        control.handle_interval(interval * config.interval_ns, measured);
    }
    (sum / (intervals - intervals / 2) as f64 / capacity, queue / capacity)
}

#[test]
fn the_shipped_law_fills_the_string_whatever_the_round_trip_is() {
    let law = Law::Shipped { beta: 0.25 };
    let config =
        PfrcConfig { interval_ns: 100_000_000, alpha: 0.25, utilization: 0.97, law, ..CONFIG };
    // This takes longer the more the given round trip exceeds the real one.
    for (flows, round_trip, intervals) in
        [(10, 1.0, 400), (100, 1.0, 400), (20, 0.9, 400), (100, 2.0, 400), (100, 0.5, 800)]
    {
        let (share, queue) = closed_loop(config, flows, round_trip, intervals);
        assert!((0.95..0.99).contains(&share), "{flows} flows, {round_trip}: {share}");
        assert!(queue < 0.05, "{flows} flows, {round_trip}: queue {queue}");
    }
}

#[test]
fn an_interval_in_which_nothing_came_says_nothing() {
    let law = Law::Shipped { beta: 0.25 };
    let mut control = WindowControl::new(PfrcConfig { law, ..CONFIG });
    control.start(0, 20);
    let before = control.window_bytes();
    for interval in 1..40 {
        control.handle_interval(interval * CONFIG.interval_ns, Measurement::default());
    }
    assert_eq!(control.window_bytes(), before);
}

#[test]
fn only_those_who_send_share() {
    let law = Law::Shipped { beta: 0.25 };
    let mut controller = controller(PfrcConfig { law, ..CONFIG }, 40);
    let before = controller.window_bytes().unwrap();
    // Of 40 flows 20 use what was given to all, since their round trip is half as long.
    (0..20).for_each(|key| controller.handle_data(key, (before * 2.5) as u32));
    controller.handle_timeout(250_000_000);
    assert!((controller.window_bytes().unwrap() / before - 1.05).abs() < 1e-9);
}

#[test]
fn who_feels_the_window_does_not_pay_for_who_does_not() {
    let law = Law::Shipped { beta: 0.25 };
    let mut control = WindowControl::new(PfrcConfig { law, alpha: 0.25, ..CONFIG });
    control.start(0, 20);
    let before = control.window_bytes().unwrap();
    let target = 0.95 * 3_125_000.0;
    // Half of the flows take everything that there is; the others keep their share.
    let measured = Measurement {
        bytes: (1.5 * target) as u64,
        flows: 20,
        free_bytes: target as u64,
        free_flows: 10,
        queue_bytes: None,
    };
    control.handle_interval(CONFIG.interval_ns, measured);
    assert!((control.window_bytes().unwrap() / before - 1.0).abs() < 1e-3);
    // The free flows take little, so that there is more for the others.
    let measured = Measurement { bytes: (0.6 * target) as u64, free_bytes: 100, ..measured };
    control.handle_interval(2 * CONFIG.interval_ns, measured);
    assert!(control.window_bytes().unwrap() / before > 1.01);
}

#[test]
fn a_queue_that_is_known_is_drained() {
    let law = Law::Shipped { beta: 0.25 };
    let mut control = WindowControl::new(PfrcConfig { law, alpha: 0.25, ..CONFIG });
    control.start(0, 20);
    let before = control.window_bytes().unwrap();
    let came = Measurement { bytes: 2_968_750, flows: 20, ..Measurement::default() };
    let queue_bytes = Some(before * 8.0);
    control.handle_interval(CONFIG.interval_ns, Measurement { queue_bytes, ..came });
    assert!((control.window_bytes().unwrap() / before - 0.9).abs() < 1e-6);
    let queue_bytes = Some(before * 1e6);
    control.handle_interval(2 * CONFIG.interval_ns, Measurement { queue_bytes, ..came });
    assert!((control.window_bytes().unwrap() / before - 0.675).abs() < 1e-3);
}

/// The same vectors check `bpf/regulate.h`.
#[test]
fn windows_are_clamped_as_the_vectors_say() {
    let number = |text: &str| text.parse::<u32>().unwrap();
    let rows = include_str!("../../vectors/clamp.txt").lines().filter(|it| !it.starts_with('#'));
    for row in rows {
        let words: Vec<&str> = row.split_whitespace().collect();
        let [cap, edge, ack, field, scale, becomes, promised] = words[..] else {
            panic!("{row}");
        };
        let edge = (edge != "-").then(|| SeqNo(number(edge)));
        let (to, after) =
            clamp(number(cap), edge, SeqNo(number(ack)), number(field), number(scale) as u8);
        assert_eq!((to, after), (number(becomes), Some(SeqNo(number(promised)))), "{row}");
    }
}

#[test]
fn another_failure_begins_anew_with_what_is_left_then() {
    let mut controller = controller(CONFIG, 20);
    let before = controller.window_bytes().unwrap();
    controller.handle_data(0, 1_000_000);
    let half = CONFIG.capacity_bytes_per_s / 2;
    controller.pfrc.handle_failure(100, half, 20, &mut controller.flows).unwrap();
    assert_eq!(controller.window_bytes(), Some(before / 2.0));
    assert_eq!(controller.poll_timeout(), Some(100 + CONFIG.interval_ns));
    assert_eq!(controller.flows.measured().bytes, 0, "what came before does not count");
}

/// Law L4: the right edge of a receiver, as seen behind the switch, whatever is capped.
#[test]
fn no_right_edge_moves_left_through_failures_and_repairs() {
    let config = PfrcConfig { law: Law::SHIPPED, right_edge: RightEdge::Keeps, ..CONFIG };
    let mut controller = Controller::new(config);
    (0..60).for_each(|key| controller.handle_data(key, 1500));
    let (mut ack, mut edge, mut now) = (SeqNo(u32::MAX - 200_000), None::<SeqNo>, 0);
    for step in 0..4000u32 {
        controller.handle_data(1, 1500);
        match step % 1000 {
            300 => controller.handle_failure(now),
            900 => drop(controller.handle_repair()),
            _ => {}
        }
        // Receivers open and close their windows, but take nothing back themselves.
        let offered = 20_000 + step * 7919 % 180_000;
        let floor = edge.map_or(0, |edge| edge.since(ack).max(0) as u32);
        let allowed = controller.handle_ack(1, ack, offered.max(floor));
        let reaches = ack.plus(u64::from(allowed));
        assert!(edge.is_none_or(|edge| !edge.after(reaches)), "L4: step {step}");
        edge = Some(reaches);
        ack = ack.plus(u64::from(allowed.min(4000)));
        now += 10_000_000;
        controller.handle_timeout(now);
    }
    assert!(controller.counts().capped > 1000, "{:?}", controller.counts());
}

#[test]
fn the_shipped_controller_is_that_of_the_groups_file() {
    let settings = PfrcSettings {
        interval_ns: 1_000,
        rtt_ns: 2_000,
        utilization_percent: 90,
        window_min_bytes: 4_000,
    };
    let shipped = PfrcConfig {
        capacity_bytes_per_s: 0,
        interval_ns: 1_000,
        rtt_ns: 2_000,
        alpha: 0.25,
        utilization: 0.9,
        law: Law::Shipped { beta: 0.25 },
        window_min_bytes: 4_000,
        right_edge: RightEdge::Keeps,
        flows_max: 7,
    };
    assert_eq!(PfrcConfig::shipped(&settings, 7), shipped);
}

#[test]
fn an_interval_counts_only_when_it_has_ended() {
    let mut control = WindowControl::new(CONFIG);
    let much = Measurement { bytes: 1 << 30, flows: 20, ..Measurement::default() };
    control.handle_interval(1_000_000_000, much);
    assert_eq!((control.is_on(), control.window_bytes()), (false, None), "none has begun");
    control.start(0, 20);
    let before = control.window_bytes();
    control.handle_interval(CONFIG.interval_ns - 1, much);
    assert_eq!(control.window_bytes(), before);
    assert_eq!(control.poll_timeout(), Some(CONFIG.interval_ns));
    control.handle_interval(CONFIG.interval_ns, much);
    assert!(control.window_bytes() < before);
    assert_eq!(control.poll_timeout(), Some(2 * CONFIG.interval_ns));
}

#[test]
fn a_controller_is_on_from_the_failure_to_the_repair() {
    let mut controller = Controller::new(CONFIG);
    assert!(!controller.pfrc.is_on());
    controller.handle_failure(0);
    assert!(controller.pfrc.is_on());
    controller.handle_repair();
    assert!(!controller.pfrc.is_on());
}

#[test]
fn who_has_ended_is_known_no_more() {
    let mut controller = controller(PfrcConfig { flows_max: 2, ..CONFIG }, 2);
    controller.flows.forget(1);
    assert_eq!((controller.flows.len(), controller.flows.is_empty()), (1, false));
    assert_eq!(controller.handle_ack(1, SeqNo(0), 9_000_000), 9_000_000, "a stranger");
    controller.handle_data(7, 1500);
    assert_eq!(controller.counts().refused, 0, "there is room again");
    [0, 7].into_iter().for_each(|key| controller.flows.forget(key));
    assert!(controller.flows.is_empty());
}

/// Until it has used up what it was promised before, the cap says nothing of what it sends.
#[test]
fn a_flow_is_free_that_was_promised_a_quarter_more_than_the_cap() {
    for (promised, is_free) in [(96_000, true), (74_220, true), (74_219, false), (-96_000, false)] {
        let config = PfrcConfig { right_edge: RightEdge::Keeps, ..CONFIG };
        let mut controller = Controller::new(config);
        (0..20).for_each(|key| controller.handle_data(key, 1500));
        controller.handle_ack(1, SeqNo(100_000), 96_000);
        controller.handle_failure(0);
        assert_eq!(controller.window_bytes(), Some(59_375.0));
        controller.handle_ack(1, SeqNo((196_000 - promised) as u32), 1000);
        controller.handle_data(1, 1500);
        let Measurement { free_bytes, free_flows, .. } = controller.flows.measured();
        let expected = if is_free { (1500, 1) } else { (0, 0) };
        assert_eq!((free_bytes, free_flows), expected, "{promised}");
    }
}
