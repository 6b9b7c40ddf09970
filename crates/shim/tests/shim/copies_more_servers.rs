//! Servers of several kinds are copied while they serve: connections come and go, threads
//! too, and files are sent. Each copy follows a thousand requests, takes its server's
//! place and serves on. Needs root.

use crate::harness::copy::{Log, copy_beside, image_of, promote_copy};
use crate::harness::count::Killed;
use crate::harness::{StopAtEnd, eventually, installed, scratch, start, wait_for, write};
use holdfast_linux::spawn::Server;
use holdfast_wire::shm::mode;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const PORT: u16 = 16_650;
const CLIENTS: usize = 4;
/// Requests that the copy follows.
const REQUESTS: usize = 1000;

/// One request on a connection of its own.
type Ask = fn(u16);

fn connect(port: u16) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    BufReader::new(stream)
}

fn download(port: u16) {
    for (file, bytes) in [("1k.bin", 1024), ("256k.bin", 256 << 10)] {
        let mut client = connect(port);
        let request = format!("GET /{file} HTTP/1.0\r\n\r\n");
        client.get_mut().write_all(request.as_bytes()).expect("asked");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("answered");
        let head = answer.windows(4).position(|it| it == b"\r\n\r\n").expect("a head") + 4;
        assert_eq!(answer.len() - head, bytes, "{file}");
    }
}

fn work(port: u16) {
    let mut client = connect(port);
    let mut ask = |request: &str, prefix: &str| {
        client.get_mut().write_all(request.as_bytes()).expect("asked");
        let mut line = String::new();
        client.read_line(&mut line).expect("answered");
        assert!(line.starts_with(prefix), "{line}");
        line
    };
    let line = ask("put 0 0 60 5\r\nhello\r\n", "INSERTED ");
    let job = line.trim().rsplit(' ').next().expect("a number").to_owned();
    ask(&format!("delete {job}\r\n"), "DELETED");
}

/// The address of example.net, by DNS over TCP.
fn resolve(port: u16) {
    let question = b"\x07example\x03net\x00\x00\x01\x00\x01";
    let mut client = connect(port);
    let request =
        [&b"\x00\x1d\x02\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"[..], question].concat();
    client.get_mut().write_all(&request).expect("asked");
    let mut answer = [0; 47];
    client.read_exact(&mut answer).expect("answered");
    assert_eq!(answer[2..4], [2, 1]);
    assert_eq!(answer[43..], [192, 0, 2, 1], "{answer:?}");
}

/// Has the copy follow the load until so many requests are answered; then the load ends.
fn follow(server: &Server, copy: &Server, mut log: Log, load: &Load) {
    let enough = load.answers.load(SeqCst) + REQUESTS;
    while load.answers.load(SeqCst) < enough {
        log.pass(server, copy);
        std::thread::yield_now();
    }
    load.stop.store(true, SeqCst);
    while load.working.load(SeqCst) > 0 {
        log.pass(server, copy);
    }
    log.catch_up(server, copy);
    println!("{} records followed", log.records);
}

#[derive(Default)]
struct Load {
    stop: AtomicBool,
    answers: AtomicUsize,
    working: AtomicUsize,
}

impl Load {
    fn client(&self, port: u16, ask: Ask) {
        while !self.stop.load(SeqCst) {
            ask(port);
            self.answers.fetch_add(1, SeqCst);
        }
        self.working.fetch_sub(1, SeqCst);
    }
}

fn copied(argv: &[&str], port: u16, dir: &Path, ask: Ask) {
    let mut server = Killed(start(argv, port, 0, mode::SOLO, dir));
    wait_for(port);
    for _ in 0..2 {
        let load = Load { working: AtomicUsize::new(CLIENTS), ..Load::default() };
        let copy = std::thread::scope(|s| {
            (0..CLIENTS).for_each(|_| drop(s.spawn(|| load.client(port, ask))));
            let _end = StopAtEnd(&load.stop);
            eventually("load", || load.answers.load(SeqCst) > 20);
            let image = image_of(&server.0);
            let mut log = Log::from(image.books.log_from);
            let copy = Killed(copy_beside(&image, port, dir, || log.take(&server.0)));
            follow(&server.0, &copy.0, log, &load);
            copy
        });
        server.0.kill();
        promote_copy(&copy.0);
        (0..10).for_each(|_| ask(port));
        server = copy;
    }
}

#[test]
fn lighttpd_is_copied_twice() {
    let (port, dir) = (PORT, scratch("copied-lighttpd"));
    let (conf, root) = (dir.join("l.conf"), dir.display());
    let lines = [
        format!("server.document-root = \"{root}\""),
        format!("server.port = {port}"),
        "server.bind = \"127.0.0.1\"".to_owned(),
    ];
    write(&conf, &lines.join("\n"));
    let conf = conf.display().to_string();
    copied(&[installed("/usr/sbin/lighttpd"), "-D", "-f", &conf], port, &dir, download);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn nginx_is_copied_twice() {
    let (port, dir) = (PORT + 1, scratch("copied-nginx"));
    let (conf, root) = (dir.join("nginx.conf"), dir.display());
    let text = format!(
        "daemon off; master_process off; pid nginx.pid; error_log error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log access.log; client_body_temp_path t1; proxy_temp_path t2;\n\
         fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5; sendfile on;\n\
         server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
    );
    write(&conf, &text);
    let conf = conf.display().to_string();
    let prefix = dir.display().to_string();
    copied(&[installed("/usr/sbin/nginx"), "-p", &prefix, "-c", &conf], port, &dir, download);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn a_python_thread_for_each_connection_is_copied_twice() {
    let (port, dir) = (PORT + 2, scratch("copied-python"));
    let (number, root) = (port.to_string(), dir.display().to_string());
    let python = installed("/usr/bin/python3");
    let argv = [python, "-m", "http.server", &number, "--bind", "127.0.0.1", "-d", &root];
    copied(&argv, port, &dir, download);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn beanstalkd_is_copied_twice() {
    let (port, dir) = (PORT + 3, scratch("copied-beanstalkd"));
    let number = port.to_string();
    let argv = [installed("/usr/bin/beanstalkd"), "-l", "127.0.0.1", "-p", &number];
    copied(&argv, port, &dir, work);
    let _ = std::fs::remove_dir_all(dir);
}

/// It has a netlink socket, through which it asks for the host's addresses.
#[test]
fn dnsmasq_is_copied_twice() {
    let (port, dir) = (PORT + 4, scratch("copied-dnsmasq"));
    let number = format!("--port={port}");
    let argv = [
        installed("/usr/sbin/dnsmasq"),
        "--no-daemon",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        &number,
        "--listen-address=127.0.0.1",
        "--bind-interfaces",
        "--user=root",
        "--address=/example.net/192.0.2.1",
        "--pid-file=",
    ];
    copied(&argv, port, &dir, resolve);
    let _ = std::fs::remove_dir_all(dir);
}
