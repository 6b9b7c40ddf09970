//! Which tunnel a verb is about.

use super::Failure;
use clap::Args;
use holdfast_program::exit;
use std::path::{Path, PathBuf};

/// Where the files of a host's tunnels are; those of its groups are in the folder above.
pub const FOLDER: &str = "/etc/holdfast/tunnel";

/// The tunnel, by its name or by its file.
#[derive(Args, Debug)]
pub struct FileArgs {
    /// The tunnel's name, which stands for its peer: its file is /etc/holdfast/tunnel/PEER.toml.
    /// Not needed where that is the only one.
    #[arg(value_name = "PEER", conflicts_with = "config")]
    name: Option<String>,
    /// This end's file, if it lies elsewhere.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl FileArgs {
    /// The path of the file.
    ///
    /// # Errors
    /// If no tunnel is named, and there is none or there are several, with a remedy.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        let folder = Path::new(FOLDER);
        match (&self.config, &self.name) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(name)) => named(folder, name).map_err(usage),
            (None, None) => only_one(folder).map_err(usage),
        }
    }

    /// As [`Self::path`], for verbs that are about the file itself: a word that can only be a path is one.
    ///
    /// # Errors
    /// As [`Self::path`].
    pub fn path_or_file(&self) -> Result<PathBuf, Failure> {
        match &self.name {
            Some(word)
                if word.contains('/') || word.ends_with(".toml") || Path::new(word).is_file() =>
            {
                Ok(word.into())
            }
            _ => self.path(),
        }
    }
}

fn usage(message: String) -> Failure {
    Failure::new(exit::USAGE, message)
}

fn named(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let path = folder.join(format!("{name}.toml"));
    if name.contains('/') {
        return Err(format!(
            "`{name}` is no name\n  remedy: for a file elsewhere: --config {name}"
        ));
    }
    if !path.exists() {
        let remedy = match &names(folder)[..] {
            [] => format!("write {}: docs/TUNNEL.md has one to start from", path.display()),
            names => format!("one of: {}", names.join(", ")),
        };
        return Err(format!("there is no {}\n  remedy: {remedy}", path.display()));
    }
    Ok(path)
}

fn only_one(folder: &Path) -> Result<PathBuf, String> {
    let shown = folder.display();
    match &names(folder)[..] {
        [only] => Ok(folder.join(format!("{only}.toml"))),
        [] => Err(format!(
            "no tunnel is named, and {shown} has no file of one\n  remedy: --config FILE, this end's \
             file"
        )),
        several => Err(format!(
            "no tunnel is named, and {shown} has several\n  remedy: one of: {}",
            several.join(", ")
        )),
    }
}

/// The names of the tunnels in a folder, in order; hidden files are being written.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let name = |path: PathBuf| {
        let is_file = path.extension().is_some_and(|it| it == "toml");
        path.file_stem().filter(|_| is_file).map(|it| it.to_string_lossy().into_owned())
    };
    let found = entries.filter_map(|entry| name(entry.path())).filter(|it| !it.starts_with('.'));
    let mut names: Vec<String> = found.collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_checks_a_file_may_write_its_path() {
        let of = |name: &str| FileArgs { name: Some(name.to_owned()), config: None };
        for path in ["/etc/wan.toml", "./wan", "wan.toml"] {
            assert_eq!(of(path).path_or_file().expect("a path"), Path::new(path));
        }
        let named =
            of("no-such-tunnel").path_or_file().expect_err("a name, as other verbs take it");
        assert!(named.to_string().contains("/etc/holdfast/tunnel/no-such-tunnel.toml"), "{named}");
        let elsewhere = FileArgs { name: None, config: Some("x.toml".into()) };
        assert_eq!(elsewhere.path_or_file().expect("a path"), Path::new("x.toml"));
    }

    #[test]
    fn a_name_stands_for_a_file_and_none_for_the_only_one() {
        let folder = std::env::temp_dir().join(format!("hf-tunnels-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = |name: &str| folder.join(name);
        assert!(only_one(&folder).expect_err("none").contains("has no file of one"));
        assert!(named(&folder, "wan").expect_err("none").contains("docs/TUNNEL.md"));
        for name in ["wan.toml", "wan.key", ".new.toml"] {
            std::fs::write(file(name), "").expect("a file");
        }
        assert_eq!(only_one(&folder), Ok(file("wan.toml")));
        assert_eq!(named(&folder, "wan"), Ok(file("wan.toml")));
        assert!(named(&folder, "van").expect_err("none").ends_with("remedy: one of: wan"));
        assert!(named(&folder, "./wan.toml").expect_err("a file").contains("--config ./wan.toml"));
        std::fs::write(file("lan.toml"), "").expect("a file");
        assert!(only_one(&folder).expect_err("two").ends_with("one of: lan, wan"));
        std::fs::remove_dir_all(&folder).expect("a folder");
    }
}
