//! What the tests share: a gateway, a strict client, and a scripted origin.

mod admin;
mod answer;
mod authority;
mod browser;
mod builder;
mod busy;
mod client;
mod crowd;
mod dashboard;
mod disk;
mod excess;
pub mod frames;
mod gateway;
mod hanging_disk;
mod haproxy;
mod held;
mod http2;
mod origin;
mod origin_talk;
mod patience;
mod pgbouncer;
pub mod postgres;
mod preload;
mod process;
mod proxy;
mod redis;
mod slow;
mod talk;
mod tcp;
mod tls;
mod world;

pub use admin::{AdminAnswer, AdminClient};
pub use answer::{Answer, INCORRECT_KEY, MALFORMED, NO_ANSWER, NO_KEY, PLAIN_HTTP, TOO_LARGE, TOO_SLOW};
pub use authority::Authority;
pub use browser::Browser;
pub use builder::{Builder, GUILD, Kind, digest};
pub use busy::BusyWriter;
pub use client::{Connection, Request};
pub use crowd::{Caller, Crowd};
pub use dashboard::{Dashboard, OWN};
pub use disk::SmallDisk;
pub use excess::excess;
pub use gateway::TestGateway;
pub use hanging_disk::{HangingDisk, Hangs};
pub use haproxy::HaProxy;
pub use held::HeldBody;
pub use http2::Http2;
pub use origin::{Act, Break, Cut, Gate, ScriptedOrigin, Seen};
pub use patience::{PATIENCE, SECOND_AND_SLACK, eventually, unix_now};
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use preload::preload;
pub use process::Process;
pub use proxy::{Holds, Proxy};
pub use redis::{Redis, RedisDatabase};
pub use slow::{Slow, SlowClients};
pub use talk::{End, HandOrigin, Talk};
pub use tcp::TcpEntry;
pub use tls::{Identity, TlsClient, shown};
pub use world::{Ran, World};

/// Makes two tests of each function named: one on the built-in backend, one on an HTTP origin.
/// A function left out of the list is dead code, so it cannot be forgotten.
macro_rules! on_both_origins {
    ($($test:ident),+ $(,)?) => {
        tests_on!(builtin: Builtin, $($test),+);
        tests_on!(http: Http, $($test),+);
    };
}

/// As `on_both_origins`: one on a store in an SQLite file, one on a store in PostgreSQL.
macro_rules! on_both_stores {
    ($($test:ident),+ $(,)?) => {
        tests_on!(sqlite: Builtin, $($test),+);
        tests_on!(postgres: Postgres, $($test),+);
    };
}

macro_rules! tests_on {
    ($module:ident: $kind:ident, $($test:ident),+) => {
        mod $module {
            $(#[tokio::test]
            async fn $test() {
                super::$test($crate::support::Kind::$kind).await;
            })+
        }
    };
}
