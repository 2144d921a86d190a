//! Extracts the part of a credential that is equal in all requests. Signatures, dates and nonces are not.

/// Parameters that name the credential of a signed request, in lower case: AWS and compatible schemes (`Credential`), OAuth 1, HTTP
/// signatures (`keyId`), Hawk (`id`), Digest (`username`), EdgeGrid.
const NAMES: [&str; 8] = ["credential", "oauth_token", "oauth_consumer_key", "keyid", "id", "username", "client_token", "access_token"];

/// Schemes whose credential is the part before a colon.
const BEFORE_COLON: [&str; 6] = ["AWS", "SharedKey", "SharedKeyLite", "OSS", "GOOG1", "Qiniu"];

/// Passes the constant parts of an `Authorization` value to `piece`.
pub(crate) fn of_authorization(value: &[u8], mut piece: impl FnMut(&[u8])) {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let Some((scheme, rest)) = text.split_once(' ') else { return piece(value) };
    let is = |known: &str| scheme.eq_ignore_ascii_case(known);
    if is("Bearer") || is("Basic") {
        return piece(value);
    }
    if let (true, Some((name, _))) = (BEFORE_COLON.into_iter().any(is), rest.split_once(':')) {
        return piece(name.as_bytes());
    }
    let mut found = false;
    for (name, value) in rest.split([',', ';']).filter_map(|parameter| parameter.trim().split_once('=')) {
        if NAMES.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            found = true;
            piece(of_scoped(value.trim_matches('"')).as_bytes());
        }
    }
    if !found {
        piece(value);
    }
}

/// Returns an access key without its scope of date and region: `AKID/20261119/…`, encoded or not.
pub(crate) fn of_scoped(credential: &str) -> &str {
    credential.split('/').next().unwrap_or(credential).split("%2F").next().unwrap_or(credential)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lasting(value: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        of_authorization(value.as_bytes(), |piece| pieces.push(String::from_utf8_lossy(piece).into_owned()));
        pieces
    }

    #[test]
    fn of_a_signed_request_only_the_credential_lasts() {
        let aws = "AWS4-HMAC-SHA256 Credential=AKID/20261119/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=0a1b";
        assert_eq!(lasting(aws), ["AKID"]);
        let oauth = "OAuth oauth_consumer_key=\"ck\", oauth_token=\"tk\", oauth_nonce=\"n\", oauth_signature=\"s\"";
        assert_eq!(lasting(oauth), ["ck", "tk"]);
        assert_eq!(lasting("AWS AKID:frJIUN8DYpKDtOLCwo//yllqDzg="), ["AKID"]);
        assert_eq!(lasting("Hawk id=\"dh37\", ts=\"1353832234\", nonce=\"j4h3g2\", mac=\"6R4r\""), ["dh37"]);
        assert_eq!(lasting("Digest username=\"bob\", realm=\"r\", nonce=\"n\", response=\"r\""), ["bob"]);
    }

    #[test]
    fn any_other_credential_lasts_as_a_whole() {
        for value in ["Bearer a.b=c, id=1", "Basic dXNlcjpwYXNz", "token", "Token token=\"a\"", "SSWS 00aa"] {
            assert_eq!(lasting(value), [value]);
        }
    }
}
