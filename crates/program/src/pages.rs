//! Man pages: what clap knows of a program and its verbs, and what it does not.

use clap::Command;
use clap::builder::Resettable;
use clap_mangen::Man;
use std::path::Path;
use std::{fs, io};

/// Writes a page for a program that was built (`Command::build`), and one for each of its verbs that is
/// not hidden. Each ends with the `sections` of its name, which say what the help says at its end.
///
/// # Errors
/// If the directory cannot be written to.
pub fn write(
    program: &Command,
    directory: &Path,
    sections: &dyn Fn(&str) -> Vec<u8>,
) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for verb in program.get_subcommands().filter(|it| !it.is_hide_set()) {
        write(verb, directory, sections)?;
    }
    let man =
        Man::new(program.clone().after_help(Resettable::Reset).after_long_help(Resettable::Reset));
    let mut page = Vec::new();
    man.render(&mut page)?;
    page.extend(sections(program.get_display_name().unwrap_or(program.get_name())));
    fs::write(directory.join(man.get_filename()), page)
}
