//! What stands behind the question mark, and percent signs: read by hand, so that what is wrong is said precisely.

use super::respond::shortened;
use crate::api::{Code, Problem};
use percent_encoding::percent_decode_str;

/// The parameters of a question.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=1&b=2`. A name that nobody knows would do nothing, and one given twice could mean either: both are refused.
    pub(super) fn read(query: Option<&str>, known: &[&str]) -> Result<Self, Box<Problem>> {
        let mut found: Vec<(String, String)> = Vec::new();
        for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = decoded(name, "a parameter")?;
            if !known.contains(&name.as_str()) {
                let detail = format!("unknown parameter {:?}, only {}", shortened(&name), known.join(", "));
                return Err(bad(detail));
            }
            if found.iter().any(|(other, _)| *other == name) {
                return Err(bad(format!("{name}: given more than once")));
            }
            let value = decoded(value, &name)?;
            found.push((name, value));
        }
        Ok(Self(found))
    }

    /// A parameter as text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A parameter as a number within bounds.
    pub(super) fn number(&self, name: &str, default: u64, min: u64, max: u64) -> Result<u64, Box<Problem>> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(|| {
            bad(format!("{name}: has to be a whole number between {min} and {max}, this is {:?}", shortened(text)))
        })
    }
}

/// Text without its percent signs; one that stands for nothing is refused, or two texts would mean the same.
pub(super) fn decoded(encoded: &str, what: &str) -> Result<String, Box<Problem>> {
    let lone = encoded.match_indices('%').any(|(at, _)| {
        let digits = encoded.as_bytes().get(at + 1..at + 3);
        digits.is_none_or(|digits| !digits.iter().all(u8::is_ascii_hexdigit))
    });
    if lone {
        return Err(bad(format!("{what}: a percent sign is not followed by two hexadecimal digits")));
    }
    let text = percent_decode_str(encoded).decode_utf8();
    text.map(std::borrow::Cow::into_owned).map_err(|error| bad(format!("{what}: not UTF-8 when decoded: {error}")))
}

fn bad(detail: String) -> Box<Problem> {
    Box::new(Problem::new(Code::BadRequest, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(query: &str) -> String {
        let read = Query::read(Some(query), &["limit", "policy"]);
        read.and_then(|query| query.number("limit", 1, 1, 10)).map_or_else(|problem| problem.detail, |_| String::new())
    }

    #[test]
    fn parameters_have_names_and_bounds() {
        let query = Query::read(Some("policy=a%20b%26c&limit=10&"), &["limit", "policy"]).unwrap();
        assert_eq!((query.text("policy"), query.number("limit", 1, 1, 10).unwrap()), (Some("a b&c"), 10));
        assert_eq!(Query::read(None, &[]).unwrap().number("limit", 7, 1, 10).unwrap(), 7);
        for (query, problem) in [
            ("limit=11", "limit: has to be a whole number between 1 and 10, this is \"11\""),
            ("limit=0", "limit: has to be a whole number between 1 and 10, this is \"0\""),
            ("limit=-1", "limit: has to be a whole number between 1 and 10, this is \"-1\""),
            ("limit", "limit: has to be a whole number between 1 and 10, this is \"\""),
            ("limit=1&limit=2", "limit: given more than once"),
            ("limits=1", "unknown parameter \"limits\", only limit, policy"),
            ("policy=%", "policy: a percent sign is not followed by two hexadecimal digits"),
        ] {
            assert_eq!(detail(query), problem, "{query}");
        }
        assert!(detail("policy=%FF").starts_with("policy: not UTF-8 when decoded"));
    }
}
