//! Beside the files they test, which `tests/model` compiles once more without them.

mod answers;
mod entry;
mod flights;
mod gate;
