//! Addresses for the servers that tests start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that Linux gives to connections and to whoever asks for port 0: nothing but another test can take one
/// between its choice and its use, or while its server is started again.
const PORTS: Range<u32> = 20_000..32_000;

/// How many ports a test process has before it comes to those of the process with the next id: more than one needs.
const PORTS_OF_A_PROCESS: u32 = 100;

/// An address of the loopback interface on which nobody listens.
pub fn free_address() -> SocketAddr {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let (ports, id) = (PORTS.end - PORTS.start, std::process::id());
    for _ in PORTS {
        let nth = id % ports * PORTS_OF_A_PROCESS + TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(PORTS.start + nth % ports).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no port from {} to {} is free", PORTS.start, PORTS.end);
}
