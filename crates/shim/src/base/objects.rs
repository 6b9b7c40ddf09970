//! The objects that the loader has loaded.

use core::ffi::CStr;

type ObjectCallback = extern "C" fn(*mut libc::dl_phdr_info, usize, *mut u8) -> i32;

unsafe extern "C" {
    fn dl_iterate_phdr(f: ObjectCallback, data: *mut u8) -> i32;
}

/// Calls `f` for every loaded object.
pub fn for_each_object<F: FnMut(&libc::dl_phdr_info)>(mut f: F) {
    extern "C" fn call<F: FnMut(&libc::dl_phdr_info)>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut u8,
    ) -> i32 {
        // SAFETY: the loader's description, and the closure passed below.
        unsafe { (*data.cast::<F>())(&*info) };
        0
    }
    // SAFETY: the callback gets a closure of the type it was made for.
    unsafe { dl_iterate_phdr(call::<F>, (&raw mut f).cast()) };
}

/// The name of a loaded object; empty for the program itself.
pub fn name(info: &libc::dl_phdr_info) -> &[u8] {
    if info.dlpi_name.is_null() {
        return b"";
    }
    // SAFETY: the loader's string.
    unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
}

/// Whether a loaded object's name has `part` in it.
pub fn is_named(info: &libc::dl_phdr_info, part: &[u8]) -> bool {
    name(info).windows(part.len()).any(|w| w == part)
}

/// The segments of a loaded object that have all of `flags` (`PF_X`): the first
/// address, and the one behind the last.
pub fn range(info: &libc::dl_phdr_info, flags: u32) -> (usize, usize) {
    // SAFETY: the loader's own description of a loaded object.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let parts = headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & flags == flags);
    parts.fold((usize::MAX, 0), |(lo, hi), h| {
        let start = info.dlpi_addr as usize + h.p_vaddr as usize;
        (lo.min(start), hi.max(start + h.p_memsz as usize))
    })
}
