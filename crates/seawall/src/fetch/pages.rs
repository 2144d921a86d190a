//! Paginated collections: the place of the next page, from the response or by counting.

use super::template::encode;
use http::HeaderMap;
use http::header::LINK;
use seawall_core::config::url::Base;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// `Link: <…>; rel="next"` (RFC 8288).
    Link,
    /// A URL in the response, or a value for a parameter.
    Next { pointer: String, parameter: Option<String> },
    /// Numbered pages, until one is empty.
    Page { parameter: String, first: u64 },
    /// Item offsets, until a page is not full.
    Offset { parameter: String, size: u64 },
}

impl std::str::FromStr for Pages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORMS: &str = "write it as link, next:/json/pointer, next:/json/pointer,PARAM, page:PARAM=1 or offset:PARAM,SIZE";
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let pages = match kind {
            "link" if rest.is_empty() => Self::Link,
            "next" if rest.starts_with('/') => match rest.split_once(',') {
                Some((pointer, parameter)) => Self::Next { pointer: pointer.to_owned(), parameter: Some(parameter.to_owned()) },
                None => Self::Next { pointer: rest.to_owned(), parameter: None },
            },
            "page" => {
                let (parameter, first) = rest.split_once('=').unwrap_or((rest, "1"));
                Self::Page { parameter: parameter.to_owned(), first: first.parse().map_err(|_| FORMS)? }
            }
            "offset" => {
                let (parameter, size) = rest.split_once(',').ok_or(FORMS)?;
                Self::Offset { parameter: parameter.to_owned(), size: size.parse().ok().filter(|size| *size > 0).ok_or(FORMS)? }
            }
            _ => return Err(FORMS.to_owned()),
        };
        let named = match &pages {
            Self::Page { parameter, .. } | Self::Offset { parameter, .. } | Self::Next { parameter: Some(parameter), .. } => {
                !parameter.is_empty()
            }
            Self::Link | Self::Next { parameter: None, .. } => true,
        };
        if named { Ok(pages) } else { Err(FORMS.to_owned()) }
    }
}

/// A page, with the inputs that locate the next one.
#[derive(Debug)]
pub(super) struct PageResult<'a> {
    /// The upstream or origin.
    pub base: &'a Base,
    pub below: &'a str,
    /// From 1.
    pub number: u32,
    pub headers: &'a HeaderMap,
    pub json: Option<&'a Value>,
    /// The pointer to the items; the whole response if absent.
    pub items: Option<&'a str>,
}

impl Pages {
    /// The target of the first page.
    pub(super) fn first(&self, below: &str) -> String {
        match self {
            Self::Link | Self::Next { .. } => below.to_owned(),
            Self::Page { parameter, first } => with(below, parameter, &first.to_string()),
            Self::Offset { parameter, .. } => with(below, parameter, "0"),
        }
    }

    /// Whether the page has the member that locates the next one, even if it is `null`. `None` if no single member does.
    pub(super) fn has_next_member(&self, page: &PageResult<'_>) -> Option<bool> {
        match self {
            Self::Next { pointer, .. } if last_element(pointer).is_none() => Some(page.json?.pointer(pointer).is_some()),
            Self::Link | Self::Next { .. } | Self::Page { .. } | Self::Offset { .. } => None,
        }
    }

    /// # Errors
    /// When the page should locate the next one, and cannot be parsed.
    pub(super) fn next(&self, page: &PageResult<'_>) -> Result<Option<String>, String> {
        let next = match self {
            Self::Link => match link(page.headers) {
                None => return Ok(None),
                Some(target) => resolve(page.base, page.below, &target)?,
            },
            Self::Next { pointer, parameter } => {
                let json = page.json.ok_or("the page is not JSON")?;
                let word = match at(json, pointer)? {
                    None | Some(Value::Null | Value::Bool(false)) => return Ok(None),
                    Some(Value::String(word)) if word.is_empty() => return Ok(None),
                    Some(Value::String(word)) => word.clone(),
                    Some(Value::Number(number)) => number.to_string(),
                    Some(_) => return Err(format!("what is at `{pointer}` is no next page")),
                };
                match parameter {
                    Some(parameter) => with(page.below, parameter, &word),
                    None if word.contains(['/', '?']) => resolve(page.base, page.below, &word)?,
                    None => {
                        let how = format!("name the parameter that it goes to: `--pages next:{pointer},PARAM`");
                        return Err(format!("what is at `{pointer}` is no URL; {how}"));
                    }
                }
            }
            Self::Page { parameter, first } => {
                if page.count()? == 0 {
                    return Ok(None);
                }
                with(page.below, parameter, &first.saturating_add(u64::from(page.number)).to_string())
            }
            Self::Offset { parameter, size } => {
                if u64::try_from(page.count()?).unwrap_or(u64::MAX) < *size {
                    return Ok(None);
                }
                with(page.below, parameter, &size.saturating_mul(u64::from(page.number)).to_string())
            }
        };
        if next == page.below {
            return Err("the next page is this one".to_owned());
        }
        Ok(Some(next))
    }
}

/// A page that later ones are compared with, to detect pages in a circle. Each page with a power of two as its number becomes the landmark
/// (Brent's algorithm), so a circle is detected within three times its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Landmark(Option<String>);

impl Landmark {
    /// Whether the next page is the landmark.
    pub(super) fn is_met_again(&mut self, number: u32, below: &str, next: &str) -> bool {
        if number.is_power_of_two() {
            self.0 = Some(below.to_owned());
        }
        self.0.as_deref() == Some(next)
    }
}

impl PageResult<'_> {
    fn count(&self) -> Result<usize, String> {
        items(self.json, self.items).map(Vec::len)
    }
}

/// The value at a JSON pointer. `-` is the last element of an array; an empty array has none.
///
/// # Errors
/// When there is no array, or its last element has no such member: the pointer does not fit the API.
fn at<'a>(json: &'a Value, pointer: &str) -> Result<Option<&'a Value>, String> {
    let Some((start, rest)) = last_element(pointer) else { return Ok(json.pointer(pointer)) };
    let list = match json.pointer(start) {
        Some(Value::Array(list)) => list,
        Some(Value::Object(_)) if json.pointer(&format!("{start}/-")).is_some() => return Ok(json.pointer(pointer)),
        Some(_) | None => return Err(format!("there is no list at `{start}`, so `{pointer}` names no last item")),
    };
    let Some(last) = list.last() else { return Ok(None) };
    match at(last, rest)? {
        None => Err(format!("the last item of `{start}` has no `{rest}`")),
        found => Ok(found),
    }
}

/// The parts of a pointer before and behind its first `-`.
fn last_element(pointer: &str) -> Option<(&str, &str)> {
    let (start, rest) = pointer.split_once("/-")?;
    if rest.is_empty() || rest.starts_with('/') {
        return Some((start, rest));
    }
    let skipped = start.len() + 2;
    let (more, rest) = last_element(&pointer[skipped..])?;
    Some((&pointer[..skipped + more.len()], rest))
}

/// The items of a response.
pub(super) fn items<'a>(json: Option<&'a Value>, pointer: Option<&str>) -> Result<&'a Vec<Value>, String> {
    let json = json.ok_or("the answer is not JSON")?;
    let pointer = pointer.unwrap_or("");
    let found = json.pointer(pointer).and_then(Value::as_array);
    found.ok_or_else(|| {
        if pointer.is_empty() {
            "the answer is no list; name one with --items".to_owned()
        } else {
            format!("there is no list at `{pointer}`")
        }
    })
}

/// The target with one parameter set.
fn with(below: &str, parameter: &str, value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let (path, query) = below.split_once('?').unwrap_or((below, ""));
    let other = |pair: &&str| !pair.is_empty() && pair.split('=').next() != Some(parameter);
    let mut target = format!("{path}?");
    for pair in query.split('&').filter(other) {
        target.push_str(pair);
        target.push('&');
    }
    encode(parameter, &mut target, plain);
    target.push('=');
    encode(value, &mut target, plain);
    target
}

/// The target of the first `Link` whose relation is `next`.
fn link(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
    for value in values {
        for part in value.split('<').skip(1) {
            let Some((target, parameters)) = part.split_once('>') else { continue };
            let is_next = parameters.split([';', ',']).any(|parameter| {
                let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
                name.trim().eq_ignore_ascii_case("rel")
                    && value.trim().trim_matches('"').split_whitespace().any(|word| word.eq_ignore_ascii_case("next"))
            });
            if is_next {
                return Some(target.to_owned());
            }
        }
    }
    None
}

/// Resolves a page's reference to a target. It must stay on the origin, because keys belong to their origin.
fn resolve(base: &Base, below: &str, reference: &str) -> Result<String, String> {
    let reference = &*super::route::sendable(reference)?;
    let path = || below.split('?').next().unwrap_or(below);
    if reference.contains("://") {
        let (origin, path) = seawall_engine::ad_hoc::split(reference)?;
        if !Base::parse(&origin)?.same_origin(base) {
            return Err(format!("the next page is at {origin}, which is somewhere else"));
        }
        return within(base, &path);
    }
    match reference.as_bytes() {
        [b'/', b'/', ..] => Err("the next page is somewhere else".to_owned()),
        [b'/', ..] => within(base, reference),
        [b'?', ..] => Ok(format!("{}{reference}", path())),
        _ => {
            let whole = format!("{}{}", base.path, path());
            within(base, &format!("{}/{reference}", whole.rsplit_once('/').map_or("", |(folder, _)| folder)))
        }
    }
}

fn within(base: &Base, path: &str) -> Result<String, String> {
    let below = super::route::below(base, path).ok_or_else(|| format!("the next page is not below {}", base.path))?;
    Ok(below.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn next(pages: &str, below: &str, number: u32, link: &str, body: &Value, items: Option<&str>) -> Result<Option<String>, String> {
        let base = Base::parse("https://a.test/v1").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(LINK, link.parse().unwrap());
        let page = PageResult { base: &base, below, number, headers: &headers, json: Some(body), items };
        pages.parse::<Pages>().unwrap().next(&page)
    }

    #[test]
    fn the_answers_own_word_leads_to_the_next_page() {
        let body = json!({ "next": "/v1/items?after=2", "token": "a b", "last": null });
        let links = r#"<https://a.test/v1/x?p=1>; rel="prev", <https://a.test/v1/x?p=3,4>; rel="next last""#;
        assert_eq!(next("link", "/x?p=2", 2, links, &body, None).unwrap().unwrap(), "/x?p=3,4");
        assert_eq!(next("link", "/x", 2, r#"</v1/x>; rel="first""#, &body, None), Ok(None));
        assert_eq!(next("next:/next", "/items", 1, "", &body, None).unwrap().unwrap(), "/items?after=2");
        assert_eq!(next("next:/token,t", "/items?q=1&t=old", 1, "", &body, None).unwrap().unwrap(), "/items?q=1&t=a%20b");
        assert_eq!(next("next:/last", "/items", 1, "", &body, None), Ok(None));
        assert_eq!(next("next:/missing", "/items", 1, "", &body, None), Ok(None));
    }

    #[test]
    fn the_last_item_may_say_where_to_go_on() {
        let body = json!({ "data": [{ "id": 1 }, { "id": "b c" }], "none": [], "-x": { "-": 5 } });
        let after = |pages: &str| next(pages, "/x?limit=2&after=old", 1, "", &body, None);
        assert_eq!(after("next:/data/-/id,after").unwrap().unwrap(), "/x?limit=2&after=b%20c");
        assert_eq!(after("next:/-x/-,after").unwrap().unwrap(), "/x?limit=2&after=5", "a member may be called so");
        assert_eq!(after("next:/none/-/id,after"), Ok(None));
        assert_eq!(next("next:/-/id,after", "/x", 1, "", &json!([[], { "id": 7 }]), None).unwrap().unwrap(), "/x?after=7");
        for (pages, why) in [
            ("next:/items/-/id,after", "there is no list at `/items`"),
            ("next:/data/-/key,after", "the last item of `/data` has no `/key`"),
            ("next:/data/-/id", "is no URL; name the parameter that it goes to: `--pages next:/data/-/id,PARAM`"),
        ] {
            let said = after(pages).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_circle_of_pages_is_noticed() {
        for (tail, circle) in [(0, 2), (0, 3), (5, 2), (7, 40)] {
            let at = |page: u32| (if page <= tail { page } else { tail + (page - tail - 1) % circle + 1 }).to_string();
            let mut landmark = Landmark::default();
            let met = (1..).find(|page| landmark.is_met_again(*page, &at(*page), &at(page + 1))).unwrap();
            assert!(met <= 3 * (tail + circle), "{tail} {circle}: {met}");
        }
        let mut landmark = Landmark::default();
        assert!((1..10_000).all(|page: u32| !landmark.is_met_again(page, &page.to_string(), &(page + 1).to_string())));
    }

    #[test]
    fn the_next_page_is_below_the_base_path_or_that_path() {
        let body = json!({ "beyond": "/v10/secret?p=2", "base": "/v1?p=2", "bare": "https://a.test/v1", "deep": "/v1/x", "rel": "y?p=2" });
        let said = next("next:/beyond", "/x", 1, "", &body, None).unwrap_err();
        assert!(said.contains("not below /v1"), "{said}");
        for (pages, below, expected) in [
            ("next:/base", "/x", "?p=2"),
            ("next:/bare", "/x", ""),
            ("next:/deep", "", "/x"),
            ("next:/rel", "/a/x?p=1", "/a/y?p=2"),
            ("next:/rel,p", "", "?p=y%3Fp%3D2"),
        ] {
            assert_eq!(next(pages, below, 1, "", &body, None).as_ref().map(Option::as_deref), Ok(Some(expected)), "{pages}");
        }
        assert!(next("next:/rel", "?p=1", 1, "", &body, None).is_err(), "beside the base path");
    }

    #[test]
    fn the_next_page_is_neither_elsewhere_nor_this_one() {
        let body = json!({ "away": "https://b.test/v1/x", "out": "/v2/x", "here": "?p=1" });
        for pages in ["next:/away", "next:/out", "next:/here"] {
            assert!(next(pages, "/x?p=1", 1, "", &body, None).is_err(), "{pages}");
        }
    }

    #[test]
    fn a_link_cannot_write_a_second_request() {
        let body = json!({ "split": "/v1/x HTTP/1.1\r\nHost: h\r\n\r\nDELETE /v1/y", "tab": "?a\tb", "space": "/v1/a b#c" });
        for pages in ["next:/split", "next:/tab"] {
            assert!(next(pages, "/x", 1, "", &body, None).is_err(), "{pages}");
        }
        assert_eq!(next("next:/space", "/x", 1, "", &body, None).unwrap().unwrap(), "/a%20b");
    }

    #[test]
    fn counted_pages_end_where_items_do() {
        assert_eq!("page:p=1".parse::<Pages>().unwrap().first("/x?q=1"), "/x?q=1&p=1");
        assert_eq!(next("page:p=1", "/x?p=1", 1, "", &json!([1]), None).unwrap().unwrap(), "/x?p=2");
        assert_eq!(next("page:p=0", "/x?p=4", 5, "", &json!({ "i": [] }), Some("/i")), Ok(None));
        assert_eq!("offset:o,2".parse::<Pages>().unwrap().first("/x"), "/x?o=0");
        assert_eq!(next("offset:o,2", "/x?o=0", 1, "", &json!([1, 2]), None).unwrap().unwrap(), "/x?o=2");
        assert_eq!(next("offset:o,2", "/x?o=2", 2, "", &json!([1]), None), Ok(None));
        assert!(next("page:p=1", "/x?p=1", 1, "", &json!({}), None).is_err());
    }

    #[test]
    fn anything_else_is_no_way_to_page() {
        for bad in ["", "links", "next:", "next:x", "page:=1", "page:p=x", "offset:o", "offset:o,0", "next:/a,"] {
            assert!(bad.parse::<Pages>().is_err(), "{bad}");
        }
    }
}
