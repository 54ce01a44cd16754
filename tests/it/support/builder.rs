//! Builds the gateway of a test: configuration, keys, members, warns and reviews, on either backend. The store is
//! filled by the real commands, and each gateway has its own folder and port. All limits are so high by default that
//! only a test that sets one can reach one.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use guildgate::clock::Clock;
use guildgate::model::{Digest, Scope};
use guildgate::store::KeyRecord;
use sha2::{Digest as _, Sha256};

use super::here::{self, Here};
use super::{Identity, Postgres, ScriptedOrigin, TestGateway, World};

/// The guild that everything belongs to where a test names none.
pub const GUILD: &str = "81384788765712384";

/// Which backend a gateway stands before. The macros of `support/mod.rs` make the tests of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The built-in one, with its store in an SQLite file.
    Builtin,
    /// The built-in one, with its store in PostgreSQL.
    Postgres,
    Http,
}

impl Kind {
    /// Whether its store is a file of the test's folder.
    pub fn has_store_file(self) -> bool {
        match self {
            Kind::Builtin | Kind::Http => true,
            Kind::Postgres => false,
        }
    }
}

/// Who knows the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KeysAt {
    Store,
    File,
    Origin,
}

/// Makes a [`TestGateway`]: what is said here is what its world holds when it starts.
pub struct Builder {
    kind: Kind,
    keys_at: KeysAt,
    keys: Vec<KeySpec>,
    /// Section, then name, then value as TOML.
    config: BTreeMap<String, BTreeMap<String, String>>,
    upstream_path: String,
    /// Origins of the test's own, instead of one of the gateway's.
    upstreams: Vec<String>,
    seed: u64,
    points: Vec<(String, i64)>,
    notes: Vec<NoteSpec>,
    lines: String,
    launcher: Vec<&'static str>,
    folders: Vec<&'static str>,
    /// Files by their names, with what is in them.
    files: Vec<(&'static str, String)>,
    /// A folder, and the KiB of the disk that is mounted over it.
    small_disk: Option<(&'static str, u64)>,
}

struct KeySpec {
    name: String,
    guild: String,
    tier: Option<String>,
    scope: Option<&'static str>,
}

impl KeySpec {
    fn record(&self, secret: &str) -> KeyRecord {
        KeyRecord {
            id: self.name.as_str().into(),
            name: self.name.clone(),
            guild: self.guild.parse().unwrap(),
            digest: Digest::of(secret.as_bytes()),
            tier: self.tier.clone(),
            scope: if self.scope.is_some() { Scope::Read } else { Scope::Write },
            created: 0,
            expires: None,
            last_used: None,
            previous: None,
        }
    }
}

/// A warn or a review.
struct NoteSpec {
    is_warn: bool,
    member: String,
    id: u64,
    author: String,
    text: String,
    /// The end of a warn, or a rating.
    number: i64,
}

impl Builder {
    pub(super) fn new(kind: Kind) -> Builder {
        let builder = Builder {
            kind,
            keys_at: if kind == Kind::Http { KeysAt::File } else { KeysAt::Store },
            keys: Vec::new(),
            config: BTreeMap::new(),
            upstream_path: String::new(),
            upstreams: Vec::new(),
            seed: 0,
            points: Vec::new(),
            notes: Vec::new(),
            lines: String::new(),
            launcher: Vec::new(),
            folders: Vec::new(),
            files: Vec::new(),
            small_disk: None,
        };
        // Limits stand wide open, so that only a test that sets one meets one.
        builder
            .set("server.listen", r#"["127.0.0.1:0"]"#)
            .set("server.threads", "2")
            .set("limits.tiers.standard.rate", r#""1000000/s""#)
            .set("limits.tiers.standard.burst", "1000000")
            .set("limits.strangers.rate", r#""1000000/s""#)
            .set("limits.strangers.burst", "1000000")
            .set("admin.listen", r#""""#)
    }

    /// `section.name = value`, the value as TOML writes it.
    pub fn set(mut self, path: &str, value: &str) -> Builder {
        let (section, name) = path.rsplit_once('.').unwrap();
        self.config.entry(section.into()).or_default().insert(name.into(), value.into());
        self
    }

    /// The store at this URL, instead of one of the gateway's own.
    pub fn store(self, url: &str) -> Builder {
        self.set("origin.store", &format!("{url:?}"))
    }

    /// Adds a key that may do everything; tests call it by this name.
    pub fn key(self, name: &str) -> Builder {
        self.add_key(name, |_| {})
    }

    pub fn read_key(self, name: &str) -> Builder {
        self.add_key(name, |key| key.scope = Some("read"))
    }

    pub fn key_of_tier(self, name: &str, tier: &str) -> Builder {
        self.add_key(name, |key| key.tier = Some(tier.into()))
    }

    pub fn key_of_guild(self, name: &str, guild: &str) -> Builder {
        self.add_key(name, |key| key.guild = guild.into())
    }

    fn add_key(mut self, name: &str, change: impl FnOnce(&mut KeySpec)) -> Builder {
        let mut key = KeySpec { name: name.into(), guild: GUILD.into(), tier: None, scope: None };
        change(&mut key);
        self.keys.push(key);
        self
    }

    /// Keeps the keys in a key file (as an HTTP origin's are unless told otherwise).
    pub fn keys_in_file(mut self) -> Builder {
        self.keys_at = KeysAt::File;
        self
    }

    /// Leaves the keys to the origin, which alone knows them.
    pub fn keys_at_the_origin(mut self) -> Builder {
        self.keys_at = KeysAt::Origin;
        self
    }

    /// Keeps the keys in the store (as the built-in backend's are unless told otherwise).
    pub fn keys_in_store(mut self) -> Builder {
        self.keys_at = KeysAt::Store;
        self
    }

    /// A member called Ada with this many points.
    pub fn points(mut self, member: &str, points: i64) -> Builder {
        self.points.push((member.into(), points));
        self
    }

    pub fn warn(mut self, member: &str, id: u64, author: &str, reason: &str, expires: i64) -> Builder {
        let (member, author, text) = (member.into(), author.into(), reason.into());
        self.notes.push(NoteSpec { is_warn: true, member, id, author, text, number: expires });
        self
    }

    pub fn review(mut self, member: &str, id: u64, author: &str, rating: u8, text: &str) -> Builder {
        let (member, author, text) = (member.into(), author.into(), text.into());
        self.notes.push(NoteSpec { is_warn: false, member, id, author, text, number: rating.into() });
        self
    }

    /// Reviews whose answer is close to a megabyte, which nobody takes at once.
    pub fn long_reviews(self, member: &str) -> Builder {
        let text = "x".repeat(8000);
        (1..=110).fold(self, |gate, id| gate.review(member, id, "Bo", 5, &text))
    }

    /// More lines for the import into the store.
    pub fn line(mut self, json: &str) -> Builder {
        let _ = writeln!(self.lines, "{json}");
        self
    }

    /// Turns the admin listener on, on a port of its own.
    pub fn admin(self) -> Builder {
        self.set("admin.listen", r#""127.0.0.1:0""#)
    }

    /// TLS on the TCP addresses, under a certificate made for this test alone.
    pub fn tls(self) -> Builder {
        self.set("server.tls", r#"{ certificate = "cert.pem", private_key = "key.pem" }"#)
    }

    /// A path that the upstream's URL ends in.
    pub fn upstream_path(mut self, path: &str) -> Builder {
        self.upstream_path = path.into();
        self
    }

    /// The URLs of origins that the test has started itself; the gateway brings none of its own then.
    pub fn upstreams(mut self, urls: impl IntoIterator<Item = String>) -> Builder {
        self.upstreams.extend(urls);
        self
    }

    /// Another file in the world's folder.
    pub fn file(mut self, name: &'static str, text: &str) -> Builder {
        self.files.push((name, text.to_owned()));
        self
    }

    /// Another folder in the world's.
    pub fn folder(mut self, name: &'static str) -> Builder {
        self.folders.push(name);
        self
    }

    /// Another folder in the world's, on a disk of its own that the server sees, and nobody else.
    pub fn on_small_disk(mut self, folder: &'static str, kib: u64) -> Builder {
        self.small_disk = Some((folder, kib));
        self.folder(folder)
    }

    /// A command through which the server is started: it is given the server's own as its arguments.
    pub fn launched_by(mut self, launcher: &[&'static str]) -> Builder {
        self.launcher = launcher.to_vec();
        self
    }

    /// What the origin's random delays follow.
    pub fn seed(mut self, seed: u64) -> Builder {
        self.seed = seed;
        self
    }

    /// Writes the config, fills the store with the real commands, and starts `serve`.
    pub async fn start(self) -> TestGateway {
        let small_disk = self.small_disk;
        let (mut world, origin, secrets) = self.prepare().await;
        if let Some((folder, kib)) = small_disk {
            world.put_on_small_disk(folder, kib).await;
        }
        TestGateway::serve(world, origin, secrets).await
    }

    /// As [`Builder::start`], in the test's own process and without any command.
    pub async fn start_here(self) -> TestGateway {
        self.start_here_at(Clock::system()).await
    }

    /// As [`Builder::start_here`], by a clock of the test's.
    pub async fn start_here_at(self, clock: Clock) -> TestGateway {
        let (builder, world, origin) = self.make_world().await;
        let secrets = match (builder.keys_at, &origin) {
            (KeysAt::Store, _) => {
                builder.keys.iter().map(|key| (key.name.clone(), foreign_secret(&key.name))).collect()
            }
            (KeysAt::Origin, Some(origin)) => builder.tell_keys(origin),
            (KeysAt::File | KeysAt::Origin, _) => builder.write_key_file(&world),
        };
        let in_store = builder.keys.iter().filter(|_| builder.keys_at == KeysAt::Store);
        let in_store = in_store.map(|key| key.record(&secrets[&key.name])).collect();
        let store = here::store(&world, builder.records(), in_store).await;
        let here = Here::start(&world, store, clock).await;
        TestGateway::here(world, origin, secrets, here)
    }

    /// As [`Builder::start`], but nothing is started.
    pub async fn prepare(self) -> (World, Option<ScriptedOrigin>, HashMap<String, String>) {
        let (builder, world, origin) = self.make_world().await;
        if builder.kind != Kind::Http || builder.keys_at == KeysAt::Store {
            world.import(&builder.records()).done();
        }
        let secrets = match (builder.keys_at, &origin) {
            (KeysAt::Store, _) => builder.create_keys(&world),
            (KeysAt::Origin, Some(origin)) => builder.tell_keys(origin),
            (KeysAt::File | KeysAt::Origin, _) => builder.write_key_file(&world),
        };
        (world, origin, secrets)
    }

    /// The world with its configuration, and the origin that the gateway brings.
    async fn make_world(mut self) -> (Builder, World, Option<ScriptedOrigin>) {
        let mut origin = None;
        match self.kind {
            Kind::Builtin => {}
            Kind::Postgres if self.config.contains_key("origin") => {}
            Kind::Postgres => self = self.store(&Postgres::shared().database().await),
            Kind::Http => {
                if self.upstreams.is_empty() {
                    let scripted = origin.insert(self.origin().await);
                    self.upstreams.push(format!("{}{}", scripted.url(), self.upstream_path));
                }
                let upstreams = format!("{:?}", self.upstreams);
                self = self.set("origin.kind", r#""http""#).set("origin.upstreams", &upstreams);
            }
        }
        match self.keys_at {
            KeysAt::Store => {}
            KeysAt::File => self = self.set("keys.source", r#""file""#).set("keys.file", r#""keys.toml""#),
            KeysAt::Origin => self = self.set("keys.source", r#""origin""#),
        }
        let mut world = World::new(&self.toml());
        world.launched_by(&self.launcher);
        self.folders.iter().for_each(|name| std::fs::create_dir(world.path(name)).unwrap());
        if self.config["server"].contains_key("tls") {
            world.put_identity(&Identity::new());
        }
        self.files.iter().for_each(|(name, text)| drop(world.write(name, text)));
        (self, world, origin)
    }

    fn toml(&self) -> String {
        let mut toml = String::new();
        for (section, values) in &self.config {
            let _ = writeln!(toml, "[{section}]");
            for (name, value) in values {
                let _ = writeln!(toml, "{name} = {value}");
            }
        }
        toml
    }

    async fn origin(&self) -> ScriptedOrigin {
        let origin = ScriptedOrigin::start(self.seed).await;
        for (member, points) in &self.points {
            origin.put_points(member, *points);
        }
        let mut maps: BTreeMap<(&str, &str), BTreeMap<u64, String>> = BTreeMap::new();
        for NoteSpec { is_warn, member, id, author, text, number } in &self.notes {
            let (operation, entry) = match is_warn {
                true => ("getWarns", format!("warns_{member}_id_{id}_{number}={author}: {text} (Expires {number})")),
                false => ("getReviews", format!("reviews_{member}_id_{id}_{number}={author} ({number}★): {text}")),
            };
            maps.entry((operation, member)).or_default().insert(*id, entry);
        }
        for ((operation, member), entries) in maps {
            let entries: Vec<String> = entries.into_values().collect();
            origin.put_map(operation, member, &format!("{{{}}}", entries.join(", ")));
        }
        origin
    }

    /// Everything that is not a key, as JSON Lines.
    fn records(&self) -> String {
        let guilds: std::collections::BTreeSet<&str> =
            self.keys.iter().map(|key| key.guild.as_str()).chain([GUILD]).collect();
        let guilds = guilds.iter().map(|guild| serde_json::json!({"guild": guild, "name": "Night Watch"}));
        if self.kind == Kind::Http {
            return guilds.map(|line| format!("{line}\n")).collect(); // the others are the origin's
        }
        let points = self.points.iter().map(
            |(member, points)| serde_json::json!({"guild": GUILD, "member": member, "name": "Ada", "points": points}),
        );
        let notes = self.notes.iter().map(|note| {
            let [kind, text, number] =
                if note.is_warn { ["warn", "reason", "expires"] } else { ["review", "text", "rating"] };
            serde_json::json!({"guild": GUILD, "member": note.member, kind: note.id.to_string(), "author": note.author,
                text: note.text, number: note.number})
        });
        let lines: String = guilds.chain(points).chain(notes).map(|line| format!("{line}\n")).collect();
        lines + &self.lines
    }

    fn create_keys(&self, world: &World) -> HashMap<String, String> {
        let mut secrets = HashMap::new();
        for key in &self.keys {
            let mut args = vec!["key", "create", "--guild", &key.guild, "--name", &key.name];
            args.extend(key.tier.iter().flat_map(|tier| ["--tier", tier]));
            args.extend(key.scope.iter().flat_map(|scope| ["--scope", scope]));
            let created = world.run(&args).done();
            secrets.insert(key.name.clone(), created.stdout.trim_end_matches('\n').to_owned());
        }
        secrets
    }

    fn tell_keys(&self, origin: &ScriptedOrigin) -> HashMap<String, String> {
        let tell = |key: &KeySpec| {
            let secret = foreign_secret(&key.name);
            origin.let_in(&secret, &key.guild);
            (key.name.clone(), secret)
        };
        self.keys.iter().map(tell).collect()
    }

    fn write_key_file(&self, world: &World) -> HashMap<String, String> {
        let mut file = String::new();
        let mut secrets = HashMap::new();
        for key in &self.keys {
            let secret = foreign_secret(&key.name);
            let _ = writeln!(file, "[[key]]\nid = {:?}\ndigest = {:?}", key.name, digest(&secret));
            let _ = writeln!(file, "guild = {:?}", key.guild);
            let _ = key.tier.iter().try_for_each(|tier| writeln!(file, "tier = {tier:?}"));
            let _ = key.scope.iter().try_for_each(|scope| writeln!(file, "scope = {scope:?}"));
            secrets.insert(key.name.clone(), secret);
        }
        world.write("keys.toml", file);
        secrets
    }
}

/// Another service's key, so it is held to no checksum (contract section 2, "Key format").
fn foreign_secret(name: &str) -> String {
    format!("{name}.{:032x}", fastrand::u128(..))
}

/// A key's digest as a key file holds it.
pub fn digest(secret: &str) -> String {
    let hex: String = Sha256::digest(secret).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}
