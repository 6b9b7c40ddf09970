//! What a server needs of its host before it can be started at all. A member that could
//! never start its own server says so before anybody waits for it.

use super::{find_program, shim_path};
use crate::config::Server;
use anyhow::Context as _;
use holdfast_linux::spawn::{Use, User, try_log, try_use};
use std::path::Path;

/// Something that is missing.
#[derive(Debug, PartialEq, Eq)]
pub struct Lack {
    /// The setting in `[server]` that names it.
    pub key: &'static str,
    pub what: String,
    pub remedy: String,
}

/// What this host lacks to start the server, in the settings' order.
#[must_use]
pub fn lacks(server: &Server) -> Vec<Lack> {
    let runs = program(server).or_else(|| for_user(server));
    let found = [runs, directory(server), log(server), user(server)];
    found.into_iter().flatten().chain(state_dirs(server)).collect()
}

fn program(server: &Server) -> Option<Lack> {
    let name = server.command.first().map_or("", String::as_str);
    find_program(server).is_none().then(|| Lack {
        key: "command",
        what: format!("`{name}` is no program of this host"),
        remedy: "install the same package on both members; binary and libraries are compared when \
                 they meet"
            .to_owned(),
    })
}

/// What the server's user, where it is known, may not run or load. Without the shim, which the loader
/// leaves out without an error, the server would run, and nobody would protect it.
fn for_user(server: &Server) -> Option<Lack> {
    let user = server.user.as_deref().map(user_of).transpose().ok()?;
    let program = find_program(server).map(|path| (path, Use::Run, "run"));
    let shim = shim_path().ok().map(|path| (path, Use::Load, "load"));
    [program, shim].into_iter().flatten().find_map(|(path, wanted, verb)| {
        let error = try_use(user.as_ref(), &path, wanted).err()?;
        let (who, path) = (server.user.as_deref().unwrap_or("this daemon's user"), path.display());
        Some(Lack {
            key: "command",
            what: format!("`{who}` may not {verb} {path}: {error}"),
            remedy: "look at its mode, at those of the folders on its way, and at how its file \
                     system is mounted"
                .to_owned(),
        })
    })
}

fn directory(server: &Server) -> Option<Lack> {
    let path = server.directory.as_deref().filter(|path| !path.is_dir())?;
    Some(missing_folder("directory", path))
}

fn log(server: &Server) -> Option<Lack> {
    let log = server.log.as_deref()?;
    let folder = log.parent()?;
    // A bare name lies in the daemon's own folder.
    let is_there = folder.as_os_str().is_empty() || folder.is_dir();
    if !is_there {
        return Some(missing_folder("log", folder));
    }
    try_log(log).err().map(|error| Lack {
        key: "log",
        what: error.to_string(),
        remedy: "make it a file that can be written, or change `log` in [server]".to_owned(),
    })
}

/// State folders that are missing, or that the server's user, where it is known, cannot write: as
/// that user a joining member fills them. A server may make its own, but a joining member needs
/// them before.
fn state_dirs(server: &Server) -> impl Iterator<Item = Lack> {
    let user = server.user.as_deref().map(user_of).transpose();
    let name = server.user.as_deref().unwrap_or("this daemon's user");
    server.state_dirs.iter().filter_map(move |path| {
        if !path.is_dir() {
            return Some(missing_folder("state_dirs", path));
        }
        let error = try_use(user.as_ref().ok()?.as_ref(), path, Use::Fill).err()?;
        Some(Lack {
            key: "state_dirs",
            what: format!("no file can be made in {} by `{name}`: {error}", path.display()),
            remedy: format!(
                "let `{name}` write it (`chown {name}:`, and how it is mounted), or change \
                 `state_dirs` in [server]"
            ),
        })
    })
}

fn missing_folder(key: &'static str, path: &Path) -> Lack {
    let path = path.display();
    Lack {
        key,
        what: format!("there is no folder {path}"),
        remedy: format!("`mkdir -p {path}` on both members, or change `{key}` in [server]"),
    }
}

fn user(server: &Server) -> Option<Lack> {
    let name = server.user.as_deref()?;
    user_ids(name).err().map(|error| Lack {
        key: "user",
        what: error.to_string(),
        remedy: format!("`useradd --system {name}` on both members, or change `user` in [server]"),
    })
}

/// User and group number of a name of /etc/passwd.
///
/// # Errors
/// If there is none.
pub fn user_ids(name: &str) -> anyhow::Result<(u32, u32)> {
    let table = std::fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    let ids = table.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        let uid = fields.nth(1)?.parse().ok()?;
        Some((uid, fields.next()?.parse().ok()?))
    });
    ids.with_context(|| format!("there is no user `{name}`"))
}

/// A user of /etc/passwd with its groups of /etc/group, as initgroups(3) gives them.
///
/// # Errors
/// If there is none of that name.
pub fn user_of(name: &str) -> anyhow::Result<User> {
    let (uid, gid) = user_ids(name)?;
    let table = std::fs::read_to_string("/etc/group").context("reading /etc/group")?;
    Ok(User { uid, gid, groups: groups_of(&table, name, gid) })
}

/// The groups that list a user, its own one first.
fn groups_of(table: &str, name: &str, own: u32) -> Vec<u32> {
    let lists = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let gid = fields.next()?.parse().ok()?;
        (gid != own && fields.next()?.split(',').any(|it| it == name)).then_some(gid)
    };
    std::iter::once(own).chain(table.lines().filter_map(lists)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Run;
    use std::collections::BTreeMap;

    #[test]
    fn a_user_is_in_the_groups_that_list_it() {
        let table = "postgres:x:104:\nssl-cert:x:103:other,postgres\nempty:x:5:\n\
                     twice:x:104:postgres\nlike:x:6:postgresql,xpostgres\nodd:x:no:postgres\nshort";
        assert_eq!(groups_of(table, "postgres", 104), [104, 103]);
        assert_eq!(user_of("root").unwrap().uid, 0);
    }

    fn whole() -> Server {
        Server {
            command: vec!["/bin/sh".to_owned()],
            directory: None,
            user: Some("root".to_owned()),
            log: Some("server.log".into()),
            state_dirs: vec!["/tmp".into()],
            ring_bytes: 1 << 20,
            aslr: false,
            trap_tsc: false,
            run: Run::Auto,
            env: BTreeMap::new(),
        }
    }

    #[test]
    fn each_thing_that_is_not_there_is_named_with_its_setting() {
        let whole = whole();
        let keys = |server: &Server| lacks(server).iter().map(|lack| lack.key).collect::<Vec<_>>();
        assert_eq!(lacks(&whole), []);
        let lacking = Server {
            command: vec!["/nonexistent".to_owned()],
            directory: Some("/nonexistent".into()),
            log: Some("/nonexistent/server.log".into()),
            user: Some("nobody-of-this-name".to_owned()),
            state_dirs: vec!["/nonexistent".into()],
            ..whole
        };
        assert_eq!(keys(&lacking), ["command", "directory", "log", "user", "state_dirs"]);
        for lack in lacks(&lacking) {
            assert!(lack.what.contains("no") && !lack.remedy.is_empty(), "{lack:?}");
        }
    }

    #[test]
    fn what_is_there_and_of_no_use_is_named_too() {
        let folder = std::env::temp_dir().join(format!("holdfast-lacks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let program = folder.join("program");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&program, mode).unwrap();
        let command = vec![program.display().to_string()];
        let of_nobody = Server { command, user: Some("nobody".to_owned()), ..whole() };
        let what = |server: &Server| lacks(server).first().map(|lack| lack.what.clone());
        let told = what(&of_nobody).expect("only its owner may run it");
        assert!(told.starts_with("`nobody` may not run "), "{told}");
        assert_eq!(what(&Server { user: None, ..of_nobody }), None);
        let log = Some(folder.clone());
        let told = what(&Server { log, ..whole() }).expect("it is a folder");
        assert!(told.contains("the server's log"), "{told}");
        let told = what(&Server { state_dirs: vec!["/proc".into()], ..whole() });
        assert!(told.is_some_and(|told| told.contains("no file can be made in /proc by `root`")));
        let of_root = vec![folder.clone()];
        let told =
            what(&Server { state_dirs: of_root, user: Some("nobody".to_owned()), ..whole() });
        assert!(told.is_some_and(|told| told.contains("by `nobody`: Permission denied")));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
