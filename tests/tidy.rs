//! The rules of the house that no compiler checks, read off the source files.
//!
//! - Arrows: which module of `src/` may use which, and which of them may see which foreign crate. Purity is by module here:
//!   what is not allowed to see a clock, a disk or a socket cannot depend on one by accident.
//! - Files: each says what it is for, none is dead, none is too long, none has loose ends.
//! - `unsafe` stays in one file.
//! - The client is lean: with its feature alone, nothing that makes a node is built.
//!
//! Comments and string literals do not count, except where a rule is about them. Each rule is tried on made-up files as
//! well, so that none of them passes because it sees nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A module of `src/`, what it may use, and why no more than that.
struct Row {
    module: &'static str,
    /// `clock` is a module, `clock::Stopwatch` one name of it, [`ANYTHING`] all there is. Its own names go without saying.
    may_use: &'static [&'static str],
    why: &'static str,
}

const ANYTHING: &str = "*";

/// `docs/ARCHITECTURE.md` is the map; this is the fence. Another arrow is a decision: give the reason in the same change.
const ARROWS: &[Row] = &[
    Row { module: "limits", may_use: &[], why: "bounds are figures, they need nothing" },
    Row { module: "metric_names", may_use: &[], why: "names are text, they need nothing" },
    Row { module: "priority", may_use: &[], why: "a thread that stands back needs nobody for it" },
    Row { module: "planted", may_use: &[], why: "whoever can have a bug planted uses it, so it depends on nobody" },
    Row { module: "watch", may_use: &[], why: "a channel knows nothing of what goes through it" },
    Row { module: "limiter", may_use: &["limits"], why: "the arithmetic is pure: no clock, no state, no wire" },
    Row {
        module: "state",
        may_use: &["limiter", "limits", "planted"],
        why: "the state machine is pure: command in, outcome out",
    },
    Row { module: "clock", may_use: &["limiter", "limits"], why: "clocks give readings, others decide with them" },
    Row {
        module: "raft",
        may_use: &[
            "state",
            "clock",
            "limiter",
            "limits",
            "metric_names",
            "priority",
            "config",
            "telemetry",
            "planted",
            "failpoint",
            "watch",
        ],
        why: "the log and the network know nothing of who asks",
    },
    Row {
        module: "history",
        may_use: &[
            "state",
            "limiter",
            "limits",
            "metric_names",
            "priority",
            "clock::Stopwatch",
            "clock::Deadline",
            "clock::wall_millis",
        ],
        why: "history is written from outcomes and may be lost; it alone is aged by the wall clock, as people are",
    },
    Row {
        module: "node",
        may_use: &[
            "raft",
            "state",
            "clock",
            "limiter",
            "limits",
            "metric_names",
            "config",
            "telemetry",
            "planted",
            "failpoint",
            "watch",
        ],
        why: "a node speaks no wire format: `http` translates from `api` and back",
    },
    Row {
        module: "api",
        may_use: &["limits"],
        why: "wire types are shared with clients, who have nothing else of ours",
    },
    Row {
        module: "http",
        may_use: &[
            "api",
            "edge",
            "node",
            "history",
            "limiter",
            "state",
            "clock",
            "limits",
            "metric_names",
            "config",
            "telemetry",
        ],
        why: "HTTP translates; what is replicated and how is the node's business",
    },
    Row {
        module: "client",
        may_use: &["api", "limits", "limiter::Rate", "clock::Stopwatch", "clock::Deadline"],
        why: "the client is what a worker links: the wire, the text of rates and a stopwatch, nothing of the server",
    },
    Row { module: "edge", may_use: &["api", "clock::Stopwatch", "limits"], why: "a listener knows nothing of permits" },
    Row {
        module: "proxy",
        may_use: &["api", "client", "clock::Stopwatch", "edge", "limits", "metric_names"],
        why: "a proxy is a client like any other, and sees nothing of the server",
    },
    Row {
        module: "agent",
        may_use: &[
            "api",
            "clock::Stopwatch",
            "clock::Deadline",
            "edge",
            "http::limit_of",
            "limiter::Limit",
            "limits",
            "metric_names",
        ],
        why: "an agent speaks the wire to both sides, and reads limits as a node does; its core is pure",
    },
    Row {
        module: "chaos",
        may_use: &["api", "clock", "limits", "failpoint", "progress", "raft::caller_of"],
        why: "the judge sees a cluster from outside; of a node's inside it knows only who greets whom",
    },
    Row {
        module: "bench",
        may_use: &["clock::Stopwatch", "clock::Deadline"],
        why: "a benchmark sees systems from outside, ours like any other",
    },
    Row { module: "progress", may_use: &["clock::Stopwatch"], why: "a line on stderr knows nothing of what it says" },
    Row { module: "failpoint", may_use: &[], why: "whoever has a point names it, and nothing else" },
    Row {
        module: "config",
        may_use: &["limiter", "limits", "metric_names", "telemetry"],
        why: "settings are read by the others, not the other way round",
    },
    Row { module: "telemetry", may_use: &["limits", "metric_names"], why: "everybody logs, so it depends on nobody" },
    Row { module: "cli", may_use: &[ANYTHING], why: "" },
    Row { module: "main", may_use: &["cli"], why: "the binary is thin: everything can be reached from a test" },
    Row { module: "lib", may_use: &[], why: "the library's root only names its modules" },
];

/// A foreign crate, the modules that may see it, and why nobody else.
const FOREIGN: &[(&str, &[&str], &str)] = &[
    ("openraft", &["raft"], "its pre-releases change their API, and one place has to follow"),
    ("crc32fast", &["raft"], "checksums of the log"),
    ("sled", &["history"], "it holds history, not truth"),
    ("axum", &["http"], "no other module speaks HTTP"),
    ("hyper", &["http", "edge"], "no other module speaks HTTP"),
    ("porcupine_rs", &["chaos"], "it judges what a cluster answered, and takes no part in answering"),
    ("serde_saphyr", &["cli"], "files of policies are YAML, and nothing that a node or a client reads"),
];

/// Crates that make a node and have no business in what a worker links.
const SERVER_ONLY: &[&str] = &[
    "openraft",
    "crc32fast",
    "sled",
    "axum",
    "porcupine-rs",
    "clap",
    "metrics",
    "mimalloc",
    "postcard",
    "tracing-subscriber",
];

const UNSAFE_FILE: &str = "src/clock/system.rs";
const LINES_MAX: usize = 900;

/// A source file as the rules see it.
struct Source {
    /// From the root of the package, with forward slashes.
    path: String,
    text: String,
    /// The text with blanks for comments and for what is inside literals; the lines are the same.
    code: String,
}

/// What is wrong, where, and why it matters.
struct Offence {
    path: String,
    line: usize,
    what: String,
    why: &'static str,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}\n    because {}", self.path, self.line, self.what, self.why)
    }
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), code: code_of(text) }
    }

    fn offence(&self, line: usize, what: String, why: &'static str) -> Offence {
        Offence { path: self.path.clone(), line, what, why }
    }

    /// The module path below the crate: `src/a/b.rs` is `a`, `b`; so is `src/a/b/mod.rs`.
    fn modules(&self) -> Vec<&str> {
        let path = self.path.strip_prefix("src/").unwrap_or(&self.path).trim_end_matches(".rs");
        path.trim_end_matches("/mod").split('/').collect()
    }

    fn in_src(&self) -> bool {
        self.path.starts_with("src/")
    }
}

// ---------------------------------------------------------------------------------------------------------- the rules

/// Every use of another module has its arrow in the table.
fn arrows(sources: &[Source]) -> Vec<Offence> {
    let mut offences = Vec::new();
    for source in sources.iter().filter(|source| source.in_src()) {
        let module = source.modules()[0];
        let Some(row) = ARROWS.iter().find(|row| row.module == module) else {
            let what = format!("the module `{module}` has no row in the table of arrows");
            offences.push(source.offence(1, what, "what it may use, and who may use it, is a decision"));
            continue;
        };
        for (line, used) in used_paths(source) {
            let may = row.may_use.iter().any(|may| {
                *may == ANYTHING
                    || used[0] == *may
                    || used.get(1).is_some_and(|name| format!("{}::{name}", used[0]) == *may)
            });
            if !may && used[0] != module {
                let what = format!("`{module}` may not use `{}`, only {:?}", used.join("::"), row.may_use);
                offences.push(source.offence(line, what, row.why));
            }
        }
    }
    offences
}

/// Foreign crates with a house of their own are seen nowhere else.
fn foreign_crates(sources: &[Source]) -> Vec<Offence> {
    let mut offences = Vec::new();
    for source in sources.iter().filter(|source| source.in_src()) {
        for (line, word) in words(&source.code) {
            if let Some((name, home, why)) = FOREIGN.iter().find(|(name, ..)| *name == word)
                && !home.contains(&source.modules()[0])
            {
                offences.push(source.offence(
                    line,
                    format!("`{name}` is for src/{} alone", home.join(" and src/")),
                    why,
                ));
            }
        }
    }
    offences
}

/// Every file says what it is for, in its first line.
fn docs(sources: &[Source]) -> Vec<Offence> {
    let silent = sources.iter().filter(|source| !source.text.starts_with("//!"));
    let why = "a reader wants to know what a file is for, and what is not in it, before the first `use`";
    silent.map(|source| source.offence(1, "the file does not start with `//!`".to_owned(), why)).collect()
}

fn lengths(sources: &[Source]) -> Vec<Offence> {
    let lines = |source: &Source| source.text.lines().count();
    let long = sources.iter().filter(|source| lines(source) > LINES_MAX);
    let what = |source| format!("{} lines, more than {LINES_MAX}", lines(source));
    long.map(|source| source.offence(LINES_MAX, what(source), "one noun a file: it has become two")).collect()
}

/// Nothing is left for later in a comment or a macro that panics.
fn loose_ends(sources: &[Source]) -> Vec<Offence> {
    let why = "what is missing belongs to the list of open points, where somebody looks";
    // Put together here, so that this file does not find itself.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let macros = [concat!("to", "do"), concat!("unimpl", "emented")];
    let mut offences = Vec::new();
    for source in sources {
        for (line, word) in words(&source.text).into_iter().filter(|(_, word)| marks.contains(word)) {
            offences.push(source.offence(line, format!("a {word}"), why));
        }
        for (number, line) in source.code.lines().enumerate() {
            for word in macros.iter().filter(|word| line.contains(&format!("{word}!"))) {
                offences.push(source.offence(number + 1, format!("a `{word}!`"), why));
            }
        }
    }
    offences
}

fn unsafe_code(sources: &[Source]) -> Vec<Offence> {
    let mut offences = Vec::new();
    for source in sources.iter().filter(|source| source.path != UNSAFE_FILE) {
        for (line, _) in words(&source.code).into_iter().filter(|(_, word)| *word == concat!("un", "safe")) {
            let what = format!("unsafe code outside {UNSAFE_FILE}");
            offences.push(source.offence(line, what, "the one file that needs it is small enough to be read in full"));
        }
    }
    offences
}

/// Every file is part of something that is compiled.
fn dead_files(sources: &[Source]) -> Vec<Offence> {
    let mut alive = BTreeSet::new();
    for root in sources.iter().filter(|source| is_root(&source.path)) {
        visit(root, sources, &mut alive);
    }
    let dead = sources.iter().filter(|source| !alive.contains(source.path.as_str()));
    let why = "a file that nobody compiles rots unseen";
    dead.map(|source| source.offence(1, "no `mod` leads to this file".to_owned(), why)).collect()
}

/// Every golden file is read: scripts by whoever runs the folder, anything else by name.
fn dead_golden_files(golden: &[(String, String)], sources: &[Source]) -> Vec<Offence> {
    let readers: Vec<_> = sources.iter().filter(|source| source.path != "tests/tidy.rs").collect();
    let folder_is_read = readers.iter().any(|source| source.text.contains("tests/golden"));
    let mut offences = Vec::new();
    for (path, _) in golden {
        let name = path.rsplit('/').next().unwrap_or(path);
        let by_source = readers.iter().any(|source| source.text.contains(name));
        let by_script = golden.iter().any(|(other, text)| other != path && text.contains(name));
        let is_script = path.matches('/').count() == 2 && Path::new(path).extension().is_some_and(|ext| ext == "txt");
        if !(by_source || by_script || (is_script && folder_is_read)) {
            let (what, why) = ("no test reads this file".to_owned(), "an expectation that nobody compares is a wish");
            offences.push(Offence { path: path.clone(), line: 1, what, why });
        }
    }
    offences
}

// ------------------------------------------------------------------------------------------- reading Rust, well enough

/// Blanks out comments and the insides of literals.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let skip = not_code_at(&chars, at);
        for char in &chars[at..at + skip.max(1)] {
            code.push(if skip == 0 || *char == '\n' { *char } else { ' ' });
        }
        at += skip.max(1);
    }
    code
}

/// How many characters from here on are a comment or a literal.
fn not_code_at(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    let starts = |with: &str| with.chars().enumerate().all(|(offset, char)| rest.get(offset) == Some(&char));
    if starts("//") {
        return rest.iter().take_while(|char| **char != '\n').count();
    }
    if starts("/*") {
        return block_comment(rest);
    }
    let word_before = at > 0 && is_word(chars[at - 1]);
    if rest[0] == 'r' && !word_before || rest[0] == 'r' && at > 0 && matches!(chars[at - 1], 'b' | 'c') {
        let hashes = rest[1..].iter().take_while(|char| **char == '#').count();
        if rest.get(1 + hashes) == Some(&'"') {
            return raw_string(rest, hashes);
        }
    }
    match rest {
        ['"', ..] => quoted(rest, '"'),
        // A lifetime has no second quote; a character has one right after it, or a backslash before.
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => quoted(rest, '\''),
        _ => 0,
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn raw_string(rest: &[char], hashes: usize) -> usize {
    let body = hashes + 2;
    let ends =
        |at: &usize| rest[*at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    (body..rest.len()).find(ends).map_or(rest.len(), |end| end + hashes + 1)
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// All words with the lines they stand on.
fn words(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().enumerate();
    lines
        .flat_map(|(number, line)| line.split(|char| !is_word(char)).map(move |word| (number + 1, word)))
        .filter(|(_, word)| !word.is_empty())
        .collect()
}

/// All paths from the root of the crate that a file mentions, groups taken apart: `crate::{a::{b, c}, d}` is three.
fn used_paths(source: &Source) -> Vec<(usize, Vec<String>)> {
    let code = &source.code;
    let mut used = Vec::new();
    let roots = ["crate::", "quorate::"].into_iter().flat_map(|root| code.match_indices(root));
    for (at, root) in roots.filter(|(at, _)| !code[..*at].ends_with(is_word)) {
        tree(&code[at + root.len()..], &[], &mut used, line_of(code, at));
    }
    // As many `super`s as the module is deep end at the root, too; in a module within the file they do not reach it.
    let depth = source.modules().len();
    for (at, climb) in code.match_indices(&"super::".repeat(depth)) {
        let mut found = Vec::new();
        tree(&code[at + climb.len()..], &[], &mut found, line_of(code, at));
        used.extend(found.into_iter().filter(|(_, path)| {
            !code[..at].ends_with("::") && ARROWS.iter().any(|row| row.module == path[0]) && !has_own(source, &path[0])
        }));
    }
    used
}

/// Whether a file of that name stands beside this one, which `super` then means.
fn has_own(source: &Source, name: &str) -> bool {
    let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let beside = package().join(folder);
    folder != "src" && (beside.join(format!("{name}.rs")).exists() || beside.join(name).exists())
}

/// One `use` tree from here on; returns how much of the text it was.
fn tree(text: &str, prefix: &[String], used: &mut Vec<(usize, Vec<String>)>, line: usize) -> usize {
    let blank = text.len() - text.trim_start().len();
    let rest = &text[blank..];
    if let Some(group) = rest.strip_prefix('{') {
        let mut at = 0;
        while !group[at..].trim_start().starts_with('}') && !group[at..].trim().is_empty() {
            at += tree(&group[at..], prefix, used, line).max(1);
            at += group[at..].len()
                - group[at..].trim_start_matches(|char: char| char.is_whitespace() || char == ',').len();
        }
        return blank + 1 + at + 1;
    }
    let name: String = rest.chars().take_while(|char| is_word(*char)).collect();
    if name.is_empty() {
        if !prefix.is_empty() {
            used.push((line, prefix.to_vec()));
        }
        return blank + usize::from(rest.starts_with('*'));
    }
    let path = [prefix, std::slice::from_ref(&name)].concat();
    if let Some(below) = rest[name.len()..].strip_prefix("::") {
        return blank + name.len() + 2 + tree(below, &path, used, line);
    }
    used.push((line, path));
    blank + name.len()
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Whether cargo starts here: the library, the binaries, and in tests every file at the top and every `main.rs` below.
fn is_root(path: &str) -> bool {
    let parts: Vec<_> = path.split('/').collect();
    matches!(parts[..], ["src", "lib.rs" | "main.rs"] | ["src", "bin", _] | ["tests", _] | ["tests", _, "main.rs"])
}

/// Marks a file and everything its `mod` declarations lead to.
fn visit<'a>(source: &'a Source, sources: &'a [Source], alive: &mut BTreeSet<&'a str>) {
    if !alive.insert(&source.path) {
        return;
    }
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let own_folder = format!("{folder}/{}", file.trim_end_matches(".rs"));
    let below = if is_root(&source.path) || file == "mod.rs" { folder } else { &own_folder };
    for (line, name) in declared(&source.code) {
        let path_attribute = source.text.lines().nth(line.wrapping_sub(2)).and_then(path_of_attribute);
        let places = path_attribute.map_or_else(
            || vec![format!("{below}/{name}.rs"), format!("{below}/{name}/mod.rs")],
            |path| vec![format!("{folder}/{path}")],
        );
        for module in sources.iter().filter(|module| places.contains(&module.path)) {
            visit(module, sources, alive);
        }
    }
}

/// The `mod name;` of a file, with their lines.
fn declared(code: &str) -> Vec<(usize, &str)> {
    let names = code.lines().enumerate().filter_map(|(number, line)| {
        let (before, name) = line.trim().strip_suffix(';')?.rsplit_once("mod ")?;
        let visible = before.is_empty() || before.starts_with("pub") || before.starts_with("#[");
        (visible && name.chars().all(is_word)).then_some((number + 1, name))
    });
    names.collect()
}

fn path_of_attribute(line: &str) -> Option<&str> {
    line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]")
}

// ------------------------------------------------------------------------------------------------------ the real house

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder of the package, with forward slashes, in order.
fn files_below(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(package().join(folder)) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries.map(|entry| entry.expect("an entry of a folder")) {
        let path = format!("{folder}/{}", entry.file_name().to_str().expect("a name in UTF-8"));
        if entry.file_type().expect("a kind of file").is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn sources() -> Vec<Source> {
    let files = ["src", "tests"].into_iter().flat_map(files_below);
    let rust = files.filter(|path| Path::new(path).extension().is_some_and(|extension| extension == "rs"));
    let read = |path: &String| fs::read_to_string(package().join(path)).expect("a source file in UTF-8");
    let sources: Vec<_> = rust.map(|path| Source::new(&path, &read(&path))).collect();
    assert!(sources.iter().any(|source| source.path == "src/lib.rs"), "the sources were not found");
    sources
}

fn assert_none(offences: &[Offence]) {
    let list: Vec<_> = offences.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} offences\n{}", list.len(), list.join("\n"));
}

#[test]
fn modules_use_only_what_they_may() {
    assert_none(&arrows(&sources()));
}

#[test]
fn foreign_crates_stay_in_their_module() {
    assert_none(&foreign_crates(&sources()));
}

#[test]
fn every_file_says_what_it_is_for() {
    assert_none(&docs(&sources()));
}

#[test]
fn no_file_is_too_long() {
    assert_none(&lengths(&sources()));
}

#[test]
fn no_loose_ends() {
    assert_none(&loose_ends(&sources()));
}

#[test]
fn unsafe_code_stays_in_one_file() {
    assert_none(&unsafe_code(&sources()));
}

#[test]
fn no_file_is_dead() {
    assert_none(&dead_files(&sources()));
}

#[test]
fn no_golden_file_is_dead() {
    let read = |path: &str| fs::read(package().join(path)).expect("a golden file");
    let golden: Vec<_> = files_below("tests/golden")
        .into_iter()
        .map(|path| (path.clone(), String::from_utf8_lossy(&read(&path)).into_owned()))
        .collect();
    assert_none(&dead_golden_files(&golden, &sources()));
}

/// The names of all crates that a build with these features links, and this one.
fn linked(features: &[&str]) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(features)
        .current_dir(package())
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).expect("UTF-8");
    lines.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_client_brings_nothing_of_a_node_along() {
    let client = linked(&["--no-default-features", "--features", "client"]);
    assert!(client.contains("reqwest") && client.contains("tokio"), "this is no list of crates: {client:?}");
    let foreign: Vec<_> = SERVER_ONLY.iter().filter(|name| client.contains(**name)).collect();
    assert!(foreign.is_empty(), "with the feature `client` alone these are linked: {foreign:?}");
    let node = linked(&[]);
    let unknown: Vec<_> = SERVER_ONLY.iter().filter(|name| !node.contains(**name)).collect();
    assert!(unknown.is_empty(), "no node has these either, so nothing was shown: {unknown:?}");
}

// ------------------------------------------------------------------------------------------------------ made-up houses

fn lines(offences: &[Offence]) -> Vec<usize> {
    offences.iter().map(|offence| offence.line).collect()
}

#[test]
fn an_arrow_the_wrong_way_is_found() {
    let found = |path: &str, text: &str| lines(&arrows(&[Source::new(path, text)]));
    assert_eq!(found("src/state/apply.rs", "use crate::limiter::Key;\nuse crate::clock::Clocks;\n"), [2]);
    assert_eq!(found("src/limiter/key.rs", "use crate::{\n    limits::{A, B},\n    state::{C, d::E},\n};\n"), [1, 1]);
    assert_eq!(found("src/node/mod.rs", "fn f() -> crate::api::Answer {}"), [1]);
    assert_eq!(
        found("src/node/mod.rs", "// crate::api\n/* crate::api */\n\"crate::api\"; r#\"crate::api\"#; '\"'"),
        []
    );
    assert_eq!(found("src/client/mod.rs", "use crate::clock::{Deadline, Stopwatch};\nuse crate::clock::Clocks;"), [2]);
    assert_eq!(found("src/client/mod.rs", "use crate::clock;"), [1]);
    assert_eq!(found("src/state/a/b.rs", "use super::super::super::node::Handle;\nuse super::super::node;"), [1]);
    assert_eq!(found("src/limits.rs", "use super::state::Machine;"), [1]);
    assert_eq!(found("src/cli/mod.rs", "use crate::{node, client::*};"), []);
    assert_eq!(found("src/main.rs", "fn main() { quorate::cli::main(); quorate::node::start(); }"), [1]);
    assert_eq!(found("src/sidedoor/mod.rs", ""), [1], "a module without a row");
}

#[test]
fn a_foreign_crate_in_the_wrong_place_is_found() {
    let found = |path: &str, text: &str| lines(&foreign_crates(&[Source::new(path, text)]));
    assert_eq!(found("src/http/mod.rs", "use axum::Router;\nuse hyper_util::rt;\nuse openraft::Raft;"), [3]);
    assert_eq!(found("src/telemetry.rs", "const QUIET: &str = \"openraft=warn\"; // openraft"), []);
    assert_eq!(found("src/raft/mod.rs", "use openraft::Raft; use crc32fast::Hasher; sled::open();"), [1]);
}

#[test]
fn a_dead_file_is_found() {
    let dead = |files: &[(&str, &str)]| {
        let sources: Vec<_> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        dead_files(&sources).into_iter().map(|offence| offence.path).collect::<Vec<_>>()
    };
    let house = [
        ("src/lib.rs", "pub mod a;\n// mod dead;\n#[cfg(test)] mod b;\n"),
        ("src/a/mod.rs", "mod c;\npub(crate) mod d;\n#[path = \"odd/name.rs\"]\nmod e;\n"),
        ("src/a/c.rs", "mod f;\nmod inline { }\n"),
        ("src/a/c/f.rs", ""),
        ("src/a/d.rs", ""),
        ("src/a/odd/name.rs", ""),
        ("src/a/e.rs", ""),
        ("src/b.rs", ""),
        ("src/dead.rs", ""),
        ("tests/one.rs", "mod common;\n"),
        ("tests/common/mod.rs", ""),
        ("tests/two/main.rs", "mod part;\n"),
        ("tests/two/part.rs", ""),
        ("tests/two/lost.rs", ""),
    ];
    assert_eq!(dead(&house), ["src/a/e.rs", "src/dead.rs", "tests/two/lost.rs"]);
}

#[test]
fn a_dead_golden_file_is_found() {
    let golden = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        golden("tests/golden/a.txt", "read file=b.bin"),
        golden("tests/golden/b.bin", ""),
        golden("tests/golden/c.bin", ""),
    ];
    let dead = |text: &str| {
        let found = dead_golden_files(&files, &[Source::new("tests/golden.rs", text)]);
        found.into_iter().map(|offence| offence.path).collect::<Vec<_>>()
    };
    assert_eq!(dead("walk(\"tests/golden\")"), ["tests/golden/c.bin"]);
    assert_eq!(dead(""), ["tests/golden/a.txt", "tests/golden/c.bin"]);
}

#[test]
fn the_small_rules_find_what_they_look_for() {
    let marks = format!("//! Doc.\n// {}: later\nfn f() {{ {}!() }}\n", concat!("FIX", "ME"), concat!("to", "do"));
    let long = "//! Doc.\n".repeat(LINES_MAX + 1);
    let danger = format!("//! Doc.\n// {0}\n#![expect({0}_code)]\n{0} {{ }}\n", concat!("un", "safe"));
    assert_eq!(lines(&loose_ends(&[Source::new("src/a.rs", &marks)])), [2, 3]);
    assert_eq!(lines(&lengths(&[Source::new("src/a.rs", &long)])), [LINES_MAX]);
    assert_eq!(lines(&docs(&[Source::new("src/a.rs", "use std::fs;\n//! Doc.\n")])), [1]);
    assert_eq!(lines(&unsafe_code(&[Source::new("src/a.rs", &danger)])), [4]);
    assert_eq!(lines(&unsafe_code(&[Source::new(UNSAFE_FILE, &danger)])), []);
}

#[test]
fn comments_and_literals_are_no_code() {
    for (text, code) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        ("f(\"a \\\" // b\") + g", "f(           ) + g"),
        ("r#\"a \" b\"# + br\"x\" + crate", "           + b     + crate"),
        ("'\"' + '\\'' + x::<'a>('b')", "    +      + x::<'a>(   )"),
        ("for r in x", "for r in x"),
    ] {
        assert_eq!(code_of(text), code, "{text}");
    }
}
