//! The `quorate` program: see `quorate::cli`.

/// Memory that a flood of keys took goes back to the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    quorate::cli::main()
}
