//! `exec`: the server becomes another program. Launchers do that (`env`, `nice`, a shell script
//! that ends with `exec`), before they have opened any socket: protection goes on, since the log
//! lies in shared memory and the shim is loaded again. A server that replaces itself while it
//! serves ends protection, which is reported; in a family every process may exec, and stays in the
//! log.

use crate::base::cells::SetOnce;
use crate::base::log::{self, Entry};
use crate::base::real::{Real, real};
use crate::base::state::{self, CONTROL_FD, MEMORY_FD, Mode, WAKE_FD, header, inside, mode};
use crate::base::sys::{self, decimal, sys};
use crate::base::table::Call;
use crate::base::{conns, defer, fds, handed, park, quiet, report};
use crate::calls::programs::{self, Next};
use crate::calls::spawn::elsewhere;
use crate::calls::{carry, children, descriptors, family};
use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::*;
use holdfast_wire::hash::hash_pieces;
use holdfast_wire::log::{NO_CONN, Op};
use holdfast_wire::shm::leash as shared_leash;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Longest value of `LD_PRELOAD` that is passed on, in bytes.
const PRELOAD_MAX: usize = 4096;
/// Variable with the folders in which programs are searched.
const PLACES: &[u8] = b"PATH=";
/// Room for the variable with the descriptor numbers, in bytes.
const NUMBERS_MAX: usize = 64;
/// Digits of each number.
const NUMBER_CHARS: usize = 10;

/// Descriptor of the file with what the next program must know; -1 if there is none.
static CARRIED_FD: AtomicI32 = AtomicI32::new(-1);

unsafe extern "C" {
    static environ: *const usize;
}

/// Path of the shim, from the daemon's `LD_PRELOAD`. It is kept because programs may clear or
/// overwrite their environment.
static SHIM: SetOnce<([u8; PRELOAD_MAX], usize)> = SetOnce::new();

/// A null-terminated array of words, such as `argv`.
fn words(mut at: *const usize) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        // SAFETY: the caller's array, up to its null; a null array is empty.
        unsafe {
            if at.is_null() || *at == 0 {
                return None;
            }
            let word = *at;
            at = at.add(1);
            Some(word)
        }
    })
}

fn text(at: usize) -> &'static [u8] {
    // SAFETY: a string of the caller's, which lives until the program ends.
    unsafe { CStr::from_ptr(at as *const c_char) }.to_bytes()
}

/// Remembers the variable that loads the shim; at start-up.
pub fn note_preload(environment: *mut *mut u8) {
    let found = words(environment.cast()).find_map(|it| text(it).strip_prefix(PRELOAD));
    let Some(value) = found.filter(|it| it.len() < PRELOAD_MAX) else { return };
    let mut path = [0; PRELOAD_MAX];
    path[..value.len()].copy_from_slice(value);
    SHIM.set((path, value.len()));
}

/// The environment of the next program: the caller's, with the variables that load the shim and
/// lead it to the same shared memory.
struct Environment {
    at: *mut u8,
    len: usize,
}

impl Environment {
    fn of(theirs: *const usize) -> Option<Self> {
        let shim = SHIM.get().map_or(&[][..], |(path, len)| &path[..*len]);
        let own = words(theirs).find_map(|it| text(it).strip_prefix(PRELOAD)).unwrap_or(b"");
        let slots = words(theirs).count() + 3;
        let len =
            slots * size_of::<usize>() + PRELOAD.len() + shim.len() + own.len() + 2 + NUMBERS_MAX;
        let at = sys::map_anonymous(len);
        if at.is_null() {
            return None;
        }
        // SAFETY: fresh zeroed memory of `len` bytes, of which the first are words.
        let (list, bytes) = unsafe {
            let list = core::slice::from_raw_parts_mut(at.cast::<usize>(), slots);
            let rest = slots * size_of::<usize>();
            (list, core::slice::from_raw_parts_mut(at.add(rest), len - rest))
        };
        let (numbers, preload) = bytes.split_at_mut(NUMBERS_MAX);
        put_numbers(numbers);
        // Libraries that the caller preloads come after the shim, which is named once.
        let others = if own.windows(shim.len().max(1)).any(|it| it == shim) { b"" } else { own };
        let between: &[u8] = if others.is_empty() { b"" } else { b":" };
        put(preload, &[PRELOAD, shim, between, others]);
        let kept = words(theirs).filter(|it| !text(*it).starts_with(PRELOAD));
        let ours = [numbers.as_ptr() as usize, preload.as_ptr() as usize];
        for (slot, word) in list.iter_mut().zip(ours.into_iter().chain(kept)) {
            *slot = word;
        }
        Some(Self { at, len })
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        sys::unmap(self.at, self.len);
    }
}

fn put(to: &mut [u8], parts: &[&[u8]]) {
    for (to, from) in to.iter_mut().zip(parts.iter().flat_map(|it| it.iter())) {
        *to = *from;
    }
}

fn put_numbers(to: &mut [u8]) {
    let [control, memory, wake] =
        [&CONTROL_FD, &MEMORY_FD, &WAKE_FD].map(|place| padded(place.load(Relaxed)));
    let carried = CARRIED_FD.load(Relaxed);
    let (comma, carried): (&[u8], &[u8]) = match carried {
        -1 => (b"", b""),
        _ => (b",", &padded(carried)),
    };
    put(to, &[handed::VARIABLE, &control, b",", &memory, b",", &wake, comma, carried]);
}

/// A descriptor's number with leading zeros, always of the same length: the length of the
/// environment on the next program's stack decides its addresses.
fn padded(fd: i32) -> [u8; NUMBER_CHARS] {
    let mut out = [b'0'; NUMBER_CHARS];
    let mut rest = fd.unsigned_abs();
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out
}

/// Sets whether the shim's descriptors survive exec.
fn hand_over(yes: bool) {
    let flags = if yes { 0 } else { libc::FD_CLOEXEC };
    for place in [&CONTROL_FD, &MEMORY_FD, &WAKE_FD] {
        sys!(SYS_fcntl, place.load(Relaxed), libc::F_SETFD, flags);
    }
}

/// Hash of program and arguments, on which both members must agree.
fn fingerprint(program: usize, arguments: usize) -> i64 {
    let all = [program].into_iter().chain(words(arguments as *const usize));
    hash_pieces(&header().hash_key, all.flat_map(|it| [text(it), b"\0"])) as i64
}

/// Whether the log has state that the next program would not know.
fn serves() -> bool {
    let mut open = conns::any();
    fds::for_each(|fd, entry| {
        open |= entry.kind() != fds::Kind::Own && !fds::ends_at_exec(fd);
    });
    open
}

/// Whether this is the server, not a child of it.
fn is_server() -> bool {
    state::is_attached() && header().pid.load(Relaxed) as isize == sys!(SYS_getpid)
}

/// The server is about to become another program. Returns whether the next one is the
/// server.
fn prepare(program: usize, arguments: usize) -> Option<bool> {
    let same = || fingerprint(program, arguments);
    match mode() {
        Mode::Pass => Some(false),
        Mode::Record => {
            defer::flush();
            if serves() {
                report::end_protection(
                    "the server replaced itself by another program (exec) with sockets open: \
                     protection cannot be kept; let it reload without exec",
                );
                return Some(false);
            }
            log::append(Entry::new(Op::Result, Call::exec, -1, same() as isize), &[]);
            Some(true)
        }
        Mode::Replay => match log::take(Op::Result, Call::exec, -1) {
            Some(taken) if taken.header.ret != same() => {
                report::diverged("the replica executes another program, or with other arguments")
            }
            Some(taken) => {
                taken.done();
                Some(true)
            }
            None => park::start_over(),
        },
    }
}

/// Whether the program that a process of a family becomes can be in the log.
fn next(which: Real, program: usize) -> Next {
    let value = || words(inherited() as *const usize).find_map(|it| text(it).strip_prefix(PLACES));
    let places = matches!(which, Real::Execvpe).then(|| programs::places(value()));
    // The first library of the variable is the shim; others may follow.
    let all = SHIM.get().map_or(&[][..], |(path, len)| &path[..*len]);
    let shim = all.split(|c| *c == b':').next().unwrap_or_default();
    programs::look(text(program), places, shim)
}

/// Called before a process of a family becomes another program in the log: connections whose
/// descriptors the new program does not get are closed. Returns whether the exec is in the log.
fn prepare_of_family(program: usize, arguments: usize) -> bool {
    defer::flush();
    fds::for_each(|fd, f| {
        if f.conn.load(Relaxed) != NO_CONN && fds::ends_at_exec(fd) {
            descriptors::close_raw(fd);
        }
    });
    let same = || fingerprint(program, arguments);
    quiet::call(|_| match mode() {
        Mode::Pass => Some(false),
        Mode::Record => {
            let held = log::hold();
            let entry = Entry::new(Op::Result, Call::exec, -1, same() as isize);
            log::append_held(&held, entry, &[]);
            // At this record the replica's process has no other threads any more, so none of
            // this one may log after it.
            state::set_leaving(u32::from(state::tid()) + 1);
            drop(held);
            carry::settle();
            Some(true)
        }
        Mode::Replay => match log::take(Op::Result, Call::exec, -1) {
            Some(taken) if taken.header.ret != same() => report::diverged(
                "the replica executes another program, or with other arguments, or connections",
            ),
            Some(taken) => {
                carry::settle();
                taken.done();
                log::leave();
                Some(true)
            }
            None => park::start_over(),
        },
    })
}

/// Replaces a process of a family by a program in the log. Returns only if that fails.
fn replace_of_family(which: Real, program: usize, arguments: usize, environment: usize) -> i32 {
    let file = carry::file();
    if file < 0 {
        return sys::libc_result(file) as i32;
    }
    if prepare_of_family(program, arguments) {
        carry::save(file as i32);
        CARRIED_FD.store(file as i32, Relaxed);
    }
    let result = run_with_shim(which, program, arguments, environment);
    CARRIED_FD.store(-1, Relaxed);
    state::set_leaving(0);
    sys!(SYS_close, file);
    result
}

/// Runs a program with the shim if it is to be protected, else as the server has asked.
fn run_with_shim(which: Real, program: usize, arguments: usize, environment: usize) -> i32 {
    let ours = (mode() != Mode::Pass).then(|| Environment::of(environment as *const usize));
    let at = ours.as_ref().and_then(Option::as_ref).map_or(environment, |it| it.at as usize);
    let run = || elsewhere(|| real(which)(program, arguments, at, 0));
    hand_over(true);
    let result = if is_server() { as_the_server(run) } else { run() };
    hand_over(false);
    result
}

/// Runs `f`, in which the server becomes another program. Until that program has started, the
/// server has no shim, and the daemon is told so.
fn as_the_server(f: impl FnOnce() -> i32) -> i32 {
    header().pid.store(0, SeqCst);
    let before = header().leash.swap(shared_leash::FIXED, SeqCst);
    let shown = header().control.swap(0, SeqCst);
    let result = f();
    header().control.store(shown, SeqCst);
    header().leash.store(before, SeqCst);
    header().pid.store(sys!(SYS_getpid) as i32, SeqCst);
    result
}

/// Replaces the server, or a child of it. Returns only if that fails.
fn replace(which: Real, program: usize, arguments: usize, environment: usize) -> i32 {
    if state::is_family() && mode() != Mode::Pass && !inside() {
        match next(which, program) {
            Next::Nothing => return elsewhere(|| real(which)(program, arguments, environment, 0)),
            Next::Apart if !is_server() => {}
            _ => return replace_of_family(which, program, arguments, environment),
        }
    }
    let plain = || elsewhere(|| real(which)(program, arguments, environment, 0));
    if !is_server() {
        children::leave();
        family::leave_for_another();
        family::before_exec(program);
        return plain();
    }
    match quiet::call(|_| prepare(program, arguments)) {
        true => run_with_shim(which, program, arguments, environment),
        // The socket to the daemon must stay open: its end means the end of the server.
        false => {
            hand_over(true);
            let result = as_the_server(plain);
            hand_over(false);
            result
        }
    }
}

/// The environment of a caller that names none.
fn inherited() -> usize {
    // SAFETY: libc's variable.
    unsafe { environ as usize }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execve(program: usize, arguments: usize, environment: usize) -> i32 {
    replace(Real::Execve, program, arguments, environment)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execv(program: usize, arguments: usize) -> i32 {
    replace(Real::Execve, program, arguments, inherited())
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvp(program: usize, arguments: usize) -> i32 {
    replace(Real::Execvpe, program, arguments, inherited())
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvpe(program: usize, arguments: usize, environment: usize) -> i32 {
    replace(Real::Execvpe, program, arguments, environment)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fexecve(fd: i32, arguments: usize, environment: usize) -> i32 {
    let (mut path, mut digits) = ([0; NUMBERS_MAX], [0; 24]);
    put(&mut path, &[b"/proc/self/fd/", decimal(i64::from(fd), &mut digits).as_bytes()]);
    replace(Real::Execve, path.as_ptr() as usize, arguments, environment)
}

/// The arguments of a variadic call (`execl`): six in registers, of which the first is the
/// program, and the others on the stack, up to a null.
struct Listed {
    at: *mut u8,
    len: usize,
    /// Index behind the null.
    next: usize,
}

impl Listed {
    fn of(registers: *const usize, stack: *const usize) -> Option<Self> {
        const IN_REGISTERS: usize = 6;
        let nth = |n: usize| {
            // SAFETY: the caller's own arguments, up to and with the null, and
            // for execle one more.
            unsafe {
                if n < IN_REGISTERS { *registers.add(n) } else { *stack.add(n - IN_REGISTERS) }
            }
        };
        let end = (1..).find(|n| nth(*n) == 0)?;
        let len = end * size_of::<usize>();
        let at = sys::map_anonymous(len);
        if at.is_null() {
            sys::set_errno(libc::ENOMEM);
            return None;
        }
        for n in 1..end {
            // SAFETY: fresh zeroed memory of `end` words; the last stays null.
            unsafe { at.cast::<usize>().add(n - 1).write(nth(n)) };
        }
        Some(Self { at, len, next: nth(end + 1) })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        sys::unmap(self.at, self.len);
    }
}

macro_rules! listed {
    ($($name:ident $from:ident $real:ident $own_environment:literal;)+) => { $(
        unsafe extern "C" fn $from(registers: *const usize, stack: *const usize) -> i32 {
            let Some(listed) = Listed::of(registers, stack) else { return -1 };
            let environment = if $own_environment { listed.next } else { inherited() };
            // SAFETY: the first register is always there.
            replace(Real::$real, unsafe { *registers }, listed.at as usize, environment)
        }

        /// Passes on the arguments' address: six words of registers, then, over
        /// eight bytes of padding and the return address, the stack's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> i32 {
            core::arch::naked_asm!(
                "sub rsp, 8",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rdi, rsp",
                "lea rsi, [rsp + 64]",
                "call {f}",
                "add rsp, 56",
                "ret",
                f = sym $from
            )
        }
    )+ };
}

listed! {
    execl execl_from Execve false;
    execlp execlp_from Execvpe false;
    execle execle_from Execve true;
}
