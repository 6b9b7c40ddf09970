//! The one binary; see `holdfast --help`.

fn main() -> std::process::ExitCode {
    holdfast::cli::main()
}
