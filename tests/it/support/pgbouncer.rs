//! Debian's PgBouncer before a PostgreSQL that the tests started, in a folder of its own on a port that is free.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use tokio::net::TcpStream;

use super::postgres::program;
use super::{PATIENCE, Process, World, eventually, free_address};

/// A running PgBouncer.
pub struct PgBouncer {
    address: SocketAddr,
    server: String,
    _process: Process,
    _world: World,
}

impl PgBouncer {
    /// Starts it before the server that listens on this port of loopback, with these settings besides the usual ones.
    pub async fn before(port: u16, settings: &str) -> PgBouncer {
        let world = World::new("");
        let address = free_address();
        let users = world.write("users.txt", "\"guildgate\" \"\"\n");
        let config = world.write(
            "pgbouncer.ini",
            format!(
                "[databases]\n* = host=127.0.0.1 port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
                 unix_socket_dir =\nauth_type = trust\nauth_file = {}\n{settings}\n",
                address.port(),
                users.display()
            ),
        );
        // It does not run as root: another user reads these, in which there is no secret.
        fs::set_permissions(world.path(""), Permissions::from_mode(0o755)).unwrap();
        let process = Process::start(program("/usr/sbin/pgbouncer").arg(config));
        let accepts = async || {
            assert!(!process.stderr().contains("FATAL"), "{}", process.stderr());
            TcpStream::connect(address).await.is_ok()
        };
        eventually(PATIENCE, "PgBouncer accepts", accepts).await;
        PgBouncer { address, server: format!("127.0.0.1:{port}"), _process: process, _world: world }
    }

    /// The URL of a database of the server, through it.
    pub fn url(&self, direct: &str) -> String {
        assert!(direct.contains(&self.server), "{direct}");
        direct.replace(&self.server, &self.address.to_string())
    }
}
