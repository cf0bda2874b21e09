//! Limits between the wire and the arithmetic: what their texts mean, which members go with which kind, and how a limit is
//! written in its shortest form.

use super::ask::{Refused, bad_request, refused};
use crate::api::{self, Code, Kind, LimitMembers, Problem};
use crate::limiter::{
    Bucket, Concurrency, Limit, LimitError, Ramp, Rate, RateError, Spacing, Span, Window, parse_duration,
};
use crate::limits::{LEASE_NS_DEFAULT, MAX_RESERVED_DEFAULT, MAX_RESERVED_MAX};
use std::fmt;

/// What a limit on the wire means, exactly as `POST /acquire` reads it; else the problem it is answered with.
pub fn limit_of(said: &api::Limit) -> Result<Limit, Box<Problem>> {
    read(format_args!("limit"), said)
}

/// Understands a limit that stands at `place` of a request.
pub(super) fn read(place: fmt::Arguments<'_>, said: &api::Limit) -> Result<Limit, Refused> {
    let limit = match said {
        api::Limit::Text(text) => {
            let rate: Rate = text.parse().map_err(|error| bad_text(place, &error))?;
            Spacing::new(rate, Span::ZERO, MAX_RESERVED_DEFAULT).map(Limit::Spacing)
        }
        api::Limit::Members(members) => Reader { place, members }.limit()?,
    };
    limit.map_err(|error| absurd(place, &error))
}

fn absurd(place: fmt::Arguments<'_>, error: &LimitError) -> Refused {
    let code = if error.is_syntax() { Code::BadRequest } else { Code::Never };
    refused(code, format!("{place}: {error}"))
}

fn bad_text(place: fmt::Arguments<'_>, error: &RateError) -> Refused {
    let syntax = matches!(error, RateError::Syntax { .. } | RateError::TooLong(_));
    refused(if syntax { Code::BadRequest } else { Code::Never }, format!("{place}: {error}"))
}

/// Reads the members of one limit.
struct Reader<'a> {
    place: fmt::Arguments<'a>,
    members: &'a LimitMembers,
}

type Understood = Result<Result<Limit, LimitError>, Refused>;

impl Reader<'_> {
    fn limit(&self) -> Understood {
        let kind = self.members.kind.unwrap_or(Kind::Spacing);
        self.only_members_of(kind)?;
        match kind {
            Kind::Spacing => self.spacing(),
            Kind::Bucket => self.bucket(),
            Kind::Window => self.window(),
            Kind::Concurrency => self.concurrency(),
        }
    }

    fn spacing(&self) -> Understood {
        let (rate, start_window) = (self.rate()?, self.start_window()?);
        let (max_reserved, ramp) = (self.max_reserved(MAX_RESERVED_DEFAULT)?, self.ramp()?);
        let plain = Spacing::new(rate, start_window, max_reserved);
        Ok(match ramp {
            Some(ramp) => plain.and_then(|spacing| spacing.with_ramp(ramp)),
            None => plain,
        }
        .map(Limit::Spacing))
    }

    fn bucket(&self) -> Understood {
        let (rate, start_window) = (self.rate()?, self.start_window()?);
        let (max_reserved, ramp) = (self.max_reserved(0)?, self.ramp()?);
        let burst = self.members.burst.ok_or_else(|| self.missing("burst", "bucket"))?;
        let plain = Bucket::new(rate, burst, start_window, max_reserved);
        Ok(match ramp {
            Some(ramp) => plain.and_then(|bucket| bucket.with_ramp(ramp)),
            None => plain,
        }
        .map(Limit::Bucket))
    }

    fn window(&self) -> Understood {
        let rate = self.rate()?;
        let resolution = self.duration("resolution", self.members.resolution.as_deref())?;
        if self.members.aligned == Some(true) {
            return match resolution.filter(|resolution| *resolution != rate.per()) {
                Some(_) => Err(bad_request(format!(
                    "{}.resolution: an aligned window is one cell of {}; leave it out",
                    self.place,
                    rate.per()
                ))),
                None => Ok(Ok(Limit::Window(Window::aligned(rate)))),
            };
        }
        Ok(Window::sliding(rate, resolution).map(Limit::Window))
    }

    fn concurrency(&self) -> Understood {
        let max = self.members.max.ok_or_else(|| self.missing("max", "concurrency"))?;
        let lease = self.duration("lease", self.members.lease.as_deref())?.unwrap_or(Span(LEASE_NS_DEFAULT));
        Ok(Concurrency::new(max, lease).map(Limit::Concurrency))
    }

    /// A member that means nothing for the kind is a mistake of whoever wrote it.
    fn only_members_of(&self, kind: Kind) -> Result<(), Refused> {
        let LimitMembers { rate, burst, max_reserved, start_window, ramp, resolution, aligned, max, lease, .. } =
            self.members;
        let paced = matches!(kind, Kind::Spacing | Kind::Bucket);
        let all = [
            ("rate", rate.is_some(), kind != Kind::Concurrency),
            ("burst", burst.is_some(), kind == Kind::Bucket),
            ("max_reserved", max_reserved.is_some(), paced),
            ("start_window", start_window.is_some(), paced),
            ("ramp", ramp.is_some(), paced),
            ("resolution", resolution.is_some(), kind == Kind::Window),
            ("aligned", aligned.is_some(), kind == Kind::Window),
            ("max", max.is_some(), kind == Kind::Concurrency),
            ("lease", lease.is_some(), kind == Kind::Concurrency),
        ];
        match all.into_iter().find(|(_, said, meant)| *said && !meant) {
            Some((member, ..)) => {
                Err(bad_request(format!("{}.{member}: a limit of kind `{}` has no {member}", self.place, word(kind))))
            }
            None => Ok(()),
        }
    }

    fn missing(&self, member: &str, kind: &str) -> Refused {
        bad_request(format!("{}.{member}: missing; a limit of kind `{kind}` needs it", self.place))
    }

    fn rate(&self) -> Result<Rate, Refused> {
        let kind = word(self.members.kind.unwrap_or(Kind::Spacing));
        let text = self.members.rate.as_deref().ok_or_else(|| self.missing("rate", kind))?;
        text.parse().map_err(|error| bad_text(format_args!("{}.rate", self.place), &error))
    }

    fn start_window(&self) -> Result<Span, Refused> {
        Ok(self.duration("start_window", self.members.start_window.as_deref())?.unwrap_or(Span::ZERO))
    }

    fn duration(&self, member: &str, text: Option<&str>) -> Result<Option<Span>, Refused> {
        let wrong = |error| bad_text(format_args!("{}.{member}", self.place), &error);
        text.map(|text| parse_duration(text).map_err(wrong)).transpose()
    }

    fn max_reserved(&self, default: u32) -> Result<u32, Refused> {
        let Some(count) = self.members.max_reserved else { return Ok(default) };
        u32::try_from(count).map_err(|_| {
            let most = format!("{}.max_reserved: at most {MAX_RESERVED_MAX}, this one is {count}", self.place);
            refused(Code::Never, most)
        })
    }

    fn ramp(&self) -> Result<Option<Ramp>, Refused> {
        let Some(ramp) = &self.members.ramp else { return Ok(None) };
        let from = ramp.from.parse().map_err(|error| bad_text(format_args!("{}.ramp.from", self.place), &error))?;
        let over =
            parse_duration(&ramp.over).map_err(|error| bad_text(format_args!("{}.ramp.over", self.place), &error))?;
        Ok(Some(Ramp { from, over }))
    }
}

const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Spacing => "spacing",
        Kind::Bucket => "bucket",
        Kind::Window => "window",
        Kind::Concurrency => "concurrency",
    }
}

/// The shortest way to write a limit: text if all else is by default.
pub(super) fn canonical(limit: &Limit) -> api::Limit {
    let window = |span: Span| (span > Span::ZERO).then(|| span.to_string());
    let ramp =
        |ramp: Option<Ramp>| ramp.map(|ramp| api::Ramp { from: ramp.from.to_string(), over: ramp.over.to_string() });
    let members = match limit {
        Limit::Spacing(spacing) => {
            let default = spacing.max_reserved() == MAX_RESERVED_DEFAULT;
            let rate = spacing.rate().to_string();
            if default && spacing.start_window() == Span::ZERO && spacing.ramp().is_none() {
                return api::Limit::Text(rate);
            }
            LimitMembers {
                kind: Some(Kind::Spacing),
                rate: Some(rate),
                max_reserved: (!default).then(|| spacing.max_reserved().into()),
                start_window: window(spacing.start_window()),
                ramp: ramp(spacing.ramp()),
                ..LimitMembers::default()
            }
        }
        Limit::Bucket(bucket) => LimitMembers {
            kind: Some(Kind::Bucket),
            rate: Some(bucket.rate().to_string()),
            burst: Some(bucket.burst()),
            max_reserved: (bucket.max_reserved() > 0).then(|| bucket.max_reserved().into()),
            start_window: window(bucket.start_window()),
            ramp: ramp(bucket.ramp()),
            ..LimitMembers::default()
        },
        Limit::Window(limit) => LimitMembers {
            kind: Some(Kind::Window),
            rate: Some(limit.rate().to_string()),
            resolution: (!limit.is_aligned()).then(|| limit.resolution().to_string()),
            aligned: limit.is_aligned().then_some(true),
            ..LimitMembers::default()
        },
        Limit::Concurrency(concurrency) => LimitMembers {
            kind: Some(Kind::Concurrency),
            max: Some(concurrency.max()),
            lease: Some(concurrency.lease().to_string()),
            ..LimitMembers::default()
        },
    };
    api::Limit::Members(Box::new(members))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understood(text: &str) -> Result<Limit, String> {
        let said: api::Limit = serde_json::from_str(text).unwrap();
        read(format_args!("limit"), &said).map_err(|problem| format!("{}: {}", problem.code, problem.detail))
    }

    #[test]
    fn every_kind_is_understood_and_written_in_its_shortest_form() {
        for (text, shortest) in [
            (r#""1/6s""#, r#""1/6s""#),
            (r#"{"kind":"spacing","rate":"6/1m","max_reserved":10}"#, r#""6/m""#),
            (r#"{"rate":"1/s","max_reserved":3}"#, r#"{"kind":"spacing","rate":"1/s","max_reserved":3}"#),
            (
                r#"{"rate":"100/s","start_window":"250ms","ramp":{"from":"10/s","over":"60s"}}"#,
                r#"{"kind":"spacing","rate":"100/s","start_window":"250ms","ramp":{"from":"10/s","over":"1m"}}"#,
            ),
            (
                r#"{"kind":"bucket","rate":"100/s","burst":50,"max_reserved":0}"#,
                r#"{"kind":"bucket","rate":"100/s","burst":50}"#,
            ),
            (r#"{"kind":"window","rate":"100/60s"}"#, r#"{"kind":"window","rate":"100/m","resolution":"6s"}"#),
            (
                r#"{"kind":"window","rate":"100/60s","aligned":true,"resolution":"1m"}"#,
                r#"{"kind":"window","rate":"100/m","aligned":true}"#,
            ),
            (r#"{"kind":"concurrency","max":5}"#, r#"{"kind":"concurrency","max":5,"lease":"30s"}"#),
        ] {
            let limit = understood(text).expect(text);
            assert_eq!(serde_json::to_string(&canonical(&limit)).unwrap(), shortest, "{text}");
            assert_eq!(understood(shortest), Ok(limit), "what is written reads back");
        }
    }

    #[test]
    fn what_makes_no_sense_names_the_member() {
        for (text, why) in [
            (r#"{"rate":"1/s","burst":5}"#, "bad_request: limit.burst: a limit of kind `spacing` has no burst"),
            (r#"{"kind":"bucket","rate":"1/s"}"#, "bad_request: limit.burst: missing"),
            (r#"{"kind":"bucket","rate":"1/s","burst":0}"#, "never: limit: burst lies between"),
            (r#"{"kind":"bucket"}"#, "bad_request: limit.rate: missing; a limit of kind `bucket`"),
            (r#"{"max_reserved":3}"#, "bad_request: limit.rate: missing; a limit of kind `spacing`"),
            (r#"{"kind":"window","rate":"1/s","max_reserved":1}"#, "limit.max_reserved: a limit of kind `window`"),
            (r#"{"kind":"window","rate":"10/s","resolution":"300ms"}"#, "never: limit: the resolution 300ms"),
            (r#"{"kind":"window","rate":"10/s","resolution":"x"}"#, "bad_request: limit.resolution: expected"),
            (r#"{"kind":"window","rate":"10/s","aligned":true,"resolution":"500ms"}"#, "one cell of 1s"),
            (r#"{"kind":"concurrency","rate":"1/s"}"#, "limit.rate: a limit of kind `concurrency` has no rate"),
            (r#"{"kind":"concurrency"}"#, "bad_request: limit.max: missing"),
            (r#"{"kind":"concurrency","max":10001}"#, "never: limit: max lies between"),
            (r#"{"kind":"concurrency","max":1,"lease":"2d"}"#, "never: limit: a lease is"),
            (r#"{"rate":"1/s","ramp":{"from":"x","over":"1s"}}"#, "bad_request: limit.ramp.from: expected"),
            (r#"{"rate":"1/s","ramp":{"from":"2/s","over":"1s"}}"#, "never: limit: a ramp begins slower"),
        ] {
            let error = understood(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
