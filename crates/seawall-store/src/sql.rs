//! The common interface of the two databases: values, rows, and statements. Statements on top of it exist once; only performance-critical
//! ones are written per database.

use crate::error::Error;
use crate::json;
use crate::model::job::{Enqueued, NewJob};
use bytes::Bytes;
use seawall_core::id::CallId;
use seawall_core::time::Wall;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SqlValue {
    Null,
    Integer(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// Statements name their values `$1`, `$2`, … and contain no other dollar sign.
pub(crate) trait Sql {
    /// The function that finds a substring; 0 if absent.
    const FIND: &'static str;
    /// The column expression of a job's body.
    const BODY: &'static str;
    /// The suffix of a `SELECT` whose row is written in the same transaction.
    const LOCK: &'static str;

    fn query(&mut self, sql: &str, values: &[SqlValue]) -> impl Future<Output = Result<Vec<RowReader>, Error>> + Send;

    /// Returns the number of changed rows.
    fn execute(&mut self, sql: &str, values: &[SqlValue]) -> impl Future<Output = Result<u64, Error>> + Send;
}

/// A transaction that can also create jobs.
pub(crate) trait Write: Sql {
    fn enqueue(&mut self, job: &NewJob, now: Wall) -> impl Future<Output = Result<Enqueued, Error>> + Send;
}

/// Replaces NUL, which PostgreSQL's text cannot hold.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Returns the first row, if there is one.
pub(crate) async fn first<S: Sql>(sql: &mut S, statement: &str, values: &[SqlValue]) -> Result<Option<RowReader>, Error> {
    Ok(sql.query(statement, values).await?.into_iter().next())
}

/// Polls a future once; statements of an in-process database never wait.
pub(crate) fn at_once<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(Error::Failed("a statement waited where none can".to_owned())),
    }
}

/// Lists the values of a statement, in order.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::sql::SqlValue::from($value)),*] };
}
pub(crate) use values;

/// The source of a row's values, in the order of its columns.
pub(crate) trait RowSource {
    fn value(&mut self) -> Result<SqlValue, Error>;
}

impl RowSource for std::vec::IntoIter<SqlValue> {
    fn value(&mut self) -> Result<SqlValue, Error> {
        self.next().ok_or_else(|| Error::Failed("a row has fewer columns than are read".to_owned()))
    }
}

/// A row, read in the order of its columns; by default independent of its statement.
#[derive(Debug)]
pub(crate) struct RowReader<S = std::vec::IntoIter<SqlValue>>(S);

impl RowReader {
    pub(crate) fn new(values: Vec<SqlValue>) -> Self {
        Self(values.into_iter())
    }
}

impl<S: RowSource> RowReader<S> {
    pub(crate) const fn from(source: S) -> Self {
        Self(source)
    }

    pub(crate) fn take<T: FromValue>(&mut self) -> Result<T, Error> {
        T::from_value(self.0.value()?)
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        json::read(&self.take::<String>()?)
    }

    pub(crate) fn word<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Result<T, Error> {
        let word: String = self.take()?;
        parse(&word).ok_or_else(|| Error::Damaged(format!("a row has the unknown word `{word}`")))
    }

    pub(crate) fn number<T>(&mut self, parse: impl Fn(i64) -> Option<T>) -> Result<T, Error> {
        let number: i64 = self.take()?;
        parse(number).ok_or_else(|| Error::Damaged(format!("a row has the unknown number {number}")))
    }
}

/// Converts a count to the databases' integer type.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

macro_rules! value_from {
    ($($type:ty: $name:pat => $value:expr),* $(,)?) => {
        $(impl From<$type> for SqlValue {
            fn from($name: $type) -> Self {
                $value
            }
        })*
    };
}

value_from! {
    i64: number => Self::Integer(number),
    u64: number => Self::Integer(i64::try_from(number).unwrap_or(i64::MAX)),
    u32: number => Self::Integer(number.into()),
    u16: number => Self::Integer(number.into()),
    bool: yes => Self::Integer(yes.into()),
    usize: number => Self::Integer(count(number)),
    &str: text => Self::Text(text.to_owned()),
    String: text => Self::Text(text),
    &String: text => Self::Text(text.clone()),
    &[u8]: bytes => Self::Bytes(bytes.to_vec()),
    [u8; 16]: bytes => Self::Bytes(bytes.to_vec()),
    [u8; 32]: bytes => Self::Bytes(bytes.to_vec()),
    &Bytes: bytes => Self::Bytes(bytes.to_vec()),
    Wall: at => Self::Integer(at.0),
    CallId: id => Self::Bytes(id.to_bytes().to_vec()),
}

impl<T: Into<Self>> From<Option<T>> for SqlValue {
    fn from(maybe: Option<T>) -> Self {
        maybe.map_or(Self::Null, Into::into)
    }
}

impl<'a> From<&'a Option<String>> for SqlValue {
    fn from(maybe: &'a Option<String>) -> Self {
        maybe.as_deref().into()
    }
}

/// A type that a column can be read as.
pub(crate) trait FromValue: Sized {
    fn from_value(value: SqlValue) -> Result<Self, Error>;
}

fn unexpected<T>(value: &SqlValue, wanted: &str) -> Result<T, Error> {
    let found = match value {
        SqlValue::Null => "nothing",
        SqlValue::Integer(_) => "a number",
        SqlValue::Text(_) => "text",
        SqlValue::Bytes(_) => "bytes",
    };
    Err(Error::Damaged(format!("a column holds {found} where {wanted} belongs")))
}

impl FromValue for i64 {
    fn from_value(value: SqlValue) -> Result<Self, Error> {
        if let SqlValue::Integer(number) = value { Ok(number) } else { unexpected(&value, "a number") }
    }
}

macro_rules! narrow {
    ($($type:ty),*) => {
        $(impl FromValue for $type {
            fn from_value(value: SqlValue) -> Result<Self, Error> {
                let wide = i64::from_value(value)?;
                Self::try_from(wide).map_err(|_| Error::Damaged(format!("a column holds {wide}, which cannot be")))
            }
        })*
    };
}
narrow!(u64, u32, u16);

impl FromValue for bool {
    fn from_value(value: SqlValue) -> Result<Self, Error> {
        Ok(i64::from_value(value)? != 0)
    }
}

impl FromValue for String {
    fn from_value(value: SqlValue) -> Result<Self, Error> {
        if let SqlValue::Text(text) = value { Ok(text) } else { unexpected(&value, "text") }
    }
}

impl FromValue for Vec<u8> {
    fn from_value(value: SqlValue) -> Result<Self, Error> {
        if let SqlValue::Bytes(bytes) = value { Ok(bytes) } else { unexpected(&value, "bytes") }
    }
}

impl<const N: usize> FromValue for [u8; N] {
    fn from_value(value: SqlValue) -> Result<Self, Error> {
        let bytes = Vec::<u8>::from_value(value)?;
        Self::try_from(bytes).map_err(|bytes| Error::Damaged(format!("a column holds {} bytes where {N} belong", bytes.len())))
    }
}

impl FromValue for Bytes {
    fn from_value(value: SqlValue) -> Result<Self, Error> {
        Vec::<u8>::from_value(value).map(Self::from)
    }
}

impl FromValue for Wall {
    fn from_value(value: SqlValue) -> Result<Self, Error> {
        i64::from_value(value).map(Self)
    }
}

impl FromValue for CallId {
    fn from_value(value: SqlValue) -> Result<Self, Error> {
        <[u8; 16]>::from_value(value).map(Self::from_bytes)
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: SqlValue) -> Result<Self, Error> {
        if value == SqlValue::Null { Ok(None) } else { T::from_value(value).map(Some) }
    }
}
