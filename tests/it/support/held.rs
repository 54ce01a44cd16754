//! A request whose header the gateway has accepted and whose body is held back. It has begun only when `100 Continue` has
//! come, so that a test can change something at a known moment between admission and body.

use super::{Answer, Connection, Request, TestGateway};

/// A request whose header was accepted (`100 Continue` has come) and whose body is held back.
pub struct HeldBody {
    request: Request,
    connection: Connection,
}

impl HeldBody {
    /// Sends the header, and waits until the gateway asks for the body.
    pub async fn begin(gate: &TestGateway, request: Request) -> HeldBody {
        let request = request.header("Expect", "100-continue");
        let mut connection = gate.connect().await;
        connection.send(request.head()).await;
        assert_eq!(connection.answer().await.status, 100);
        HeldBody { request, connection }
    }

    /// Sends the body, and reads the answer.
    pub async fn release(mut self) -> Answer {
        self.connection.send(self.request.body_bytes()).await;
        self.connection.answer().await
    }
}
