//! The traffic: a stream of writes of one size, connections that follow each other, and datagrams.
//! The client has one processor and the server another.

use super::ways::{PORT, Way};
use crate::testbed::{Host, Role, Testbed};
use anyhow::{Context as _, Result, ensure};
use holdfast_linux::affinity::{self, CpuSet};
use holdfast_linux::netns;
use rustix::thread::gettid;
use socket2::{SockRef, Socket};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Flag of a send that ends a record, so that the kernel does not join two writes in one segment.
const MSG_EOR: i32 = 0x80;
/// Bytes of a write in the series "bulk".
pub const BULK_BYTES: usize = 65_536;
const WARM_UP: Duration = Duration::from_millis(60);
const PATIENCE: Duration = Duration::from_secs(5);
const CLIENT_CPU: usize = 0;
const SERVER_CPU: usize = 1;

/// A server on the primary's host that counts what it gets.
pub struct Sink {
    bytes: Arc<AtomicU64>,
    datagrams: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// The kernel's numbers of its threads.
    pub tids: Vec<u32>,
}

impl Sink {
    /// Listens at `at` on the primary's host of `bed`.
    pub fn start(bed: &Testbed, at: SocketAddr) -> Result<Self> {
        let (tcp, udp) = in_host(bed.host(Role::Primary), move || {
            let udp = UdpSocket::bind(at)?;
            SockRef::from(&udp).set_recv_buffer_size(4 << 20)?;
            udp.set_read_timeout(Some(Duration::from_millis(20)))?;
            Ok((TcpListener::bind(at)?, udp))
        })?;
        tcp.set_nonblocking(true)?;
        let mut sink = Self {
            bytes: Arc::default(),
            datagrams: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
            tids: Vec::new(),
        };
        let (bytes, stop) = (Arc::clone(&sink.bytes), Arc::clone(&sink.stop));
        sink.spawn(move || accept(&tcp, &bytes, &stop));
        let (datagrams, stop) = (Arc::clone(&sink.datagrams), Arc::clone(&sink.stop));
        sink.spawn(move || count(&udp, &datagrams, &stop));
        Ok(sink)
    }

    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) {
        let (tell, told) = std::sync::mpsc::channel();
        self.threads.push(std::thread::spawn(move || {
            pin(SERVER_CPU);
            let _ = tell.send(gettid().as_raw_nonzero().get().unsigned_abs());
            work();
        }));
        self.tids.extend(told.recv());
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Serves one connection at a time: sends a byte, then reads until the end.
fn accept(listener: &TcpListener, bytes: &AtomicU64, stop: &AtomicBool) {
    let mut buffer = vec![0; 1 << 20];
    while !stop.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_micros(20));
            continue;
        };
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_nodelay(true);
        let _ = stream.write_all(b"!");
        while let Ok(read) = stream.read(&mut buffer) {
            if read == 0 {
                break;
            }
            bytes.fetch_add(read as u64, Ordering::Relaxed);
        }
    }
}

fn count(socket: &UdpSocket, datagrams: &AtomicU64, stop: &AtomicBool) {
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        if socket.recv(&mut buffer).is_ok() {
            datagrams.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Bits per second that arrive if every write has `size` bytes.
pub fn throughput(
    bed: &Testbed,
    way: Way,
    sink: &Sink,
    size: usize,
    time: Duration,
) -> Result<f64> {
    let socket = connect(bed, way)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            pin(CLIENT_CPU);
            let payload = vec![7; size];
            let flags = if size == BULK_BYTES { 0 } else { MSG_EOR };
            while !stop.load(Ordering::Relaxed) {
                socket.send_with_flags(&payload, flags).context("the connection broke")?;
            }
            Ok(())
        });
        std::thread::sleep(WARM_UP);
        let (before, start) = (sink.bytes.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(time);
        let (after, took) = (sink.bytes.load(Ordering::Relaxed), start.elapsed());
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The first byte has shown that the path carries anything.
        sent.map(|()| (after - before) as f64 * 8.0 / took.as_secs_f64())
    })
}

fn connect(bed: &Testbed, way: Way) -> Result<Socket> {
    let target = way.target();
    let stream =
        in_host(bed.host(Role::Client), move || TcpStream::connect_timeout(&target, PATIENCE))
            .with_context(|| format!("no connection by {way:?}"))?;
    stream.set_nodelay(true)?;
    // The server sends a byte when it is done with the connection before.
    stream.set_read_timeout(Some(PATIENCE))?;
    (&stream).read_exact(&mut [0]).with_context(|| format!("nobody answers by {way:?}"))?;
    let socket = Socket::from(stream);
    socket.set_tcp_congestion(b"cubic")?;
    Ok(socket)
}

/// Median times of `count` connections until connect() returns, and until the server's first byte
/// arrives, in µs.
pub fn connects(bed: &Testbed, way: Way, count: usize) -> Result<(f64, f64)> {
    let target = way.target();
    in_host(bed.host(Role::Client), move || {
        pin(CLIENT_CPU);
        let (mut connected, mut heard) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let start = Instant::now();
            let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
            connected.push(start.elapsed().as_secs_f64() * 1e6);
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.read_exact(&mut [0])?;
            heard.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok((middle(connected), middle(heard)))
    })
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Datagrams of 64 bytes that arrive in a second.
pub fn datagrams(bed: &Testbed, way: Way, sink: &Sink, time: Duration) -> Result<f64> {
    let target = way.target();
    let before = sink.datagrams.load(Ordering::Relaxed);
    let took = in_host(bed.host(Role::Client), move || {
        pin(CLIENT_CPU);
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(target)?;
        let start = Instant::now();
        while start.elapsed() < time {
            for _ in 0..64 {
                // If nobody listens, the kernel reports it now and then.
                let _ = socket.send(&[7; 64]);
            }
        }
        Ok(start.elapsed())
    })?;
    let arrived = sink.datagrams.load(Ordering::Relaxed) - before;
    ensure!(arrived > 0, "no datagram arrived by {way:?}");
    Ok(arrived as f64 / took.as_secs_f64())
}

/// Runs `work` on a thread in the network of `host`.
fn in_host<T: Send + 'static>(
    host: &Host,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T> {
    let namespace = Path::new("/run/netns").join(host.namespace());
    let thread = std::thread::spawn(move || -> Result<T> {
        netns::enter(&namespace)?;
        Ok(work()?)
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Binds this thread to a processor as far as possible: with one processor there is no choice.
fn pin(cpu: usize) {
    let _ = affinity::set(0, &CpuSet::one(cpu));
}

/// Limits threads to a share of one processor until it is dropped.
pub struct Share(PathBuf);

impl Share {
    /// Gives `percent` of a processor to `tids` (the first version of control groups has groups of
    /// threads).
    pub fn of(tids: &[u32], percent: u32) -> Result<Self> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/cpu/holdfast-lab-{}", std::process::id()));
        std::fs::create_dir_all(&path).context("no control group for processor time")?;
        let share = Self(path);
        std::fs::write(share.0.join("cpu.cfs_period_us"), "10000")?;
        std::fs::write(share.0.join("cpu.cfs_quota_us"), (percent * 100).to_string())?;
        for tid in tids {
            std::fs::write(share.0.join("tasks"), tid.to_string())?;
        }
        Ok(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let tasks = std::fs::read_to_string(self.0.join("tasks")).unwrap_or_default();
        for tid in tasks.lines() {
            let _ = std::fs::write("/sys/fs/cgroup/cpu/tasks", tid);
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A thread that uses the server's processor all the time until it is dropped.
pub struct Competitor(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Competitor {
    /// Starts the competing thread.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            pin(SERVER_CPU);
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self(stop, Some(thread))
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// Starts a server for every path, on its testbed.
pub fn sinks(beds: &[Testbed; 3]) -> Result<Vec<(Way, Sink)>> {
    let on = [(Way::Route, 0), (Way::Miss, 1), (Way::Redirected, 1), (Way::Dnat, 2)];
    on.into_iter()
        .map(|(way, bed)| {
            let at = way.served_at();
            let started = Sink::start(&beds[bed], at);
            Ok((way, started.with_context(|| format!("a server at {at}, port {PORT}"))?))
        })
        .collect()
}
