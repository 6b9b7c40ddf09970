//! What is served, over real sockets: to clients that ask as they should and to others, and to a
//! browser where one is installed.

use super::http::{Shared, accept};
use super::source::Source;
use super::*;
use holdfast::status::{Peer, Role, State, Status};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Words that would be a script if the page took them for HTML.
const HOSTILE: &str = "<img src=x onerror=\"document.title='taken'\"><script>taken()</script>";

/// Answers as a daemon until nobody asks.
fn daemon(stream: UnixStream) {
    let mut status = Status::new("demo", "edge");
    (status.role, status.state) = (Role::Edge, State::Unprotected);
    status.reason = format!("`b` has been lost: {HOSTILE}");
    status.remedy = "start it".to_owned();
    for (name, connected) in [("a", true), ("b", false)] {
        let note = if connected { "current" } else { "away" }.to_owned();
        status.peers.push(Peer { name: name.to_owned(), connected, note });
    }
    let event = json!({ "number": 1, "at": status.at, "what": "left", "detail": HOSTILE });
    let mut writer = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let answer = match serde_json::from_str(&line).unwrap() {
            Request::Status => serde_json::to_value(&status).unwrap(),
            Request::Show => json!({ "flows": { "count": 3, "max": 10 }, "cache": null }),
            Request::Events { since } if since > 1 => json!({ "events": [], "life": "x" }),
            Request::Events { .. } => json!({ "events": [event], "life": "x" }),
            other => panic!("{other:?}"),
        };
        if writer.write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// Serves both kinds while `work` runs in a thread of its own, with their addresses.
fn served<T: Send + 'static>(work: impl FnOnce([SocketAddr; 2]) -> T + Send + 'static) -> T {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let daemon = std::thread::spawn(move || daemon(theirs));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, async {
        let shared = Rc::new(Shared::new(vec![Source::new(ours).unwrap()]));
        let mut addresses = Vec::new();
        for what in [Serves::Metrics, Serves::Page] {
            let listener = listen(what, "127.0.0.1:0".parse().unwrap()).unwrap();
            addresses.push(listener.local_addr().unwrap());
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            tokio::task::spawn_local(accept(listener, what, Rc::clone(&shared)));
        }
        tokio::task::spawn_local(async move { shared.follow().await });
        let (done, result) = tokio::sync::oneshot::channel();
        let addresses = [addresses[0], addresses[1]];
        std::thread::spawn(move || drop(done.send(work(addresses))));
        result.await.expect("the work does not panic")
    });
    drop((local, runtime));
    daemon.join().unwrap();
    result
}

/// What is answered to these bytes, until the connection ends.
fn told(at: SocketAddr, words: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _closed = stream.write_all(words);
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn who_asks_as_he_should_is_answered_and_others_cost_nothing() {
    let ask = |at, what: &str| {
        told(at, format!("{what} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes())
    };
    served(move |[metrics, page]| {
        let scraped = ask(metrics, "GET /metrics");
        assert!(scraped.contains("holdfast_flows{group=\"demo\",member=\"edge\"} 3"), "{scraped}");
        let status = ask(page, "GET /status.json");
        assert!(status.contains("\"state\":\"unprotected\""), "{status}");
        let history = ask(page, "GET /history.json");
        assert!(history.contains("\"connections\":[0"), "{history}");
        let head = ask(page, "HEAD /");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
        for (request, answer) in [
            ("POST /status.json", "405"),
            ("DELETE /", "405"),
            ("GET /nothing", "404"),
            ("GET /../etc/passwd", "404"),
            ("GET /metrics", "404"),
            ("NONSENSE", "400"),
        ] {
            let said = ask(page, request);
            assert!(said.starts_with(&format!("HTTP/1.1 {answer} ")), "{request}: {said}");
        }
        let rebound = told(
            page,
            b"GET /status.json HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        );
        assert!(
            rebound.starts_with("HTTP/1.1 421 ") && !rebound.contains("unprotected"),
            "{rebound}"
        );
        let endless = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 1 << 20]].concat();
        assert!(!told(page, &endless).starts_with("HTTP/1.1 200"));
        assert!(!told(page, &b"\0\xff\r\n".repeat(1000)).starts_with("HTTP/1.1 200"));
        // More than one address may have, and they say nothing: they leave soon.
        let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(page).unwrap()).collect();
        let begun = Instant::now();
        while !ask(page, "GET /status.json").starts_with("HTTP/1.1 200") {
            assert!(begun.elapsed() < Duration::from_secs(30), "the silent ones never leave");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(
            begun.elapsed() > Duration::from_secs(2),
            "they had all the places: {:?}",
            begun.elapsed()
        );
        drop(silent);
    });
}

#[test]
fn a_scrape_takes_five_milliseconds_at_most() {
    let best = served(|[metrics, _]| {
        let words = b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n";
        let times = (0..20).map(|_| {
            std::thread::sleep(Duration::from_millis(30));
            let begun = Instant::now();
            assert!(told(metrics, words).contains("holdfast_up"));
            begun.elapsed()
        });
        times.min().unwrap()
    });
    // The best of them, for the machine may be busy; in a build without optimization, too.
    assert!(best < Duration::from_millis(5), "{best:?}");
}

/// Only where a browser is installed: it draws the page, and takes nothing that a daemon says
/// for HTML.
#[test]
fn a_browser_draws_the_page() {
    let folder = std::env::temp_dir().join(format!("holdfast-page-{}", std::process::id()));
    let profile = folder.clone();
    let drawn = served(move |[_, page]| {
        let mut browser = Command::new("chromium");
        browser.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=3000",
        ]);
        browser.arg(format!("--user-data-dir={}", profile.display())).arg("--dump-dom");
        let drawn = browser.arg(format!("http://{page}/")).stderr(Stdio::null()).output();
        drawn.ok().map(|done| String::from_utf8_lossy(&done.stdout).into_owned())
    });
    let _absent = std::fs::remove_dir_all(&folder);
    let Some(drawn) = drawn else { return };
    for part in ["UNPROTECTED", "start it", "! demo unprotected", "aria-label=\"Clients: "] {
        assert!(drawn.contains(part), "{part}: {drawn}");
    }
    assert!(drawn.contains("&lt;img src=x onerror="), "it is text: {drawn}");
    assert!(!drawn.contains("<img") && !drawn.contains("taken</title>"), "{drawn}");
    assert!(drawn.contains("<div id=\"alarm\" role=\"alert\"></div>"), "nothing is old: {drawn}");
}

/// Contrast, keyboard, names, sizes, requests to others and more, at 390 and 1280 px, light and dark.
#[test]
fn the_page_is_for_everybody() {
    let said = served(|[_, page]| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/page-check");
        let mut check = Command::new(script);
        check.args(["--settle", "0.3"]).arg(format!("http://{page}/"));
        check.output().expect("python3 runs it")
    });
    let told = [&said.stdout[..], &said.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    if told.contains("there is no Chromium") {
        eprintln!("NOT CHECKED in a browser: there is no Chromium");
        return;
    }
    assert!(said.status.success(), "{told}");
}
