//! `check` and `config check`: what is wrong with a file, and with this host.

use super::{Failure, say};
use crate::config::Config;
use crate::{control, opening};
use holdfast_program::exit;
use std::path::Path;

/// Reads a file and its key.
///
/// # Errors
/// With all that is wrong.
pub fn file(path: &Path) -> Result<u8, Failure> {
    let config = Config::load(path)?;
    config.secret()?;
    tell(&config, "")
}

/// Also tries what `up` would open here.
///
/// # Errors
/// With all that is wrong.
pub fn file_and_host(path: &Path) -> Result<u8, Failure> {
    let config = Config::load(path)?;
    let mut found: Vec<Failure> = config.secret().err().map(Failure::from).into_iter().collect();
    let is_running = control::is_running(&config);
    if !is_running {
        // What a running tunnel has would be in its own way.
        found.extend(opening::obstacles(&config));
    }
    let Some(first) = found.first() else {
        return tell(
            &config,
            if is_running {
                "; it runs, or its socket is another user's, so ports and interface were not tried"
            } else {
                ""
            },
        );
    };
    let code = first.code;
    let each: Vec<String> = found.iter().map(ToString::to_string).collect();
    Err(Failure::new(code, each.join("\n")))
}

fn tell(config: &Config, more: &str) -> Result<u8, Failure> {
    let to = config.peer_address.map_or("wherever it comes from".to_owned(), |it| it.to_string());
    let (path, mode) = (config.path.display(), config.mode.word());
    say(&format!("{path}: a tunnel of mode {mode} to {to}{more}\n"))?;
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use crate::control::Control;
    use crate::keyfile;
    use clap::Parser as _;
    use std::fs::{Permissions, set_permissions};
    use std::net::UdpSocket;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    #[test]
    fn both_take_a_name_a_file_or_neither() {
        for verb in [&["check"][..], &["config", "check"]] {
            for tunnel in [&["wan"][..], &["/etc/wan.toml"], &["--config", "x"], &[]] {
                let words = [&["holdfast tunnel"], verb, tunnel].concat();
                Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
            }
        }
    }

    /// A file of ports whose key is there: its folder, and its path.
    fn written(name: &str, listen: &str, is_own_peer: bool) -> (PathBuf, PathBuf) {
        let folder = std::env::temp_dir().join(format!("hf-check-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let own = keyfile::generate(&folder.join("a.key")).expect("a key").public();
        let other = holdfast_tunnel::secure::SecretKey::from_random([5; 32]).public();
        let peer = if is_own_peer { own } else { other };
        let text = format!(
            "[tunnel]\nkey = \"a.key\"\nmode = \"udp\"\nlisten = \"{listen}\"\nrun_dir = \"run\"\n\
             allow = [\"udp 10.0.0.5:53\"]\n[peer]\nkey = \"{peer}\"\n"
        );
        let path = folder.join("x.toml");
        std::fs::write(&path, text).expect("a file");
        (folder, path)
    }

    #[test]
    fn the_host_is_looked_at_by_check_and_not_by_config_check() {
        let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let listen = taken.local_addr().expect("an address").to_string();
        let (folder, path) = written("host", &listen, false);
        assert_eq!(file(&path).expect("a good file"), exit::OK);
        let told = file_and_host(&path).expect_err("its port is taken").to_string();
        assert!(
            told.starts_with(&format!("udp {listen}: ")) && told.contains("remedy: "),
            "{told}"
        );
        let run = folder.join("run");
        assert!(!run.exists(), "who only looks makes no folder");

        std::fs::create_dir(&run).expect("a folder");
        let config = Config::load(&path).expect("a good file");
        let control = Control::open(&config).expect("a socket");
        assert_eq!(file_and_host(&path).expect("it runs: the port is its own"), exit::OK);
        control.close();
        drop((control, taken));
        assert_eq!(file_and_host(&path).expect("a free port"), exit::OK);

        set_permissions(&run, Permissions::from_mode(0o777)).expect("a mode");
        let told = file_and_host(&path).expect_err("others may write there").to_string();
        assert!(told.contains("others may write to ") && told.contains("remedy: "), "{told}");
        std::fs::remove_dir_all(folder).expect("a folder");
    }

    #[test]
    fn the_own_key_in_the_peers_place_is_told_beside_what_the_host_lacks() {
        let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let listen = taken.local_addr().expect("an address").to_string();
        let (folder, path) = written("key", &listen, true);
        let own = file(&path).expect_err("its own key").to_string();
        assert!(own.contains("is this end's own") && own.contains("remedy: "), "{own}");
        let both = file_and_host(&path).expect_err("both");
        assert_eq!(both.code, exit::USAGE);
        let both = both.to_string();
        assert!(both.starts_with(&own) && both.contains(&format!("udp {listen}: ")), "{both}");
        std::fs::remove_dir_all(folder).expect("a folder");
    }
}
