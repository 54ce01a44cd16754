//! An HTTP/2 client that keeps to the rules, on the `h2` crate. An answer is checked in the same way as one of
//! HTTP/1.1, so that a test can compare the two. For frames that break the rules there is `frames`.

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::{Answer, PATIENCE, Request};

/// A well-behaved client of HTTP/2.
pub struct Http2 {
    send: SendRequest<Bytes>,
    driver: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

/// A request under way.
pub struct Asked {
    pub answer: ResponseFuture,
    pub body: SendStream<Bytes>,
}

impl Http2 {
    pub async fn over(stream: TlsStream<TcpStream>) -> Http2 {
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "HTTP/2 was not agreed on");
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        Http2 { send, driver: tokio::spawn(connection) }
    }

    /// Sends the header, and the body's end with it if there is none.
    pub async fn begin(&mut self, request: &Request, has_body: bool) -> Asked {
        self.try_begin(request, has_body).await.unwrap()
    }

    async fn try_begin(&mut self, request: &Request, has_body: bool) -> Result<Asked, h2::Error> {
        let mut send = timeout(PATIENCE, self.send.clone().ready()).await.expect("no room for a stream")?;
        let (answer, body) = send.send_request(request.http2(), !has_body)?;
        Ok(Asked { answer, body })
    }

    /// Sends a request whole.
    pub async fn send(&mut self, request: &Request) -> Asked {
        self.try_send(request).await.unwrap()
    }

    /// As [`Http2::send`], where the gateway may have said that it takes no more.
    pub async fn try_send(&mut self, request: &Request) -> Result<Asked, h2::Error> {
        let body = request.body_bytes();
        let mut asked = self.try_begin(request, !body.is_empty()).await?;
        if !body.is_empty() {
            // What ends the stream meanwhile is told in place of its answer.
            let _ = asked.body.send_data(Bytes::from(body), true);
        }
        Ok(asked)
    }

    pub async fn ask(&mut self, request: &Request) -> Answer {
        self.send(request).await.answer().await
    }

    /// Waits until the connection is over; whether it ended in good order.
    pub async fn end(self) -> Result<(), h2::Error> {
        drop(self.send);
        timeout(PATIENCE, self.driver).await.expect("the connection did not end").unwrap()
    }

    /// As [`Http2::end`], while this side would still like to ask.
    pub async fn is_ended(&mut self) -> Result<(), h2::Error> {
        timeout(PATIENCE, &mut self.driver).await.expect("the connection did not end").unwrap()
    }
}

impl Asked {
    #[track_caller]
    pub fn answer(self) -> impl Future<Output = Answer> {
        let caller = std::panic::Location::caller();
        async move { self.try_answer().await.unwrap_or_else(|e| panic!("{caller}: no answer: {e}")) }
    }

    pub async fn try_answer(self) -> Result<Answer, h2::Error> {
        timeout(PATIENCE, answer_of(self.answer)).await.expect("neither an answer nor an end")
    }
}

async fn answer_of(response: ResponseFuture) -> Result<Answer, h2::Error> {
    let (parts, mut body) = response.await?.into_parts();
    let mut head = format!("HTTP/1.1 {}", parts.status.as_u16());
    for (name, value) in &parts.headers {
        assert_ne!(name, "connection", "HTTP/2 knows no such field");
        head += &format!("\r\n{name}: {}", value.to_str().unwrap());
    }
    assert!(parts.headers.contains_key("date"), "{head}");
    let mut answer = Answer::head(&head);
    answer.body = read(&mut body).await?;
    Ok(answer)
}

async fn read(body: &mut RecvStream) -> Result<String, h2::Error> {
    let mut whole = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        whole.extend_from_slice(&data);
    }
    Ok(String::from_utf8(whole).expect("a body is UTF-8"))
}
