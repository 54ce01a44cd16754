//! Checks `[admin]`: the address and the form of the tokens. Tokens in files are read where they are used.

use super::Checker;
use crate::config::file::{AdminFile, ServerFile};
use crate::config::secret::{Secret, Source};
use crate::config::usable::{Admin, AdminListener, TokenSource};

impl Checker<'_> {
    pub(super) fn admin(&mut self, file: &AdminFile, server: &ServerFile) -> Admin {
        let is_on = !file.listen.is_empty();
        let token = self.token("admin.token", &file.token, is_on);
        let mut optional = |name, token: &Option<Secret>| token.as_ref().map(|token| self.token(name, token, is_on));
        let read_token = optional("admin.read_token", &file.read_token);
        let bot_token = optional("admin.bot_token", &file.bot_token);
        let tls = file.tls.as_ref().map(|tls| self.certificate_files("admin.tls", tls));
        let address = if is_on { self.tcp_address("admin.listen", &file.listen) } else { None };
        for (i, host) in file.hosts.iter().enumerate() {
            let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
            if host.is_empty() || !host.bytes().all(is_name) {
                self.fault(&format!("admin.hosts[{i}]"), "is not a host name; write it without scheme and port");
            }
        }
        let Some(address) = address else { return Admin { listener: None } };
        if !address.ip().is_loopback() && tls.is_none() && !file.plaintext {
            let why = "listens beyond loopback, where others could read the token on its way";
            self.fault("admin.listen", format!("{why}; set `admin.tls`, or `admin.plaintext = true` to accept that"));
        }
        if address.port() != 0 && server.listen.iter().any(|listen| listen.parse() == Ok(address)) {
            self.fault("admin.listen", "is an address of `server.listen`; name another port");
        }
        Admin {
            listener: Some(AdminListener { address, hosts: file.hosts.clone(), token, read_token, bot_token, tls }),
        }
    }

    /// `is_on`: the listener is on, so that the token is needed.
    fn token(&mut self, path: &str, secret: &Secret, is_on: bool) -> TokenSource {
        match secret.source() {
            Source::Env(name) if name.is_empty() || name.contains(['=', '\0']) => {
                self.fault(path, "the name of an environment variable must follow `env:`");
            }
            Source::Env(_) if !is_on => {}
            Source::File("") => self.fault(path, "a path must follow `file:`"),
            Source::File(name) => {
                let file = self.file(path, name);
                self.resolved.push((path.to_owned(), format!("file:{}", file.display())));
                return TokenSource::File(file);
            }
            Source::Written(_) | Source::Env(_) => match self.secret(path, secret) {
                Ok(value) => return TokenSource::Value(value),
                Err(why) => self.fault(path, why),
            },
        }
        TokenSource::Value(String::new()) // never seen: there is a fault, or no listener
    }
}
