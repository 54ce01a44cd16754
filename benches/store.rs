//! What a read and an import of the SQLite store cost; a write is `benches/commit.rs`'s. The file lies in the
//! target folder, on the disk that is there; compare the figures of one run with each other, not with
//! another machine's.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on should say so and stop")]

use std::fs::File;
use std::io::{BufReader, BufWriter, Cursor, Write as _};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use futures_util::future::join_all;
use guildgate::config::StoreAt;
use guildgate::model::{GuildId, MemberId, WARN};
use guildgate::store::{IfMissing, Mode, Store};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// Members of the guild that is read.
const MEMBERS: u64 = 100_000;

struct Bench {
    _folder: TempDir,
    runtime: Runtime,
    store: Arc<Store>,
    guild: GuildId,
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A new store in this folder.
fn make(runtime: &Runtime, folder: &Path) -> Arc<Store> {
    runtime.block_on(Store::open(&StoreAt::Sqlite(folder.join("store.db")), IfMissing::Make)).unwrap()
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let runtime = runtime();
        let store = make(&runtime, folder.path());
        let member = |id| format!("{{\"guild\":\"1\",\"member\":\"{id}\",\"name\":\"m{id}\",\"points\":{id}}}\n");
        let lines: String =
            std::iter::once("{\"guild\":\"1\",\"name\":\"G\"}\n".to_owned()).chain((0..MEMBERS).map(member)).collect();
        runtime.block_on(async {
            let lines = move || Ok(Cursor::new(lines.clone()));
            store.import(lines, Mode::AllOrNothing, |_| {}).await.unwrap().commit().await.unwrap();
        });
        Bench { _folder: folder, runtime, store, guild: "1".parse().unwrap() }
    }
}

fn random() -> MemberId {
    MemberId::new(fastrand::u64(0..MEMBERS)).unwrap()
}

/// Reads that are asked for at once: one alone mostly waits for its thread to wake up.
const AT_ONCE: [usize; 2] = [1, 64];

fn reads(c: &mut Criterion) {
    let bench = Bench::new();
    let Bench { runtime, store, guild, .. } = &bench;
    let mut group = c.benchmark_group("store/read");
    for at_once in AT_ONCE {
        group.throughput(Throughput::Elements(at_once as u64));
        group.bench_function(format!("points of a member, {at_once} at once"), |b| {
            let read = || async { store.points(guild, random()).await.unwrap() };
            b.iter(|| runtime.block_on(join_all((0..at_once).map(|_| read()))));
        });
        group.bench_function(format!("warns, none, {at_once} at once"), |b| {
            let read = || async { store.notes_of(&WARN, guild, random(), 0).await.unwrap() };
            b.iter(|| runtime.block_on(join_all((0..at_once).map(|_| read()))));
        });
    }
    group.finish();
}

/// A million members of a thousand guilds, into a new store each time.
fn import(c: &mut Criterion) {
    const ALL: u64 = 1_000_000;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("members.jsonl");
    let mut lines = BufWriter::new(File::create(&file).unwrap());
    for guild in 0..1000 {
        writeln!(lines, "{{\"guild\":\"{guild}\",\"name\":\"G\"}}").unwrap();
        for _ in 0..ALL / 1000 {
            let member = fastrand::u64(1 << 57..1 << 60);
            writeln!(lines, "{{\"guild\":\"{guild}\",\"member\":\"{member}\",\"name\":\"A name\",\"points\":1250}}")
                .unwrap();
        }
    }
    lines.into_inner().unwrap().sync_all().unwrap();
    let mut group = c.benchmark_group("store/import");
    group.throughput(Throughput::Elements(ALL)).sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_secs(10));
    group.bench_function("a million members", |b| {
        b.iter_custom(|times| (0..times).map(|_| import_once(folder.path(), &file)).sum());
    });
    group.finish();
}

fn import_once(folder: &Path, file: &Path) -> Duration {
    let home = tempfile::tempdir_in(folder).unwrap();
    let runtime = runtime();
    let store = make(&runtime, home.path());
    let (start, applying, file) = (Instant::now(), Arc::new(OnceLock::new()), file.to_owned());
    let applies = applying.clone();
    let imported = runtime.block_on(async {
        let open = move || File::open(&file).map(|file| BufReader::with_capacity(1 << 18, file));
        let import = store.import(open, Mode::AllOrNothing, move |p| {
            if p.of.is_some() {
                applies.get_or_init(|| start.elapsed());
            }
        });
        import.await.unwrap().commit().await.unwrap()
    });
    assert_eq!(imported.records, 1_001_000);
    let (all, read) = (start.elapsed(), *applying.get().unwrap());
    eprintln!("read in {read:?}, applied in {:?}", all - read);
    all
}

criterion_group!(benches, reads, import);
criterion_main!(benches);
