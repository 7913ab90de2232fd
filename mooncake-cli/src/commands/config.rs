//! `mooncake config`: shows the configuration.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::Context;
use crate::config::{
    ClientSettings, EffectiveValue, Flags, MasterSettings, MetadataSettings, NodeSettings,
    Settings, Sources,
};
use crate::output::{Align, Exit, Failure, Show, Table};

/// What can be done with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show what each setting is, and where its value comes from.
    Show(ShowArgs),
}

/// The arguments of `mooncake config show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// The role; all of them without it.
    #[command(subcommand)]
    pub role: Option<Role>,
}

/// A role whose settings can be shown, with flags as the role would get them.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// The settings of `mooncake master`.
    Master(#[command(flatten)] Flags<MasterSettings>),
    /// The settings of `mooncake node`.
    Node(#[command(flatten)] Flags<NodeSettings>),
    /// The settings of `mooncake metadata`.
    Metadata(#[command(flatten)] Flags<MetadataSettings>),
    /// The settings of every command that uses a store.
    Client(#[command(flatten)] Flags<ClientSettings>),
}

/// The settings of each role that was asked for, by role and setting.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Shown {
    roles: BTreeMap<&'static str, BTreeMap<&'static str, EffectiveValue>>,
    #[serde(skip)]
    order: Vec<(&'static str, Vec<EffectiveValue>)>,
}

impl Shown {
    fn add<S: Settings>(&mut self, sources: &Sources, flags: &Flags<S>) -> Result<(), Failure> {
        let values = sources.settle(flags)?.values;
        let named = values
            .iter()
            .map(|value| (value.setting.name, value.clone()))
            .collect();
        self.roles.insert(S::ROLE, named);
        self.order.push((S::ROLE, values));
        Ok(())
    }
}

impl Show for Shown {
    fn human(&self) -> String {
        let section = |(role, values): &(&str, Vec<EffectiveValue>)| {
            let mut table = Table::new(&[
                (role, Align::Left),
                ("value", Align::Left),
                ("from", Align::Left),
            ]);
            for value in values {
                let text = if value.text.is_empty() {
                    "\"\""
                } else {
                    &value.text
                };
                table.row([value.setting.name, text, &value.origin.to_string()]);
            }
            table.text()
        };
        self.order
            .iter()
            .map(section)
            .collect::<Vec<_>>()
            .join("\n\n")
    }
}

/// Runs the command.
///
/// # Errors
///
/// When the configuration is wrong.
pub fn run(command: &ConfigCommand, context: &Context) -> Result<Exit, Failure> {
    let ConfigCommand::Show(args) = command;
    let mut shown = Shown {
        roles: BTreeMap::new(),
        order: Vec::new(),
    };
    match &args.role {
        Some(Role::Master(flags)) => shown.add(&context.sources, flags)?,
        Some(Role::Node(flags)) => shown.add(&context.sources, flags)?,
        Some(Role::Metadata(flags)) => shown.add(&context.sources, flags)?,
        Some(Role::Client(flags)) => shown.add(&context.sources, flags)?,
        None => {
            shown.add(&context.sources, &Flags::<MasterSettings>::default())?;
            shown.add(&context.sources, &Flags::<NodeSettings>::default())?;
            shown.add(&context.sources, &Flags::<MetadataSettings>::default())?;
            shown.add(&context.sources, &Flags::<ClientSettings>::default())?;
        }
    }
    context.output.result(&shown)?;
    Ok(Exit::Yes)
}
