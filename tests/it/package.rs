//! The Debian package: what it installs, that systemd accepts its unit, and that it serves with its own configuration. What
//! it installs is what the list in `Cargo.toml` names (`[package.metadata.deb]`), with the tests' binary; `GUILDGATE_DEB`
//! names a package to test instead, such as one of `scripts/release`. The image's configuration is checked as well.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

const UNIT: &str = "usr/lib/systemd/system/guildgate.service";

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Ran {
    Ran::of(Command::new(program).args(args), "").done()
}

/// What the package installs, in `root`, with its scripts in `root/DEBIAN`.
fn installed() -> World {
    let world = World::plain();
    let root = world.path("root");
    match std::env::var_os("GUILDGATE_DEB") {
        Some(package) => drop(run("dpkg-deb", &[OsStr::new("--raw-extract"), &package, root.as_os_str()])),
        None => install(&world, &root),
    }
    world
}

/// Installs what cargo-deb would put into the package.
fn install(world: &World, root: &Path) {
    let manifest: toml::Table = fs::read_to_string(project("Cargo.toml")).unwrap().parse().unwrap();
    let deb = &manifest["package"]["metadata"]["deb"];
    let generated = world.path("generated");
    world.run(&["man", "--directory", generated.join("man").to_str().unwrap()]).done();
    fs::create_dir(generated.join("completions")).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = world.run(&["completions", shell]).done().stdout;
        fs::write(generated.join(format!("completions/guildgate.{shell}")), script).unwrap();
    }
    for asset in deb["assets"].as_array().unwrap() {
        let [source, to, mode] = [0, 1, 2].map(|at| asset[at].as_str().unwrap());
        for file in sources(source, &generated) {
            let is_folder = to.ends_with('/');
            let target = if is_folder { root.join(to).join(file.file_name().unwrap()) } else { root.join(to) };
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(&file, &target).unwrap();
            fs::set_permissions(&target, fs::Permissions::from_mode(u32::from_str_radix(mode, 8).unwrap())).unwrap();
        }
    }
    let scripts = project(deb["maintainer-scripts"].as_str().unwrap());
    run("cp", &[OsStr::new("-r"), scripts.as_os_str(), root.join("DEBIAN").as_os_str()]);
}

/// The files that the source of an asset names: built, generated, or of the project.
fn sources(source: &str, generated: &Path) -> Vec<PathBuf> {
    if source == "target/release/guildgate" {
        return vec![env!("CARGO_BIN_EXE_guildgate").into()];
    }
    let path = source.strip_prefix("target/generated/").map_or_else(|| project(source), |path| generated.join(path));
    let name = path.file_name().unwrap().to_str().unwrap();
    let Some((begin, end)) = name.split_once('*') else { return vec![path] };
    let all = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let is_meant = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.starts_with(begin) && name.ends_with(end)
    };
    let files: Vec<PathBuf> = all.filter(|file| file.is_file() && is_meant(file)).collect(); // as cargo-deb has it
    assert!(!files.is_empty(), "{source} names no file");
    files
}

/// What the unit says of this name.
fn setting<'u>(unit: &'u str, name: &str) -> &'u str {
    let line = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("{name} is not in the unit"))
}

#[tokio::test]
async fn what_is_installed_is_whole_confined_and_serves() {
    let world = installed();
    each_file_has_its_mode_and_those_in_etc_are_the_administrators(&world);
    what_the_documents_link_to_is_installed_too(&world);
    every_command_has_a_manual_page(&world);
    each_shell_takes_its_script_and_bash_completes_commands_and_options(&world);
    systemd_accepts_the_unit_and_finds_it_confined(&world);
    the_page_makes_the_user_that_the_unit_names();
    what_is_installed_serves_and_writes_nowhere_but_in_the_services_folders(&world).await;
}

fn each_file_has_its_mode_and_those_in_etc_are_the_administrators(world: &World) {
    let root = world.path("root");
    for (file, mode) in [
        ("usr/bin/guildgate", 0o755),
        (UNIT, 0o644),
        ("usr/lib/sysusers.d/guildgate.conf", 0o644),
        ("etc/guildgate/gateway.toml", 0o640),
        ("etc/logrotate.d/guildgate", 0o644),
        ("usr/share/bash-completion/completions/guildgate", 0o644),
        ("usr/share/zsh/vendor-completions/_guildgate", 0o644),
        ("usr/share/fish/vendor_completions.d/guildgate.fish", 0o644),
        ("usr/share/doc/guildgate/gateway.toml", 0o644),
        ("usr/share/doc/guildgate/docs/operating.md", 0o644),
        ("DEBIAN/postinst", 0o755),
        ("DEBIAN/prerm", 0o755),
        ("DEBIAN/postrm", 0o755),
    ] {
        let found = fs::metadata(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!(found.permissions().mode() & 0o7777, mode, "{file}");
    }
    let in_etc = run("find", &[root.join("etc").as_os_str(), OsStr::new("-type"), OsStr::new("f")]).stdout;
    assert_eq!(in_etc.lines().count(), 2, "{in_etc}"); // which dpkg leaves to the administrator
    for script in ["postinst", "prerm", "postrm"] {
        run("sh", &["-n", root.join("DEBIAN").join(script).to_str().unwrap()]);
    }
}

fn what_the_documents_link_to_is_installed_too(world: &World) {
    let documents = world.path("root/usr/share/doc/guildgate");
    let in_docs = fs::read_dir(documents.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = in_docs.chain([documents.join("README.md"), documents.join("CHANGELOG.md")]);
    let mut links = 0;
    for page in pages.filter(|path| path.extension().is_some_and(|ending| ending == "md")) {
        let text = fs::read_to_string(&page).unwrap();
        for (before, end) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
            for link in text.split(before).skip(1).map(|after| after.split([end, '#']).next().unwrap()) {
                if !link.is_empty() && !link.starts_with("http") {
                    assert!(page.parent().unwrap().join(link).exists(), "{} links to {link}", page.display());
                    links += 1;
                }
            }
        }
    }
    assert!(links > 50, "{links}");
}

fn every_command_has_a_manual_page(world: &World) {
    let (mut pages, mut named) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(world.path("root/usr/share/man/man1")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        pages.push(name.trim_end_matches(".gz").trim_end_matches(".1").to_owned());
        let text = run("zcat", &["--force", path.to_str().unwrap()]).stdout.replace('\\', "");
        // A page names those of its subcommands, as in guildgate-key(1).
        named.extend(text.split("(1)").filter_map(|before| {
            let name = before.split_whitespace().last()?;
            name.starts_with("guildgate-").then(|| name.to_owned())
        }));
    }
    for command in ["guildgate", "guildgate-serve", "guildgate-key", "guildgate-key-create", "guildgate-limits-plan"] {
        assert!(pages.iter().any(|page| page == command), "{command} has no page: {pages:?}");
    }
    assert!(named.len() > 30, "{named:?}");
    for name in named {
        assert!(pages.contains(&name), "{name} is named and has no page");
    }
}

fn each_shell_takes_its_script_and_bash_completes_commands_and_options(world: &World) {
    const BASH: &str = "bash-completion/completions/guildgate";
    for (shell, check, script) in [
        ("bash", "-n", BASH),
        ("zsh", "-n", "zsh/vendor-completions/_guildgate"),
        ("fish", "--no-execute", "fish/vendor_completions.d/guildgate.fish"),
    ] {
        run(shell, &[OsStr::new(check), world.path("root/usr/share").join(script).as_os_str()]);
    }
    let driver = "source \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _guildgate guildgate \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    for (words, offered) in [(["key", "cr"], "create\n"), (["import", "--part"], "--partial\n")] {
        let mut bash = Command::new("bash");
        bash.args(["-c", driver]).arg(world.path("root/usr/share").join(BASH)).arg("guildgate").args(words);
        assert_eq!(Ran::of(&mut bash, "").done().stdout, offered, "{words:?}");
    }
}

fn systemd_accepts_the_unit_and_finds_it_confined(world: &World) {
    let unit = fs::read_to_string(world.path("root").join(UNIT)).unwrap();
    let binary = world.path("root/usr/bin/guildgate");
    let here = world.write("guildgate.service", unit.replace("/usr/bin/guildgate", binary.to_str().unwrap()));
    let verified = run("systemd-analyze", &["verify", "--man=no", here.to_str().unwrap()]);
    let faults: Vec<&str> = verified.stderr.lines().filter(|line| line.contains("guildgate")).collect();
    assert!(faults.is_empty(), "{faults:?}");
    // In tenths: fails above an exposure of 2.0.
    run("systemd-analyze", &["security", "--offline=true", "--threshold=20", here.to_str().unwrap()]);
    // Another server, with the same words, once its configuration was checked.
    let (start, reloads) =
        (setting(&unit, "ExecStart"), unit.lines().filter_map(|line| line.strip_prefix("ExecReload=")));
    let reloads: Vec<&str> = reloads.collect();
    let check = start.replace(" serve ", " check ");
    assert!(reloads.len() == 2 && reloads[0].contains(&check) && reloads[1].contains(start), "{reloads:?}");
}

fn the_page_makes_the_user_that_the_unit_names() {
    let page = fs::read_to_string(project("docs/operating.md")).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix("systemd-sysusers ")).unwrap();
    let world = World::plain();
    let root = world.path("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    let script = format!("systemd-sysusers --root={} {line}", root.display());
    let made = Command::new("sh").args(["-c", &script]).current_dir(project("")).status().unwrap();
    assert!(made.success(), "{line}");
    let unit = fs::read_to_string(project("packaging/guildgate.service")).unwrap();
    let user = format!("{}:", setting(&unit, "User"));
    assert!(fs::read_to_string(root.join("etc/passwd")).unwrap().lines().any(|line| line.starts_with(&user)));
}

async fn what_is_installed_serves_and_writes_nowhere_but_in_the_services_folders(world: &World) {
    let root = world.path("root");
    let folders = ["etc/guildgate", "var/lib/guildgate", "var/log/guildgate", "run/guildgate"];
    let below_root = |text: String| {
        folders
            .iter()
            .fold(text, |text, folder| text.replace(&format!("/{folder}"), root.join(folder).to_str().unwrap()))
    };
    for folder in folders {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let config = root.join("etc/guildgate/gateway.toml");
    let text = below_root(fs::read_to_string(&config).unwrap()).replace("127.0.0.1:8080", "127.0.0.1:0");
    fs::write(&config, text.replace("[admin]\n", "[admin]\nlisten = \"127.0.0.1:0\"\n")).unwrap();
    fs::set_permissions(root.join("etc/guildgate"), fs::Permissions::from_mode(0o550)).unwrap();

    let unit = fs::read_to_string(root.join(UNIT)).unwrap();
    let words = below_root(setting(&unit, "ExecStart").to_owned());
    let words: Vec<&str> = words.split(' ').collect();
    assert_eq!(words[..2], ["/usr/bin/guildgate", "serve"]);
    let command = |args: &[&str]| {
        let mut command = Command::new(root.join("usr/bin/guildgate"));
        command.args(args).args(&words[2..]).env_remove("GUILDGATE_CONFIG").current_dir(root.join("var/lib/guildgate"));
        command
    };
    let done = |args: &[&str]| Ran::of(&mut command(args), "").done();
    done(&["check"]);
    done(&["guild", "add", GUILD, "--name", "Night Watch"]);
    done(&["member", "set", "--guild", GUILD, "--member", "7", "--points", "3"]);
    let key = done(&["key", "create", "--guild", GUILD]).stdout;

    let mut process = Process::start(&mut command(&["serve"]));
    let address = process.ready().await;
    let read = Request::post("/getPoints", "memberID=7").header("Authorization", key.trim_end());
    Connection::to(address).await.ask(&read).await.is("3");
    // They are made after the line `ready`.
    for file in ["run/guildgate/handover.sock", "var/lib/guildgate/admin.token", "var/log/guildgate/audit.log"] {
        eventually(PATIENCE, file, || async { root.join(file).exists() }).await;
    }
    let log = root.join("var/log/guildgate/access.log");
    eventually(PATIENCE, "the request's line", || async { fs::read_to_string(&log).unwrap().contains("getPoints") })
        .await;
    let in_etc: Vec<_> = fs::read_dir(root.join("etc/guildgate")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(in_etc, ["gateway.toml"]);
    fs::set_permissions(root.join("etc/guildgate"), fs::Permissions::from_mode(0o750)).unwrap();
}

fn the_images_configuration_is_valid_on_either_store() {
    let config = fs::read_to_string(project("packaging/docker.toml")).unwrap();
    let world = World::plain();
    world.write("gateway.toml", config.replace("/var/lib/guildgate/", "").replace("0.0.0.0:8080", "0.0.0.0:0"));
    let mut command = world.command(&["check"]);
    let checked = Ran::of(command.env("GUILDGATE_STORE", world.path("guildgate.db")), "").done();
    assert!(checked.stdout.contains("listen = \"0.0.0.0:9180\""), "{checked:?}");
    let compose = fs::read_to_string(project("packaging/compose.yaml")).unwrap();
    let (_, url) = compose.split_once("GUILDGATE_STORE: \"").unwrap();
    let (url, _) = url.split_once('"').unwrap();
    let (before, rest) = url.split_once("${").unwrap();
    let url = format!("{before}letters{}", rest.split_once('}').unwrap().1).replace("@postgres/", "@127.0.0.1:1/");
    let mut command = world.command(&["check"]);
    // The URL is understood, and nobody answers at that address.
    Ran::of(command.env("GUILDGATE_STORE", url), "").failed(2).names(&["origin.store", "127.0.0.1:1"]);
    let rust = env!("CARGO_PKG_RUST_VERSION");
    assert!(fs::read_to_string(project("packaging/Dockerfile")).unwrap().contains(&format!("FROM rust:{rust}-slim")));
}

/// The text of a file that packaging/compose-cluster.yaml makes in its containers.
fn cluster_file(name: &str) -> String {
    let compose = fs::read_to_string(project("packaging/compose-cluster.yaml")).unwrap();
    let (_, rest) = compose.split_once(&format!("\n  {name}:\n    content: |\n")).unwrap();
    let lines = rest.lines().take_while(|line| line.is_empty() || line.starts_with("      "));
    lines.map(|line| format!("{}\n", line.trim_start_matches("      "))).collect()
}

#[tokio::test]
async fn the_configurations_of_the_image_and_of_the_composed_cluster_are_valid() {
    the_images_configuration_is_valid_on_either_store();
    let redis = Redis::start(&["--requirepass", "letters", "--maxmemory-policy", "noeviction"]).await;
    let world = World::new(&cluster_file("gateway").replace("/var/lib/guildgate/", ""));
    let mut command = world.command(&["check"]);
    command.env("GUILDGATE_STORE", Postgres::shared().database().await);
    command.env("GUILDGATE_REDIS", redis.url().replace("redis://", "redis://:letters@"));
    let checked = Ran::of(&mut command, "").done();
    assert!(checked.stdout.contains("drain_delay = \"5s\""), "{checked:?}");
    for warning in ["cluster", "drain_delay"] {
        assert!(!checked.stdout.contains(&format!("{warning} has no")), "{checked:?}");
    }
    let config = world.write("haproxy.cfg", cluster_file("haproxy").replace("edge-", "127.0.0."));
    let checked = Command::new("/usr/sbin/haproxy").arg("-c").arg("-f").arg(config).output().unwrap();
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
}
