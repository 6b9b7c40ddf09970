//! What can be typed, and the help that teaches it.

mod init;
mod planned;

pub use init::{InitArgs, JoinArgs, Listen, SetUpArgs, service};
pub use planned::{MoveArgs, ReloadArgs, SwitchoverArgs, TakeoverArgs};

use super::when;
use crate::admin::Level;
use crate::config::Run;
use crate::status::State;
use clap::{Args, Parser, Subcommand, ValueEnum};
use holdfast_program::{DemoArgs, TopArgs, TunnelArgs};
use std::path::PathBuf;
use std::time::SystemTime;

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  fine
  1  it works, but not as it should (UNPROTECTED, diverged, a check failed),
     or a daemon could not start or go on (a port is taken, an interface is missing)
  2  wrong usage or configuration
  3  not permitted: run it as root
  4  the daemon or the peer does not answer
  5  fenced: this member may not speak for the service address";

/// An unmodified server outlives its machine.
///
/// A primary and a backup run the same server in lockstep. When
/// the primary dies, the backup continues every TCP connection, byte for byte,
/// and no client notices more than a pause of milliseconds.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version = holdfast_program::BUILD, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
    /// When to use colours; NO_COLOR is respected.
    #[arg(long, global = true, value_enum, default_value_t = Colour::Auto, value_name = "WHEN")]
    pub color: Colour,
    /// Also log how links to other daemons open and fail; twice: what is said on them.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// How a daemon writes its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line: time, level, group, role, what, detail.
    Json,
}

/// Options of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Options of a daemon's log.
#[derive(Args, Clone, Copy, Debug)]
pub struct LogArgs {
    /// How the log is written; without it, as the variable HOLDFAST_LOG_FORMAT says, or as text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// Options of `witness`.
#[derive(Args, Clone, Debug)]
pub struct WitnessArgs {
    /// The file of a group that it serves; once for each group.
    #[arg(short, long, value_name = "FILE", required = true)]
    pub config: Vec<PathBuf>,
    #[command(flatten)]
    pub log: LogArgs,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    Auto,
    Always,
    Never,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make a group of three hosts, without looking a value up.
    ///
    /// Say it on the host that is to be the witness of two members (they share one segment with
    /// their clients' router), or with --edge on the one in front of them. It prints what to type
    /// on the two others, waits for them, and learns from them what the group's file needs:
    ///
    /// holdfast init demo --service 10.9.0.100:6379 --command '/usr/bin/redis-server --bind * --save ""'
    ///
    /// Nothing is written anywhere before all three can write it. The same file is then on all of
    /// them, and a key that each has made for itself (--shared-key: one for all). What a host lacks
    /// is printed with remedies, and systemd starts the daemons, where it runs and has the unit
    /// holdfast@. Ctrl-C before that leaves nothing but hidden files
    /// (`.demo.toml.new`), which the next one removes.
    ///
    /// The exit code is 0 if all is written, 1 if a host does not fit or lacks something, 2 if the
    /// options are wrong or a file is there already, 4 if nobody came in time.
    Init(InitArgs),
    /// Make this host a member of the group that `holdfast init` makes on another one.
    ///
    /// The line to type is what init prints. This host's name, address, interface and hardware
    /// address go over, encrypted with the code, and the public half of a key that it makes; the
    /// group's file comes back. With `init --shared-key` the key of all comes, too.
    ///
    /// The exit code is 0 if all is written, 1 if this host does not fit or lacks something, 2 if
    /// the code is wrong, 4 if nobody answers.
    Join(JoinArgs),
    /// Run this host's daemon: edge, witness, or a member.
    ///
    /// The same file is used on all three hosts; the role is the one whose
    /// address belongs to this host, or the one given with --role. A member
    /// asks the edge, or the witness, whether it is the primary or the backup. The daemon stays
    /// in the foreground and ends on SIGTERM or SIGINT: a protected primary hands
    /// over to its backup first, a member removes what it has put into its host,
    /// an edge leaves its programs at work (see `holdfast down`). On SIGHUP it reads its
    /// file again (see `holdfast reload`).
    ///
    /// The exit code is 0 after a signal, 1 if it could not start or go on, 2 if its
    /// file is wrong, 3 without the rights.
    Run(RunArgs),
    /// Run the arbiter of pairs without an edge, on any third host.
    ///
    /// It says which of two members owns a service when they do not hear each other, once per
    /// takeover; nothing of a client passes it. One witness serves any number of groups: give it
    /// the file and the key of each. While it is away, pairs go on, and nobody can take over.
    /// `holdfast run` with the role `witness` does the same for one group.
    Witness(WitnessArgs),
    /// Is the group protected? Show role, epoch, lag and the last takeover.
    ///
    /// The exit code says it too: 0 protected, 1 not, 4 no answer, 5 fenced.
    Status(StatusArgs),
    /// Watch the groups of this host in the terminal: state, hosts, lag, events, the last takeover.
    ///
    /// Every group for which a daemon runs here, live, with a key for each of what it shows (`?` tells
    /// which). It asks the daemons' admin sockets and changes nothing. For programs there is
    /// `holdfast status --json`.
    /// Runs `holdfast-watch top`, which stands beside this program. NO_COLOR is respected.
    Top(TopArgs),
    /// Show what a daemon has done: roles, takeovers, lost peers.
    ///
    /// Also what it had done before it was started again, and where none runs: its events are kept
    /// on this host (`[group] events_dir`), each of its lives with numbers of its own.
    Events(EventsArgs),
    /// Show each takeover that this host remembers: cause, parts, connections.
    ///
    /// From the events that the survivor and the edge keep. A host that was down, or a member that
    /// was replaced, knows nothing of it: ask the other hosts, too.
    History(HistoryArgs),
    /// Gather what somebody needs who helps you, in one file without secrets.
    ///
    /// Version, status, events, history, counters, the file in force, `check`, the kernel's view of
    /// the network, and limits of daemon and server. The key is never read; arguments and variables
    /// of the server and of hooks are masked. Look at it before you hand it on: names, addresses
    /// and paths of your hosts are in it. What cannot be had is named in it, and on standard error.
    Report(ReportArgs),
    /// Can this machine do the work? One line per requirement, with a remedy.
    ///
    /// It also compares the group's file, the named one or the only one in /etc/holdfast with a role for this host,
    /// with it: interfaces, addresses, ports that others hold, key, return path. Run it before the first start.
    Check(CheckArgs),
    /// Remove what the daemons of this host leave: filters, addresses, mounts, servers.
    ///
    /// A daemon may die without the service: much of its work is done by programs
    /// in the kernel, which stay when it is killed, and on an edge also when it is
    /// stopped. This verb takes all of it out of the host, so that a plain server
    /// may use the service address again; said twice it does nothing. It refuses
    /// while the daemon runs, unless --stop is given. Take the members down before
    /// the edge, whose fence lets only one of them speak. The edge's state file, or a
    /// witness's state_dir, stays: remove it by hand only if the group will never start
    /// again, or if the member that was current never comes back (docs/STATUS.md).
    ///
    /// The exit code is 0 if nothing is left, 1 if a daemon runs or something could
    /// not be removed.
    Down(DownArgs),
    /// Make the backup the primary, and the primary its backup: planned, no client loses a
    /// byte.
    ///
    /// For maintenance or an upgrade of the primary's host, to be asked there. It waits
    /// until the group is protected again, the other way round.
    Switchover(SwitchoverArgs),
    /// Have this host's daemon read its changed file, and take over what it can.
    ///
    /// Nothing is ended by it, and SIGHUP does the same. Edges, host servers, edges of strings and
    /// witnesses take over nearly everything: their data path goes on in the kernel while they begin
    /// anew. A member takes over what does not concern its server. What has changed and needs more
    /// (a restart, of one daemon or of several, and in which order) is listed, and the exit code is
    /// 1 then. A file that is wrong changes nothing.
    Reload(ReloadArgs),
    /// Move the server, with its connections, from this host to the other member's, and end
    /// the daemon here: planned, no client loses a byte.
    ///
    /// To be asked on the host that serves, with or without a backup: the other member's
    /// daemon must run, or be started meanwhile. It waits until that one has joined, which
    /// then takes over and serves alone; here nothing of Holdfast is left. If this daemon is
    /// started again, it joins as a backup.
    Move(MoveArgs),
    /// Have this host's member take over after the silent death of the other one's host: a pair
    /// with `[arbiter] none = true`, or whose command failed.
    ///
    /// Nobody but you can say that the other host is off. It must stay off until this member
    /// serves; and if it had gone on alone before (its log and its last status say so), what it
    /// told its clients since is lost.
    Takeover(TakeoverArgs),
    /// Write packets that the programs changed, moved or dropped, with the reason.
    ///
    /// A pcapng file with a comment per packet, for Wireshark or tshark:
    ///
    /// holdfast capture --config FILE -o - | wireshark -k -i -
    ///
    /// Packets are cut after 256 bytes; they pass no slower for being watched.
    Capture(CaptureArgs),
    /// Make keys, and tell public keys.
    #[command(subcommand)]
    Key(KeyVerb),
    /// Check, show or begin a configuration file.
    #[command(subcommand)]
    Config(ConfigVerb),
    /// See it work: takeovers under load, in network namespaces of this machine.
    ///
    /// Runs `holdfast-lab demo`, which stands beside this program.
    /// The exit code is 0 only if every byte of every client was right.
    Demo(DemoArgs),
    /// Carry traffic between two hosts over a path that loses packets; it has verbs of its own.
    #[command(disable_help_flag = true)]
    Tunnel(TunnelArgs),
    /// The laboratory is a program of its own: holdfast-lab.
    #[command(hide = true, disable_help_flag = true)]
    Lab {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Will my program work? Which of its calls are replayed, passed or refused, and what it needs.
    ///
    /// Looks at the program's file and at its libraries, follows scripts and launchers to it, and
    /// knows what became of the servers that were tried. Nothing of it is run, unless --try is
    /// given. Without a program: what the shim does with each call. For example:
    ///
    /// holdfast support redis-server /etc/redis.conf
    ///
    /// holdfast support --try redis-server --port 7000 -- redis-cli -p 7000 incr x
    ///
    /// The exit code is 1 if it is refused, or if a trial shows that it would lose its protection;
    /// else 0.
    Support(SupportArgs),
    /// Print a completion script for a shell.
    ///
    /// For example: holdfast completions bash > /etc/bash_completion.d/holdfast
    Completions { shell: clap_complete::Shell },
    /// Write the man pages into a directory.
    Man { directory: PathBuf },
    /// Look at an edge: what it serves, and where a packet would go.
    #[command(subcommand)]
    Edge(EdgeVerb),
    /// Which build is this? Its release and commit, and the versions of what it says to others.
    ///
    /// Hosts whose messages have a version in common understand each other; both members need the
    /// same log and image (docs/OPERATE.md, upgrade).
    Version {
        /// One JSON object of the schema holdfast.version/1.
        #[arg(long)]
        json: bool,
    },
}

/// Which group and which daemon of it.
#[derive(Args, Clone, Debug)]
pub struct GroupArgs {
    /// The group's file, the same on all hosts. Without it, the only one in /etc/holdfast that gives
    /// this host a role.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// `edge`, `witness` or a member's name; without it, the role whose address this host has.
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// One JSON object of the schema holdfast.status/1 per answer.
    #[arg(long)]
    pub json: bool,
    /// Show it again every second until interrupted.
    #[arg(long, conflicts_with = "wait")]
    pub watch: bool,
    /// Wait until the state is STATE, for example `protected`.
    ///
    /// For `protected` it gives up at once, with exit code 1 or 5, where the group cannot
    /// become it by itself: the server has ended, a member has given up too often to join
    /// again, or both have to be restarted.
    #[arg(long, value_name = "STATE")]
    pub wait: Option<State>,
    /// Give up waiting after so long: seconds, or `90s`, `5m`, `1h`.
    #[arg(long, value_name = "TIME", default_value = "60", requires = "wait", value_parser = when::seconds)]
    pub timeout: u64,
}

/// Arguments of `events`.
#[derive(Args, Debug)]
pub struct EventsArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// One JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// Go on with what happens from now on.
    #[arg(long)]
    pub follow: bool,
    /// Only those since then: `90s`, `15m`, `2h` or `3d` ago, or a time as 2026-11-21T08:00:00Z.
    #[arg(long, value_name = "WHEN", value_parser = when::parse)]
    pub since: Option<SystemTime>,
    /// Only events of this name; may be given more than once.
    #[arg(long, value_name = "NAME")]
    pub what: Vec<String>,
    /// Only events of this level, or worse.
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub level: Option<Level>,
}

/// Arguments of `history`.
#[derive(Args, Debug)]
pub struct HistoryArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// One JSON object of the schema holdfast.history/1 per takeover.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// Where to: FILE.tar.gz, FILE.tar, or `-` for standard output; without it, a name with the
    /// group's, the role and the time.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also the last lines of the server's log, which may hold what its clients said.
    #[arg(long)]
    pub with_server_log: bool,
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Compare this file with the host.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// `edge`, `near`, `far`, or the name of a member or host server; without it, the
    /// role whose address this host has.
    #[arg(long, value_name = "ROLE", requires = "config")]
    pub role: Option<String>,
    /// Also watch for so many seconds how long this host's processors stand still, and say which
    /// `heartbeat_ms` and lease that bears. A minute while the host is as busy as it gets tells most.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub pauses: Option<u32>,
    /// One JSON object of the schema holdfast.check/1.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `support`.
#[derive(Args, Debug)]
pub struct SupportArgs {
    /// The program, by its path or by its name in PATH, and its arguments; options of this verb
    /// come before it. Behind `--`: a client for --try.
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// The server of this file, with its settings and its needs of this host.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// As `[server] run` would say it.
    #[arg(long, value_name = "HOW", conflicts_with = "config", value_parser = run_of_word)]
    pub run: Option<Run>,
    /// Run it, too, under the shim: in an empty network of its own, in an empty folder, with its
    /// client, and then once more from the log, as a backup does. Files that it names by absolute
    /// paths are the real ones: what it writes there stays when the trial is over. Needs root.
    #[arg(long = "try", conflicts_with = "config")]
    pub try_it: bool,
    /// With --try: how long it runs; less, if its client ends before.
    #[arg(long, value_name = "SECONDS", requires = "try_it", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// With --try: whom it runs as. As root it may leave files behind (pid files, logs, state) that its
    /// own user cannot write over later.
    #[arg(long, value_name = "NAME", requires = "try_it", default_value = "nobody")]
    pub user: String,
    /// The whole page, as docs/SUPPORT.md has it.
    #[arg(long, conflicts_with_all = ["command", "config", "json"])]
    pub markdown: bool,
    /// One JSON object: of the schema holdfast.support/1 with a program, of
    /// holdfast.support-table/1 without.
    #[arg(long)]
    pub json: bool,
}

/// Reads what `[server] run` can be.
fn run_of_word(word: &str) -> Result<Run, String> {
    let all = [Run::Auto, Run::Parallel, Run::OneAtATime];
    let words = all.map(Run::word).join(", ");
    all.into_iter().find(|run| run.word() == word).ok_or_else(|| format!("one of: {words}"))
}

/// Arguments of `down`.
#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// Stop the daemon first, if it runs; a protected primary hands over.
    #[arg(long)]
    pub stop: bool,
    /// One JSON object of the schema holdfast.down/1.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `capture`.
#[derive(Args, Debug)]
pub struct CaptureArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// Where to; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// End after so many packets.
    #[arg(long, value_name = "COUNT")]
    pub packets: Option<u64>,
    /// End after so many seconds; else with Ctrl-C.
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
}

/// What can be done with keys.
#[derive(Debug, Subcommand)]
pub enum KeyVerb {
    /// Print a new random key: (umask 077; holdfast key gen > /etc/holdfast/demo.key)
    ///
    /// Either all hosts of a group hold the same key: whoever has it can read the log,
    /// acknowledge input and become the primary. Or each host has one of its own, and
    /// the file names the public keys (`key pub`).
    Gen,
    /// Print the public key of a key file, for public_keys in the group's file.
    ///
    /// Of a file with two keys, both, in their order; one that is marked `shared` has none.
    Pub {
        /// The key file; without it, standard input.
        file: Option<PathBuf>,
    },
}

/// What can be done with configuration files.
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Read a file and its key; every mistake comes with its place and a remedy.
    Check {
        file: PathBuf,
        /// One JSON object of the schema holdfast.check/1.
        #[arg(long)]
        json: bool,
    },
    /// Print a file, if it is understood; with what it leaves out, if asked.
    Show {
        file: PathBuf,
        /// With every default written out.
        #[arg(long)]
        effective: bool,
    },
    /// Print a whole file with comments to start from.
    Example {
        /// Of a spread group instead of a replicated one.
        #[arg(long)]
        spread: bool,
        /// Of a pair without an edge.
        #[arg(long, conflicts_with = "spread")]
        segment: bool,
        /// Of a pair of edges with strings of middleboxes between them.
        #[arg(long, conflicts_with_all = ["spread", "segment"])]
        transit: bool,
    },
}

/// What can be asked of an edge, and done to it.
#[derive(Debug, Subcommand)]
pub enum EdgeVerb {
    /// Show services, members, flows and what the edge has counted.
    Show(EdgeShowArgs),
    /// Where would this packet go, and how would it be rewritten?
    ///
    /// Asks the loaded program itself, with a packet made for the purpose, which
    /// leaves no trace: nothing is counted, remembered or sent. For example:
    /// holdfast edge trace '10.0.0.1:4242>10.9.0.100:80' --config FILE
    Trace(EdgeTraceArgs),
    /// Give a host server of a spread group no new connections.
    ///
    /// Those that it has stay with it until they end.
    Drain(EdgeDrainArgs),
    /// Should this edge get clients' packets? Exit code 0 if so, 1 if not, 4 without an answer.
    ///
    /// For whoever moves them between several edges of a spread group: keepalived's
    /// `track_script`, or a routing daemon's check. An edge that hears no host
    /// server says no.
    Healthy(EdgeHealthyArgs),
    /// Close the service: no member speaks until `edge unfence`.
    ///
    /// The edge remembers it: neither a member nor a restart of the edge's daemon or
    /// host opens it. An edge of strings lets nothing into them, until its host boots or
    /// `holdfast down`.
    Fence(EdgeFenceArgs),
    /// Let the current member speak again, or flows go through the strings.
    Unfence(EdgeUnfenceArgs),
}

/// Arguments of `edge healthy`.
#[derive(Args, Debug)]
pub struct EdgeHealthyArgs {
    #[command(flatten)]
    pub group: GroupArgs,
}

/// Arguments of `edge fence`.
#[derive(Args, Debug)]
pub struct EdgeFenceArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// The admin socket's answer, one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Only until a backup takes over, or the daemon ends; for tests.
    #[arg(long, hide = true)]
    pub until_takeover: bool,
}

/// Arguments of `edge unfence`.
#[derive(Args, Debug)]
pub struct EdgeUnfenceArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// The admin socket's answer, one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `edge show`.
#[derive(Args, Debug)]
pub struct EdgeShowArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// One JSON object of the schema holdfast.edge/1.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `edge trace`.
#[derive(Args, Debug)]
pub struct EdgeTraceArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// FROM>TO, both as address and port: '10.0.0.1:4242>10.9.0.100:80'.
    pub flow: String,
    /// A UDP datagram instead of a TCP segment.
    #[arg(long, conflicts_with = "syn")]
    pub udp: bool,
    /// The first segment of a connection instead of a later one.
    #[arg(long)]
    pub syn: bool,
    /// Its payload in bytes, for questions of the MTU.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub payload: u16,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `edge drain`.
#[derive(Args, Debug)]
pub struct EdgeDrainArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// The host server's name.
    pub name: String,
    /// Give it new connections again.
    #[arg(long)]
    pub end: bool,
}
