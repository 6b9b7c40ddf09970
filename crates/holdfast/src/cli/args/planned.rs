//! Options of the verbs that change a running group as planned.

use super::GroupArgs;
use crate::cli::when::seconds;
use clap::Args;

/// Arguments of `reload`.
#[derive(Args, Debug)]
pub struct ReloadArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// Only say what it would do.
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON object: `applied` and `pending` are lists of `setting`, `before`, `now`, and
    /// what it `needs`.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `switchover`.
#[derive(Args, Debug)]
pub struct SwitchoverArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// Who is to be the primary: the backup, which is the only other member.
    #[arg(long, value_name = "NAME")]
    pub to: Option<String>,
    /// One JSON object: `from`, `to`, `protected_after_ms`.
    #[arg(long)]
    pub json: bool,
    /// Time until it is given up to wait; the switchover goes on. Seconds, or `90s`, `5m`, `1h`.
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = seconds)]
    pub timeout: u64,
}

/// Arguments of `takeover`.
#[derive(Args, Debug)]
pub struct TakeoverArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// The other member's host is off, or at least none of its processes runs and its kernel sends
    /// nothing any more.
    #[arg(long, required = true)]
    pub i_have_powered_it_off: bool,
    /// One JSON object: `primary`, `after_ms`.
    #[arg(long)]
    pub json: bool,
    /// Time until it is given up to wait; the takeover goes on. Seconds, or `90s`, `5m`, `1h`.
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = seconds)]
    pub timeout: u64,
}

/// Arguments of `move`.
#[derive(Args, Debug)]
pub struct MoveArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// Where to: the other member.
    #[arg(long, value_name = "NAME")]
    pub to: String,
    /// One JSON object: `from`, `to`, `moved_after_ms`.
    #[arg(long)]
    pub json: bool,
    /// Time until it is given up to wait. Seconds, or `90s`, `5m`, `1h`.
    #[arg(long, value_name = "TIME", default_value = "300", value_parser = seconds)]
    pub timeout: u64,
}
