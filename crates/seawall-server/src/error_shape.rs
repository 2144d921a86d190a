//! Our own errors in the provider's format: the provider's members beside those of problem+json. If both use one name, the provider's
//! meaning takes precedence.

use http::{HeaderMap, HeaderName, HeaderValue};
use seawall_core::policy::ErrorShape;
use seawall_core::time::Nanos;
use serde_json::{Map, Value, json};

const AWS_ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");

/// The content of an error response of our own, whatever its format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnError<'a> {
    pub status: u16,
    pub code: &'static str,
    pub detail: &'a str,
    pub retry_after: Option<Nanos>,
    pub call: Option<&'a str>,
}

impl OwnError<'_> {
    /// Adds the provider's members to those of a problem document.
    pub(crate) fn add_members(&self, shape: ErrorShape, members: &mut Map<String, Value>) {
        let Self { status, code, detail, .. } = *self;
        let mut set = |name: &str, value: Value| members.insert(name.to_owned(), value);
        match shape {
            ErrorShape::Problem | ErrorShape::AwsXml => {}
            ErrorShape::Anthropic => {
                set("type", json!("error"));
                set("error", json!({ "type": self.anthropic_type(), "message": detail, "code": code }));
                set("request_id", json!(self.call));
            }
            ErrorShape::Aws => {
                set("__type", json!(self.aws_code()));
                set("message", json!(detail));
            }
            ErrorShape::Discord => {
                // Clients parse it as a number; 0 is a general error.
                set("code", json!(0));
                set("message", json!(detail));
                if let Some(wait) = self.retry_after {
                    set("retry_after", json!(wait.as_secs_f64()));
                    set("global", json!(false));
                }
            }
            ErrorShape::Github => drop(set("message", json!(detail))),
            ErrorShape::Google => {
                let errors = json!([{ "domain": "seawall", "reason": code, "message": detail }]);
                set("error", json!({ "code": status, "message": detail, "status": self.google_status(), "errors": errors }));
            }
            ErrorShape::Graphql => {
                set("errors", json!([{ "message": detail, "extensions": { "code": code.to_ascii_uppercase() } }]));
            }
            ErrorShape::Lastfm => {
                set("error", json!(self.lastfm_code()));
                set("message", json!(detail));
            }
            ErrorShape::Musicbrainz => drop(set("error", json!(detail))),
            ErrorShape::Openai => {
                set("error", json!({ "message": detail, "type": self.openai_type(), "param": null, "code": code }));
            }
            ErrorShape::Openrouter => drop(set("error", json!({ "message": detail, "code": status, "metadata": { "code": code } }))),
            ErrorShape::Shopify => drop(set("errors", json!(detail))),
            ErrorShape::Slack => {
                set("ok", json!(false));
                set("error", json!(self.slack_error()));
            }
            ErrorShape::Spotify => drop(set("error", json!({ "status": status, "message": detail, "reason": code }))),
            ErrorShape::Stripe => drop(set("error", json!({ "message": detail, "type": self.stripe_type(), "code": code }))),
            ErrorShape::Subsonic => {
                let error = json!({ "code": if status == 401 { 40 } else { 0 }, "message": detail });
                set("subsonic-response", json!({ "status": "failed", "version": "1.16.1", "type": "seawall", "error": error }));
            }
            ErrorShape::X => drop(set("errors", json!([{ "code": self.x_code(), "message": detail }]))),
        }
    }

    /// Returns the document of an XML format, or `None` for JSON. Some clients look for the error inside the root and some for its members
    /// beside it.
    pub(crate) fn xml(&self, shape: ErrorShape) -> Option<String> {
        let (code, detail, call) = (self.aws_code(), escaped(self.detail), escaped(self.call.unwrap_or("")));
        let fault = if self.status < 500 { "Sender" } else { "Receiver" };
        (shape == ErrorShape::AwsXml).then(|| {
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ErrorResponse><Error><Type>{fault}</Type><Code>{code}</Code>\
                 <Message>{detail}</Message></Error><Code>{code}</Code><Message>{detail}</Message><RequestId>{call}</RequestId></ErrorResponse>\n"
            )
        })
    }

    /// Adds the headers that the provider's clients read.
    pub(crate) fn add_headers(&self, shape: ErrorShape, headers: &mut HeaderMap) {
        if matches!(shape, ErrorShape::Aws | ErrorShape::AwsXml) {
            headers.insert(AWS_ERROR_TYPE, HeaderValue::from_static(self.aws_code()));
        }
    }

    const fn openai_type(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    const fn anthropic_type(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            _ => "api_error",
        }
    }

    fn stripe_type(&self) -> &'static str {
        match self.status {
            _ if self.code.starts_with("idempotency_") => "idempotency_error",
            401 => "authentication_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        }
    }

    const fn google_status(&self) -> &'static str {
        match self.status {
            401 => "UNAUTHENTICATED",
            404 => "NOT_FOUND",
            409 => "ABORTED",
            429 => "RESOURCE_EXHAUSTED",
            400..=499 => "INVALID_ARGUMENT",
            501 => "UNIMPLEMENTED",
            504 => "DEADLINE_EXCEEDED",
            _ => "UNAVAILABLE",
        }
    }

    const fn aws_code(&self) -> &'static str {
        match self.status {
            401 => "UnrecognizedClientException",
            408 | 504 => "RequestTimeoutException",
            413 => "RequestEntityTooLargeException",
            429 => "ThrottlingException",
            400..=499 => "ValidationException",
            503 => "ServiceUnavailableException",
            _ => "InternalFailure",
        }
    }

    /// Limit exceeded, credentials, parameters; else "temporarily unavailable".
    const fn lastfm_code(&self) -> u16 {
        match self.status {
            401 => 4,
            429 => 29,
            400..=499 => 6,
            _ => 16,
        }
    }

    const fn slack_error(&self) -> &'static str {
        match self.status {
            401 => "invalid_auth",
            408 | 504 => "request_timeout",
            429 => "ratelimited",
            503 => "service_unavailable",
            _ => self.code,
        }
    }

    /// Credentials, limit, over capacity; else a parameter or an internal error.
    const fn x_code(&self) -> u16 {
        match self.status {
            401 => 32,
            429 => 88,
            503 => 130,
            400..=499 => 214,
            _ => 131,
        }
    }
}

/// Returns the media type of the format; some clients compare it before they read a body.
pub(crate) const fn content_type(shape: ErrorShape) -> HeaderValue {
    HeaderValue::from_static(match shape {
        ErrorShape::Problem => "application/problem+json",
        ErrorShape::AwsXml => "application/xml",
        _ => "application/json",
    })
}

/// Escapes text for an XML element.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            _ if letter.is_control() => out.push(' '),
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(detail: &str) -> OwnError<'_> {
        OwnError { status: 429, code: "rate_limited", detail, retry_after: Some(Nanos::from_millis(1500)), call: Some("c1") }
    }

    fn members(shape: ErrorShape) -> Value {
        let mut members = Map::new();
        error("slow down").add_members(shape, &mut members);
        Value::Object(members)
    }

    #[test]
    fn every_json_shape_says_what_is_wrong_in_words() {
        for &shape in ErrorShape::ALL {
            let members = members(shape).to_string();
            let is_worded = members.contains("slow down") || matches!(shape, ErrorShape::Problem | ErrorShape::AwsXml | ErrorShape::Slack);
            assert!(is_worded, "{shape}: {members}");
        }
    }

    #[test]
    fn discord_clients_learn_the_wait_from_the_body() {
        let document = members(ErrorShape::Discord);
        assert_eq!((&document["retry_after"], &document["global"], &document["code"]), (&json!(1.5), &json!(false), &json!(0)));
    }

    #[test]
    fn xml_holds_text_and_no_markup_of_others() {
        let document = error("a <b> & \u{1}c").xml(ErrorShape::AwsXml).unwrap();
        assert!(
            document.contains("<Error><Type>Sender</Type><Code>ThrottlingException</Code><Message>a &lt;b&gt; &amp;  c</Message></Error>")
        );
        assert_eq!(error("x").xml(ErrorShape::Aws), None);
    }
}
