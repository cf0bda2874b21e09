//! Scripts for the state machine with their whole expected output: `tests/golden/*.txt`.
//!
//! `REWRITE=1 cargo test --test golden` writes what is found in place of what was expected. Read the diff before you commit
//! it: a script that changes is a promise or a format that changes. Every script starts with a fresh machine.
//!
//! ```text
//! batch at=6s leader=T1-N1 [appended_by=T2-N1] [keys_max=3]     one entry; its commands follow, one a line:
//!   acquire key=a LIMIT [cost=3] [and key=b LIMIT [cost=2] …] [lead=1s] [max_wait=5s] [now_only] [id=x] [claim=7]
//!   several each                                                or in_line, or all_or_nothing; its requests follow:
//!   - acquire …
//!   release key=a permit=3
//!   renew key=a permit=3
//!   withdraw id=x claim=7 key=a [key=b …]
//!   reset key=a
//!   put name=x pattern=github:* LIMIT [overrides=rate,burst] [if=absent|exists|3]
//!   delete name=x [if=3]
//! tick at=6s                                                    an entry without commands
//! view key=a [at=6s]                                            a look at one key
//! keys                                                          how much is held
//! policies                                                      the stored rules
//! digest                                                        of the whole state
//! snapshot-roundtrip                                            goes on with what was written and read back
//! matches file=snapshot-v3.bin                                  compares the state with stored bytes
//! read file=snapshot-v3.bin                                     goes on with stored bytes
//! limit                                                         limits as they are understood, one a line
//!
//! LIMIT: limit=1/6s [window=250ms] [max_reserved=2] [ramp=1/m over=60s]             spacing
//!        bucket=10/s burst=5 [window=250ms] [max_reserved=2] [ramp=1/s over=60s]
//!        sliding=100/60s [resolution=5s]
//!        aligned=100/60s
//!        in_flight=5 [lease=30s]                                                    concurrency
//! ```
//! A request for several keys says `by` which one it was refused; an answer by a stored rule names it as `policy=name@revision`.

use datadriven::TestCase;
use quorate::limiter::{
    Bucket, Concurrency, Key, Limit, LimitError, Member, Overrides, Ramp, Rate, RateError, Spacing, Span, Terms, Time,
    Window, parse_duration,
};
use quorate::limits::{KEYS_DEFAULT, LEASE_NS_DEFAULT, MAX_RESERVED_DEFAULT};
use quorate::state::{
    Acquire, Applied, Batch, Command, Condition, Grant, Held, Identity, LeaderId, Machine, Outcome, Pattern, Permit,
    Policy, Rule, Several, SeveralRule, Stamp, Wanted, Withdraw, policy_name, request_id_hash,
};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[test]
fn scripts() {
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    scripts.sort();
    let mut run = 0;
    for script in &scripts {
        datadriven::walk(script.to_str().unwrap(), |file| {
            let mut stage = Stage::default();
            file.run(|case| stage.run(case));
            run += 1;
        });
    }
    assert!(run == scripts.len() && run >= 21, "{run} of {} scripts were run", scripts.len());
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Where a script plays.
#[derive(Default)]
struct Stage {
    machine: Machine,
}

/// Whatever is wrong with a script: shown with the line it stands on.
type Trouble = Box<dyn std::error::Error>;

impl Stage {
    fn run(&mut self, case: &mut TestCase) -> Result<String, String> {
        self.command(case).map_err(|trouble| trouble.to_string())
    }

    fn command(&mut self, case: &mut TestCase) -> Result<String, Trouble> {
        let found = match case.directive.as_str() {
            "batch" | "tick" => self.batch(case)?,
            "view" => self.view(case)?,
            "keys" => self.keys(),
            "policies" => self.policies(),
            "digest" => self.digest(),
            "snapshot-roundtrip" => self.roundtrip()?,
            "matches" => self.matches(&case.take_arg::<String>("file")?)?,
            "read" => self.read(&case.take_arg::<String>("file")?)?,
            "limit" => limits(&case.input)?,
            other => return Err(format!("there is no command {other:?}").into()),
        };
        case.expect_empty()?;
        Ok(found)
    }

    fn batch(&mut self, case: &mut TestCase) -> Result<String, Trouble> {
        let stamper =
            case.try_take_arg::<String>("leader")?.map_or(Ok(LeaderId { term: 1, node: 1 }), |id| leader(&id))?;
        let appender = case.try_take_arg::<String>("appended_by")?.map_or(Ok(stamper), |id| leader(&id))?;
        let stamp = Stamp { leader: stamper, time: time(&case.take_arg::<String>("at")?)? };
        let keys_max = case.try_take_arg("keys_max")?.unwrap_or(KEYS_DEFAULT);
        let batch = Batch { stamp, keys_max, commands: commands(&case.input)? };
        let mut text = String::new();
        match self.machine.apply(appender, &batch) {
            Applied::Decided { now, outcomes } => {
                writeln!(text, "now {now}")?;
                for (command, outcome) in batch.commands.iter().zip(&outcomes) {
                    describe(&mut text, command, outcome)?;
                }
            }
            other => writeln!(text, "{other}")?,
        }
        Ok(text)
    }

    fn view(&self, case: &mut TestCase) -> Result<String, Trouble> {
        let key = Key::new(&case.take_arg::<String>("key")?)?;
        let at = case.try_take_arg::<String>("at")?.map_or(Ok(self.machine.now()), |text| time(&text))?;
        let Some(view) = self.machine.view(&key, at) else { return Ok("fresh\n".to_owned()) };
        let standing = view.standing;
        let in_flight = if matches!(view.limit, Limit::Concurrency(_)) {
            format!(" in_flight={}", standing.in_flight)
        } else {
            String::new()
        };
        Ok(format!(
            "next={} reserved={} remaining={}{in_flight} retry_after={} reset_after={} permit={}{} limit={}\n",
            standing.next,
            standing.reserved,
            standing.remaining,
            standing.retry_after,
            standing.reset_after,
            view.permit,
            by_rule(view.rule.as_ref()),
            canonical(&view.limit)
        ))
    }

    fn policies(&self) -> String {
        let (all, revision) = self.machine.policies();
        let mut text = format!("revision={revision}\n");
        for stored in all {
            let overrides: Vec<_> = stored.policy.overrides.members().map(Member::as_str).collect();
            let (name, pattern, limit) = (&stored.name, &stored.policy.pattern, canonical(&stored.policy.limit));
            let (revision, overrides) = (stored.revision, overrides.join(","));
            text = format!("{text}{name}@{revision} pattern={pattern} {limit} overrides={overrides}\n");
        }
        text
    }

    fn keys(&self) -> String {
        let (machine, now) = (&self.machine, self.machine.now());
        format!(
            "keys={} request_ids={} permits={} now={now}\n",
            machine.keys(),
            machine.request_ids(),
            machine.permits()
        )
    }

    fn digest(&self) -> String {
        format!("{}\n", blake3::Hash::from_bytes(self.machine.freeze().digest()).to_hex())
    }

    fn bytes(&self) -> Result<Vec<u8>, Trouble> {
        let mut bytes = Vec::new();
        self.machine.freeze().write(&mut bytes)?;
        Ok(bytes)
    }

    fn roundtrip(&mut self) -> Result<String, Trouble> {
        let (written, digest) = (self.bytes()?, self.digest());
        self.machine = Machine::read(&mut written.as_slice())?;
        let same = if self.digest() == digest && self.bytes()? == written { "the same state" } else { "another state" };
        Ok(format!("{same}, {} bytes\n", written.len()))
    }

    fn matches(&self, file: &str) -> Result<String, Trouble> {
        let (path, written) = (folder().join(file), self.bytes()?);
        // A fixture is written once and for ever: only one that is missing is made, and only when asked for.
        if !path.exists() && std::env::var_os("REWRITE").is_some() {
            std::fs::write(&path, &written)?;
        }
        let same = if std::fs::read(&path)? == written { "the same bytes" } else { "other bytes" };
        Ok(format!("{same}\n"))
    }

    fn read(&mut self, file: &str) -> Result<String, Trouble> {
        let stored = std::fs::read(folder().join(file))?;
        self.machine = Machine::read(&mut stored.as_slice())?;
        Ok(self.keys())
    }
}

/// The lines of a batch.
fn commands(lines: &str) -> Result<Vec<Command>, Trouble> {
    let mut commands = Vec::new();
    for line in lines.lines() {
        if let Some(one) = line.strip_prefix("- ") {
            let Some(Command::Several(several)) = commands.last_mut() else {
                return Err(format!("{line:?} belongs to no several").into());
            };
            let Command::Acquire(acquire) = command(one)? else { return Err("a several has requests".into()) };
            several.acquires.push(acquire);
        } else {
            commands.push(command(line)?);
        }
    }
    Ok(commands)
}

/// One line of a batch.
fn command(line: &str) -> Result<Command, Trouble> {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let words: Vec<_> = rest.split_whitespace().collect();
    Ok(match verb {
        "acquire" => Command::Acquire(acquire(&words)?),
        "several" => {
            let rule = match words.as_slice() {
                ["each"] => SeveralRule::Each,
                ["in_line"] => SeveralRule::InLine,
                ["all_or_nothing"] => SeveralRule::AllOrNothing,
                _ => return Err(format!("several each, in_line or all_or_nothing, not {rest:?}").into()),
            };
            Command::Several(Several { acquires: Vec::new(), rule })
        }
        "release" => Command::Release(held(&words)?),
        "renew" => Command::Renew(held(&words)?),
        "withdraw" => {
            let (mut id, mut claim, mut keys) = (None, 0, Vec::new());
            for word in words {
                match word.split_once('=') {
                    Some(("id", text)) => id = Some(request_id_hash(text)),
                    Some(("claim", text)) => claim = text.parse()?,
                    Some(("key", text)) => keys.push(Key::new(text)?),
                    _ => return Err(format!("a withdraw has no {word:?}").into()),
                }
            }
            Command::Withdraw(Withdraw { id: id.ok_or("a withdraw has an id")?, claim, keys })
        }
        "reset" => Command::Reset(Key::new(rest.strip_prefix("key=").ok_or("reset key=a")?)?),
        "put" => put(&words)?,
        "delete" => {
            let (mut name, mut condition) = (None, Condition::Always);
            for word in words {
                match word.split_once('=') {
                    Some(("name", text)) => name = Some(policy_name(text)?),
                    Some(("if", text)) => condition = only_if(text)?,
                    _ => return Err(format!("a delete has no {word:?}").into()),
                }
            }
            Command::DeletePolicy { name: name.ok_or("a delete has a name")?, condition }
        }
        _ => return Err(format!("a batch has no {line:?}").into()),
    })
}

fn put(words: &[&str]) -> Result<Command, Trouble> {
    let (mut name, mut pattern, mut overrides, mut condition) = (None, None, Overrides::NONE, Condition::Always);
    let mut members = Members::default();
    for word in words {
        match word.split_once('=') {
            Some(("name", text)) => name = Some(policy_name(text)?),
            Some(("pattern", text)) => pattern = Some(Pattern::new(text)?),
            Some(("overrides", text)) => {
                for one in text.split(',') {
                    let member = Member::ALL.into_iter().find(|member| member.as_str() == one);
                    overrides = overrides.with(member.ok_or("an unknown member")?);
                }
            }
            Some(("if", text)) => condition = only_if(text)?,
            _ if members.take(word)? => {}
            _ => return Err(format!("a put has no {word:?}").into()),
        }
    }
    let limit = members.limit()?.ok_or("a put has a limit")?;
    let pattern = pattern.ok_or("a put has a pattern")?;
    let policy = Policy { pattern, limit, overrides };
    Ok(Command::PutPolicy { name: name.ok_or("a put has a name")?, policy, condition })
}

fn only_if(text: &str) -> Result<Condition, Trouble> {
    Ok(match text {
        "absent" => Condition::Absent,
        "exists" => Condition::Exists,
        revision => Condition::Revision(revision.parse()?),
    })
}

fn held(words: &[&str]) -> Result<Held, Trouble> {
    let (mut key, mut permit) = (None, 0);
    for word in words {
        match word.split_once('=') {
            Some(("key", text)) => key = Some(Key::new(text)?),
            Some(("permit", text)) => permit = text.parse()?,
            _ => return Err(format!("a permit has no {word:?}").into()),
        }
    }
    Ok(Held { key: key.ok_or("a permit has a key")?, permit })
}

fn acquire(words: &[&str]) -> Result<Acquire, Trouble> {
    let (mut all, mut id, mut claim, mut terms) = (Vec::new(), None, 0, Terms::default());
    for part in words.split(|word| *word == "and") {
        let (mut key, mut cost, mut members) = (None, 1, Members::default());
        for word in part {
            match word.split_once('=').unwrap_or((word, "")) {
                ("key", text) => key = Some(Key::new(text)?),
                ("cost", text) => cost = text.parse()?,
                ("lead", text) => terms.lead = span(text)?,
                ("max_wait", text) => terms.max_wait = Some(span(text)?),
                ("now_only", "") => terms.free_now_only = true,
                ("id", text) => id = Some(text),
                ("claim", text) => claim = text.parse()?,
                _ if members.take(word)? => {}
                _ => return Err(format!("an acquire has no {word:?}").into()),
            }
        }
        all.push(Wanted { key: key.ok_or("an acquire has a key")?, limit: members.limit()?, cost });
    }
    let identity = id.map(|id| Identity::of(id, &all));
    let first = all.remove(0);
    Ok(Acquire { first, more: all, terms, identity, claim, worker: None, replay_only: false })
}

/// The members of a limit, as far as they are said.
#[derive(Default)]
struct Members {
    kind: Option<(String, String)>,
    window: Option<String>,
    max_reserved: Option<u32>,
    burst: Option<u64>,
    ramp: Option<Rate>,
    over: Option<Span>,
    resolution: Option<Span>,
    lease: Option<Span>,
}

impl Members {
    /// Takes one word, if it is a member.
    fn take(&mut self, word: &str) -> Result<bool, Trouble> {
        match word.split_once('=') {
            Some((kind @ ("limit" | "bucket" | "sliding" | "aligned" | "in_flight"), text)) => {
                self.kind = Some((kind.to_owned(), text.to_owned()));
            }
            Some(("window", text)) => self.window = Some(text.to_owned()),
            Some(("max_reserved", text)) => self.max_reserved = Some(text.parse()?),
            Some(("burst", text)) => self.burst = Some(text.parse()?),
            Some(("ramp", text)) => self.ramp = Some(text.parse()?),
            Some(("over", text)) => self.over = Some(span(text)?),
            Some(("resolution", text)) => self.resolution = Some(span(text)?),
            Some(("lease", text)) => self.lease = Some(span(text)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn limit(self) -> Result<Option<Limit>, Trouble> {
        match self.kind {
            Some(_) => Ok(Some(self.understood()?)),
            None => Ok(None),
        }
    }

    fn understood(self) -> Result<Limit, LimitError> {
        let named = |member| move |error: RateError| LimitError::Text { member, error };
        let (kind, text) = self.kind.unwrap_or_default();
        if kind == "in_flight" {
            let max = text.parse().map_err(|_| LimitError::Absurd(format!("{text} is no number")))?;
            return Concurrency::new(max, self.lease.unwrap_or(Span(LEASE_NS_DEFAULT))).map(Limit::Concurrency);
        }
        let rate = text.parse::<Rate>().map_err(named("rate"))?;
        let window = self.window.map_or(Ok(Span::ZERO), |text| parse_duration(&text)).map_err(named("start_window"))?;
        let ramp = self.ramp.map(|from| Ramp { from, over: self.over.unwrap_or_default() });
        Ok(match kind.as_str() {
            "bucket" => {
                let plain = Bucket::new(rate, self.burst.unwrap_or(1), window, self.max_reserved.unwrap_or(0))?;
                Limit::Bucket(ramp.map_or(Ok(plain), |ramp| plain.with_ramp(ramp))?)
            }
            "sliding" => Limit::Window(Window::sliding(rate, self.resolution)?),
            "aligned" => Limit::Window(Window::aligned(rate)),
            _ => {
                let plain = Spacing::new(rate, window, self.max_reserved.unwrap_or(MAX_RESERVED_DEFAULT))?;
                Limit::Spacing(ramp.map_or(Ok(plain), |ramp| plain.with_ramp(ramp))?)
            }
        })
    }
}

fn describe(text: &mut String, command: &Command, outcome: &Outcome) -> Result<(), Trouble> {
    if let (Command::Several(several), Outcome::Several(outcomes)) = (command, outcome) {
        writeln!(text, "several")?;
        for (acquire, outcome) in several.acquires.iter().zip(outcomes) {
            writeln!(text, "- {}", describe_one(!acquire.more.is_empty(), outcome))?;
        }
        return Ok(());
    }
    let many = matches!(command, Command::Acquire(acquire) if !acquire.more.is_empty());
    Ok(writeln!(text, "{}", describe_one(many, outcome))?)
}

fn describe_one(many: bool, outcome: &Outcome) -> String {
    let by = |by: &usize| if many { format!(" by={by}") } else { String::new() };
    match outcome {
        Outcome::Granted(grant) => describe_grant(grant),
        Outcome::Denied { by: refused, denial, rule } => {
            let (reason, retry_after) = (denial.reason.as_str(), denial.retry_after);
            format!("denied {reason} retry_after={retry_after}{}{}", by(refused), by_rule(rule.as_ref()))
        }
        Outcome::NoLimit { by: which } => format!("no limit{}", by(which)),
        Outcome::Never { by: which, why } => format!("never{}: {why}", by(which)),
        Outcome::RequestIdReused => "request id reused".to_owned(),
        Outcome::TooManyKeys { retry_after } => format!("too many keys retry_after={retry_after}"),
        Outcome::TooManyRequestIds { retry_after } => format!("too many request ids retry_after={retry_after}"),
        Outcome::Skipped => "skipped".to_owned(),
        Outcome::Several(_) => "several".to_owned(),
        Outcome::Released(true) => "released".to_owned(),
        Outcome::Released(false) => "too late to release".to_owned(),
        Outcome::Renewed { lease, stop_before } => format!("renewed lease={lease} stop_before={stop_before}"),
        Outcome::NoPermit => "no such permit".to_owned(),
        Outcome::Withdrawn(permits) => format!("withdrawn {}", permits.iter().flatten().count()),
        Outcome::Reset(true) => "reset".to_owned(),
        Outcome::Reset(false) => "nothing to reset".to_owned(),
        Outcome::PolicyPut { revision, changed: true } => format!("stored revision={revision}"),
        Outcome::PolicyPut { revision, changed: false } => format!("unchanged revision={revision}"),
        Outcome::PolicyDeleted { revision } => format!("deleted revision={revision}"),
        Outcome::NoPolicy => "no such policy".to_owned(),
        Outcome::OtherRevision { found: Some(found) } => format!("refused, found revision={found}"),
        Outcome::OtherRevision { found: None } => "refused, found nothing".to_owned(),
        Outcome::PolicyConflict { with } => format!("refused, {with} has this pattern"),
        Outcome::TooManyPolicies => "too many policies".to_owned(),
    }
}

fn describe_grant(grant: &Grant) -> String {
    let start_before = grant.start_before.map(|span| format!(" start_before={span}")).unwrap_or_default();
    let expires_at = grant.expires_at.map(|time| format!(" expires_at={time}")).unwrap_or_default();
    let replayed = if grant.replayed { format!(" replayed stamp={}", grant.stamp) } else { String::new() };
    let Permit { number, reserved, rule, .. } = &grant.first;
    let first = format!("permit={number} slot={} reserved={reserved}{}", grant.slot, by_rule(rule.as_ref()));
    let more = |permit: &Permit| {
        format!(" and permit={} reserved={}{}", permit.number, permit.reserved, by_rule(permit.rule.as_ref()))
    };
    let more: String = grant.more.iter().map(more).collect();
    format!("granted {first}{more}{start_before}{expires_at}{replayed}")
}

fn by_rule(rule: Option<&Arc<Rule>>) -> String {
    rule.map(|rule| format!(" policy={}@{}", rule.policy, rule.revision)).unwrap_or_default()
}

/// The limits of a script, each with what is wrong with it or how it is understood. A bare rate is a spacing limit.
fn limits(lines: &str) -> Result<String, Trouble> {
    let mut text = String::new();
    for line in lines.lines() {
        let mut members = Members::default();
        for (index, word) in line.split(' ').enumerate() {
            if index == 0 && !word.contains('=') {
                members.kind = Some(("limit".to_owned(), word.to_owned()));
            } else if !members.take(word)? {
                return Err(format!("a limit has no {word:?}").into());
            }
        }
        match members.understood() {
            Ok(limit) => writeln!(text, "{}", canonical(&limit))?,
            Err(error) if error.is_syntax() => writeln!(text, "syntax: {error}")?,
            Err(error) => writeln!(text, "absurd: {error}")?,
        }
    }
    Ok(text)
}

/// A limit with everything that it leaves unsaid.
fn canonical(limit: &Limit) -> String {
    let ramped =
        |ramp: Option<Ramp>| ramp.map(|ramp| format!(" ramp={} over={}", ramp.from, ramp.over)).unwrap_or_default();
    match limit {
        Limit::Spacing(spacing) => {
            let (rate, unit, ramp) = (spacing.rate(), spacing.unit(), ramped(spacing.ramp()));
            let (window, max_reserved) = (spacing.start_window(), spacing.max_reserved());
            format!("{rate} window={window} max_reserved={max_reserved}{ramp} (one every {unit})")
        }
        Limit::Bucket(bucket) => {
            let (rate, burst, ramp) = (bucket.rate(), bucket.burst(), ramped(bucket.ramp()));
            let (window, max_reserved) = (bucket.start_window(), bucket.max_reserved());
            format!("bucket {rate} burst={burst} window={window} max_reserved={max_reserved}{ramp}")
        }
        Limit::Window(window) if window.is_aligned() => format!("aligned {}", window.rate()),
        Limit::Window(window) => format!("sliding {} resolution={}", window.rate(), window.resolution()),
        Limit::Concurrency(concurrency) => {
            format!("in_flight {} lease={}", concurrency.max(), concurrency.lease())
        }
    }
}

/// `T1-N2`.
fn leader(text: &str) -> Result<LeaderId, Trouble> {
    let (term, node) = text.strip_prefix('T').and_then(|text| text.split_once("-N")).ok_or("a leader is T1-N2")?;
    Ok(LeaderId { term: term.parse()?, node: node.parse()? })
}

/// `12.5s`, as instants are printed.
fn time(text: &str) -> Result<Time, Trouble> {
    let seconds = text.strip_suffix('s').ok_or("an instant is 12.5s")?;
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let fraction_ns = format!("{fraction:0<9}").parse::<u64>()?;
    let time = Time(whole.parse::<u64>()? * 1_000_000_000 + fraction_ns);
    if time.to_string() == text { Ok(time) } else { Err(format!("write {time}, not {text}").into()) }
}

/// `250ms`, and `5ns` and `5us` too.
fn span(text: &str) -> Result<Span, Trouble> {
    if let Some(us) = text.strip_suffix("us") {
        return Ok(Span(us.parse::<u64>()? * 1_000));
    }
    if let Some(ns) = text.strip_suffix("ns") {
        return Ok(Span(ns.parse()?));
    }
    Ok(parse_duration(text)?)
}
