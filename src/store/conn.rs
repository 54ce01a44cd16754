//! A connection to a database of either kind, and the values that statements take and give. Statements are written once
//! for both kinds: their parameters are `$1`, `$2` and so on, lists are passed as one JSON object of arrays, which both
//! read with `json_each`, and every number is a signed 64-bit one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::*;

/// A value of a parameter or a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Int(i64),
    Text(Cow<'a, str>),
    Blob(Cow<'a, [u8]>),
}

/// A row that a statement found.
#[derive(Debug)]
pub(super) struct Row(pub(super) Vec<Value<'static>>);

/// A connection. Whoever calls it blocks, at most until its deadline.
pub(super) trait Conn: Send {
    /// The rows that a statement finds.
    fn rows(&mut self, sql: &str, params: &[Value<'_>]) -> Result<Vec<Row>, StoreError>;

    /// Runs a statement. Returns how many rows it changed.
    fn execute(&mut self, sql: &str, params: &[Value<'_>]) -> Result<u64, StoreError>;

    /// Runs statements without parameters.
    fn batch(&mut self, sql: &str) -> Result<(), StoreError>;

    /// Begins a transaction that writes. Whoever waits for others' locks in it waits for `wait` at most
    /// ([`StoreError::Busy`]).
    fn begin(&mut self, wait: Duration) -> Result<(), StoreError>;

    /// Begins a transaction that reads one state of the store.
    fn begin_snapshot(&mut self) -> Result<(), StoreError>;

    /// Commits. Afterwards what was written is durable. After [`StoreError::Unknown`] it may be there or not.
    fn commit(&mut self) -> Result<(), StoreError>;

    /// Waits until no other transaction can number its changes before this one commits.
    fn lock_feed(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// The operator of patterns that takes capital letters for small ones.
    fn like(&self) -> &'static str {
        "LIKE"
    }

    /// What follows a SELECT that locks the row that it finds, for databases with more than one writer at a time.
    fn for_update(&self) -> &'static str {
        ""
    }

    /// Refuses if this connection no longer leads to what is under the store's name.
    fn check(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether the server has stopped to take writes, as one does whose place another one takes.
    fn is_read_only(&mut self) -> bool {
        false
    }

    /// Makes sure that a commit whose outcome is unknown comes back neither now nor after a crash, before the next one.
    fn recover(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// How far the change feed was read on this connection; `None`: it was not. Another connection may lead to another
    /// server, such as a standby that took over without the last commits and gives their numbers to others.
    fn feed_position(&mut self) -> &mut Option<i64>;

    /// When calls give up.
    fn set_deadline(&mut self, until: Instant);

    /// Whether it can be used again.
    fn is_usable(&self) -> bool;
}

impl dyn Conn + '_ {
    /// The first row that a statement finds.
    pub(super) fn row(&mut self, sql: &str, params: &[Value<'_>]) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(sql, params)?.into_iter().next())
    }

    /// Runs a statement; refuses if it changes no row.
    pub(super) fn change(
        &mut self,
        sql: &str,
        params: &[Value<'_>],
        refusal: impl FnOnce() -> StoreError,
    ) -> Result<(), StoreError> {
        if self.execute(sql, params)? > 0 { Ok(()) } else { Err(refusal()) }
    }
}

/// Parameters of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::store::conn::Value::from($value)),*] };
}
pub(super) use values;

/// Rows as the JSON object that `json_each` reads.
pub(super) fn json_rows<R: serde::Serialize>(rows: impl IntoIterator<Item = R>) -> Result<String, StoreError> {
    let rows: BTreeMap<usize, R> = rows.into_iter().enumerate().collect();
    serde_json::to_string(&rows).map_err(|e| StoreError::Failed(format!("a list cannot be written as JSON: {e}")))
}

impl Row {
    /// A column's value, which is taken out of the row.
    pub(super) fn take<T: Column>(&mut self, at: usize) -> Result<T, StoreError> {
        let value = self.0.get_mut(at).map(|value| std::mem::replace(value, Value::Null));
        let foreign = || StoreError::Failed("the store holds a value that Guildgate never writes".to_owned());
        value.and_then(T::of).ok_or_else(foreign)
    }
}

/// What a column holds. Any other value there was written by another program.
pub(super) trait Column: Sized {
    fn of(value: Value<'static>) -> Option<Self>;
}

macro_rules! columns {
    ($($kind:ty: $value:ident => $found:expr;)*) => { $(
        impl Column for $kind {
            fn of($value: Value<'static>) -> Option<Self> {
                $found
            }
        }
    )* };
}

columns! {
    i64: value => if let Value::Int(number) = value { Some(number) } else { None };
    String: value => if let Value::Text(text) = value { Some(text.into_owned()) } else { None };
    Digest: value => if let Value::Blob(bytes) = value { Some(Digest(bytes.as_ref().try_into().ok()?)) } else { None };
    u64: value => i64::of(value)?.try_into().ok();
    bool: value => Some(i64::of(value)? != 0);
    MemberId: value => MemberId::new(u64::of(value)?);
    KeyId: value => String::of(value).map(Into::into);
    GuildId: value => String::of(value)?.parse().ok();
    Scope: value => String::of(value)?.parse().ok();
}

impl<T: Column> Column for Option<T> {
    fn of(value: Value<'static>) -> Option<Self> {
        if value == Value::Null { Some(None) } else { T::of(value).map(Some) }
    }
}

macro_rules! from {
    ($($kind:ty: $given:ident => $value:expr;)*) => { $(
        impl<'a> From<$kind> for Value<'a> {
            fn from($given: $kind) -> Self {
                $value
            }
        }
    )* };
}

from! {
    i64: number => Value::Int(number);
    bool: truth => Value::Int(truth.into());
    usize: number => Value::Int(number.try_into().unwrap_or(i64::MAX));
    MemberId: member => Value::Int(member.as_i64());
    &'a str: text => Value::Text(text.into());
    String: text => Value::Text(text.into());
    Cow<'a, str>: text => Value::Text(text);
    &'a GuildId: guild => guild.as_str().into();
    &'a Digest: digest => Value::Blob(Cow::Borrowed(&digest.0));
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}
