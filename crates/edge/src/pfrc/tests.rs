use super::*;

const CONFIG: PfrcConfig = PfrcConfig {
    capacity_bytes_per_s: 12_500_000,
    interval_ns: 250_000_000,
    rtt_ns: 100_000_000,
    alpha: 1.0,
    utilization: 0.95,
    window_min_bytes: 3000,
    right_edge: RightEdge::MayShrink,
    flows_max: 1000,
};

fn controller(config: PfrcConfig, flows: u32) -> RateController<u32> {
    let mut controller = RateController::new(config);
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
    // 5 % of the capacity too much: B = C, so the error is -0.05 C Δ.
    controller.handle_data(0, 3_125_000);
    controller.handle_timeout(250_000_000);
    let step = controller.window_bytes().unwrap() - before;
    assert!((step + 0.4 * 0.05 * 3_125_000.0 / 20.0).abs() < 1e-6, "{step}");
    controller.handle_timeout(250_000_001);
    assert_eq!(controller.poll_timeout(), Some(500_000_000), "not before its time");
}

#[test]
fn without_a_queue_it_settles_in_one_interval() {
    // The pole is 1 - α: what is offered follows the window at once.
    let mut controller = controller(CONFIG, 10);
    controller.window_bytes *= 0.5;
    for interval in 1..4u64 {
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
    controller.handle_repair();
    assert_eq!(controller.handle_ack(1, SeqNo(0), 64 * 1500), 64 * 1500);
    assert_eq!((controller.poll_timeout(), controller.counts().capped), (None, 1));
}

#[test]
fn a_promise_is_kept_if_it_must_be() {
    let config = PfrcConfig { right_edge: RightEdge::Keeps, ..CONFIG };
    let mut controller = RateController::new(config);
    (0..20).for_each(|key| controller.handle_data(key, 1500));
    assert_eq!(controller.handle_ack(1, SeqNo(1000), 96_000), 96_000);
    controller.handle_failure(0);
    // The edge stays at 97,000 until acknowledgements come close enough.
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
