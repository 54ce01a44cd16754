use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use nix::pty::{Winsize, openpty};

/// Runs a command whose stderr is a terminal. Its exit code, and all that was drawn there.
pub fn on_terminal(command: &mut Command) -> (Option<i32>, String) {
    let size = Winsize { ws_row: 24, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None).unwrap();
    command.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(pty.slave).spawn().unwrap();
    command.stderr(Stdio::null()); // our own end of it, without which the reading below has no end
    let (mut drawn, mut piece, mut screen) = (Vec::new(), [0; 4096], File::from(pty.master));
    // A terminal that nobody writes to any more ends in an error.
    while let Ok(read @ 1..) = screen.read(&mut piece) {
        drawn.extend_from_slice(&piece[..read]);
    }
    (child.wait().unwrap().code(), String::from_utf8_lossy(&drawn).into_owned())
}
