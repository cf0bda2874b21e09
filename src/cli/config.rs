//! `quorate config`: what is wrong with files of settings, and what takes effect.

use super::exit::{Exit, Failure};
use super::output::{self, Output};
use super::settings::Settings;
use crate::config::{Config, KEYS, Key, Layers, Origin, Problems};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The subcommands of `quorate config`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Check files, each by itself and those of one cluster against each other
    Check(CheckArgs),
    /// Print the settings that take effect and where each comes from
    Print(PrintArgs),
}

/// Arguments of `quorate config check`.
#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Arguments of `quorate config print`.
#[derive(Debug, clap::Args)]
pub(super) struct PrintArgs {
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn run(command: &Command, output: Output) -> Result<(), Failure> {
    match command {
        Command::Check(args) => check(&args.files, output),
        Command::Print(args) => print(&args.settings.layers(), output),
    }
}

fn check(files: &[PathBuf], output: Output) -> Result<(), Failure> {
    let mut good: Vec<(&Path, Config)> = Vec::new();
    let mut problems = 0;
    for file in files {
        let mut layers = Layers::defaults();
        layers.file(file);
        let found = match Config::read(&layers) {
            Ok(config) => {
                let found = disagreements(file, &config, &good);
                good.push((file, config));
                found
            }
            Err(Problems(found)) => found,
        };
        problems += found.len();
        if output.is_json() {
            let object =
                serde_json::json!({ "file": file.display().to_string(), "ok": found.is_empty(), "problems": found });
            output::line(&object.to_string())?;
        } else if found.is_empty() {
            output::line(&format!("{}: ok", file.display()))?;
        } else {
            output::message(&found.join("\n"));
        }
    }
    match problems {
        0 => Ok(()),
        // Each has been said already.
        _ => Err(Failure::said(Exit::Error)),
    }
}

/// What cannot be true of two nodes of one cluster at once.
fn disagreements(file: &Path, config: &Config, others: &[(&Path, Config)]) -> Vec<String> {
    let mut found = Vec::new();
    for (other_file, other) in others.iter().filter(|(_, other)| other.cluster == config.cluster) {
        let (here, there) = (file.display(), other_file.display());
        if other.id == config.id {
            found.push(format!("{here}: has the same id as {there}, {}", config.id));
        }
        if !other.members.is_empty() && !config.members.is_empty() && other.members != config.members {
            found.push(format!("{here}: names other members than {there}"));
        }
        if other.data == config.data {
            found.push(format!("{here}: has the same data directory as {there}, {}", config.data.display()));
        }
    }
    found
}

/// Prints what takes effect even where something is wrong: that is easier to find beside it.
fn print(layers: &Layers, output: Output) -> Result<(), Failure> {
    let origin_of = |key: &Key| layers.get(key.name).map_or(Origin::Default, |setting| setting.origin.clone());
    let Problems(problems) = Config::read(layers).err().unwrap_or(Problems(Vec::new()));
    if output.is_json() {
        let member = |key: &Key| {
            let value = Config::effective(layers, key);
            (key.name, serde_json::json!({ "value": value, "origin": origin(&origin_of(key)) }))
        };
        let settings = KEYS.iter().map(member).collect::<BTreeMap<_, _>>();
        output::line(&serde_json::json!({ "settings": settings, "problems": problems }).to_string())?;
    } else {
        let line = |key: &Key| {
            let (comment, text) = match Config::effective(layers, key) {
                Some(value) => ("", key.in_toml(&value)),
                None => ("# ", String::new()),
            };
            format!("{:<44} # {}", format!("{comment}{} = {text}", key.name), origin(&origin_of(key)))
        };
        output::line(&KEYS.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    }
    if problems.is_empty() {
        return Ok(());
    }
    output::message(&problems.join("\n"));
    Err(Failure::said(Exit::Usage))
}

fn origin(origin: &Origin) -> String {
    match origin {
        Origin::Default => "default".to_owned(),
        Origin::File { .. } => format!("file {origin}"),
        Origin::Variable(_) => format!("env {origin}"),
        Origin::Flag(_) => format!("flag {origin}"),
    }
}
