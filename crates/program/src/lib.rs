//! What the programs `holdfast`, `holdfast-lab`, `holdfast-watch` and `holdfast-tunnel` share at the
//! command line: the name of their build, the meaning of their exit codes, and the options of verbs for which
//! `holdfast` starts one of the others; and how they speak to a service manager.
#![forbid(unsafe_code)]

mod demo;
pub mod exit;
pub mod notify;
pub mod pages;
mod top;
mod tunnel;

pub use demo::DemoArgs;
pub use top::TopArgs;
pub use tunnel::TunnelArgs;

/// Version and commit of these programs, which are needed to replay a run.
pub const BUILD: &str = env!("HOLDFAST_BUILD");

/// Ends this process with the first panic of any of its threads, after its message: a daemon that
/// has lost a thread must not go on. Call it first.
pub fn abort_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// File name of the laboratory, which is in the folder of `holdfast`.
pub const LAB: &str = "holdfast-lab";

/// File name of the program that looks at groups, which is there, too.
pub const WATCH: &str = "holdfast-watch";

/// File name of the program that is one end of a tunnel, which is there, too.
pub const TUNNEL: &str = "holdfast-tunnel";

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    /// Set for the process that ends.
    const ENDS: &str = "HOLDFAST_TEST_PANICS";

    #[test]
    fn a_thread_that_panics_ends_its_process() {
        if std::env::var_os(ENDS).is_some() {
            super::abort_on_panic();
            let _ = std::thread::spawn(|| panic!("on purpose")).join();
            return;
        }
        let own = std::env::current_exe().expect("the path of this program");
        let name = "tests::a_thread_that_panics_ends_its_process";
        let ended = Command::new(own)
            .args(["--exact", name, "--nocapture"])
            .env(ENDS, "1")
            .output()
            .expect("this program runs again");
        assert_eq!(ended.status.signal(), Some(6), "SIGABRT: {:?}", ended.status);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("on purpose"), "{said}");
    }
}
