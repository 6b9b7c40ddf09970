//! What stands behind `tunnel`.

use clap::Args;
use std::ffi::OsString;

/// The words for `holdfast-tunnel`, which knows them.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct TunnelArgs {
    /// One of its verbs (key, check, up, status, test, plan, config) and what belongs to that; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "VERB")]
    pub words: Vec<OsString>,
}
