//! The settings of a node as flags: one per row of the table in `config/keys.rs`, none by hand.

use crate::config::{Fallback, KEYS, Key, Layers};
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use std::path::PathBuf;

/// Every setting that was given as a flag, and the file under them.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    file: Option<PathBuf>,
    flags: Vec<(&'static Key, String)>,
}

impl Settings {
    /// Defaults, then the file, then the environment, then the flags.
    pub(super) fn layers(&self) -> Layers {
        let mut layers = Layers::defaults();
        if let Some(file) = &self.file {
            layers.file(file);
        }
        layers.environment(std::env::vars_os());
        layers.flags(self.flags.iter().map(|(key, text)| (*key, text.as_str())));
        layers
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        let given = |key: &'static Key| Some((key, matches.get_one::<String>(key.name)?.clone()));
        self.flags = KEYS.iter().filter_map(given).collect();
        Ok(())
    }
}

impl clap::Args for Settings {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("QUORATE_CONFIG")
            .value_parser(clap::value_parser!(PathBuf))
            .help("A file of settings, such as cluster/node1.toml; flags and variables win over it");
        KEYS.iter().fold(command.arg(file), |command, key| command.arg(flag(key)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(key: &'static Key) -> Arg {
    let default = match key.default {
        Fallback::Required => "[required]".to_owned(),
        other => format!("[default: {}]", other.described()),
    };
    // Values are read by `config`, which knows the bounds and speaks of files and variables in the same words.
    Arg::new(key.name).long(key.flag()).value_name(key.name.to_ascii_uppercase()).help(format!(
        "{} {default} [env: {}]",
        key.help,
        key.variable()
    ))
}
