//! `[admin]`: the address and the form of the tokens. Tokens in files are read where they are used.

use std::net::SocketAddr;

use super::file::section;
use super::leaf::whole_path;
use super::problem::Faults;
use super::secret::{Secret, Source};
use super::server::{CertificateFiles, Listen, Server, tcp_address};

section! {
    /// `[admin]`
    pub struct AdminListener {
        /// A TCP address as "IP:PORT"; "" turns it off.
        listen: String = "127.0.0.1:9180".to_owned(),
        /// That of `listen`.
        #[serde(skip)]
        pub address: SocketAddr = ([127, 0, 0, 1], 9180).into(),
        /// Names by which browsers may reach the dashboard, besides `localhost` and the address of `listen`.
        #[schemars(extend("items" = { "type": "string", "format": "host" }))]
        pub hosts: Vec<String> = Vec::new(),
        /// The bearer token, "env:NAME" or "file:PATH"; the file is made at first start if it is missing.
        pub token: Secret = Secret::new("file:admin.token"),
        /// A token that sees everything and changes nothing: "env:NAME" or "file:PATH".
        pub read_token: Option<Secret> = None,
        /// A token that writes members, warns and reviews, and does nothing else: "env:NAME" or "file:PATH".
        pub bot_token: Option<Secret> = None,
        /// TLS; wanted beyond loopback.
        pub tls: Option<CertificateFiles> = None,
        /// Listens beyond loopback without TLS.
        plaintext: bool = false,
    }
}

impl AdminListener {
    pub(super) fn check(&mut self, faults: &mut Faults<'_>, server: &Server) {
        // The default's path is not whole yet.
        if let (Source::File(path), false) = (self.token.source(), faults.places.is_given("admin.token")) {
            match whole_path(path, faults.folder) {
                Ok(path) => self.token = Secret::new(&format!("file:{path}")),
                Err(why) => faults.add("admin.token", why),
            }
        }
        if self.listen.is_empty() {
            return;
        }
        for (setting, token) in self.tokens() {
            match token.source() {
                Source::File(_) => {}
                // Whoever guesses the path would be let in.
                Source::Written(text) if text.starts_with(['/', '.', '~']) || text.ends_with(".token") => {
                    faults
                        .add(setting, "is a path; write \"file:\" before it (a token that begins so goes into a file)");
                }
                _ => faults.secret(token).map_or_else(|why| faults.add(setting, why), drop),
            }
        }
        match tcp_address(&self.listen) {
            Ok(address) => self.address = address,
            Err(why) => return faults.add("admin.listen", why),
        }
        let address = self.address;
        if !address.ip().is_loopback() && self.tls.is_none() && !self.plaintext && !faults.has("admin.tls") {
            let why = "listens beyond loopback, where others could read the token on its way";
            faults.add("admin.listen", format!("{why}; set `admin.tls`, or `admin.plaintext = true` to accept that"));
        }
        let listen = Listen::Tcp(address);
        if address.port() != 0 && (server.listen.contains(&listen) || listen.covered_by(&server.listen).is_some()) {
            faults.add("admin.listen", "is an address of `server.listen`; name another port");
        }
    }

    /// `None`: off.
    pub fn listener(&self) -> Option<&Self> {
        (!self.listen.is_empty()).then_some(self)
    }

    /// The tokens, each with its setting. Files are read where they are used.
    pub fn tokens(&self) -> impl Iterator<Item = (&'static str, &Secret)> {
        let (read, bot) = (self.read_token.as_ref(), self.bot_token.as_ref());
        let tokens = [("admin.token", Some(&self.token)), ("admin.read_token", read), ("admin.bot_token", bot)];
        tokens.into_iter().filter_map(|(setting, token)| Some((setting, token?)))
    }
}

/// A name that browsers send as `Host`.
pub(super) fn host(text: &str) -> Result<String, String> {
    let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
    let is_host = !text.is_empty() && text.bytes().all(is_name);
    is_host.then(|| text.to_owned()).ok_or_else(|| "is not a host name; write it without scheme and port".to_owned())
}
