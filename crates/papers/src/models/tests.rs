use super::*;

/// Compares two ranges to the two decimals of a table.
fn assert_range(found: Range, min: f64, max: f64, what: &str) {
    let near = |a: f64, b: f64| (a - b).abs() < 0.0151;
    assert!(near(found.min, min) && near(found.max, max), "{what}: {found:?}, not {min}-{max}");
}

#[test]
fn delays_are_a_staircase_and_unused_time_a_sawtooth() {
    for (timeout, down, delay) in [
        (1.5, 0.1, 1.5),
        (1.5, 1.5, 1.5),
        (1.5, 1.6, 4.5),
        (1.5, 5.0, 10.5),
        (3.0, 3.1, 9.0),
        (3.0, 9.1, 21.0),
        (3.0, 0.0, 3.0),
    ] {
        assert_eq!(additional_delay(timeout, down), delay, "{timeout} {down}");
    }
    for tooth in [1.5, 4.5, 10.5, 22.5] {
        assert_eq!(unused_flow_time(1.5, tooth), 0.0);
    }
    assert_eq!(additional_delay(0.0, 1.0), 0.0);
}

#[test]
fn forty_percent_wait_for_nine_seconds() {
    // A SYN lost in an outage of 5 s waits nine if more than three are left.
    let long = (0..5000).filter(|ms| additional_delay(3.0, 5.0 - f64::from(*ms) / 1e3) > 3.0);
    assert_eq!(long.count(), 2000);
}

#[test]
fn short_flows_are_as_in_the_table() {
    let flow = ShortFlow::new(Parameters::default(), 9);
    // The original's recursion is not public; the one here has the same structure, and differs by
    // about p.
    assert!((flow.normal_s() - 0.511).abs() < 0.002, "{}", flow.normal_s());
    let table = [
        (0.05, 2.11, 2.22, 3.51, 0.61, 0.77, 0.56),
        (0.5, 2.11, 2.22, 3.51, 1.02, 1.22, 1.01),
        (1.5, 2.11, 2.22, 3.51, 2.02, 2.22, 2.01),
        (3.0, 5.11, 5.22, 3.51, 3.52, 3.72, 3.51),
        (5.0, 11.11, 11.22, 9.51, 5.52, 5.72, 5.51),
        (8.0, 11.11, 11.22, 9.51, 8.52, 8.72, 8.51),
        (12.0, 23.11, 23.22, 21.51, 12.52, 12.72, 12.51),
    ];
    for (outage, raw_min, raw_max, raw_syn, kept_min, kept_max, kept_syn) in table {
        let what = format!("outage {outage}");
        assert_range(flow.data_lost_s(outage, false), raw_min, raw_max, &what);
        assert_range(flow.syn_lost_s(outage, false), 3.51, raw_syn, &what);
        assert_range(flow.data_lost_s(outage, true), kept_min, kept_max, &what);
        assert_range(flow.syn_lost_s(outage, true), 0.51, kept_syn, &what);
    }
}

#[test]
fn long_flows_have_the_values_of_the_table() {
    let flow = LongFlow::new(Parameters::default(), 1000);
    for (found, wanted, what) in [
        (flow.slow_start_segments(), 632.7, "E[d_ss]"),
        (flow.steady_window(), 37.17, "W(p)"),
        (flow.steady_rate(), 258.0, "B"),
        (flow.slow_start_s(632.7, 1.0), 1.817, "T_ss"),
        (flow.normal_s(), 3.556, "L_n"),
        (flow.linear_s(900.0), 5.61, "T_lin(900)"),
        (flow.linear_s(1000.0), 5.94, "T_lin(1000)"),
    ] {
        assert!((found / wanted - 1.0).abs() < 0.003, "{what}: {found}, not {wanted}");
    }
}

#[test]
fn long_flows_under_an_outage_are_as_in_the_table() {
    let flow = LongFlow::new(Parameters::default(), 1000);
    let table = [
        (0.5, 5.15, 5.67, 6.56, 3.96, 4.06, 4.06),
        (3.0, 8.15, 8.67, 6.56, 6.56, 7.17, 6.56),
        (5.0, 14.15, 14.67, 12.56, 8.56, 9.17, 8.56),
        (12.0, 26.15, 26.67, 24.56, 15.56, 16.17, 15.56),
    ];
    for (outage, raw_min, raw_max, raw_syn, kept_min, kept_max, kept_syn) in table {
        let what = format!("outage {outage}");
        assert_range(flow.data_lost_s(outage, false), raw_min, raw_max, &what);
        assert_range(flow.syn_lost_s(outage, false), 6.56, raw_syn, &what);
        assert_range(flow.data_lost_s(outage, true), kept_min, kept_max, &what);
        assert_range(flow.syn_lost_s(outage, true), 3.56, kept_syn, &what);
    }
    let extended = flow.with_threshold_two();
    assert_range(extended.data_lost_s(3.0, false), 8.10, 10.09, "with threshold two");
    assert_range(extended.syn_lost_s(5.0, false), 9.14, 15.14, "with threshold two");
}

#[test]
fn memory_is_what_the_thesis_says() {
    assert_eq!(flows_bytes(10_000, 1514, 64), 15_780_000);
    assert_eq!(syn_bytes(10_000.0, 0.1, 64), 64_000);
}

#[test]
fn windows_follow_the_thesis() {
    // The machine at the edge computes the same window as eq (9).
    let next = next_window_bytes(59_375.0, 1.0, 0.4, 0.95, 3_125_000.0, 3_125_000.0, 20.0);
    assert!((next - (59_375.0 - 0.4 * 0.05 * 3_125_000.0 / 20.0)).abs() < 1e-9);
}
