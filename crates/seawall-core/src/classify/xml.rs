//! Places in an XML body: `/lfm/error/@code`, `/lfm/error` (its text), `//Error/Code` (at any depth). Namespaces are ignored, only XML's
//! own five entities are expanded, and everything is bounded.

use quick_xml::Reader;
use quick_xml::escape::{resolve_xml_entity, unescape};
use quick_xml::events::{BytesStart, Event};

use super::json::BODY_BYTES;

const PATH_PARTS: usize = 16;
/// Elements below this depth are ignored.
const DEPTH: usize = 32;
/// The most values of one look-up, and the bytes kept of each.
const VALUES: usize = 64;
const VALUE_BYTES: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XmlPath {
    text: String,
    /// Local names from the outermost inwards; `*` is any.
    elements: Vec<String>,
    attribute: Option<String>,
    /// `//`: the elements may begin anywhere.
    anywhere: bool,
}

impl XmlPath {
    /// # Errors
    /// A sentence for the person who wrote the path.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an XML path: write \"/lfm/error/@code\", \"/lfm/error\" or \"//Error/Code\"");
        let anywhere = text.starts_with("//");
        let rest = text.strip_prefix(if anywhere { "//" } else { "/" }).ok_or_else(wrong)?;
        let mut elements: Vec<String> = rest.split('/').map(str::to_owned).collect();
        let attribute = elements.pop_if(|last| last.starts_with('@')).map(|last| last[1..].to_owned());
        let named = |part: &String| !part.is_empty() && !part.contains(['@', ':', ' ']);
        if elements.is_empty() || elements.len() > PATH_PARTS || !elements.iter().chain(&attribute).all(named) {
            return Err(wrong());
        }
        Ok(Self { text: text.to_owned(), elements, attribute, anywhere })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn leads_to(&self, stack: &[String]) -> bool {
        let Some(above) = stack.len().checked_sub(self.elements.len()) else { return false };
        let same = |(part, name): (&String, &String)| part == "*" || part == name;
        (above == 0 || self.anywhere) && self.elements.iter().zip(&stack[above..]).all(same)
    }

    /// The values at this place, in document order; an element without text has the value "". A body that breaks off or is not well formed
    /// gives the values before the break.
    #[must_use]
    pub fn values(&self, body: &str) -> Vec<String> {
        let mut reader = Reader::from_str(body);
        reader.config_mut().expand_empty_elements = true;
        let mut search = Search { path: self, stack: Vec::new(), below: 0, open: Vec::new(), values: Vec::new() };
        while search.values.len() < VALUES {
            match reader.read_event() {
                Ok(Event::Start(start)) => search.enter(&start),
                Ok(Event::End(_)) => search.leave(),
                Ok(Event::Text(text)) => search.add(&text.xml10_content()),
                Ok(Event::CData(text)) => search.add(&text.xml10_content()),
                Ok(Event::GeneralRef(name)) => match name.resolve_char_ref() {
                    Ok(Some(c)) => search.add(c.encode_utf8(&mut [0; 4])),
                    Ok(None) | Err(_) => search.add(resolve_xml_entity(&name).unwrap_or_default()),
                },
                Ok(Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) | Event::Empty(_)) => {}
                Ok(Event::Eof) | Err(_) => break,
            }
        }
        search.values
    }
}

struct Search<'a> {
    path: &'a XmlPath,
    stack: Vec<String>,
    /// The number of open elements below the depth limit, which are not on the stack.
    below: usize,
    /// Depth and index in `values` of each open element whose text is collected.
    open: Vec<(usize, usize)>,
    values: Vec<String>,
}

impl Search<'_> {
    fn enter(&mut self, start: &BytesStart<'_>) {
        if self.stack.len() == DEPTH {
            self.below += 1;
            return;
        }
        self.stack.push(start.local_name().as_ref().to_owned());
        if !self.path.leads_to(&self.stack) {
            return;
        }
        match &self.path.attribute {
            None => {
                self.open.push((self.stack.len(), self.values.len()));
                self.values.push(String::new());
            }
            Some(wanted) => {
                let mut attributes = start.attributes();
                let found = attributes.with_checks(false).flatten().find(|one| one.key.local_name().as_ref() == wanted);
                let value = found.map(|one| unescape(&one.value).map_or_else(|_| one.value.to_string(), |text| text.into_owned()));
                self.values.extend(value.map(|value| clip(&value, VALUE_BYTES).to_owned()));
            }
        }
    }

    fn leave(&mut self) {
        if self.below > 0 {
            self.below -= 1;
            return;
        }
        if let Some((_, place)) = self.open.pop_if(|(depth, _)| *depth == self.stack.len())
            && let Some(value) = self.values.get_mut(place)
        {
            *value = value.trim().to_owned();
        }
        self.stack.pop();
    }

    fn add(&mut self, text: &str) {
        if let Some((depth, place)) = self.open.last().copied()
            && depth == self.stack.len()
            && self.below == 0
            && let Some(value) = self.values.get_mut(place)
        {
            let room = VALUE_BYTES.saturating_sub(value.len());
            value.push_str(clip(text, room));
        }
    }
}

/// The longest prefix of `text` that has at most `bytes` bytes and splits no character.
#[must_use]
pub(super) fn clip(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The body as text, if it looks like XML: its first `BODY_BYTES`, because error codes come early.
#[must_use]
pub fn document(body: &[u8]) -> Option<String> {
    let first = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let opens = first.iter().find(|byte| !byte.is_ascii_whitespace())? == &b'<';
    opens.then(|| String::from_utf8_lossy(&first[..first.len().min(BODY_BYTES)]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTFM: &str =
        r#"<?xml version="1.0"?><lfm status="failed"><error code="29">Rate &lt;limit&gt; &#33; <![CDATA[now]]></error></lfm>"#;

    fn values(path: &str, body: &str) -> Vec<String> {
        XmlPath::parse(path).unwrap().values(body)
    }

    #[test]
    fn a_path_leads_to_text_and_attributes() {
        assert_eq!(values("/lfm/error/@code", LASTFM), ["29"]);
        assert_eq!(values("/lfm/error", LASTFM), ["Rate <limit> ! now"]);
        assert_eq!(values("/lfm/@status", LASTFM), ["failed"]);
        assert!(values("/error", LASTFM).is_empty());
        assert_eq!(values("/*/error/@code", LASTFM), ["29"]);
    }

    #[test]
    fn namespaces_are_ignored_and_an_empty_element_is_present() {
        let body = r#"<s:subsonic-response xmlns:s="http://subsonic.org/restapi"><s:error code="40"/></s:subsonic-response>"#;
        assert_eq!(values("/subsonic-response/error", body), [""]);
        assert_eq!(values("/subsonic-response/error/@code", body), ["40"]);
    }

    #[test]
    fn two_slashes_begin_anywhere() {
        for body in ["<Error><Code>SlowDown</Code></Error>", "<Response><Errors><Error><Code>SlowDown</Code></Error></Errors></Response>"] {
            assert_eq!(values("//Error/Code", body), ["SlowDown"]);
        }
    }

    #[test]
    fn no_entity_of_the_document_is_expanded() {
        let bomb = r#"<!DOCTYPE lfm [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;"><!ENTITY f SYSTEM "file:///etc/passwd">]><lfm><error>&b;&f;x</error></lfm>"#;
        assert_eq!(values("/lfm/error", bomb), ["x"]);
    }

    #[test]
    fn a_body_that_breaks_off_gives_what_came_before() {
        assert_eq!(values("/lfm/error/@code", &LASTFM[..60]), ["29"]);
        assert!(values("/lfm/error/@code", "<lfm><error code=").is_empty());
        assert!(values("/a", "<<<&&>").is_empty());
    }

    #[test]
    fn depth_and_values_are_bounded() {
        let deep = format!("{}<x>1</x>{}<y>2</y>", "<a>".repeat(40), "</a>".repeat(40));
        assert!(values("//x", &deep).is_empty());
        assert_eq!(values("//y", &deep), ["2"]);
        let wide = format!("<a>{}</a>", "<b>t</b>".repeat(500));
        assert_eq!(values("/a/b", &wide).len(), VALUES);
        let long = format!("<a>{}</a>", "é".repeat(10_000));
        assert_eq!(values("/a", &long)[0].len(), VALUE_BYTES);
    }

    #[test]
    fn bad_paths_are_refused() {
        for path in ["", "lfm", "/", "//", "/lfm//error", "/@code", "/a/@b/c", "/ns:a", "/a/@"] {
            assert!(XmlPath::parse(path).is_err(), "{path}");
        }
    }
}
