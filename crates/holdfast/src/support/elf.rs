//! What an ELF file says about itself: whether the shim can be loaded into it, and which functions
//! it takes from its libraries. Files are anybody's, so every step is total, and has a limit.

use object::LittleEndian;
use object::elf::{
    self, DT_AUDIT, DT_DEPAUDIT, DT_NEEDED, DT_NULL, Dyn64, FileHeader64, PF_X, PT_DYNAMIC,
    PT_INTERP, PT_LOAD, ProgramHeader64,
};
use object::read::SectionIndex;
use object::read::elf::{
    Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable, Sym as _,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Most bytes of a file that are looked at.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Most symbols of one file.
const SYMBOLS_MAX: usize = 1 << 20;
/// Longest name of a function, of a library, and of a loader, in bytes.
const NAME_BYTES_MAX: usize = 4096;
/// Most bytes that are looked at for the names of one file.
const NAMES_BYTES_MAX: usize = 64 << 20;
/// Most program headers of one file; usual are a dozen.
const HEADERS_MAX: u16 = 64;
/// Size of a page of memory.
const PAGE_BYTES: u64 = 4096;
/// End of the addresses that a file may choose by itself: the loader's own code, stack and heap are
/// above, wherever the kernel puts them.
const FIXED_END: u64 = 1 << 44;
/// Most numbers of system calls that are told of one file.
const OWN_CALLS_MAX: usize = 8;
/// Highest number of a system call.
const CALL_MAX: u32 = 511;
/// Section in which the Go linker says how the program was made, and owner of the note that it
/// writes, which `strip` leaves. Their text alone may stand in any program.
const GO_SECTION: &[u8] = b".go.buildinfo";
const GO_NOTE: &[u8] = b"Go";
/// Most notes of one file; usual are three.
const NOTES_MAX: usize = 64;
/// Where an ELF file says for which class of machine it is, and for which machine.
const CLASS_AT: usize = 4;
const MACHINE_AT: usize = 18;

/// An ELF file for this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elf {
    /// The loader that it names; none if it is linked statically, or a library.
    pub interpreter: Option<PathBuf>,
    /// Whether it has libraries, or is one.
    pub is_dynamic: bool,
    /// Libraries that it names, in its order.
    pub needed: Vec<String>,
    /// Functions that it takes from others.
    pub imports: BTreeSet<String>,
    /// Why the loader is not asked about it, for it could run the file's code, or modules that the
    /// file names, while it looks at the file.
    pub unlisted: Option<&'static str>,
    pub is_go: bool,
    /// Numbers of system calls that it makes without libc, some of them.
    pub own_calls: Vec<u32>,
}

/// Why nothing can be said of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strange {
    /// It is no ELF file.
    Other,
    /// It is one for another machine: which.
    Foreign(String),
    /// It is damaged, or larger than is looked at.
    Damaged(String),
}

/// Reads a file, up to a limit.
///
/// # Errors
/// As open(2) and read(2).
pub fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads what a file says.
///
/// # Errors
/// [`Strange`].
pub fn parse(bytes: &[u8]) -> Result<Elf, Strange> {
    if !bytes.starts_with(&elf::ELFMAG) {
        return Err(Strange::Other);
    }
    check_machine(bytes)?;
    let damaged = |error: object::Error| Strange::Damaged(error.to_string());
    let header = Header::parse(bytes).map_err(damaged)?;
    let headers = program_headers(header, bytes)?;
    let mut found = Elf::default();
    // Segments may overlap: what many of them have is looked at no more often than it is there.
    let mut left = bytes.len();
    for segment in headers {
        let data = segment.data(LittleEndian, bytes).unwrap_or_default();
        // The kernel takes the first.
        if segment.p_type(LittleEndian) == PT_INTERP && found.interpreter.is_none() {
            let name = name_at(data, 0)
                .ok_or_else(|| Strange::Damaged("the name of its loader has no end".to_owned()))?;
            found.interpreter = Some(std::ffi::OsStr::from_bytes(name).into());
        }
        if segment.p_type(LittleEndian) == PT_LOAD && segment.p_flags(LittleEndian) & PF_X != 0 {
            note_own_calls(within(data, &mut left), &mut found.own_calls);
        }
    }
    // Without sections, as in a file that was stripped of all, its functions stay unknown.
    let sections = header.sections(LittleEndian, bytes).map_err(damaged)?;
    found.is_go = is_go(headers, &sections, bytes);
    let entries = entries_in_memory(header, headers, &sections, bytes);
    found.is_dynamic = !matches!(entries, Ok([]));
    found.unlisted = match entries {
        Ok(entries) => entries.iter().any(is_audit).then_some("it names modules of LD_AUDIT"),
        Err(why) => Some(why),
    };
    let mut names = Names { left: NAMES_BYTES_MAX };
    read_needed(&sections, bytes, &mut names, &mut found)?;
    read_imports(&sections, bytes, &mut names, &mut found)?;
    Ok(found)
}

type Header = FileHeader64<LittleEndian>;
type Segment = ProgramHeader64<LittleEndian>;
type Entry = Dyn64<LittleEndian>;

/// Its program headers, where the loader sees the same ones: that takes the header by the letter,
/// with headers at the file's begin, and a number that stands for a larger one elsewhere.
fn program_headers<'a>(header: &Header, bytes: &'a [u8]) -> Result<&'a [Segment], Strange> {
    let number = header.e_phnum(LittleEndian);
    if number > HEADERS_MAX {
        return Err(Strange::Damaged(format!("it has more than {HEADERS_MAX} segments")));
    }
    if number > 0 && header.e_phoff(LittleEndian) == 0 {
        return Err(Strange::Damaged("its segments are said to be nowhere".to_owned()));
    }
    let headers = header.program_headers(LittleEndian, bytes);
    headers.map_err(|error| Strange::Damaged(error.to_string()))
}

/// The dynamic entries as the loader would see them in memory, none of a file that has none; or why
/// nobody can be sure of them. What is not plain here is no program of a usual linker.
fn entries_in_memory<'a>(
    header: &Header,
    headers: &[Segment],
    sections: &SectionTable<'a, Header>,
    bytes: &'a [u8],
) -> Result<&'a [Entry], &'static str> {
    let of = |kind| headers.iter().filter(move |it| it.p_type(LittleEndian) == kind);
    check_places(header, of(PT_LOAD))?;
    let mut section = sections.iter().filter(|it| it.sh_type(LittleEndian) == elf::SHT_DYNAMIC);
    let mut all = of(PT_DYNAMIC);
    let Some(dynamic) = all.next() else {
        let is_none = section.next().is_none();
        return if is_none { Ok(&[]) } else { Err("it has a dynamic section, but no segment") };
    };
    let range = dynamic.file_range(LittleEndian);
    if all.next().is_some() {
        return Err("it has more than one dynamic segment");
    }
    if section.any(|it| it.file_range(LittleEndian) != Some(range)) {
        return Err("its dynamic section is not its dynamic segment");
    }
    if !is_mapped_from_there(dynamic, of(PT_LOAD)) {
        return Err("its dynamic segment is not what would be loaded");
    }
    let entries = dynamic.dynamic(LittleEndian, bytes).ok().flatten();
    let entries = entries.ok_or("its dynamic segment is not in the file")?;
    // The loader reads on until it finds the end, wherever that is.
    let end = entries.iter().take(SYMBOLS_MAX).position(|it| it.d_tag(LittleEndian) == DT_NULL);
    end.map(|end| &entries[..=end]).ok_or("its dynamic segment has no end")
}

/// Whether segments come one after the other, and none at a place where the loader may be itself:
/// it maps each where the file says, over whatever is there.
fn check_places<'a>(
    header: &Header,
    loads: impl Iterator<Item = &'a Segment>,
) -> Result<(), &'static str> {
    let mut end = 0;
    for load in loads {
        let (from, to) = pages_of(load).ok_or("a segment of it is larger than memory")?;
        if from < end || load.p_filesz(LittleEndian) > load.p_memsz(LittleEndian) {
            return Err("its segments lie over each other");
        }
        end = to;
    }
    match header.e_type(LittleEndian) == elf::ET_EXEC && end > FIXED_END {
        true => Err("it would lie where the loader may be"),
        false => Ok(()),
    }
}

/// Pages of memory that a segment takes.
fn pages_of(load: &Segment) -> Option<(u64, u64)> {
    let from = load.p_vaddr(LittleEndian);
    let to = from.checked_add(load.p_memsz(LittleEndian))?.checked_next_multiple_of(PAGE_BYTES)?;
    Some((from - from % PAGE_BYTES, to))
}

/// Whether the memory in which the loader looks for dynamic entries is mapped from the place in the
/// file that their header names: the loader reads only where they are in memory.
fn is_mapped_from_there<'a>(
    dynamic: &Segment,
    mut loads: impl Iterator<Item = &'a Segment>,
) -> bool {
    let of = |it: &Segment| {
        let (offset, len) = it.file_range(LittleEndian);
        (it.p_vaddr(LittleEndian), offset, len)
    };
    let (at, offset, len) = of(dynamic);
    // No two segments share a page: one that has all of it is the only one.
    loads.any(|load| {
        let (load_at, load_offset, load_len) = of(load);
        let Some(within) = at.checked_sub(load_at) else { return false };
        let is_in = within.checked_add(len).is_some_and(|end| end <= load_len);
        let is_even = load_at % PAGE_BYTES == load_offset % PAGE_BYTES;
        is_in && is_even && load_offset.checked_add(within) == Some(offset)
    })
}

/// The begin of `data`, of at most as many bytes as are left; fewer are then.
fn within<'a>(data: &'a [u8], left: &mut usize) -> &'a [u8] {
    let begin = &data[..data.len().min(*left)];
    *left -= begin.len();
    begin
}

fn is_audit(entry: &Entry) -> bool {
    matches!(entry.d_tag(LittleEndian), DT_AUDIT | DT_DEPAUDIT)
}

fn check_machine(bytes: &[u8]) -> Result<(), Strange> {
    let damaged = || Strange::Damaged("its header is cut off".to_owned());
    let class = *bytes.get(CLASS_AT).ok_or_else(damaged)?;
    let order = *bytes.get(CLASS_AT + 1).ok_or_else(damaged)?;
    let machine = bytes.get(MACHINE_AT..MACHINE_AT + 2).ok_or_else(damaged)?;
    let machine = match order {
        elf::ELFDATA2MSB => u16::from_be_bytes([machine[0], machine[1]]),
        _ => u16::from_le_bytes([machine[0], machine[1]]),
    };
    let name = match machine {
        elf::EM_X86_64 if class == elf::ELFCLASS64 && order == elf::ELFDATA2LSB => return Ok(()),
        elf::EM_X86_64 => "x32".to_owned(),
        elf::EM_386 => "i386 (32 bits)".to_owned(),
        elf::EM_AARCH64 => "aarch64".to_owned(),
        elf::EM_ARM => "arm".to_owned(),
        elf::EM_RISCV => "riscv".to_owned(),
        elf::EM_PPC64 => "ppc64".to_owned(),
        elf::EM_S390 => "s390".to_owned(),
        other => format!("machine {other}"),
    };
    Err(Strange::Foreign(name))
}

fn is_go(headers: &[Segment], sections: &SectionTable<'_, Header>, bytes: &[u8]) -> bool {
    let is_named =
        |it: &_| sections.section_name(LittleEndian, it).is_ok_and(|name| name == GO_SECTION);
    let notes = headers.iter().filter_map(|it| it.notes(LittleEndian, bytes).ok().flatten());
    let mut notes = notes.flat_map(|notes| notes.map_while(Result::ok)).take(NOTES_MAX);
    sections.iter().any(is_named) || notes.any(|note| note.name() == GO_NOTE)
}

/// Names of one file, as long as there is time to look for them.
struct Names {
    /// Bytes that may still be looked at.
    left: usize,
}

impl Names {
    /// The name that begins at `offset`; none if it is too long for one.
    fn take<'a>(&mut self, strings: &'a [u8], offset: u64) -> Result<Option<&'a [u8]>, Strange> {
        let name = usize::try_from(offset).ok().and_then(|at| name_at(strings, at));
        let seen = name.map_or(NAME_BYTES_MAX, <[u8]>::len) + 1;
        let left = self.left.checked_sub(seen);
        self.left = left.ok_or_else(|| {
            Strange::Damaged(format!("it has more than {NAMES_BYTES_MAX} bytes of names"))
        })?;
        Ok(name)
    }
}

/// The bytes from `at` on that end with NUL, without it; none where that is missing, or far.
fn name_at(strings: &[u8], at: usize) -> Option<&[u8]> {
    let rest = strings.get(at..)?;
    let rest = &rest[..rest.len().min(NAME_BYTES_MAX + 1)];
    memchr::memchr(0, rest).map(|end| &rest[..end])
}

fn read_needed(
    sections: &SectionTable<'_, Header>,
    bytes: &[u8],
    names: &mut Names,
    found: &mut Elf,
) -> Result<(), Strange> {
    let damaged = |error: object::Error| Strange::Damaged(error.to_string());
    let dynamic = sections.dynamic(LittleEndian, bytes).map_err(damaged)?;
    let Some((entries, link)) = dynamic else { return Ok(()) };
    let strings = strings_of(sections, bytes, link).map_err(damaged)?;
    for entry in entries.iter().take(SYMBOLS_MAX) {
        if entry.d_tag(LittleEndian) == DT_NEEDED {
            let name = names.take(strings, entry.d_val(LittleEndian))?;
            found.needed.extend(name.and_then(text).map(str::to_owned));
        }
    }
    Ok(())
}

fn read_imports(
    sections: &SectionTable<'_, Header>,
    bytes: &[u8],
    names: &mut Names,
    found: &mut Elf,
) -> Result<(), Strange> {
    let damaged = |error: object::Error| Strange::Damaged(error.to_string());
    let symbols = sections.symbols(LittleEndian, bytes, elf::SHT_DYNSYM).map_err(damaged)?;
    let strings = strings_of(sections, bytes, symbols.string_section()).map_err(damaged)?;
    for symbol in symbols.iter().take(SYMBOLS_MAX) {
        if symbol.is_undefined(LittleEndian) {
            let name = names.take(strings, symbol.st_name(LittleEndian).into())?;
            let name = name.and_then(text).filter(|name| !name.is_empty());
            found.imports.extend(name.map(str::to_owned));
        }
    }
    Ok(())
}

/// A section of names; empty without one.
fn strings_of<'a>(
    sections: &SectionTable<'a, Header>,
    bytes: &'a [u8],
    link: SectionIndex,
) -> object::Result<&'a [u8]> {
    if link == SectionIndex(0) {
        return Ok(&[]);
    }
    sections.section(link)?.data(LittleEndian, bytes)
}

/// A name that a message can hold.
fn text(name: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_BYTES_MAX)?;
    Some(name).filter(|name| !name.contains(char::is_control))
}

/// Notes system calls in machine code: a number that is loaded into `eax` by the instruction before
/// `syscall`. Other forms exist; random bytes look like this one less than once in 10^12.
fn note_own_calls(code: &[u8], found: &mut Vec<u32>) {
    const LOAD: usize = 5;
    for at in memchr::memmem::find_iter(code, b"\x0f\x05") {
        let Some(load) = at.checked_sub(LOAD).and_then(|from| code.get(from..at)) else { continue };
        let &[0xb8, ref number @ ..] = load else { continue };
        let number = number.first_chunk().map_or(u32::MAX, |number| u32::from_le_bytes(*number));
        if number <= CALL_MAX && !found.contains(&number) && found.len() < OWN_CALLS_MAX {
            found.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own() -> Vec<u8> {
        bytes_of(Path::new("/bin/sh")).unwrap()
    }

    #[test]
    fn a_program_says_what_it_needs() {
        let found = parse(&own()).unwrap();
        assert_eq!(found.interpreter.as_deref(), Some(Path::new("/lib64/ld-linux-x86-64.so.2")));
        assert!(found.is_dynamic && !found.is_go && found.unlisted.is_none());
        assert!(found.needed.iter().any(|name| name == "libc.so.6"), "{found:?}");
        assert!(found.imports.contains("fork") && found.own_calls.is_empty(), "{found:?}");
    }

    /// Holdfast itself has that text, and is no Go program.
    #[test]
    fn a_go_program_is_known_by_its_note_and_not_by_a_text_in_it() {
        let mut talks = own();
        talks.extend_from_slice(b"\xff Go buildinf:");
        assert!(!parse(&talks).unwrap().is_go);
        let mut bytes = own();
        let at = header_at(&bytes, elf::PT_NOTE);
        let (offset, mut note) = (word(&bytes, at + 8) as usize, Vec::new());
        for number in [3u32, 4, 4] {
            note.extend_from_slice(&number.to_le_bytes());
        }
        note.extend_from_slice(b"Go\0\0id\0\0");
        bytes[offset..offset + note.len()].copy_from_slice(&note);
        put(&mut bytes, at + 32, note.len() as u64);
        assert!(parse(&bytes).unwrap().is_go);
        assert!(parse(&without_sections(bytes)).unwrap().is_go);
    }

    #[test]
    fn other_files_are_told_apart() {
        assert_eq!(parse(b"#!/bin/sh\n"), Err(Strange::Other));
        let mut arm = own();
        arm[MACHINE_AT..MACHINE_AT + 2].copy_from_slice(&elf::EM_AARCH64.to_le_bytes());
        assert_eq!(parse(&arm), Err(Strange::Foreign("aarch64".to_owned())));
        arm[CLASS_AT] = elf::ELFCLASS32;
        arm[MACHINE_AT..MACHINE_AT + 2].copy_from_slice(&elf::EM_386.to_le_bytes());
        assert_eq!(parse(&arm), Err(Strange::Foreign("i386 (32 bits)".to_owned())));
        assert!(matches!(parse(&own()[..500]), Err(Strange::Damaged(_))));
        assert!(matches!(parse(b"\x7fELF"), Err(Strange::Damaged(_))));
    }

    /// Where the header of the first segment of this kind is.
    fn header_at(bytes: &[u8], kind: u32) -> usize {
        let of = |it: &usize| bytes[*it..*it + 4] == kind.to_le_bytes();
        (0..).map(|at| 64 + at * 56).find(of).unwrap()
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    }

    fn put(bytes: &mut [u8], at: usize, word: u64) {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Removes what says where sections are.
    fn without_sections(mut bytes: Vec<u8>) -> Vec<u8> {
        put(&mut bytes, 40, 0);
        bytes[60..64].fill(0);
        bytes
    }

    fn unlisted(bytes: &[u8]) -> &'static str {
        parse(bytes).unwrap().unlisted.unwrap_or_default()
    }

    #[test]
    fn modules_are_seen_where_the_loader_sees_them() {
        let mut bytes = own();
        let entries = word(&bytes, header_at(&bytes, PT_DYNAMIC) + 8) as usize;
        assert_eq!(unlisted(&without_sections(bytes.clone())), "");
        for tag in [DT_AUDIT, DT_DEPAUDIT] {
            put(&mut bytes, entries, tag.cast_unsigned());
            assert_eq!(unlisted(&bytes), "it names modules of LD_AUDIT");
            assert_eq!(unlisted(&without_sections(bytes.clone())), "it names modules of LD_AUDIT");
        }
    }

    #[test]
    fn a_file_that_may_look_otherwise_in_memory_is_not_given_to_the_loader() {
        let (first, other) = (own(), header_at(&own(), elf::PT_NOTE));
        let (at, load) = (header_at(&first, PT_DYNAMIC), header_at(&first, PT_LOAD));
        let (offset, place, len) =
            (word(&first, at + 8), word(&first, at + 16), word(&first, at + 32));
        let with = |at: usize, word: u64| {
            let mut bytes = first.clone();
            put(&mut bytes, at, word);
            bytes
        };
        let mut two = first.clone();
        two[other..other + 4].copy_from_slice(&PT_DYNAMIC.to_le_bytes());
        let mut none = first.clone();
        none[at..at + 4].copy_from_slice(&elf::PT_NULL.to_le_bytes());
        let mut endless = first.clone();
        for entry in (offset..offset + len).step_by(16) {
            put(&mut endless, entry as usize, elf::DT_DEBUG.cast_unsigned());
        }
        for (bytes, why) in [
            (two, "more than one"),
            (none, "but no segment"),
            (endless, "has no end"),
            (with(at + 8, offset + 16), "is not its dynamic segment"),
            (without_sections(with(at + 8, offset + 16)), "not what would be loaded"),
            (with(at + 16, place - 16), "not what would be loaded"),
            (without_sections(with(at + 8, u64::MAX)), "not what would be loaded"),
            (with(load + 16, 1 << 40), "over each other"),
            (with(load + 40, u64::MAX), "larger than memory"),
        ] {
            assert!(unlisted(&bytes).contains(why), "{why}: {}", unlisted(&bytes));
        }
        let mut fixed = with(header_at(&first, elf::PT_GNU_STACK) + 16, 1 << 46);
        fixed[16] = elf::ET_EXEC as u8;
        assert_eq!(unlisted(&fixed), "");
        let stack = header_at(&fixed, elf::PT_GNU_STACK);
        fixed[stack..stack + 4].copy_from_slice(&PT_LOAD.to_le_bytes());
        assert!(unlisted(&fixed).contains("where the loader may be"));
    }

    #[test]
    fn the_work_for_a_file_has_limits() {
        let mut many = own();
        many[56..58].copy_from_slice(&(HEADERS_MAX + 1).to_le_bytes());
        assert!(matches!(parse(&many), Err(Strange::Damaged(why)) if why.contains("64 segments")));
        let mut nowhere = own();
        put(&mut nowhere, 32, 0);
        assert!(matches!(parse(&nowhere), Err(Strange::Damaged(why)) if why.contains("nowhere")));
        let mut left = 5;
        let code = [&b"abc"[..], b"def", b"ghi"].map(|data| within(data, &mut left));
        assert_eq!(code, [&b"abc"[..], b"de", b""]);
        let mut endless = vec![b'a'; NAME_BYTES_MAX + 2];
        endless[NAME_BYTES_MAX + 1] = 0;
        assert_eq!(name_at(&endless, 0), None);
        assert_eq!(name_at(&endless, 1).map(<[u8]>::len), Some(NAME_BYTES_MAX));
        assert_eq!(name_at(&endless, usize::MAX), None);
        let mut names = Names { left: NAME_BYTES_MAX + 4 };
        assert_eq!(names.take(&endless, 0), Ok(None));
        assert_eq!(names.take(b"ab\0", 0), Ok(Some(&b"ab"[..])));
        assert!(names.take(b"\0", 0).is_err());
    }

    #[test]
    fn calls_without_libc_are_seen_in_the_code() {
        let mut found = Vec::new();
        note_own_calls(
            b"\x90\xb8\xa9\x01\0\0\x0f\x05\xc3\x0f\x05\xb8\xff\xff\0\0\x0f\x05",
            &mut found,
        );
        assert_eq!(found, [425]);
    }

    proptest! {
        /// No file makes the reader fail otherwise than by saying so.
        #[test]
        fn files_may_be_damaged_anywhere(changes in prop::collection::vec((0usize..4096, any::<u8>()), 1..40), cut in 0usize..8192) {
            static OWN: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
            let mut bytes = OWN.get_or_init(own).clone();
            for (at, byte) in changes {
                let len = bytes.len();
                bytes[at % len] = byte;
                // Sections are at the end.
                bytes[len - 1 - at] ^= byte;
            }
            bytes.truncate(bytes.len() - cut);
            let _ = parse(&bytes);
        }
    }
}
