//! A proxy that is nothing but Pingora: what `[pass]` is compared with (`benches/peers/run --works page,large_page`).
//!
//!     bare_proxy LISTEN UPSTREAM

use std::net::SocketAddr;

use async_trait::async_trait;
use pingora::Result;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;

struct Bare(SocketAddr);

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.0, false, String::new())))
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(listen), Some(upstream)) = (args.next(), args.next()) else {
        return Err("usage: bare_proxy LISTEN UPSTREAM".into());
    };
    let at_once = Some(0);
    let conf = ServerConf {
        grace_period_seconds: at_once,
        graceful_shutdown_timeout_seconds: at_once,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Bare(upstream.parse()?));
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
