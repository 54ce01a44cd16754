//! What the kernel knows of the connections of IPv4 on this machine.

use std::net::{Ipv4Addr, SocketAddr};

/// The kernel's entry of one end of a connection.
pub struct TcpEntry {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Bytes that the kernel holds until the other end takes them.
    pub unsent: u64,
}

impl TcpEntry {
    pub fn all() -> Vec<TcpEntry> {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        table.lines().skip(1).map(|line| TcpEntry::parse(line).unwrap_or_else(|| panic!("{line}"))).collect()
    }

    /// `sl local_address rem_address st tx_queue:rx_queue …`, in hexadecimal.
    fn parse(line: &str) -> Option<TcpEntry> {
        let mut words = line.split_whitespace().skip(1);
        let mut address = || {
            let (ip, port) = words.next()?.split_once(':')?;
            let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_le_bytes());
            Some(SocketAddr::from((ip, u16::from_str_radix(port, 16).ok()?)))
        };
        let (local, remote) = (address()?, address()?);
        let unsent = u64::from_str_radix(words.nth(1)?.split_once(':')?.0, 16).ok()?;
        Some(TcpEntry { local, remote, unsent })
    }
}
