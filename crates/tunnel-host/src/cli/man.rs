//! The man pages: what clap knows of the verbs, with the exit codes and the files.

use super::{Cli, EXIT_CODES, Failure};
use clap::CommandFactory as _;
use clap_mangen::roff::{Roff, bold, italic, roman};
use holdfast_program::{exit, pages};
use std::path::Path;

/// Places of a tunnel, with what is there. `PEER` is its name.
const FILES: [(&str, &str); 4] = [
    ("/etc/holdfast/tunnel/PEER.toml", "This end's file; any other place will do, with --config."),
    ("/etc/holdfast/tunnel/PEER.key", "Its key, readable by its owner only."),
    ("/run/holdfast/tunnel-PEER.sock", "Where a running tunnel answers (run_dir)."),
    (
        "/usr/share/doc/holdfast/docs/TUNNEL.md",
        "What stands in the file, and what all of it means.",
    ),
];

/// Writes a page for the program and one for each of its verbs.
///
/// # Errors
/// If the directory cannot be written to.
pub fn write(directory: &Path) -> Result<u8, Failure> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    pages::write(&program, directory, &|name| sections(name).render().into_bytes())?;
    Ok(exit::OK)
}

/// The sections that clap does not know.
fn sections(name: &str) -> Roff {
    let mut roff = Roff::default();
    roff.control("SH", ["EXIT STATUS"]).control("nf", []);
    for line in EXIT_CODES.lines().skip(1) {
        roff.text([roman(line)]);
    }
    roff.control("fi", []).control("SH", ["FILES"]);
    for (place, what) in FILES {
        roff.control("TP", []).text([italic(place)]).text([roman(what)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    let others = match name {
        "holdfast-tunnel" => vec![bold("holdfast"), roman("(1)")],
        _ => vec![bold("holdfast-tunnel"), roman("(1), "), bold("holdfast"), roman("(1)")],
    };
    roff.text(others);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_verb_has_a_page_and_a_purpose() {
        let mut program = Cli::command();
        program.clone().debug_assert();
        program.build();
        for verb in program.get_subcommands() {
            assert!(verb.get_about().is_some(), "{} says nothing", verb.get_name());
        }
        let folder = std::env::temp_dir().join(format!("hf-tunnel-man-{}", std::process::id()));
        write(&folder).expect("pages");
        for verb in ["", "-up", "-status", "-key-gen", "-check", "-config-check", "-test", "-plan"]
        {
            let page = folder.join(format!("holdfast-tunnel{verb}.1"));
            let text = fs::read_to_string(&page).expect("a page");
            for section in ["EXIT STATUS", "FILES", "SEE ALSO", "no tunnel answers"] {
                assert!(text.contains(section), "{section} in {}", page.display());
            }
            assert!(!text.contains(".SH EXTRA"), "{text}");
        }
        fs::remove_dir_all(folder).expect("a folder");
    }
}
