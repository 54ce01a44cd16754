//! Connections to https upstreams: TLS is our own, with the roots and the certificate that operations use, and Pingora gets
//! what is inside. It keeps none of them.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use pingora::connectors::L4Connect;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::{Error, ErrorType, Result};

use crate::edge::io::Bounded;
use crate::edge::transport::Transport;
use crate::origin::Target;

/// Opens connections with TLS to one upstream, on which a write may take so long.
#[derive(Debug)]
pub(super) struct TlsConnector(pub(super) Target, pub(super) Duration);

#[async_trait]
impl L4Connect for TlsConnector {
    async fn connect(&self, _: &SocketAddr) -> Result<Stream> {
        let opened = self.0.connect().await.map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::TimedOut => ErrorType::ConnectTimedout,
                io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
                _ => ErrorType::TLSHandshakeFailure,
            };
            Error::because(kind, "with TLS", error)
        })?;
        let transport = Transport::Right(Box::new((*opened).into()));
        Ok(Bounded::for_one_request(transport, self.1, None, Vec::new()).stream())
    }
}
