//! What clients are asked.

use super::*;
use holdfast_replica::promotion::Probe;

/// A client that has not heard the first one takes this one's offers.
#[test]
fn a_repeated_syn_ack_offers_what_the_first_one_did() {
    for (rcv_wscale, offered) in [(0, Some(0)), (7, Some(7)), (14, Some(14)), (255, None)] {
        let record = ConnRecord { rcv_wscale, ..record() };
        let (key, seq, ack) = (record.key, record.iss, record.irs.plus(1));
        let conn = ConnId(5);
        let (window, payload, tsval) = (record.window, None, None);
        let probe = Probe { conn, key, seq, ack, syn: true, payload, tsval, window, record };
        let segment = probe_segment(&probe);
        assert_eq!(segment.flags, Flags::SYN | Flags::ACK);
        let TcpOptions { mss, wscale, sack_permitted, .. } = segment.options;
        assert_eq!((mss, wscale, sack_permitted), (Some(record.mss), offered, record.sack));
        // What it has long acknowledged again is no offer.
        let question = Probe { syn: false, payload: Some(0), ..probe };
        assert_eq!(probe_segment(&question).options.wscale, None);
    }
}

/// A byte that the client has long acknowledged makes it answer, and its clock goes on.
#[test]
fn a_question_carries_what_its_probe_says() {
    for (offered, asked, expected) in
        [(Some(1), Some(77), Some((77, 0))), (Some(1), None, None), (None, Some(77), None)]
    {
        let record = ConnRecord { tsval: offered, ..record() };
        let (key, seq, ack) = (record.key, record.iss, record.irs.plus(1));
        let (conn, payload, tsval, window) = (ConnId(5), Some(9), asked, 321);
        let probe = Probe { conn, key, seq, ack, syn: false, payload, tsval, window, record };
        let question = probe_segment(&probe);
        assert_eq!((question.key, question.to_client, question.flags), (key, true, Flags::ACK));
        assert_eq!((question.seq, question.ack, question.window), (seq, ack, 321));
        assert_eq!(question.payload, [9]);
        assert_eq!(question.options.timestamps, expected);
        let syn_ack = Probe { syn: true, payload: None, ..probe };
        let syn_ack = probe_segment(&syn_ack);
        assert_eq!((syn_ack.options.timestamps, syn_ack.payload), (expected, &[][..]));
    }
}
