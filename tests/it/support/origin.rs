//! An HTTP origin that does with each request what the test has scripted: answer, wait for a gate, stall, cut or reset
//! the connection, or send arbitrary bytes. It keeps points in memory, notes each request as it came, and follows a
//! seed where it waits at random. `origin_talk` reads and writes for it.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::origin_talk;
use super::{GUILD, INCORRECT_KEY, PATIENCE, eventually};

/// What the origin does with one request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Looks at its memory (or changes it) and answers.
    Normal,
    /// Looks at its memory, or changes it, and keeps the answer until the gate opens.
    HoldAnswer(Gate),
    /// Leaves its memory alone until the gate opens, then answers normally.
    HoldAll(Gate),
    /// Says this once the gate opens; its memory stays as it is.
    HoldThen(Gate, u16, String),
    /// Changes nothing and never answers.
    Stall,
    /// Changes its memory, then closes the connection at this point of the answer.
    Cut(Cut),
    /// Says this instead; its memory stays as it is.
    Say(u16, &'static str, Vec<u8>),
    /// Sends these bytes and closes the connection; its memory stays as it is.
    Raw(Vec<u8>),
    /// Waits up to this many milliseconds before it looks at its memory, and again after.
    Jitter(u64),
    /// Begins a 200 and pours so much of a body after it, as long as somebody takes it; its memory
    /// stays as it is.
    Pour { bytes: u64 },
}

/// Where an answer is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cut {
    BeforeHeader,
    MidHeader,
    AfterHeader,
    MidBody,
}

/// Where a connection is reset, whatever it was about to be asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Break {
    /// As soon as it is there.
    AtAccept,
    /// With the header read and the body on its way.
    BeforeBody,
    /// With the body's first byte read.
    MidBody,
    /// With the whole request read.
    AfterBody,
}

impl Act {
    /// A plain answer of another status or body, without more headers.
    pub fn say(status: u16, body: &str) -> Act {
        Act::Say(status, "", body.as_bytes().to_vec())
    }
}

/// Holds what waits for it until the test opens it.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub fn shut() -> Gate {
        Gate(Arc::new(watch::Sender::new(false)))
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub async fn passed(&self) {
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// A request as the origin saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Counts connections from 0.
    pub connection: usize,
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The last part of the path.
    pub fn operation(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The value of a parameter, as it stands in the body.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.body.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

/// An HTTP/1.1 origin on a port of its own that keeps points in memory and does as it is told.
pub struct ScriptedOrigin {
    address: SocketAddr,
    shared: Arc<Shared>,
    tls: Option<TlsAcceptor>,
    accepting: Option<JoinHandle<()>>,
    /// Keeps the port, refusing connections, once the origin has gone.
    gone: Option<TcpSocket>,
}

/// What its connections share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Moves when idle connections are to be closed.
    pub(super) close_idle: watch::Sender<u64>,
}

struct State {
    /// The keys it knows, and the guild of each; `None`: it takes every key, and has one guild.
    keys: Option<HashMap<String, String>>,
    points: HashMap<String, i64>,
    maps: HashMap<(String, String), String>,
    seen: Vec<Seen>,
    next: HashMap<String, VecDeque<Act>>,
    always: Act,
    breaks: VecDeque<Break>,
    random: fastrand::Rng,
}

impl ScriptedOrigin {
    /// Starts one whose random delays follow `seed`.
    pub async fn start(seed: u64) -> ScriptedOrigin {
        ScriptedOrigin::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), seed, None)
    }

    /// Starts one that is reached by TLS.
    pub async fn start_tls(config: Arc<ServerConfig>) -> ScriptedOrigin {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        ScriptedOrigin::start_on(listener, 0, Some(TlsAcceptor::from(config)))
    }

    /// Starts one on a socket that listens.
    pub fn start_on(listener: TcpListener, seed: u64, tls: Option<TlsAcceptor>) -> ScriptedOrigin {
        let state = State {
            keys: None,
            points: HashMap::new(),
            maps: HashMap::new(),
            seen: Vec::new(),
            next: HashMap::new(),
            always: Act::Normal,
            breaks: VecDeque::new(),
            random: fastrand::Rng::with_seed(seed),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), close_idle: watch::Sender::new(0) });
        let address = listener.local_addr().unwrap();
        let accepting = Some(tokio::spawn(origin_talk::accept(listener, Arc::clone(&shared), tls.clone())));
        ScriptedOrigin { address, shared, tls, accepting, gone: None }
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How to reset the next connection that no earlier `break_next` waits for.
    pub fn break_next(&self, at: Break) {
        self.shared.state().breaks.push_back(at);
    }

    /// Knows this key from now on, and that it speaks for this guild; a key it does not know is 02.
    pub fn let_in(&self, secret: &str, guild: &str) {
        self.shared.state().keys.get_or_insert_default().insert(secret.to_owned(), guild.to_owned());
    }

    /// Knows this key no more.
    pub fn lock_out(&self, secret: &str) {
        self.shared.state().keys.get_or_insert_default().remove(secret);
    }

    /// Puts points of another guild's member in its memory.
    pub fn put_points_in(&self, guild: &str, member: &str, points: i64) {
        self.put_points(&place(guild, member), points);
    }

    /// Puts points in its memory, as someone behind Guildgate's back would.
    pub fn put_points(&self, member: &str, points: i64) {
        self.shared.state().points.insert(member.to_owned(), points);
    }

    pub fn points(&self, member: &str) -> i64 {
        self.shared.state().points.get(member).copied().unwrap_or(0)
    }

    /// What getWarns or getReviews is to be answered with; `{}` until told.
    pub fn put_map(&self, operation: &str, member: &str, map: &str) {
        self.shared.state().maps.insert((operation.to_owned(), member.to_owned()), map.to_owned());
    }

    /// What to do with the next request of this operation that no earlier `next` waits for.
    pub fn next(&self, operation: &str, act: Act) {
        self.shared.state().next.entry(operation.to_owned()).or_default().push_back(act);
    }

    /// What to do with every request that no `next` speaks of.
    pub fn always(&self, act: Act) {
        self.shared.state().always = act;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.state().seen.clone()
    }

    /// How many requests of this operation it has seen.
    pub fn asked(&self, operation: &str) -> usize {
        self.shared.state().seen.iter().filter(|s| s.operation() == operation).count()
    }

    /// How many requests of this operation it has seen about this member.
    pub fn asked_about(&self, operation: &str, member: &str) -> usize {
        let state = self.shared.state();
        state.seen.iter().filter(|s| s.operation() == operation && s.param("memberID") == Some(member)).count()
    }

    /// Waits until it has seen `count` requests of this operation.
    pub async fn has_been_asked(&self, operation: &str, count: usize) {
        eventually(PATIENCE, &format!("{count} × {operation} at the origin"), || async {
            self.asked(operation) >= count
        })
        .await;
    }

    /// Closes every connection that is not within a request.
    pub fn close_idle(&self) {
        self.shared.close_idle.send_modify(|n| *n += 1);
    }

    /// Goes away: connections are closed, new ones refused. The port stays taken.
    pub async fn refuse(&mut self) {
        self.accepting.take().unwrap().abort();
        let address = self.address;
        let mut gone = None;
        eventually(PATIENCE, "the origin's port is free", || {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            gone = socket.bind(address).is_ok().then_some(socket);
            let bound = gone.is_some();
            async move { bound }
        })
        .await;
        self.gone = gone;
    }

    /// Is there again after `refuse`, on the same port.
    pub fn come_back(&mut self) {
        let listener = self.gone.take().unwrap().listen(64).unwrap();
        self.accepting = Some(tokio::spawn(origin_talk::accept(listener, Arc::clone(&self.shared), self.tls.clone())));
    }
}

impl Drop for ScriptedOrigin {
    fn drop(&mut self) {
        if let Some(accepting) = &self.accepting {
            accepting.abort();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Notes the request and says what to do with it.
    pub(super) fn met(&self, seen: &Seen) -> Act {
        let mut state = self.state();
        state.seen.push(seen.clone());
        let next = state.next.get_mut(seen.operation()).and_then(VecDeque::pop_front);
        next.unwrap_or_else(|| state.always.clone())
    }

    /// How to reset the connection that has just come.
    pub(super) fn next_break(&self) -> Option<Break> {
        self.state().breaks.pop_front()
    }

    /// A random part of `max_ms` milliseconds.
    pub(super) fn some_of(&self, max_ms: u64) -> Duration {
        Duration::from_millis(self.state().random.u64(0..=max_ms))
    }

    /// Does what is asked for, as the service's own documentation has it.
    pub(super) fn perform(&self, seen: &Seen) -> (u16, String) {
        let Some(member) = seen.param("memberID") else {
            return (400, "04 | Param 'memberID' is not provided!".into());
        };
        let mut state = self.state();
        let guild = match &state.keys {
            None => GUILD.to_owned(),
            Some(keys) => match keys.get(seen.header("authorization").unwrap_or_default()) {
                Some(guild) => guild.clone(),
                None => return (401, INCORRECT_KEY.into()),
            },
        };
        let place = place(&guild, member);
        match seen.operation() {
            "getPoints" => (200, state.points.get(&place).copied().unwrap_or(0).to_string()),
            "setPoints" => {
                let Some(Ok(amount)) = seen.param("amount").map(str::parse) else {
                    return (400, "the gateway sent no amount".into());
                };
                state.points.insert(place, amount);
                (200, format!("Successfully set 'Ada' points to '{amount}'"))
            }
            map @ ("getWarns" | "getReviews") => {
                let key = (map.to_owned(), member.to_owned());
                (200, state.maps.get(&key).cloned().unwrap_or_else(|| "{}".into()))
            }
            other => (404, format!("no such operation: {other}")),
        }
    }
}

/// Under what a member's points are kept: its id alone in the guild that tests have by default.
fn place(guild: &str, member: &str) -> String {
    if guild == GUILD { member.to_owned() } else { format!("{guild}/{member}") }
}
