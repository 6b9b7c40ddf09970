//! The laboratory; see `holdfast-lab --help`.

fn main() -> std::process::ExitCode {
    holdfast_lab::main()
}
