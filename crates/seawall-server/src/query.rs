//! Query parameters, and the JSON of pages, documents and refusals. An unreadable parameter is an error and never ignored.

use crate::response::Refusal;
use axum::response::Response;
use seawall_core::id::CallId;
use seawall_core::record::Code;
use seawall_store::Error;
use seawall_store::page::{MAX_ENTRIES, Page, PageWindow};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

/// The parameters of a query, each at most once.
#[derive(Debug)]
pub(crate) struct QueryParameters(Vec<(String, String)>);

impl QueryParameters {
    /// # Errors
    /// With a refusal that names the unknown parameter.
    pub(crate) fn parse(text: Option<&str>, known: &[&str]) -> Result<Self, Box<Refusal>> {
        Self::of(form_urlencoded::parse(text.unwrap_or("").as_bytes()).into_owned().collect(), known)
    }

    /// # Errors
    /// With a refusal that names the unknown parameter.
    pub(crate) fn of(pairs: Vec<(String, String)>, known: &[&str]) -> Result<Self, Box<Refusal>> {
        for (i, (name, _)) in pairs.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                return Err(bad(&format!("there is no parameter `{name}`; there are {}", known.join(", "))));
            }
            if pairs[..i].iter().any(|(other, _)| other == name) {
                return Err(bad(&format!("`{name}` is given twice")));
            }
        }
        Ok(Self(pairs))
    }

    /// Returns a parameter that is present and not empty.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    pub(crate) fn read<T>(&self, name: &str, what: &str, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Box<Refusal>> {
        self.text(name).map(|text| read(text).ok_or_else(|| bad(&format!("`{name}` is {what}, not `{text}`")))).transpose()
    }

    pub(crate) fn window(&self) -> Result<PageWindow, Box<Refusal>> {
        let after = self.read("cursor", "a cursor that a page gave", CallId::parse)?;
        Ok(PageWindow { after, limit: self.limit()? })
    }

    pub(crate) fn limit(&self) -> Result<usize, Box<Refusal>> {
        let limit = self.read("limit", &format!("a number from 1 to {MAX_ENTRIES}"), |text| {
            text.parse().ok().filter(|limit| (1..=MAX_ENTRIES).contains(limit))
        })?;
        Ok(limit.unwrap_or(50))
    }
}

/// Which page of a list.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "a description of what `window` and `limit` read")]
pub(crate) struct Paged {
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u64>,
}

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct List<T> {
    pub items: Vec<T>,
    /// What to ask for the next page with; null on the last one.
    pub next_cursor: Option<String>,
}

pub(crate) fn page<T, V: Serialize>(page: &Page<T>, view: impl Fn(&T) -> V) -> List<V> {
    List { items: page.entries.iter().map(view).collect(), next_cursor: page.next.map(|id| id.to_string()) }
}

pub(crate) fn bad(detail: &str) -> Box<Refusal> {
    Box::new(Refusal::code(400, Code::BadRequest, detail))
}

pub(crate) fn not_found(what: &str) -> Box<Refusal> {
    Box::new(Refusal::code(404, Code::NotFound, what))
}

/// Converts a store error to the response for the caller.
pub(crate) fn of_store(error: &Error) -> Box<Refusal> {
    let (status, code) = match error {
        Error::Full => (507, Code::StorageFull),
        Error::Busy => (503, Code::Overloaded),
        Error::ReadOnly(_) | Error::Damaged(_) | Error::NewerSchema { .. } | Error::Unavailable(_) | Error::Failed(_) => {
            (503, Code::StoreUnavailable)
        }
    };
    let mut refusal = Refusal::code(status, code, &error.to_string());
    refusal.retry_after = error.passes().then(|| seawall_core::time::Nanos::from_secs(1));
    Box::new(refusal)
}

pub(crate) fn refused(refusal: &Refusal) -> Response {
    refusal.respond_as(axum::body::Body::from)
}

pub(crate) fn document(status: u16, value: &impl Serialize) -> Response {
    // Serialisation cannot fail: all map keys in these types are strings.
    written(status, serde_json::to_vec(value).unwrap_or_default())
}

/// Builds a response from JSON text.
pub(crate) fn written(status: u16, text: impl Into<axum::body::Body>) -> Response {
    let mut response = Response::new(text.into());
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::OK);
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    headers.insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    response
}

/// Converts either result to a response.
pub(crate) fn either(result: Result<Response, Box<Refusal>>) -> Response {
    result.unwrap_or_else(|refusal| refused(&refusal))
}

/// Maximum bytes of a small JSON body.
const MAX_BODY: usize = 64 * 1024;

/// Reads a request body that is a small JSON object.
pub(crate) async fn object<T: DeserializeOwned>(body: axum::body::Body) -> Result<T, Box<Refusal>> {
    use http_body_util::BodyExt as _;
    let read = http_body_util::Limited::new(body, MAX_BODY).collect().await;
    let text = read.map_err(|_| Box::new(Refusal::plain(413, "too_large", "the body is larger than 64 KiB")))?.to_bytes();
    // The check for an object is needed because serde would also accept an array of the fields in order.
    match serde_json::from_slice(&text) {
        Ok(value @ Value::Object(_)) => {
            serde_json::from_value(value).map_err(|error| bad(&format!("the body is not as it should be: {error}")))
        }
        Ok(_) => Err(bad("the body is a JSON object")),
        Err(error) => Err(bad(&format!("the body is not JSON: {error}"))),
    }
}

/// Builds a list with a single page.
pub(crate) fn whole<T: Serialize>(items: Vec<T>) -> Response {
    document(200, &List { items, next_cursor: None })
}
