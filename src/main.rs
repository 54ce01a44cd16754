//! The `guildgate` command: see [`guildgate::cli`].

use std::process::ExitCode;

// Half the memory of the system's allocator under this load, and a microsecond a request where
// there are allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    guildgate::cli::run()
}
