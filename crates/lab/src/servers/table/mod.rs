//! The table: one file for each family of servers, and what several of them need.

mod families;
mod messages;
mod names;
mod runtimes;
mod stores;
mod web;

use super::row::{At, Client, Place, Row, Step};
use crate::load::pattern;
use anyhow::Result;

/// Every row.
pub fn rows() -> Vec<Row> {
    [
        web::rows(),
        stores::rows(),
        messages::rows(),
        names::rows(),
        runtimes::rows(),
        families::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Addresses of the service, for configurations.
const V4: &str = crate::testbed::addresses::SERVICE_V4;
const V6: &str = crate::testbed::addresses::SERVICE_V6;

/// Documents that web servers offer: name and bytes.
const SMALL: (&str, u64) = ("small", 1 << 10);
const LARGE: (&str, u64) = ("large", 256 << 10);

/// What is in a document.
fn document((_, bytes): (&str, u64)) -> Vec<u8> {
    let mut body = Vec::new();
    pattern::append(&mut body, bytes, 0, bytes);
    body
}

/// Writes the documents into the folder `www`.
fn documents(place: &Place<'_>) -> Result<()> {
    [SMALL, LARGE].iter().try_for_each(|one| place.write(&format!("www/{}", one.0), document(*one)))
}

/// Asks for a document by HTTP/1.1: small ones, and every fourth time the large one.
fn http(_: u64, turn: u64) -> Step {
    get("", if turn % 4 == 3 { LARGE } else { SMALL })
}

/// Asks for a document with this in front of its path.
fn get(prefix: &str, one: (&str, u64)) -> Step {
    let mut step = Step::exact(
        format!("GET {prefix}/{} HTTP/1.1\r\nHost: test\r\n\r\n", one.0),
        "HTTP/1.1 200 OK\r\n",
    );
    step.hear.extend(Step::through("", "\r\n\r\n").hear);
    step.hear.extend(Step::exact("", document(one)).hear);
    step
}

/// curl asks for the large document.
fn curl(at: &At) -> Vec<Client> {
    vec![Client::new(at, "curl -sS http://{host}:{port}/large", document(LARGE))]
}

/// The same by HTTPS.
fn curl_tls(at: &At) -> Vec<Client> {
    vec![Client::new(at, "curl -sSk https://{host}:{port}/large", document(LARGE))]
}

/// A letter for each byte of a message of session and turn.
fn letters(session: u64, turn: u64, bytes: u64) -> String {
    let letter = |i| char::from(b'a' + ((session * 7 + turn * 3 + i) % 26) as u8);
    (0..bytes).map(letter).collect()
}

/// The words of a line, for arguments.
fn words(place: &Place<'_>, line: &str) -> Vec<String> {
    line.split_whitespace().map(|word| word.replace("{}", &place.path(""))).collect()
}

/// A configuration, in which `{}` is the place.
fn write(place: &Place<'_>, name: &str, text: &str) -> Result<()> {
    place.write(name, text.replace("{}", &place.path("")))
}
