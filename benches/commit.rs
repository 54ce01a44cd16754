//! What group commit makes of a disk: acknowledged setPoints a second by 1, 16 and 256 callers, beside the
//! disk's own syncs and a transaction for each write, and in PostgreSQL beside pgbench's simple update.
//!
//! `cargo bench --bench commit`. Rounds are interleaved, so that what else the machine does hits every
//! line; compare lines of one run only. Both stores lie where temporary files do: TMPDIR names another disk.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench that cannot set itself up has nothing to measure"
)]

#[expect(dead_code, reason = "other benches use more of it")]
mod shared;
#[expect(dead_code, unused_imports, reason = "the tests use more of it")]
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::fs::File;
use std::io::Cursor;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guildgate::model::{GuildId, MemberId};
use guildgate::store::{Mode, Store};
use rusqlite::Connection;
use support::Postgres;
use support::postgres::program;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Members of the guild that is written to.
const MEMBERS: u64 = 100_000;

const CALLERS: [usize; 3] = [1, 16, 256];

/// A page with its header, as SQLite adds it to its log, and how many of them the log has before it begins anew.
const FRAME: usize = 4096 + 24;
const FRAMES: u64 = 1000;

/// Seconds in which pgbench connects its 256 clients.
const CONNECTS: u64 = 1;

/// How often and for how long each line is measured.
#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    each: Duration,
}

/// A line of a table.
struct Line<'m> {
    what: String,
    /// The lines that it is compared with.
    beside: Vec<usize>,
    /// So many a second.
    measure: Box<dyn FnMut() -> f64 + 'm>,
    rates: Vec<f64>,
}

fn main() {
    let plan = match shared::is_measured() {
        true => Plan { rounds: 7, each: Duration::from_secs(2) },
        false => Plan { rounds: 1, each: Duration::from_millis(50) },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    if shared::is_asked("sqlite") {
        sqlite(&runtime, plan);
    }
    if shared::is_asked("postgres") {
        postgres(&runtime, plan);
    }
}

fn sqlite(runtime: &Runtime, plan: Plan) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = filled(runtime, path.to_str().unwrap());
    let log = File::create(folder.path().join("log")).unwrap();
    let mut lines = vec![
        Line::new("a frame and an fsync", &[], || syncs(&log, plan.each, File::sync_all)),
        Line::new("a frame and an fdatasync", &[], || syncs(&log, plan.each, File::sync_data)),
        Line::new("a transaction each", &[0, 1], || one_by_one(&path, plan.each)),
    ];
    for callers in CALLERS {
        let (store, what) = (&store, format!("group commit by {callers}"));
        lines.push(Line::new(&what, &[0, 1, 2], move || writes(runtime, store, callers, plan.each)));
    }
    measure(&mut lines, plan.rounds);
    eprintln!("\nSQLite in {}: writes a second, the median of {} rounds", std::env::temp_dir().display(), plan.rounds);
    eprintln!("| | a second | to an fsync | to an fdatasync | to a transaction each |\n|---|---|---|---|---|");
    lines.iter().for_each(|line| line.print(&lines, 3));
}

fn postgres(runtime: &Runtime, plan: Plan) {
    let server = Postgres::start(&["max_connections = 400", "shared_buffers = 256MB"]);
    let (ours, theirs) = runtime.block_on(async { (server.database().await, server.database().await) });
    let store = filled(runtime, &ours);
    pgbench(&["--initialize", "--quiet", "--scale=10"], &theirs);
    let mut lines = Vec::new();
    for callers in CALLERS {
        let (store, theirs) = (&store, &theirs);
        let what = format!("pgbench -N by {callers}");
        lines.push(Line::new(&what, &[], move || simple_updates(theirs, callers, plan.each)));
        let (what, beside) = (format!("group commit by {callers}"), lines.len() - 1);
        lines.push(Line::new(&what, &[beside], move || writes(runtime, store, callers, plan.each)));
    }
    measure(&mut lines, plan.rounds);
    eprintln!(
        "\nPostgreSQL in {}: writes a second, the median of {} rounds",
        std::env::temp_dir().display(),
        plan.rounds
    );
    eprintln!("| | a second | to pgbench |\n|---|---|---|");
    lines.iter().for_each(|line| line.print(&lines, 1));
}

impl<'m> Line<'m> {
    fn new(what: &str, beside: &[usize], measure: impl FnMut() -> f64 + 'm) -> Self {
        Line { what: what.to_owned(), beside: beside.to_vec(), measure: Box::new(measure), rates: Vec::new() }
    }

    fn print(&self, all: &[Line<'_>], ratios: usize) {
        let to = |base: &usize| {
            let of_each_round = self.rates.iter().zip(&all[*base].rates).map(|(ours, theirs)| ours / theirs);
            format!(" {:.2} |", median(of_each_round.collect()))
        };
        let mut cells: Vec<String> = self.beside.iter().map(to).collect();
        cells.resize(ratios, " |".to_owned());
        eprintln!("| {} | {:.0} |{}", self.what, median(self.rates.clone()), cells.concat());
    }
}

fn measure(lines: &mut [Line<'_>], rounds: usize) {
    for _ in 0..rounds {
        lines.iter_mut().for_each(|line| line.rates.push((line.measure)()));
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn filled(runtime: &Runtime, at: &str) -> Arc<Store> {
    let member = |id| format!("{{\"guild\":\"1\",\"member\":\"{id}\",\"name\":\"m{id}\",\"points\":{id}}}\n");
    let lines: String =
        std::iter::once("{\"guild\":\"1\",\"name\":\"G\"}\n".to_owned()).chain((0..MEMBERS).map(member)).collect();
    runtime.block_on(async {
        let store = shared::open(at).await;
        let import = store.import(move || Ok(Cursor::new(lines.clone())), Mode::AllOrNothing, |_| {}).await.unwrap();
        import.commit().await.unwrap();
        store
    })
}

fn random() -> MemberId {
    MemberId::new(fastrand::u64(0..MEMBERS)).unwrap()
}

/// Another amount each time: SQLite leaves a page as it is, and syncs nothing, where nothing changes.
fn amount() -> i64 {
    fastrand::i64(0..1_000_000)
}

/// By so many callers at once, each waiting for its own.
fn writes(runtime: &Runtime, store: &Arc<Store>, callers: usize, each: Duration) -> f64 {
    runtime.block_on(async {
        let guild: GuildId = "1".parse().unwrap();
        let (mut all, start) = (JoinSet::new(), Instant::now());
        for _ in 0..callers {
            let (store, guild) = (store.clone(), guild.clone());
            all.spawn(async move {
                let mut written = 0_u32;
                while start.elapsed() < each {
                    store.set_points(&guild, random(), amount()).await.unwrap();
                    written += 1;
                }
                written
            });
        }
        let written: u32 = all.join_all().await.iter().sum();
        f64::from(written) / start.elapsed().as_secs_f64()
    })
}

/// Frames written over those of the round before, as SQLite writes over its log.
fn syncs(log: &File, each: Duration, sync: fn(&File) -> std::io::Result<()>) -> f64 {
    repeated(each, |done| {
        log.write_all_at(&[1; FRAME], u64::from(done) % FRAMES * FRAME as u64).unwrap();
        sync(log).unwrap();
    })
}

/// The plain way: a transaction and a sync for each write.
fn one_by_one(path: &Path, each: Duration) -> f64 {
    let conn = Connection::open(path).unwrap();
    conn.execute_batch("PRAGMA synchronous = FULL").unwrap();
    let mut set = conn.prepare("UPDATE member SET points = ?2 WHERE guild = 1 AND member = ?1").unwrap();
    repeated(each, |_| assert_eq!(set.execute([random().as_i64(), amount()]).unwrap(), 1))
}

fn repeated(each: Duration, mut once: impl FnMut(u32)) -> f64 {
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < each {
        once(done);
        done += 1;
    }
    f64::from(done) / start.elapsed().as_secs_f64()
}

fn simple_updates(url: &str, clients: usize, each: Duration) -> f64 {
    let (clients, threads) = (format!("--client={clients}"), format!("--jobs={}", clients.min(2)));
    // In whole seconds, and it counts those in which it connects, though not in its rate.
    let until = match each.as_secs() {
        0 => "--transactions=1".to_owned(),
        seconds => format!("--time={}", seconds + CONNECTS),
    };
    let said = pgbench(&["--no-vacuum", "--skip-some-updates", &clients, &threads, &until], url);
    let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.unwrap_or_else(|| panic!("no rate in what pgbench says: {said}"))
}

fn pgbench(args: &[&str], url: &str) -> String {
    let ran = program("pgbench").args(args).arg(url).output().expect("scripts/setup installs Debian's postgresql");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}
