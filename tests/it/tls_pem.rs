//! Contract section 3: PEM files, whichever setting names them. Nothing that is in one is shown, and nothing is passed
//! over.

use nix::sys::signal::Signal;

use crate::support::*;

const QUIET: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n";

/// What names PEM files, with `CERTIFICATE` and `KEY` for the two files, and the setting at fault.
const PLACES: [(&str, &str); 5] = [
    (
        "[server]\nlisten = [\"127.0.0.1:0\"]\ntls = { certificate = \"CERTIFICATE\", private_key = \"KEY\" }\n\
         [admin]\nlisten = \"\"\n",
        "server.tls.certificate",
    ),
    (
        "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         tls = { certificate = \"CERTIFICATE\", private_key = \"KEY\" }\n",
        "admin.tls.certificate",
    ),
    (
        "[origin]\nkind = \"http\"\nupstreams = [\"https://127.0.0.1:1\"]\ntls = { ca = \"CERTIFICATE\" }\n",
        "origin.tls.ca",
    ),
    (
        "[origin]\nkind = \"http\"\nupstreams = [\"https://127.0.0.1:1\"]\n\
         tls = { ca = \"ca.pem\", certificate = \"CERTIFICATE\", private_key = \"KEY\" }\n",
        "origin.tls.certificate",
    ),
    ("[origin]\nstore = \"postgres://me@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=CERTIFICATE\"\n", "sslrootcert"),
];

/// A world whose settings name these two files.
fn world(place: &str, certificate: &str, key: &str) -> World {
    let toml = place.replace("CERTIFICATE", certificate).replace("KEY", key);
    let rest = if toml.contains("[server]") { "" } else { QUIET };
    let world = World::new(&format!("{toml}{rest}"));
    world.write("ca.pem", Authority::new().pem());
    world
}

/// Asserts that a text shows nothing of the content of a PEM file, neither as it is nor as the numbers of its bytes.
#[track_caller]
fn shows_nothing_of(pem: &str, text: &str) {
    for line in pem.lines().filter(|line| !line.starts_with("--")) {
        let part = &line[..line.len().min(12)];
        let numbers: Vec<String> = part.bytes().map(|byte| byte.to_string()).collect();
        assert!(!text.contains(part) && !text.contains(&numbers.join(", ")), "{part} is shown:\n{text}");
    }
}

/// A file whose line ends were written as `\n` on the way, as in a variable of a deployment.
fn in_one_line(pem: &str) -> String {
    pem.replace('\n', "\\n")
}

#[test]
fn a_private_key_in_one_line_is_shown_by_no_command() {
    let key = Identity::new().private_key;
    for (place, setting) in PLACES {
        let world = world(place, "k.pem", "k.pem");
        world.write("k.pem", in_one_line(&key));
        for command in ["check", "serve"] {
            let ran = world.run(&[command]).failed(2).names(&[setting, "k.pem", "line 1;"]);
            shows_nothing_of(&key, &format!("{}{}", ran.stdout, ran.stderr));
        }
        if setting == "sslrootcert" {
            let ran = world.run(&["guild", "list"]).failed(1).names(&[setting, "k.pem", "line 1;"]);
            shows_nothing_of(&key, &ran.stderr);
        }
    }
    // Pasted for its path.
    let pasted = in_one_line(&key);
    for (place, setting) in PLACES.into_iter().filter(|(_, setting)| *setting != "sslrootcert") {
        let ran = world(place, &pasted, &pasted).run(&["check"]).failed(2).names(&[setting, "must be a path"]);
        shows_nothing_of(&key, &format!("{}{}", ran.stdout, ran.stderr));
    }
    // In the place of the system's roots, where Redis needs them.
    let redis = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}", redis.local_addr().unwrap());
    let world = World::new(&format!("{QUIET}[cluster]\nredis = {url:?}\n"));
    let roots = world.write("k.pem", in_one_line(&key));
    let config = world.path("gateway.toml");
    let mut command = world.command(&["check", "--config", config.to_str().unwrap()]);
    let ran = Ran::of(command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR"), "").failed(2);
    shows_nothing_of(&key, &ran.names(&["cluster.redis", "root certificates", "not PEM"]).stderr);
}

#[tokio::test]
async fn a_private_key_in_one_line_is_shown_by_no_reload_and_to_no_token() {
    const READ: &str = "a token that reads 123";
    let builder = TestGateway::builder().tls().admin().key("bot");
    let mut gate = builder.set("admin.read_token", &format!("{READ:?}")).start().await;
    let key = gate.world().text("key.pem");
    gate.world().write("cert.pem", in_one_line(&key));
    gate.process().signal(Signal::SIGHUP);
    gate.has_said("cert.pem has a section from line 1").await;
    let admin = gate.admin().await.with_token(READ);
    for path in ["/api/config", "/api/status"] {
        shows_nothing_of(&key, &admin.get(path).await.text);
    }
    shows_nothing_of(&key, &gate.stderr());
}

#[test]
fn a_certificate_that_a_reader_would_leave_out_is_refused_by_its_line() {
    let (leaf, leaf_key) = Authority::new().pem_for("guildgate.test");
    let other = Authority::new().pem();
    let line = leaf.lines().count() + 1;
    let changed = |from: &str, to: &str| format!("{leaf}{}", other.replace(from, to));
    let label = |text: &str| other.replace("CERTIFICATE", text);
    let without = |line: &str| format!("{leaf}{}", other.replace(line, ""));
    for (what, file, line) in [
        ("two files joined without a line end", format!("{}{other}", leaf.trim_end()), 1),
        ("four dashes", changed("-----BEGIN", "----BEGIN"), line),
        ("dashes of a word processor", changed("-----BEGIN", "\u{2014}\u{2014}-BEGIN"), line),
        ("blanks", changed("-----BEGIN", "  -----BEGIN"), line),
        ("small letters", changed("BEGIN CERTIFICATE", "begin certificate"), line),
        ("a comment", changed("-----BEGIN", "# -----BEGIN"), line),
        ("a byte-order mark amid the file", changed("-----BEGIN", "\u{feff}-----BEGIN"), line),
        ("OpenSSL's own form", format!("{leaf}{}", label("TRUSTED CERTIFICATE")), line),
        ("the label of long ago", format!("{leaf}{}", label("X509 CERTIFICATE")), line),
        ("no END", without("-----END CERTIFICATE-----"), line),
        ("no BEGIN", without("-----BEGIN CERTIFICATE-----"), 1),
        ("another END", changed("END CERTIFICATE", "END CERTIFICATES"), line),
        ("no END, and another one", format!("{}{other}", leaf.replace("-----END CERTIFICATE-----\n", "")), 1),
        ("a key without END", format!("{leaf}{}{other}", leaf_key.replace("-----END PRIVATE KEY-----\n", "")), line),
        ("cut off", format!("{leaf}{}", &other[..other.len() / 2]), line),
    ] {
        for (place, setting) in PLACES {
            let world = world(place, "cert.pem", "key.pem");
            world.write("cert.pem", &file);
            world.write("key.pem", &leaf_key);
            let said = world.faults();
            let named = [setting, "cert.pem", &format!("line {line}")].iter().all(|word| said.contains(word));
            assert!(named, "{what} in {setting}: {said}");
            shows_nothing_of(&leaf_key, &said);
        }
    }
}

#[test]
fn a_private_key_that_a_reader_would_leave_out_is_refused_by_its_line() {
    let Identity { certificate, private_key: key } = Identity::new();
    let other = Identity::new().private_key;
    for (what, file, words) in [
        ("two joined", format!("{}{other}", key.trim_end()), "line 1;"),
        ("two", format!("{key}{other}"), "second private key"),
        ("four dashes", key.replace("-----BEGIN", "----BEGIN"), "line 1;"),
        ("encrypted", key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"), "line 1;"),
        (
            "encrypted, of the older form",
            key.replacen("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n", 1),
            "`openssl pkey",
        ),
        ("of SSH", key.replace("PRIVATE KEY", "OPENSSH PRIVATE KEY"), "`openssl pkey"),
        ("cut off", key[..key.len() / 2].to_owned(), "line 1;"),
    ] {
        let world = world(PLACES[0].0, "cert.pem", "key.pem");
        world.write("cert.pem", &certificate);
        world.write("key.pem", &file);
        let said = world.faults();
        assert!(["server.tls.private_key", "key.pem", words].iter().all(|word| said.contains(word)), "{what}: {said}");
        shows_nothing_of(&key, &said);
    }
}

#[tokio::test]
async fn what_is_beside_a_chain_and_before_it_takes_no_certificate_away() {
    let authority = Authority::new();
    let (leaf, key) = authority.pem_for("guildgate.test");
    let both = format!("{leaf}{}", authority.pem());
    for (what, file) in [
        ("nothing", both.clone()),
        ("a byte-order mark", format!("\u{feff}{both}")),
        ("line ends of Windows", both.replace('\n', "\r\n")),
        ("the key, as HAProxy has it", format!("{key}{both}")),
        ("what openssl x509 -text prints", format!("Certificate:\n    begin 2026\n{both}")),
    ] {
        let gate = TestGateway::builder().tls().file("cert.pem", &file).file("key.pem", &format!("\u{feff}{key}"));
        let gate = gate.start_here().await;
        let stream = TlsClient::new(&[&authority.pem()], &["http/1.1"]).connect(gate.address()).await.unwrap();
        assert_eq!(stream.get_ref().1.peer_certificates().unwrap().len(), 2, "{what}");
    }
}
