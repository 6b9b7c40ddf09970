//! The model server: one counter shared by all connections. What it answers
//! depends on the order of requests across connections and on its clock, so a
//! replica that sees another order, or a request twice, shows it.

use std::collections::BTreeMap;

pub const REPLY_LEN: usize = 29;
const REQUEST_HEADER: usize = 7;

pub fn request(client: u8, index: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![client];
    bytes.extend(index.to_le_bytes());
    bytes.extend((len as u16).to_le_bytes());
    bytes.extend((0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(client)));
    bytes
}

/// One reply, parsed by the checker.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub counter: u64,
    pub client: u8,
    pub index: u32,
    pub sum: u64,
    pub clock: u64,
}

pub fn parse_reply(bytes: &[u8]) -> Reply {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    Reply {
        counter: word(0),
        client: bytes[8],
        index: u32::from_le_bytes(bytes[9..13].try_into().expect("4 bytes")),
        sum: word(13),
        clock: word(21),
    }
}

/// The server's memory.
#[derive(Clone, Debug, Default)]
pub struct App {
    pub counter: u64,
    partial: BTreeMap<u32, Vec<u8>>,
}

impl App {
    /// Takes what was read; the whole requests in it.
    pub fn read(&mut self, accept: u32, bytes: &[u8]) -> Vec<Vec<u8>> {
        let buffer = self.partial.entry(accept).or_default();
        buffer.extend(bytes);
        let mut requests = Vec::new();
        while let Some(len) =
            buffer.get(5..REQUEST_HEADER).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])))
        {
            if buffer.len() < REQUEST_HEADER + len {
                break;
            }
            requests.push(buffer.drain(..REQUEST_HEADER + len).collect());
        }
        requests
    }

    /// Executes the requests at time `clock`.
    pub fn execute(&mut self, requests: &[Vec<u8>], clock: u64) -> Vec<u8> {
        let mut replies = Vec::new();
        for request in requests {
            self.counter += 1;
            replies.extend(self.counter.to_le_bytes());
            replies.extend(&request[..5]);
            replies.extend(request.iter().map(|b| u64::from(*b)).sum::<u64>().to_le_bytes());
            replies.extend(clock.to_le_bytes());
        }
        replies
    }
}
