//! Determines the client's address: the peer's own, or, where the peer is one of `trusted_proxies`, the first address
//! from the right of `X-Forwarded-For` that is not a trusted proxy. A peer on a Unix socket is a trusted proxy if there
//! are any. A header from an untrusted peer is ignored, since requests without a valid key are charged to this address.
//! Pure.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

use crate::config::is_trusted;

/// The client's address (contract section 3, `trusted_proxies`). A peer of `None` is on a Unix socket.
pub(super) fn client(peer: Option<IpAddr>, forwarded_for: &[&[u8]], trusted: &[IpNet]) -> IpAddr {
    let mut client = peer.map(|p| p.to_canonical());
    let hops = forwarded_for.iter().rev().flat_map(|value| value.rsplit(|b| *b == b','));
    for hop in hops {
        if !is_trusted(client, trusted) {
            break;
        }
        // A trusted proxy writes addresses only.
        let Some(address) = address(hop) else { break };
        client = Some(address);
    }
    client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// Parses an address with or without a port, in the forms that proxies use.
fn address(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim();
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|a| a.ip()));
    address.ok().map(|a| a.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_of(peer: &str, forwarded: &[&str]) -> String {
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let forwarded: Vec<&[u8]> = forwarded.iter().map(|f| f.as_bytes()).collect();
        client(peer.parse().ok(), &forwarded, &trusted).to_string()
    }

    #[test]
    fn a_peer_that_is_no_proxy_is_the_client_whatever_it_says() {
        assert_eq!(client_of("203.0.113.9", &["198.51.100.1"]), "203.0.113.9");
    }

    #[test]
    fn the_first_untrusted_address_from_the_right_is_the_client() {
        assert_eq!(client_of("10.0.0.1", &["6.6.6.6, 203.0.113.9, 10.0.0.2"]), "203.0.113.9");
        assert_eq!(client_of("10.0.0.1", &["6.6.6.6", "203.0.113.9", "10.0.0.2"]), "203.0.113.9");
        assert_eq!(client_of("10.0.0.1", &["203.0.113.9:4711"]), "203.0.113.9");
        assert_eq!(client_of("fd00::1", &["[2001:db8::7]:80"]), "2001:db8::7");
        assert_eq!(client_of("::ffff:10.0.0.1", &["203.0.113.9"]), "203.0.113.9");
    }

    #[test]
    fn a_proxy_on_a_unix_socket_is_believed() {
        assert_eq!(client_of("unix", &["6.6.6.6, 203.0.113.9"]), "203.0.113.9");
        assert_eq!(client_of("unix", &[]), "0.0.0.0");
        assert!(!is_trusted(None, &[]), "where there are no proxies, nobody is one");
    }

    #[test]
    fn what_cannot_be_read_is_not_believed() {
        assert_eq!(client_of("10.0.0.1", &["203.0.113.9, unknown"]), "10.0.0.1");
        assert_eq!(client_of("10.0.0.1", &["6.6.6.6, , 10.0.0.2"]), "10.0.0.2");
        assert_eq!(client_of("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(client_of("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
    }
}
