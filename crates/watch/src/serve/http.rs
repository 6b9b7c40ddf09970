//! The listeners: what is answered to whom, and how little a client may cost.

use super::seen::Seen;
use super::source::Source;
use super::{Serves, meant, metrics, page};
use anyhow::{Result, bail};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Most connections of a listener; further ones wait.
const CONNECTIONS_MAX: usize = 64;
/// Most of them from one address; further ones are closed at once.
const OF_ONE_ADDRESS_MAX: usize = 16;
/// Time for a request's head to arrive.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// Time after which a connection takes no more requests, and after which it is closed, whatever
/// its client has not taken.
const SERVED_MAX: Duration = Duration::from_secs(60);
const LEAVING_MAX: Duration = Duration::from_secs(10);
/// Most headers, and bytes of a head.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The answer to a browser that means somebody else.
const NOT_MEANT: &str = "this host is called by its address here, or by a name without dots; behind a \
     proxy, let that set the header Host to one of them\n";
/// Pause of a listener that cannot accept.
const PAUSE: Duration = Duration::from_millis(200);

/// The daemons, and who is served.
#[derive(Debug)]
pub struct Shared {
    sources: Vec<Rc<Source>>,
    clients: RefCell<BTreeMap<IpAddr, usize>>,
}

impl Shared {
    pub fn new(sources: Vec<Source>) -> Self {
        let sources = sources.into_iter().map(Rc::new).collect();
        Self { sources, clients: RefCell::default() }
    }

    /// Follows all daemons until one has ended.
    ///
    /// # Errors
    /// Always: why there is nothing to serve any more.
    pub async fn follow(&self) -> Result<()> {
        let (told, mut ended) = tokio::sync::mpsc::channel(1);
        for source in &self.sources {
            let (source, told) = (Rc::clone(source), told.clone());
            tokio::task::spawn_local(async move {
                let _nobody = told.send(source.follow().await).await;
            });
        }
        match ended.recv().await {
            Some(result) => result,
            None => bail!("there is no daemon to ask"),
        }
    }

    /// The last answers of all daemons, which are asked again first.
    async fn renew(&self) {
        for source in &self.sources {
            source.renew().await;
        }
    }

    fn seen(&self) -> Vec<Ref<'_, Seen>> {
        self.sources.iter().map(|source| source.seen()).collect()
    }

    fn json(&self, of: impl Fn(&Seen) -> Value) -> Vec<u8> {
        let groups: Vec<Value> = self.seen().iter().map(|seen| of(seen)).collect();
        json!({ "schema": page::SCHEMA, "groups": groups }).to_string().into_bytes()
    }
}

/// Takes clients for as long as this program runs.
pub async fn accept(listener: TcpListener, what: Serves, shared: Rc<Shared>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(guest) = Guest::admit(from.ip(), &shared) else { continue };
        let shared = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            serve(stream, what, &shared).await;
            drop((guest, place));
        });
    }
}

/// One connection of an address, counted for as long as it lives.
struct Guest {
    from: IpAddr,
    shared: Rc<Shared>,
}

impl Guest {
    fn admit(from: IpAddr, shared: &Rc<Shared>) -> Option<Self> {
        let mut clients = shared.clients.borrow_mut();
        let count = clients.entry(from).or_default();
        if *count >= OF_ONE_ADDRESS_MAX {
            return None;
        }
        *count += 1;
        Some(Self { from, shared: Rc::clone(shared) })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut clients = self.shared.clients.borrow_mut();
        if let Some(count) = clients.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&self.from);
            }
        }
    }
}

async fn serve(stream: TcpStream, what: Serves, shared: &Shared) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(answer(&request, what, shared).await)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // Whatever goes wrong ends this client, and nobody else.
    if timeout(SERVED_MAX, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _slow = timeout(LEAVING_MAX, connection).await;
    }
}

async fn answer(
    request: &Request<Incoming>,
    what: Serves,
    shared: &Shared,
) -> Response<Full<Bytes>> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let is_meant = match what {
        Serves::Metrics => meant::by_program(request.headers()),
        Serves::Page => meant::by_browser(request.headers()),
    };
    if !is_meant {
        return text(StatusCode::MISDIRECTED_REQUEST, NOT_MEANT);
    }
    match (what, request.uri().path()) {
        (Serves::Metrics, "/metrics") => {
            shared.renew().await;
            let seen = shared.seen();
            let seen: Vec<&Seen> = seen.iter().map(|seen| &**seen).collect();
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            response(StatusCode::OK, kind, metrics::text(&seen).into_bytes())
        }
        (Serves::Metrics, "/") => text(StatusCode::OK, "holdfast: the counters are at /metrics\n"),
        (Serves::Page, "/") => page(),
        (Serves::Page, "/status.json") => {
            shared.renew().await;
            response(StatusCode::OK, "application/json", shared.json(Seen::answer))
        }
        (Serves::Page, "/history.json") => {
            let body = shared.json(|seen| seen.history.answer());
            response(StatusCode::OK, "application/json", body)
        }
        _ => text(StatusCode::NOT_FOUND, "there is no such page\n"),
    }
}

fn page() -> Response<Full<Bytes>> {
    let Some((html, policy)) = page::render() else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "the host gives no random numbers\n");
    };
    let mut page = response(StatusCode::OK, "text/html; charset=utf-8", html.into_bytes());
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        page.headers_mut().insert("content-security-policy", policy);
    }
    page
}

fn text(status: StatusCode, words: &'static str) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", words.into())
}

fn response(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
