use super::*;
use crate::Ns;

const S: Ns = 1_000_000_000;

const BP: Protocol = Protocol::boston_bp(Repair::WithRetransmission);
const FEC: Protocol = Protocol::boston_fec(Repair::WithRetransmission);
const FEC_AT_ONCE: Protocol = Protocol::boston_fec(Repair::AtOnce);

fn paper(protocol: Protocol) -> Scenario {
    Scenario { protocol, duration_ns: 60 * S, jitter_ns: S, ..Scenario::PAPER }
}

fn outcome(scenario: &Scenario) -> Outcome {
    run(scenario).unwrap()
}

const PROTOCOLS: [Protocol; 4] = [Protocol::Tcp, BP, FEC, Protocol::boston_bp(Repair::AtOnce)];
const POLICIES: [Policy; 4] =
    [Policy::Ubr, Policy::Scd, Policy::EpdThreshold(0.8), Policy::EpdPurge];

#[test]
fn the_papers_fixed_numbers_hold() {
    let scenario = Scenario::PAPER;
    // From the paper: "700 simulated seconds to transfer a total of 120 MB"; a slot carries 48
    // bytes.
    let slots = scenario.slots(700 * S);
    assert_eq!(slots, 2_476_416);
    assert_eq!(scenario.slot_ns(3), 848_000);
    assert_eq!(scenario.slots(scenario.slot_ns(3)), 3);
    let cells = |bytes, id, protocol| {
        Scenario { packet_bytes: bytes, cell_id_bytes: id, protocol, ..scenario }.cells_per_packet()
    };
    assert_eq!([576, 1500, 4470, 9180].map(|it| cells(it, 2, Protocol::Tcp)), [13, 32, 94, 192]);
    assert_eq!([576, 1500, 4470, 9180].map(|it| cells(it, 2, FEC)), [13, 33, 98, 200]);
}

/// Without competition the wire is full and nothing is lost, so the goodput is the wire's rate less
/// headers and redundancy.
#[test]
fn a_lone_source_fills_the_wire() {
    for (protocol, cells) in [(Protocol::Tcp, 32.0), (BP, 32.0), (FEC, 33.0), (FEC_AT_ONCE, 33.0)] {
        let it = outcome(&Scenario { sources: 1, is_delayed_at_random: false, ..paper(protocol) });
        let most = 1500.0 * 8.0 * 1.5 / (cells * 424.0);
        let got = it.goodput_mbps();
        assert!(got > 0.97 * most && got <= most, "{protocol:?}: {got} of {most}");
        assert_eq!((it.missing_share() < 0.01, it.overdue_share()), (true, 0.0));
        assert_eq!((it.cells_dropped, it.timeouts(), it.flows[0].cuts), (0, 0, 0));
        // Two links of 10 ms, a packet on each except for its first cell, and a queue of up to
        // three packets, which is empty for the first packet.
        let mean_s = it.by_connection().mean_s;
        assert!((0.029..0.060).contains(&mean_s), "{mean_s}");
        assert_eq!(it.by_connection(), it.all());
    }
}

/// No cell is created or lost by the simulator, for any protocol, policy, packet and number of
/// switches, and the same seed gives the same run.
#[test]
fn every_cell_is_accounted_for() {
    for (number, policy) in POLICIES.into_iter().enumerate() {
        for protocol in PROTOCOLS {
            for flow_control in [FlowControl::Reno, FlowControl::Vegas] {
                let scenario = Scenario {
                    policy,
                    flow_control,
                    packet_bytes: [576, 1500, 4470, 9180][number],
                    switches: 1 + number as u16 % 3,
                    buffer_cells: [64, 256][number % 2],
                    duration_ns: 20 * S,
                    seed: number as u64,
                    ..paper(protocol)
                };
                let it = outcome(&scenario);
                let accounted = it.cells_received + it.cells_dropped;
                // Cells under way at the end are in buffers and on wires.
                let under_way = it.cells_sent - accounted;
                let most =
                    u64::from(scenario.switches) * u64::from(scenario.buffer_cells + 40) + 16 * 40;
                assert!(under_way <= most, "{scenario:?}: {under_way}");
                let cells = it.delivered() * u64::from(scenario.cells_per_packet());
                assert!(cells <= it.cells_received, "{scenario:?}");
                assert!(it.delivered() > 0 && it.all().missed_share <= 1.0, "{scenario:?}");
                assert_eq!(it, outcome(&scenario));
                assert_ne!(it, outcome(&Scenario { seed: 99, ..scenario }));
            }
        }
    }
}

/// Partial packets are worth keeping (TCP Boston §1), also those that do not fit into the buffer.
#[test]
fn a_packet_larger_than_the_buffer_gets_through_in_parts() {
    for protocol in [Protocol::boston_bp(Repair::AtOnce), FEC_AT_ONCE] {
        let scenario = Scenario { packet_bytes: 9180, buffer_cells: 64, ..paper(protocol) };
        let got = outcome(&scenario).goodput_mbps();
        assert!(got > 1.05, "{protocol:?}: {got}");
    }
}

/// With plain UBR part of the bandwidth is used by cells of packets that are already broken;
/// dropping those cells, or better whole packets, recovers it (Romanow and Floyd 1995).
#[test]
fn discarding_packets_raises_the_goodput_of_tcp() {
    let goodput = |policy| {
        let scenario = Scenario {
            policy,
            packet_bytes: 9180,
            buffer_cells: 1000,
            flow_control: FlowControl::Reno,
            ..paper(Protocol::Tcp)
        };
        outcome(&scenario).goodput_mbps()
    };
    let [ubr, scd, threshold, _] = POLICIES.map(goodput);
    assert!(scd > ubr && threshold > ubr, "{ubr} {scd} {threshold}");
}

/// Losses that the code repaired reduce the window, too (RFC 9265).
#[test]
fn recovered_cells_reduce_the_window() {
    let cuts = |recovered_is_lost, protocol| {
        let scenario = Scenario { recovered_is_lost, ..paper(protocol) };
        outcome(&scenario).flows.iter().map(|it| it.cuts).sum::<u64>()
    };
    assert!(cuts(true, FEC_AT_ONCE) > cuts(false, FEC_AT_ONCE));
    assert!(cuts(true, FEC) > cuts(false, FEC));
}

#[test]
fn what_there_cannot_be_is_refused() {
    let it = Scenario::PAPER;
    let error = |scenario: Scenario| run(&scenario).unwrap_err();
    assert_eq!(error(Scenario { sources: 0, ..it }), ScenarioError::Size);
    assert_eq!(error(Scenario { packet_bytes: 9181, ..it }), ScenarioError::Packet);
    assert_eq!(error(Scenario { window_bytes: 1 << 20, ..it }), ScenarioError::Window);
    assert_eq!(error(Scenario { buffer_cells: 0, ..it }), ScenarioError::Zero);
    // For a packet larger than the window, the window is one packet.
    assert_eq!(Scenario { window_bytes: 8192, packet_bytes: 9180, ..it }.window_packets(), 1);
}
