//! Compiles the eBPF programs in `bpf/` with clang; `src/bpf` embeds the objects.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const PROGRAMS: [&str; 10] =
    ["gate", "tapdrop", "speak", "edge", "redirect", "host", "bind", "transit", "undo", "insides"];
const REMEDY: &str = "install the compiler and the headers: apt-get install clang libbpf-dev";

fn main() {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let sources = manifest.join("../../bpf");
    let out = PathBuf::from(variable("OUT_DIR"));
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    for name in PROGRAMS {
        compile(&sources, &out, name);
    }
}

fn compile(sources: &Path, out: &Path, name: &str) {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    // asm/types.h lies in the directory of the architecture on Debian.
    let include = format!("-I/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"));
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", &include, "-c"])
        .arg(sources.join(format!("{name}.bpf.c")))
        .arg("-o")
        .arg(out.join(format!("{name}.bpf.o")))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(_) => fail(&format!("{clang} could not compile {name}.bpf.c (see above); {REMEDY}")),
        Err(error) => fail(&format!("cannot run {clang}: {error}; {REMEDY}")),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| fail(&format!("{name} is not set; build with cargo")))
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1)
}
