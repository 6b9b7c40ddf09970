//! Data to copy: values in a redis-server.

use crate::testbed::server::Program;
use crate::testbed::{Role, Testbed, addresses};
use anyhow::{Context as _, Result, ensure};
use holdfast_linux::netns;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Bytes of a value; the server adds about a tenth.
const VALUE_BYTES: u64 = 1_000;

/// Values that are made by one request: a server that computes for long delays other clients.
const VALUES_AT_ONCE: u64 = 20_000;

/// Longest time that a request takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Script that sets values `from` to `to`, each with a key of its own; a server and its replica
/// compute the same values.
const SCRIPT: &str = "for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do \
     redis.call('SET', 'fill:' .. i, string.rep(string.char(97 + i % 26), tonumber(ARGV[3]))) \
     end return 'done'";

/// Fills the service's redis with `megabytes` of values, from the client's host.
///
/// # Errors
/// When the server refuses, or does not answer.
pub fn fill(testbed: &Testbed, megabytes: u64) -> Result<()> {
    in_client(testbed, |at| say(at, megabytes))
}

/// Runs `work` on the client's host, which reaches redis at this address.
///
/// # Errors
/// Those of `work`, and of entering the host.
pub fn in_client<T: Send>(
    testbed: &Testbed,
    work: impl FnOnce(SocketAddr) -> Result<T> + Send,
) -> Result<T> {
    let namespace = Path::new("/run/netns").join(testbed.host(Role::Client).namespace());
    let address: IpAddr = addresses::SERVICE_V4.parse().context("an address")?;
    let at = SocketAddr::new(address, Program::Redis.port());
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            netns::enter(&namespace)?;
            work(at)
        });
        client.join().expect("a client that only talks never panics")
    })
}

fn say(at: SocketAddr, megabytes: u64) -> Result<()> {
    let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answers = BufReader::new(stream);
    for (from, to) in parts(megabytes) {
        answers.get_mut().write_all(&request(from, to))?;
        let mut line = String::new();
        answers.read_line(&mut line)?;
        ensure!(line == "$4\r\n", "the server does not fill: {}", line.trim());
        line.clear();
        answers.read_line(&mut line)?;
    }
    Ok(())
}

/// Sends one request, whose answer is one line.
///
/// # Errors
/// When there is no answer within `patience_s` seconds.
pub fn asked(client: &mut TcpStream, words: &[&[u8]], patience_s: u64) -> Result<()> {
    each(client, words, 1, patience_s)
}

/// Sends the same request `times` times, and reads the answers of one line each.
///
/// # Errors
/// When there is no answer within `patience_s` seconds, or the server refuses.
pub fn each(client: &mut TcpStream, words: &[&[u8]], times: usize, patience_s: u64) -> Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(patience_s)))?;
    client.write_all(&encode(words).repeat(times))?;
    let mut answers = BufReader::new(client);
    for _ in 0..times {
        let mut line = String::new();
        answers.read_line(&mut line)?;
        ensure!(line.starts_with(['+', ':']), "the server says {line:?}");
    }
    Ok(())
}

fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// First and last value of each request.
fn parts(megabytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let values = megabytes * 1_000_000 / VALUE_BYTES;
    (0..values)
        .step_by(VALUES_AT_ONCE as usize)
        .map(move |from| (from, (from + VALUES_AT_ONCE).min(values) - 1))
}

fn request(from: u64, to: u64) -> Vec<u8> {
    let [from, to, bytes] = [from, to, VALUE_BYTES].map(|number| number.to_string());
    encode(&["EVAL", SCRIPT, "0", &from, &to, &bytes].map(str::as_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_made_once() {
        let mut next = 0;
        for (from, to) in parts(45) {
            assert_eq!(from, next);
            assert!(to >= from && to - from < VALUES_AT_ONCE);
            next = to + 1;
        }
        assert_eq!(next, 45_000);
        assert_eq!(parts(0).count(), 0);
    }

    #[test]
    fn a_request_is_one_that_redis_reads() {
        let text = String::from_utf8(request(3, 17)).unwrap();
        assert!(text.starts_with("*6\r\n$4\r\nEVAL\r\n"), "{text}");
        assert!(text.ends_with("$1\r\n0\r\n$1\r\n3\r\n$2\r\n17\r\n$4\r\n1000\r\n"), "{text}");
    }
}
