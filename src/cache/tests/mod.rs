//! Beside the files they test, which `tests/model` compiles once more without them.

mod entry;
mod epochs;
mod index;
mod single_flight;
