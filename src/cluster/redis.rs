//! Connections to Redis or Valkey: one server, a Unix socket, Sentinels or a Redis Cluster, with a deadline around each
//! connect. Who asks sets the deadline of the answer. What is said of a failure never holds a password.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, RedisResult, Script, TlsMode, ToRedisArgs,
};
use tokio::time::timeout;

use crate::config::{HostPort, RedisAt, RedisServers, tls_fault, unreadable_roots};
use crate::tls;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Why Redis did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RedisFault(String);

/// An open connection. Clones share it.
#[derive(Clone)]
pub(super) enum RedisConnection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl std::fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RedisConnection")
    }
}

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// "7.2.4", for people.
    pub version: String,
    /// Keys may vanish when memory is short.
    pub evicts: bool,
}

impl From<RedisError> for RedisFault {
    fn from(error: RedisError) -> Self {
        // Of a transaction, the command that failed says why.
        let of_command = error.clone().into_server_errors().and_then(|errors| Some(errors.first()?.1.clone().into()));
        let error: RedisError = of_command.unwrap_or(error);
        let detail = error.detail().map_or("", str::trim);
        RedisFault(match (error.kind(), error.code().unwrap_or_default()) {
            (ErrorKind::AuthenticationFailed, _) | (_, "NOAUTH" | "WRONGPASS") => {
                "it refuses the user or the password; put them into the URL".to_owned()
            }
            (_, "NOPERM") => format!("its user lacks rights ({detail}); docs/cluster.md names those it needs"),
            (_, "READONLY") => "it is a replica, which takes no writes; name the primary, or use Sentinel".to_owned(),
            (_, "OOM") => "its memory is full (OOM); raise its maxmemory".to_owned(),
            (ErrorKind::MasterNameNotFoundBySentinel, _) => {
                "its Sentinels know no primary of the name in `?master=`".to_owned()
            }
            (ErrorKind::Server(_), code) => format!("it answers {code} {detail}"),
            _ => tls_fault(error),
        })
    }
}

impl RedisFault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        RedisFault(text.into())
    }

    /// Something else stands in the key.
    pub(super) fn is_garbage(&self) -> bool {
        self.0.contains("WRONGTYPE")
    }
}

/// What is asked of Redis, within this time.
pub(super) async fn in_time<T>(
    what: &str,
    limit: Duration,
    ask: impl Future<Output = Result<T, RedisFault>>,
) -> Result<T, RedisFault> {
    let late = |_| RedisFault(format!("{what} took longer than {} ms", limit.as_millis()));
    timeout(limit, ask).await.map_err(late).flatten()
}

impl RedisConnection {
    /// Connects. Who asks has a shorter deadline than the connection's own.
    pub(super) async fn open(at: &RedisAt) -> Result<Self, RedisFault> {
        connect(at, Some(2 * CONNECT_TIMEOUT)).await
    }

    /// Runs a script on one key: by its digest, and loads it where the server does not know it. A script removes what is of
    /// another type in its key, and ends.
    pub(super) async fn run_script<T: FromRedisValue>(
        &self,
        script: &Script,
        key: &str,
        arguments: impl ToRedisArgs,
    ) -> Result<T, RedisFault> {
        let mut invocation = script.key(key);
        invocation.arg(arguments);
        let answer = match self.clone() {
            RedisConnection::One(mut one) => invocation.invoke_async(&mut one).await,
            RedisConnection::Cluster(mut cluster) => invocation.invoke_async(&mut cluster).await,
        };
        Ok(answer?)
    }

    /// What the server says of itself; nothing if it is a Redis Cluster, or its user may not ask.
    pub(super) async fn info(&self) -> Result<ServerInfo, RedisFault> {
        let RedisConnection::One(one) = self else { return Ok(ServerInfo::default()) };
        match redis::cmd("INFO").query_async::<String>(&mut one.clone()).await {
            Err(error) if error.code() == Some("NOPERM") => Ok(ServerInfo::default()), // what is needed shows by a script
            info => judge(&info?),
        }
    }
}

/// A connection to the primary that nothing else uses, and whose commands may take any time.
pub(super) async fn open_alone(at: &RedisAt) -> Result<MultiplexedConnection, RedisFault> {
    match connect(at, None).await? {
        RedisConnection::One(one) => Ok(one),
        RedisConnection::Cluster(_) => Err(RedisFault::new("a Redis Cluster has no one primary")),
    }
}

async fn connect(at: &RedisAt, response_timeout: Option<Duration>) -> Result<RedisConnection, RedisFault> {
    // A server without TLS waits for the end of what it takes for a command.
    let speaks = if at.tls { "a TLS connection (redis:// is without)" } else { "connecting" };
    let link = Box::pin(async {
        link(at, response_timeout).await.map_err(|error| {
            // The client's error shows a line of a file that is not PEM.
            if let Some(why) = at.tls.then(unreadable_roots).flatten() {
                return RedisFault(format!("this machine's root certificates cannot be read ({why})"));
            }
            match at.tls {
                true if error.is_io_error() && !error.to_string().contains("certificate") => {
                    RedisFault(format!("{error}; if it does not speak TLS, name it by redis://"))
                }
                false if error.is_connection_dropped() && !error.is_connection_refusal() => {
                    RedisFault(format!("{error}; if it speaks TLS, name it by rediss://"))
                }
                _ => error.into(),
            }
        })
    });
    in_time(speaks, CONNECT_TIMEOUT, link).await
}

async fn link(at: &RedisAt, response_timeout: Option<Duration>) -> RedisResult<RedisConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(2 * CONNECT_TIMEOUT)) // `connect` comes first
        .set_response_timeout(response_timeout);
    let mut settings = RedisConnectionInfo::default().set_db(at.database);
    if let Some(user) = &at.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &at.password {
        settings = settings.set_password(password);
    }
    let address = |server: &HostPort| address(server, at.tls);
    let one = match &at.servers {
        RedisServers::One(server) if at.tls => {
            let stream = tls::connect(&server.host, server.port).await?;
            let (one, driver) = MultiplexedConnection::new_with_config(&settings, stream, config).await?;
            tokio::spawn(driver);
            return Ok(RedisConnection::One(one));
        }
        RedisServers::One(server) => address(server),
        RedisServers::Unix(path) => ConnectionAddr::Unix(path.clone()),
        RedisServers::Sentinels { sentinels, master } => {
            let mut primary = SentinelNodeConnectionInfo::default().set_redis_connection_info(settings);
            if at.tls {
                primary = primary.set_tls_mode(TlsMode::Secure);
            }
            let sentinels = sentinels.iter().map(address).collect();
            let mut client =
                SentinelClient::build(sentinels, master.clone(), Some(primary), SentinelServerType::Master)?;
            return client.get_async_connection_with_config(&config).await.map(RedisConnection::One);
        }
        RedisServers::Cluster(nodes) => {
            let with_settings = |node| Ok(address(node).into_connection_info()?.set_redis_settings(settings.clone()));
            let nodes: Vec<_> = nodes.iter().map(with_settings).collect::<RedisResult<_>>()?;
            let client = ClusterClientBuilder::new(nodes)
                .connection_timeout(CONNECT_TIMEOUT)
                .response_timeout(response_timeout.unwrap_or(CONNECT_TIMEOUT))
                .retries(1);
            return client.build()?.get_async_connection().await.map(RedisConnection::Cluster);
        }
    };
    let client = Client::open(one.into_connection_info()?.set_redis_settings(settings))?;
    client.get_multiplexed_async_connection_with_config(&config).await.map(RedisConnection::One)
}

fn address(server: &HostPort, tls: bool) -> ConnectionAddr {
    let HostPort { host, port } = server.clone();
    match tls {
        true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        false => ConnectionAddr::Tcp(host, port),
    }
}

/// Judges what `INFO` tells, of a version whose streams and scripts are as needed.
fn judge(info: &str) -> Result<ServerInfo, RedisFault> {
    let value = |name: &str| {
        let of_name = |line: &str| line.strip_prefix(name)?.strip_prefix(':').map(|value| value.trim().to_owned());
        info.lines().find_map(of_name).unwrap_or_default()
    };
    let version = value("redis_version");
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(u32::MAX));
    if [numbers.next(), numbers.next()] < [Some(6), Some(2)] {
        return Err(RedisFault(format!("it is Redis {version}; 6.2 or newer is needed")));
    }
    let evicts = !["", "0"].contains(&value("maxmemory").as_str()) && value("maxmemory_policy") != "noeviction";
    Ok(ServerInfo { version, evicts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_refused_by_name() {
        let text = |info: &str| judge(info).unwrap_err().to_string();
        assert!(text("redis_version:6.0.16\r\nrole:master\r\n").contains("6.2 or newer"));
        let info = judge("redis_version:7.2.4\r\nrole:master\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n");
        assert_eq!(info.unwrap(), ServerInfo { version: "7.2.4".into(), evicts: false });
        assert!(judge("redis_version:8.0.0\nmaxmemory:1024\nmaxmemory_policy:allkeys-lru\n").unwrap().evicts);
    }
}
