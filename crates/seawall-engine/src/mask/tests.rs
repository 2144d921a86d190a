//! Forms in which a secret is repeated, whole and truncated.

use super::*;
use proptest::prelude::*;

const KEY: &str = "s3cr=t/Ke+y:\"42\"";

fn mask(secret: &str) -> Mask {
    let mut mask = Mask::default();
    mask.hide(secret, "…");
    mask
}

fn json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[test]
fn a_secret_is_found_in_every_form_in_which_it_may_come_back() {
    let encoded = seawall_http::query_parameter::encode(KEY);
    let unicode: String = KEY.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
    let forms = [
        KEY.to_owned(),
        encoded.clone(),
        encoded.to_ascii_lowercase().replace("ke", "Ke"),
        seawall_http::query_parameter::encode(&encoded),
        KEY.replace('"', "\\\"").replace('/', "\\/"),
        KEY.replace('"', "\\\\\\\""),
        unicode,
        KEY.replace('"', "&quot;").replace('=', "&#61;").replace(':', "&#x3A;"),
        KEY.replace('"', "%22"),
        format!("%73{}", &KEY[1..]),
    ];
    for form in forms {
        assert_eq!(mask(KEY).words(format!("a {form} b").as_bytes()).as_str(), "a … b", "{form}");
        let mut bytes = b"\xff\xfe".to_vec();
        bytes.extend_from_slice(form.as_bytes());
        bytes.extend_from_slice(b"\xff");
        assert_eq!(*mask(KEY).bytes(&bytes), *b"\xff\xfe\xe2\x80\xa6\xff", "also where nothing else is UTF-8: {form}");
    }
}

#[test]
fn a_secret_that_a_cut_has_split_is_hidden_as_far_as_it_goes() {
    let encoded = seawall_http::query_parameter::encode(KEY);
    for form in [KEY.to_owned(), encoded] {
        for length in 8..form.len() {
            let said = format!("no {}", &form[..length]);
            assert_eq!(mask(KEY).words(said.as_bytes()).as_str(), "no …", "{said}");
        }
    }
    assert_eq!(mask(KEY).words(b"no s3c").as_str(), "no s3c", "so little tells nothing");
    assert_eq!(mask(KEY).words(b"s3cr is a word").as_str(), "s3cr is a word");
}

#[test]
fn the_longest_secret_is_hidden_first() {
    let mut mask = Mask::default();
    mask.hide("abcdef", "short");
    mask.hide("abcdefgh", "long");
    assert_eq!(mask.words(b"abcdefgh abcdefg.").as_str(), "long shortg.");
}

#[test]
fn basic_credentials_are_hidden_in_each_part() {
    let mut mask = Mask::default();
    mask.hide_basic("user:pass-word?>", "…");
    for said in ["user:pass-word?>", "pass-word?>", "dXNlcjpwYXNzLXdvcmQ/Pg==", "dXNlcjpwYXNzLXdvcmQ_Pg"] {
        let shown = mask.words(said.as_bytes()).into_string();
        assert!(shown.trim_end_matches('=') == "…" || shown == "user:…", "{said}: {shown}");
    }
    let mut mask = Mask::default();
    mask.hide_basic("sk_live_1234:", "…");
    assert_eq!(mask.words(b"the key sk_live_1234 is not valid").as_str(), "the key … is not valid");
}

#[test]
fn what_a_caller_sent_in_confidence_is_hidden() {
    let headers = [
        ("authorization", "Basic dXNlcjpodW50ZXIyMg=="),
        ("cookie", "session=abcdef1; theme=dark-mode"),
        ("x-plain", "in the open"),
        ("x-api-key", "planted-2"),
    ];
    let mask = Mask::default().and_request(headers.into_iter(), "/x?api_key=planted%2D1&q=wordword");
    let said = b"dXNlcjpodW50ZXIyMg== user:hunter22 hunter22 abcdef1 in the open planted-2 planted-1 planted%2D1 wordword";
    let shown = mask.words(said).into_string();
    assert_eq!(shown.matches(REDACTED).count(), 7, "{shown}");
    assert!(shown.contains("in the open") && shown.contains("wordword"), "{shown}");
    for secret in ["hunter22", "abcdef1", "planted", "dXNl"] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}

#[test]
fn headers_stay_ascii() {
    assert_eq!(*mask(KEY).field(format!("a={KEY}").as_bytes()), *b"a=[redacted]");
}

#[test]
fn nothing_shows_in_debug() {
    assert_eq!(format!("{:?}", mask(KEY)), "Mask(1)");
    assert_eq!(format!("{:?}", Probe::new(KEY, KEY)), "Probe");
}

proptest! {
    /// In any context and at any truncation, no useful part of the key remains.
    #[test]
    fn no_text_keeps_a_secret(
        before in proptest::collection::vec(any::<u8>(), 0..40),
        after in proptest::collection::vec(any::<u8>(), 0..40),
        secret in "[A-Za-z0-9+/=:_%\\\\\"é-]{8,40}",
        form in 0..4,
        cut in 0..200usize,
    ) {
        let form = match form {
            0 => secret.clone(),
            1 => seawall_http::query_parameter::encode(&secret),
            2 => json(&secret),
            _ => seawall_http::query_parameter::encode(&json(&secret)),
        };
        // JSON that is then percent-encoded is recognised only if JSON changed nothing.
        prop_assume!(form == seawall_http::query_parameter::encode(&secret) || !form.contains("%5C"));
        let mut text = before.clone();
        text.extend_from_slice(form.as_bytes());
        text.extend_from_slice(&after);
        let whole = mask(&secret).bytes(&text).into_owned();
        prop_assert!(memchr::memmem::find(&whole, form.as_bytes()).is_none());
        let cut = &text[..cut.min(text.len())];
        let shown = mask(&secret).bytes(cut).into_owned();
        let part = form.as_bytes();
        let length = cut.len().saturating_sub(before.len()).min(part.len());
        if length >= 24 {
            prop_assert!(memchr::memmem::find(&shown, &part[..length]).is_none());
        }
    }

    #[test]
    fn texts_without_a_secret_stay_as_they_are(text in "[ a-zA-Z%\\\\&+]{0,200}") {
        prop_assert_eq!(mask("0123456789").bytes(text.as_bytes()), Cow::Borrowed(text.as_bytes()));
    }
}

#[test]
fn a_probe_lets_nothing_pass_that_a_mask_would_have_to_look_at() {
    let probe = Probe::new("aB/cd+ef", "aB%2Fcd%2Bef");
    for repeated in ["x aB/cd+ef", "aB%2Fcd%2Bef", "aB%2fcd%2bef", "aB%252Fcd%252Bef", "aB\\/cd+ef", "aB&#47;cd+ef"] {
        assert!(probe.is_in(repeated.as_bytes()), "{repeated}");
    }
    assert!(!probe.is_in(b"text/plain; charset=utf-8"));
}
