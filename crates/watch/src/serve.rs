//! `holdfast-watch serve` and `holdfast-watch metrics`: the state of the daemons of this host, for
//! Prometheus and for people.
//!
//! A task for each daemon asks it at its socket for those who only look; what it last said is what
//! everybody is shown. One thread does everything, and nothing waits for a client.

mod confine;
mod history;
mod http;
mod meant;
mod metrics;
mod page;
mod seen;
mod source;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use holdfast::admin::{self, Request};
use holdfast::cli::args::GroupArgs;
use holdfast::cli::load_of_daemon;
use http::Shared;
use seen::Seen;
use source::Source;
use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// A daemon's socket for those who only look: ROLE.watch in `run_dir`. Once for each group.
    #[arg(long, value_name = "SOCKET", required = true)]
    watch: Vec<PathBuf>,
    /// Where /metrics is served.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Vec<SocketAddr>,
    /// Where the live page is served.
    #[arg(long, value_name = "ADDRESS:PORT")]
    page: Vec<SocketAddr>,
}

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    Metrics,
    Page,
}

/// Serves until the daemon ends.
///
/// # Errors
/// Whatever keeps it from serving, with the remedy.
pub fn run(args: &ServeArgs) -> Result<()> {
    let parent = std::os::unix::process::parent_id();
    let sockets = args.watch.iter().map(|path| connect(path)).collect::<Result<Vec<_>>>()?;
    let metrics = args.metrics.iter().map(|at| (Serves::Metrics, *at));
    let all = metrics.chain(args.page.iter().map(|at| (Serves::Page, *at)));
    let listeners =
        all.map(|(what, at)| Ok((what, listen(what, at)?))).collect::<Result<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.context("an event loop")?;
    confine::give_up_rights(parent).context("giving up rights")?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let sources = sockets.into_iter().map(Source::new).collect::<std::io::Result<Vec<_>>>()?;
        let shared = Rc::new(Shared::new(sources));
        for (what, listener) in listeners {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio::task::spawn_local(http::accept(listener, what, Rc::clone(&shared)));
        }
        shared.follow().await
    })
}

/// Prints the counters of one daemon.
///
/// # Errors
/// If its file is wrong, or it does not answer.
pub fn print_metrics(group: &GroupArgs) -> Result<ExitCode> {
    let (file, role) = load_of_daemon(group).map_err(|failure| anyhow::anyhow!("{failure}"))?;
    let socket = file.admin_socket(&role);
    let ask = |request: Request| match admin::ask(&socket, request.clone()) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            admin::ask(&admin::watch_socket(&socket), request)
        }
        answer => answer,
    };
    let mut seen = Seen::default();
    let status = ask(Request::Status).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            let remedy = admin::who_may_look(&socket);
            anyhow::anyhow!("{}: {error}\n  remedy: {remedy}", socket.display())
        }
        _ => anyhow::anyhow!(
            "no daemon answers at {}: {error}\n  remedy: start it with: holdfast run --config {}",
            socket.display(),
            file.path().display()
        ),
    })?;
    seen.take_status(status)?;
    seen.take_show(ask(Request::Show)?);
    seen.take_events(ask(Request::Events { since: 0 })?)?;
    let mut out = std::io::stdout().lock();
    out.write_all(metrics::text(&[&seen]).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn connect(path: &Path) -> Result<std::os::unix::net::UnixStream> {
    let stream = std::os::unix::net::UnixStream::connect(path)
        .with_context(|| format!("no daemon answers at {}", path.display()))?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn listen(what: Serves, at: SocketAddr) -> Result<TcpListener> {
    let key = match what {
        Serves::Metrics => "metrics",
        Serves::Page => "page",
    };
    let mut bound = TcpListener::bind(at);
    if bound.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EAFNOSUPPORT)) {
        // A host without IPv6.
        bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, at.port()));
    }
    match bound {
        Ok(listener) => {
            listener.set_nonblocking(true)?;
            Ok(listener)
        }
        Err(error) => {
            let remedy = match error.kind() {
                ErrorKind::AddrInUse => {
                    "end who listens there (another group's daemon on this host may), or choose \
                     another port"
                }
                ErrorKind::AddrNotAvailable => "choose an address of this host",
                _ => "choose another address and port",
            };
            bail!("cannot listen at [{key}] listen = {at}: {error}\n  remedy: {remedy}")
        }
    }
}

#[cfg(test)]
mod tests;
