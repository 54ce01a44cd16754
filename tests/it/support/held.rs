//! A request whose header the gateway has accepted and whose body is held back, over HTTP/1.1 or HTTP/2. It has begun
//! only when `100 Continue` has come, so that a test can change something at a known moment between admission and body.

use bytes::Bytes;
use tokio::time::timeout;

use super::http2::Asked;
use super::{Answer, Connection, Http2, PATIENCE, Request, TestGateway};

/// Over which version of HTTP a request is sent.
#[derive(Clone, Copy, Debug)]
pub enum Version {
    Http1,
    Http2,
}

impl Version {
    pub const BOTH: [Version; 2] = [Version::Http1, Version::Http2];
}

/// A request whose header was accepted (`100 Continue` has come) and whose body is held back.
pub struct HeldBody {
    request: Request,
    on: On,
}

enum On {
    Http1(Box<Connection>),
    Http2(Box<Http2>, Box<Asked>),
}

impl HeldBody {
    /// Sends the header, and waits until the gateway asks for the body.
    pub async fn begin(gate: &TestGateway, version: Version, request: Request) -> HeldBody {
        let request = request.header("Expect", "100-continue");
        let on = match version {
            Version::Http1 => {
                let mut connection = gate.connect().await;
                connection.send(request.head()).await;
                assert_eq!(connection.answer().await.status, 100);
                On::Http1(Box::new(connection))
            }
            Version::Http2 => {
                let mut client = gate.http2().await;
                let mut asked = client.begin(&request, true).await;
                let go_on = std::future::poll_fn(|cx| asked.answer.poll_informational(cx));
                let go_on = timeout(PATIENCE, go_on).await.expect("no 100 Continue came").unwrap().unwrap();
                assert_eq!(go_on.status(), 100);
                On::Http2(Box::new(client), Box::new(asked))
            }
        };
        HeldBody { request, on }
    }

    /// Sends the body, and reads the answer.
    pub async fn release(self) -> Answer {
        let body = self.request.body_bytes();
        match self.on {
            On::Http1(mut connection) => {
                connection.send(body).await;
                connection.answer().await
            }
            On::Http2(_client, mut asked) => {
                asked.body.send_data(Bytes::from(body), true).unwrap();
                asked.answer().await
            }
        }
    }
}
