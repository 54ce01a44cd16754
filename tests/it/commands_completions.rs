//! Contract section 2: `completions`.

use std::process::Command;

use crate::support::*;

#[test]
fn each_shell_takes_its_script_and_bash_completes_commands_and_options() {
    let world = World::plain();
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = world.write(shell, world.run(&["completions", shell]).done().stdout);
        Ran::of(Command::new(shell).arg(check).arg(script), "").done();
    }
    let driver = "source ./bash; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _guildgate guildgate \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    for (words, offered) in [(["key", "cr"], "create\n"), (["import", "--part"], "--partial\n")] {
        let mut bash = Command::new("bash");
        bash.args(["-c", driver, "bash", "guildgate"]).args(words).current_dir(world.path(""));
        assert_eq!(Ran::of(&mut bash, "").done().stdout, offered, "{words:?}");
    }
}
