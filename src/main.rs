//! The `quorate` program: see `quorate::cli`.

fn main() -> std::process::ExitCode {
    quorate::cli::main()
}
