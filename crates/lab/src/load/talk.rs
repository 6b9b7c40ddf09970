//! What each workload sends and what it must receive, for redis, memcached, HTTP and MQTT.

use super::expect::{Expect, Expectations, Received, Wrong};
use super::pattern;
use super::{Group, Workload};
use std::io::Write as _;

/// The half of a workload that a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The workload needs one connection.
    Only,
    /// Sends messages to the subscriber, which has this number.
    Publisher(usize),
    /// Receives the publisher's messages.
    Subscriber,
}

/// One connection's side of the conversation.
pub(super) struct Talk {
    pub(super) workload: Workload,
    pub(super) part: Part,
    size: u64,
    /// Name that is unique among all connections and runs against one server.
    key: String,
    salt: u64,
    /// Number of messages sent, or announced to a subscriber.
    number: u64,
    counter: u64,
    /// Values of the shared counter, in the order in which they were received.
    pub(super) shared: Vec<u64>,
    /// Bytes to send in answer to captured ones.
    answer: Vec<u8>,
}

impl Talk {
    pub(super) fn new(group: &Group, part: Part, index: usize, pair: usize, seed: u64) -> Self {
        let key = match (group.workload, part) {
            (Workload::Shared | Workload::MemcachedShared, _) => format!("shared:{seed:x}"),
            (_, Part::Only) => format!("{seed:x}:{index}"),
            (_, _) => format!("{seed:x}:{pair}"),
        };
        Self {
            workload: group.workload,
            part,
            size: group.size_bytes,
            key,
            salt: pair as u64,
            number: 0,
            counter: 0,
            shared: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// Whether each exchange needs a new connection.
    pub(super) fn reconnects(&self) -> bool {
        matches!(self.workload, Workload::Churn | Workload::HttpClose)
    }

    /// Number of requests to a shared counter that had no reply.
    pub(super) fn unanswered(&self) -> u64 {
        match self.workload {
            Workload::Shared | Workload::MemcachedShared => {
                self.number.saturating_sub(self.shared.len() as u64)
            }
            _ => 0,
        }
    }

    /// Whether the connection sends nothing until the very end.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.workload, Workload::Idle | Workload::IdleSubscriber)
    }

    /// Whether the server ends the connection after its reply.
    pub(super) fn server_closes(&self) -> bool {
        self.workload == Workload::HttpClose
    }

    /// The first exchange of a connection that stays, which prepares the others.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>, expect: &mut Expectations) {
        match (self.workload, self.part) {
            (Workload::Download, _) => {
                let key = format!("big:{}", self.key);
                redis(out, &[b"SET", key.as_bytes()], Some((self.salt, self.size)));
                expect.push(Expect::text(b"+OK\r\n"));
            }
            (Workload::Pubsub, Part::Subscriber) | (Workload::IdleSubscriber, _) => {
                redis(out, &[b"SUBSCRIBE", self.key.as_bytes()], None);
                let key = &self.key;
                let text = format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{key}\r\n:1\r\n", key.len());
                expect.push(Expect::text(text.as_bytes()));
            }
            (Workload::Mqtt, part) => {
                let name =
                    format!("{}{}", if part == Part::Subscriber { "s" } else { "p" }, self.key);
                mqtt_connect(out, &name);
                expect.push(Expect::text(&[0x20, 2, 0, 0]));
                if part == Part::Subscriber {
                    mqtt_subscribe(out, &self.key);
                    expect.push(Expect::text(&[0x90, 3, 0, 1, 1]));
                }
            }
            (Workload::Memcached | Workload::MemcachedShared, _) => {
                // The first connection creates the counter, and none is told whether it was the
                // first.
                let _ = write!(out, "add n:{} 0 0 1 noreply\r\n0\r\n", self.key);
                return self.ask(out, expect);
            }
            (Workload::Idle, _) | (Workload::Pubsub, _) => self.ping(out, expect),
            _ => return self.ask(out, expect),
        }
        expect.push(Expect::Reply);
    }

    /// Makes the next request.
    pub(super) fn ask(&mut self, out: &mut Vec<u8>, expect: &mut Expectations) {
        self.number += 1;
        match self.workload {
            Workload::Pingpong | Workload::Echo => {
                let salt = self.salt.wrapping_add(self.number);
                redis(out, &[b"ECHO"], Some((salt, self.size)));
                bulk(expect, salt, 0, self.size);
            }
            Workload::Incr | Workload::Churn => {
                self.counter += 1;
                redis(out, &[b"INCR", format!("n:{}", self.key).as_bytes()], None);
                expect.push(Expect::text(format!(":{}\r\n", self.counter).as_bytes()));
            }
            Workload::Shared => {
                redis(out, &[b"INCR", self.key.as_bytes()], None);
                expect.push(Expect::Line);
            }
            Workload::Upload => self.ask_upload(out, expect),
            Workload::Download => {
                redis(out, &[b"GET", format!("big:{}", self.key).as_bytes()], None);
                bulk(expect, self.salt, 0, self.size);
            }
            Workload::Idle => self.ping(out, expect),
            Workload::IdleSubscriber => {
                redis(out, &[b"PING"], None);
                expect.push(Expect::text(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"));
            }
            Workload::Pubsub => {
                let number = self.number.to_string();
                redis(out, &[b"PUBLISH", self.key.as_bytes(), number.as_bytes()], None);
                expect.push(Expect::text(b":1\r\n"));
            }
            Workload::Mqtt => self.ask_mqtt(out, expect),
            Workload::Memcached => self.ask_memcached(out, expect),
            Workload::MemcachedShared => {
                let _ = write!(out, "incr n:{} 1\r\n", self.key);
                expect.push(Expect::Line);
            }
            Workload::HttpKeepalive | Workload::HttpDownload | Workload::HttpClose => {
                self.ask_http(out, expect);
            }
        }
        expect.push(Expect::Reply);
    }

    /// Tells a subscriber that its publisher has sent the next message.
    pub(super) fn announce(&mut self, expect: &mut Expectations) {
        self.number += 1;
        if self.workload == Workload::Pubsub {
            let (key, number) = (&self.key, self.number.to_string());
            let text = format!(
                "*3\r\n$7\r\nmessage\r\n${}\r\n{key}\r\n${}\r\n{number}\r\n",
                key.len(),
                number.len()
            );
            expect.push(Expect::text(text.as_bytes()));
        } else {
            let mut head = Vec::new();
            mqtt_publish_head(&mut head, &self.key, self.size);
            expect.push(Expect::text(&head));
            expect.push(Expect::Capture(2));
            let salt = self.salt.wrapping_add(self.number);
            expect.push(Expect::Pattern { salt, at: 0, end: self.size });
        }
        expect.push(Expect::Reply);
    }

    /// Judges what could not be known beforehand.
    pub(super) fn heard(&mut self, what: Received<'_>) -> Result<(), Wrong> {
        match what {
            Received::Line(line) => {
                let sign = if self.workload == Workload::Shared { ":" } else { "" };
                let value = std::str::from_utf8(line)
                    .ok()
                    .and_then(|text| text.strip_prefix(sign)?.parse::<u64>().ok())
                    .ok_or_else(|| {
                        Wrong::Judged(format!("{} is no counter", line.escape_ascii()))
                    })?;
                let last = self.shared.last().copied().unwrap_or(0);
                self.shared.push(value);
                if value <= last {
                    return Err(Wrong::Judged(format!("shared counter {value} after {last}")));
                }
            }
            Received::Head(head) => self.judge_head(head)?,
            Received::Captured(id) => {
                self.answer.extend_from_slice(&[0x40, 2]);
                self.answer.extend_from_slice(id);
            }
            Received::Reply => {}
        }
        Ok(())
    }

    /// Moves what has to be answered at once to `out`.
    pub(super) fn answer(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.answer);
    }

    fn ping(&self, out: &mut Vec<u8>, expect: &mut Expectations) {
        redis(out, &[b"PING"], None);
        expect.push(Expect::text(b"+PONG\r\n"));
    }

    fn ask_upload(&self, out: &mut Vec<u8>, expect: &mut Expectations) {
        let salt = self.salt.wrapping_add(self.number);
        let key = format!("up:{}", self.key);
        let from = self.number.wrapping_mul(4_099) % self.size.max(65).saturating_sub(64);
        let to = (from + 63).min(self.size.saturating_sub(1));
        redis(out, &[b"SET", key.as_bytes()], Some((salt, self.size)));
        redis(out, &[b"STRLEN", key.as_bytes()], None);
        let (from_text, to_text) = (from.to_string(), to.to_string());
        let range: [&[u8]; 4] =
            [b"GETRANGE", key.as_bytes(), from_text.as_bytes(), to_text.as_bytes()];
        redis(out, &range, None);
        expect.push(Expect::text(format!("+OK\r\n:{}\r\n", self.size).as_bytes()));
        bulk(expect, salt, from, to + 1 - from);
    }

    fn ask_memcached(&mut self, out: &mut Vec<u8>, expect: &mut Expectations) {
        self.counter += 1;
        let (key, size, salt) = (&self.key, self.size, self.salt.wrapping_add(self.number));
        // Writing to a vector cannot fail.
        let _ = write!(out, "incr n:{key} 1\r\nset v:{key} 0 0 {size}\r\n");
        pattern::append(out, salt, 0, size);
        let _ = write!(out, "\r\nget v:{key}\r\n");
        let before = format!("{}\r\nSTORED\r\nVALUE v:{key} 0 {size}\r\n", self.counter);
        expect.push(Expect::text(before.as_bytes()));
        expect.push(Expect::Pattern { salt, at: 0, end: size });
        expect.push(Expect::text(b"\r\nEND\r\n"));
    }

    fn ask_mqtt(&self, out: &mut Vec<u8>, expect: &mut Expectations) {
        // Packet numbers are never 0 (MQTT 3.1.1 §2.3.1).
        let id = (((self.number - 1) % 65_535) + 1) as u16;
        mqtt_publish_head(out, &self.key, self.size);
        out.extend_from_slice(&id.to_be_bytes());
        pattern::append(out, self.salt.wrapping_add(self.number), 0, self.size);
        let [high, low] = id.to_be_bytes();
        expect.push(Expect::text(&[0x40, 2, high, low]));
    }

    fn ask_http(&self, out: &mut Vec<u8>, expect: &mut Expectations) {
        let keep = if self.server_closes() { "close" } else { "keep-alive" };
        let path = http_file(self.size);
        // Writing to a vector cannot fail.
        let _ = write!(out, "GET /{path} HTTP/1.1\r\nHost: holdfast\r\nConnection: {keep}\r\n\r\n");
        expect.push(Expect::Head);
        expect.push(Expect::Pattern { salt: http_salt(self.size), at: 0, end: self.size });
        if self.server_closes() {
            expect.push(Expect::End);
        }
    }

    fn judge_head(&self, head: &[u8]) -> Result<(), Wrong> {
        let text = String::from_utf8_lossy(head);
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
        });
        if !text.starts_with("HTTP/1.1 200") || length != Some(self.size) {
            return Err(Wrong::Judged(format!("unexpected head {:?}", text.lines().next())));
        }
        Ok(())
    }
}

/// Name of the document of this size.
pub(crate) fn http_file(size: u64) -> String {
    format!("{size}.bin")
}

/// Pattern of the document of this size.
pub(crate) fn http_salt(size: u64) -> u64 {
    size ^ 0x5a
}

/// A redis request of `words` and, if any, a last argument made of a pattern.
fn redis(out: &mut Vec<u8>, words: &[&[u8]], value: Option<(u64, u64)>) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "*{}\r\n", words.len() + usize::from(value.is_some()));
    for word in words {
        let _ = write!(out, "${}\r\n", word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    if let Some((salt, len)) = value {
        let _ = write!(out, "${len}\r\n");
        pattern::append(out, salt, 0, len);
        out.extend_from_slice(b"\r\n");
    }
}

/// A redis bulk reply.
fn bulk(expect: &mut Expectations, salt: u64, at: u64, len: u64) {
    expect.push(Expect::text(format!("${len}\r\n").as_bytes()));
    expect.push(Expect::Pattern { salt, at, end: at + len });
    expect.push(Expect::text(b"\r\n"));
}

fn mqtt_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Encodes the remaining length, seven bits in a byte (MQTT 3.1.1 §2.2.3).
fn mqtt_length(out: &mut Vec<u8>, mut length: u64) {
    while length >= 128 {
        out.push(length as u8 | 128);
        length >>= 7;
    }
    out.push(length as u8);
}

fn mqtt_connect(out: &mut Vec<u8>, client: &str) {
    out.push(0x10);
    mqtt_length(out, 12 + client.len() as u64);
    mqtt_text(out, "MQTT");
    // Level 4, clean session, no keep-alive.
    out.extend_from_slice(&[4, 2, 0, 0]);
    mqtt_text(out, client);
}

fn mqtt_subscribe(out: &mut Vec<u8>, topic: &str) {
    out.push(0x82);
    mqtt_length(out, 5 + topic.len() as u64);
    out.extend_from_slice(&[0, 1]);
    mqtt_text(out, topic);
    out.push(1);
}

/// A PUBLISH of QoS 1 up to its packet number.
fn mqtt_publish_head(out: &mut Vec<u8>, topic: &str, payload: u64) {
    out.push(0x32);
    mqtt_length(out, 4 + topic.len() as u64 + payload);
    mqtt_text(out, topic);
}
