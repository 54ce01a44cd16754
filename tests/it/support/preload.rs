//! Libraries of C that a test's server loads before the C library, so that a call of that one does something else.

use std::path::Path;
use std::process::Command;

/// Compiles this library in a folder: the setting by which `env` has a command load it.
pub fn preload(folder: &Path, source: &str) -> &'static str {
    let (code, library) = (folder.join("preload.c"), folder.join("preload.so"));
    std::fs::write(&code, source).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &code]).status();
    assert!(built.unwrap().success());
    format!("LD_PRELOAD={}", library.display()).leak()
}
