//! What the benches that run beside the real server or a real store have in common.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use guildgate::config::{PostgresAt, StoreAt};
use guildgate::keys::ApiKey;
use guildgate::model::{GuildId, Scope};
use guildgate::store::{IfMissing, KeyRecord, Store};
use tokio::runtime::{Builder, Runtime};

/// Whether `cargo bench` runs this. `cargo test` runs it too, to see that it works: nothing is measured then.
pub fn is_measured() -> bool {
    std::env::args().any(|arg| arg == "--bench")
}

/// A runtime for clients. Its thread gets only what no other one wants of the cores, as if the clients had a machine of
/// their own.
pub fn client_runtime() -> Runtime {
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(1).enable_all();
    if is_measured() {
        runtime.on_thread_start(lower_priority);
    }
    runtime.build().unwrap()
}

fn lower_priority() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let id = thread.file_name().unwrap();
    let done = std::process::Command::new("chrt").args(["--idle", "--pid", "0"]).arg(id).status().unwrap();
    assert!(done.success(), "chrt (of util-linux)");
}

/// Whether a kind of store is to be measured: `-- sqlite` or `-- postgres` asks for one of them only.
pub fn is_asked(kind: &str) -> bool {
    let named = |kind: &str| std::env::args().any(|arg| arg == kind);
    named(kind) || !(named("sqlite") || named("postgres"))
}

/// The store in this file or at this URL.
pub async fn open(store: &str) -> Arc<Store> {
    let at = match store.starts_with("postgres://") {
        true => StoreAt::Postgres(Box::new(PostgresAt::parse(store, Path::new("/")).unwrap())),
        false => StoreAt::Sqlite(store.into()),
    };
    Store::open(&at, IfMissing::Make).await.unwrap()
}

/// A key that may write, named by its id.
pub fn record(id: &str, key: &ApiKey, guild: &GuildId) -> KeyRecord {
    KeyRecord {
        id: id.into(),
        name: id.to_owned(),
        guild: guild.clone(),
        digest: key.digest(),
        tier: None,
        scope: Scope::Write,
        created: 0,
        expires: None,
        last_used: None,
        previous: None,
    }
}

/// The median and the 99th percentile, in milliseconds.
pub fn p50_and_p99(mut took: Vec<Duration>) -> [f64; 2] {
    took.sort_unstable();
    let at = |part: f64| took.get((took.len().saturating_sub(1) as f64 * part) as usize);
    [0.5, 0.99].map(|part| at(part).map_or(f64::NAN, |took| took.as_secs_f64() * 1000.0))
}
