//! The dashboard's files, embedded from `ui/dist`. They contain no secrets, so they are served without a token; the API, which needs the
//! token, has the data.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use axum::routing::get;
use sha2::{Digest as _, Sha256};
use std::sync::LazyLock;

/// Only our own files may run, style or be fetched, and no page may frame the dashboard.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'",
);

/// Screens that a user may type as a path; the page itself keeps its state behind the `#`.
const SCREENS: &[&str] = &["overview", "upstreams", "calls", "jobs", "dead-letters", "schedules", "limits", "errors", "policy"];

/// One file, plain and compressed.
#[derive(Debug)]
struct EmbeddedFile {
    kind: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
    tag: LazyLock<String>,
}

macro_rules! file {
    ($kind:literal, $path:literal) => {{
        const PLAIN: &[u8] = include_bytes!(concat!("../../../ui/dist/", $path));
        EmbeddedFile {
            kind: $kind,
            plain: PLAIN,
            gzip: include_bytes!(concat!("../../../ui/dist/", $path, ".gz")),
            tag: LazyLock::new(|| tag(PLAIN)),
        }
    }};
}

static PAGE: EmbeddedFile = file!("text/html; charset=utf-8", "index.html");
static SCRIPT: EmbeddedFile = file!("text/javascript; charset=utf-8", "assets/app.js");
static STYLE: EmbeddedFile = file!("text/css; charset=utf-8", "assets/app.css");

/// Returns an entity tag from half of the content's digest. It is weak because the plain and compressed forms share it.
fn tag(content: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut tag = String::from("W/\"");
    for byte in &Sha256::digest(content)[..16] {
        // Writing to a string cannot fail.
        let _: Result<(), std::fmt::Error> = write!(tag, "{byte:02x}");
    }
    tag.push('"');
    tag
}

pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let mut router = Router::new()
        .route("/", get(async |headers: HeaderMap| serve(&PAGE, &headers)))
        .route("/assets/app.js", get(async |headers: HeaderMap| serve(&SCRIPT, &headers)))
        .route("/assets/app.css", get(async |headers: HeaderMap| serve(&STYLE, &headers)));
    for screen in SCREENS {
        router = router.route(&format!("/{screen}"), get(lead)).route(&format!("/{screen}/{{*rest}}"), get(lead));
    }
    router
}

fn serve(file: &EmbeddedFile, asked: &HeaderMap) -> Response {
    let known = asked.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or("");
    let fresh = known.split(',').any(|tag| tag.trim() == file.tag.as_str());
    let takes_gzip = asked.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).is_some_and(takes_gzip);
    let content = if fresh {
        b""
    } else if takes_gzip {
        file.gzip
    } else {
        file.plain
    };
    let mut response = Response::new(Body::from(Bytes::from_static(content)));
    if fresh {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if takes_gzip && !fresh {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Ok(tag) = HeaderValue::from_str(&file.tag) {
        headers.insert(ETAG, tag);
    }
    response
}

/// Returns whether `gzip` is among the codings and not refused by `q=0`.
fn takes_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        name.trim().eq_ignore_ascii_case("gzip") && !matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

/// Redirects a typed path such as `/upstreams/videos` to `/#/upstreams/videos`.
async fn lead(uri: Uri) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let place = uri.path_and_query().map_or("/", |place| place.as_str());
    // Relative, so that it also works below a prefix of a reverse proxy.
    let up = "../".repeat(uri.path().matches('/').count().saturating_sub(1));
    if let Ok(place) = HeaderValue::from_str(&format!("./{up}#{place}")) {
        response.headers_mut().insert(LOCATION, place);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: http::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn the_page_refers_only_to_files_that_are_served() {
        let page = std::str::from_utf8(PAGE.plain).unwrap();
        assert!(page.contains("src=\"assets/app.js\"") && page.contains("href=\"assets/app.css\""), "{page}");
        assert!(!page.contains("<style") && !page.contains("style=") && !page.contains("<script>"), "{page}");
        // The only URL is the SVG namespace in the icon.
        assert_eq!(page.matches("://").count(), 1, "{page}");
    }

    #[test]
    fn whoever_knows_the_content_is_told_so() {
        let first = serve(&SCRIPT, &HeaderMap::new());
        let tag = first.headers()[ETAG].to_str().unwrap().to_owned();
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(serve(&SCRIPT, &asked(IF_NONE_MATCH, &format!("\"other\", {tag}"))).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(serve(&STYLE, &asked(IF_NONE_MATCH, &tag)).status(), StatusCode::OK);
    }

    #[test]
    fn compression_is_given_to_who_takes_it() {
        let compressed = serve(&SCRIPT, &asked(ACCEPT_ENCODING, "br, gzip;q=0.8"));
        assert_eq!(compressed.headers()[CONTENT_ENCODING], "gzip");
        for refused in ["", "br", "gzip;q=0"] {
            assert!(!serve(&SCRIPT, &asked(ACCEPT_ENCODING, refused)).headers().contains_key(CONTENT_ENCODING), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_path_leads_to_its_place_below_any_prefix() {
        for (path, place) in [("/jobs", "./#/jobs"), ("/upstreams/videos?x=1", "./../#/upstreams/videos?x=1"), ("/calls/", "./../#/calls/")]
        {
            let response = lead(path.parse().unwrap()).await;
            assert_eq!((response.status().as_u16(), &response.headers()[LOCATION]), (307, &HeaderValue::from_static(place)));
        }
    }

    #[test]
    fn everything_is_served_under_the_strict_policy() {
        for file in [&PAGE, &SCRIPT, &STYLE] {
            let response = serve(file, &HeaderMap::new());
            assert_eq!(response.headers()[CONTENT_SECURITY_POLICY], POLICY);
            assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }
}
