//! Reads a member's points, sets them and reads them again, as docs/callers.md explains. The address and the key come
//! from `GUILDGATE_URL` (plain HTTP) and `GUILDGATE_KEY`. On 12 and 21 it waits as long as it is told and tries again.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Where Guildgate is, and the key.
pub(crate) struct Client {
    pub(crate) url: String,
    pub(crate) key: String,
}

impl Client {
    /// The text of the answer, or the line of the refusal as an error.
    pub(crate) async fn call(&self, operation: &str, params: &[(&str, &str)]) -> Result<String, Error> {
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            let (text, retry_after) = timeout(Duration::from_secs(20), self.send(operation, params)).await??;
            let Some(code) = code(&text) else { return Ok(text) };
            let wait = Duration::from_secs(retry_after.unwrap_or(1)) + Duration::from_millis(fastrand::u64(..500));
            if !matches!(code, 12 | 21) || Instant::now() + wait > give_up {
                return Err(text.into());
            }
            sleep(wait).await;
        }
    }

    /// Sends the request once. The text of the answer, and its `Retry-After`.
    async fn send(&self, operation: &str, params: &[(&str, &str)]) -> Result<(String, Option<u64>), Error> {
        let uri: Uri = format!("{}/{operation}", self.url).parse()?;
        let host = uri.host().ok_or("the URL has no host")?;
        let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(params).finish();
        let request = Request::post(uri.path())
            .header(HOST, uri.authority().map_or(host, |authority| authority.as_str()))
            .header(AUTHORIZATION, &self.key)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(body)))?;
        let answer = sender.send_request(request).await?;
        let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((String::from_utf8(body.into())?, retry_after))
    }
}

/// The code, if the text is a refusal: two digits, a space, a bar, a space.
fn code(text: &str) -> Option<u8> {
    let (code, _) = text.split_once(" | ")?;
    if code.len() == 2 { code.parse().ok() } else { None }
}

/// What the three calls are answered.
pub(crate) async fn run(client: &Client) -> Result<String, Error> {
    let member = ("memberID", "190551803669118976");
    let before = client.call("getPoints", &[member]).await?;
    let set = client.call("setPoints", &[member, ("amount", "1250")]).await?;
    let after = client.call("getPoints", &[member]).await?;
    Ok(format!("{before}\n{set}\n{after}\n"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client { url: std::env::var("GUILDGATE_URL")?, key: std::env::var("GUILDGATE_KEY")? };
    use std::io::Write;
    Ok(std::io::stdout().write_all(run(&client).await?.as_bytes())?)
}
