//! `https://api.example.com/items/{id}`: a URL with placeholders that each row fills. Values are percent-encoded, so that none can change
//! the URL around it.

#[derive(Clone, Debug)]
pub(super) struct Template(Vec<TemplatePiece>);

#[derive(Clone, Debug)]
enum TemplatePiece {
    Text(String),
    Field(String),
}

impl Template {
    /// # Errors
    /// When a brace is not closed, or a placeholder has no name.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, after) = behind.split_once('}').ok_or("a `{` without its `}`")?;
            if name.is_empty() {
                return Err("`{}` names no field".to_owned());
            }
            pieces.push(TemplatePiece::Text(before.to_owned()));
            pieces.push(TemplatePiece::Field(name.to_owned()));
            rest = after;
        }
        pieces.push(TemplatePiece::Text(rest.to_owned()));
        Ok(Self(pieces))
    }

    pub(super) fn fill(&self, value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
        let mut filled = String::new();
        for piece in &self.0 {
            match piece {
                TemplatePiece::Text(text) => filled.push_str(text),
                TemplatePiece::Field(name) => {
                    let value = value(name).filter(|value| !value.is_empty()).ok_or_else(|| format!("it has no `{name}`"))?;
                    encode(&value, &mut filled, |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
                }
            }
        }
        Ok(filled)
    }
}

/// Percent-encodes all bytes except `plain` ones.
pub(super) fn encode(text: &str, to: &mut String, plain: impl Fn(u8) -> bool) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if plain(byte) {
            to.push(char::from(byte));
        } else {
            to.push('%');
            to.push(char::from(HEX[usize::from(byte >> 4)]));
            to.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_leave_their_place() {
        let template = Template::parse("https://x/{id}/y?q={q}").unwrap();
        let filled = template.fill(|name| Some(if name == "id" { "a/../b?c" } else { "ü &=" }.to_owned()));
        assert_eq!(filled.unwrap(), "https://x/a%2F..%2Fb%3Fc/y?q=%C3%BC%20%26%3D");
        assert!(template.fill(|_| None).unwrap_err().contains("`id`"));
        assert!(Template::parse("https://x/{id").is_err() && Template::parse("https://x/{}").is_err());
    }
}
