//! The header of the PROXY protocol, by which a proxy that passes bytes on says whose connection it is. It precedes
//! everything else, TLS too, and is read to its last byte and no further.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};

use proxy_header::{ParseConfig, ProxyHeader};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout_at;

use super::Edge;
use super::accept::Peer;
use crate::config::is_trusted;

/// How a header of version 2 begins.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// What the shortest header of version 1 has, and one of version 2 up to the first byte of its length.
const SHORTEST: usize = 15;

/// The longest header of version 1, by the protocol.
const MAX_V1: usize = 107;

/// The longest header of version 2. By the protocol 536 bytes are enough; extensions with certificates may take more.
const MAX_V2: usize = 4 << 10;

/// The address of a caller that the proxy does not know.
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Edge {
    /// The address of the caller for whom this peer passes bytes on.
    ///
    /// # Errors
    /// Why the connection is to be closed: the peer is no trusted proxy, or sent no valid header in time.
    pub(super) async fn proxied(
        &self,
        socket: &mut (impl AsyncRead + Unpin),
        peer: &Peer,
    ) -> io::Result<Option<IpAddr>> {
        let header_timeout = {
            let state = self.gateway.state();
            let server = &state.config.server;
            if !is_trusted(peer.address, &server.trusted_proxies) {
                return Err(io::Error::new(ErrorKind::PermissionDenied, "its peer is none of server.trusted_proxies"));
            }
            server.header_timeout
        };
        // A proxy's own connection, such as a health check, is its own.
        Ok(timeout_at(peer.accepted_at + header_timeout, read(socket)).await??.or(peer.address))
    }
}

/// Reads a header; the address that it names, or 0.0.0.0 where the proxy does not know it: a caller whose own fields are
/// not trusted. `None`: the connection is the proxy's own.
async fn read(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    let mut header = vec![0; SHORTEST];
    socket.read_exact(&mut header).await?;
    if header.starts_with(V2) {
        header.push(socket.read_u8().await?);
        let length = SHORTEST + 1 + usize::from(u16::from_be_bytes([header[SHORTEST - 1], header[SHORTEST]]));
        header.resize(length.min(MAX_V2), 0);
        socket.read_exact(&mut header[SHORTEST + 1..]).await?;
    }
    // A line has no length, and what follows it is not the header's: so it is read byte by byte.
    while header.starts_with(b"PROXY ") && header.len() < MAX_V1 && !header.ends_with(b"\n") {
        header.push(socket.read_u8().await?);
    }
    match ProxyHeader::parse(&header, ParseConfig { include_tlvs: false, ..ParseConfig::default() }) {
        Ok((parsed, length)) if length == header.len() => {
            let named = parsed.proxied_address().map_or(UNKNOWN, |named| named.source.ip());
            let is_local = header.starts_with(V2) && header[V2.len()] & 0x0f == 0;
            Ok(Some(named).filter(|_| !is_local))
        }
        _ => Err(io::Error::new(ErrorKind::InvalidData, "it does not begin with a valid PROXY header")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::runtime::Builder;

    use super::*;

    const STARTS: &[&[u8]] = &[b"", V2, b"PROXY ", b"PROXY TCP4 ", b"PROXY UNKNOWN"];

    /// What is read of this text, and what is left of it.
    fn read_of(text: &[u8]) -> (Option<Option<IpAddr>>, &[u8]) {
        let mut rest = text;
        let runtime = Builder::new_current_thread().build().unwrap();
        (runtime.block_on(read(&mut rest)).ok(), rest)
    }

    /// A header of version 2 with these bytes after its length.
    fn v2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let length = u16::try_from(block.len()).unwrap().to_be_bytes();
        [V2, &[command, family], &length, block].concat()
    }

    fn headers() -> Vec<(Vec<u8>, Option<&'static str>)> {
        let addresses = [&[203, 0, 113, 9, 10, 0, 0, 1][..], &[1, 2, 3, 4]].concat();
        let extended = [&addresses[..], &[4, 0, 200], &[0; 200]].concat();
        let v6 = [&[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..], &[0; 20]].concat();
        vec![
            (b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n".to_vec(), Some("203.0.113.9")),
            (b"PROXY TCP6 2001:db8::7 ::1 4711 443\r\n".to_vec(), Some("2001:db8::7")),
            (b"PROXY UNKNOWN\r\n".to_vec(), Some("0.0.0.0")),
            (b"PROXY UNKNOWN whatever else there is\r\n".to_vec(), Some("0.0.0.0")),
            (v2(0x21, 0x11, &addresses), Some("203.0.113.9")),
            (v2(0x21, 0x11, &extended), Some("203.0.113.9")),
            (v2(0x21, 0x21, &v6), Some("2001:db8::7")),
            (v2(0x21, 0x31, &[0; 216]), Some("0.0.0.0")), // from a Unix socket
            (v2(0x20, 0x00, &[]), None),
            (v2(0x20, 0x11, &addresses), None), // LOCAL, whatever it names
        ]
    }

    #[test]
    fn a_header_is_read_to_its_last_byte_and_no_further() {
        for (header, address) in headers() {
            for rest in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"\n", b"\x16\x03\x01"] {
                let text = [&header, rest].concat();
                assert_eq!(read_of(&text), (Some(address.map(|address| address.parse().unwrap())), rest), "{header:?}");
            }
        }
    }

    #[test]
    fn what_is_cut_or_no_header_is_refused() {
        for (header, _) in headers() {
            for end in 0..header.len() {
                assert_eq!(read_of(&header[..end]).0, None, "{:?}", &header[..end]);
            }
        }
        let long = v2(0x21, 0x11, &[0; MAX_V2]);
        for text in [
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS handshake".to_vec(),
            b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 99999\r\n".to_vec(),
            b"PROXY TCP4 2001:db8::7 ::1 4711 443\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\nGET / HTTP/1.1\r\n".to_vec(),
            b"PROXY TCP5 203.0.113.9 10.0.0.1 4711 443\r\n".to_vec(),
            b"proxy TCP4 203.0.113.9 10.0.0.1 4711 443\r\n".to_vec(),
            [&b"PROXY UNKNOWN "[..], &[b'x'; 200], b"\r\n"].concat(),
            v2(0x31, 0x11, &[0; 12]), // version 3
            v2(0x22, 0x11, &[0; 12]), // no command
            v2(0x21, 0x11, &[0; 11]), // shorter than its addresses
            v2(0x21, 0x44, &[0; 12]), // no family
            long,
        ] {
            assert_eq!(read_of(&text).0, None, "{:?}", String::from_utf8_lossy(&text));
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_read_and_never_a_panic(
            start in prop::sample::select(STARTS),
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let text = [start, &rest].concat();
            if let (Some(_), left) = read_of(&text) {
                prop_assert!(text.ends_with(left) && left.len() < text.len());
            }
        }
    }
}
