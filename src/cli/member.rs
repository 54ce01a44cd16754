//! `guildgate member`: members of a guild and their points. How members, warns and reviews are printed.

use std::fmt::Display;
use std::io::Write;

use clap::{Args, Subcommand};

use super::error::CommandError;
use super::output::{JsonArg, print_list, print_record};
use crate::model::{GuildId, MemberId, Note, NoteKind, date_of};
use crate::store::Record;
use crate::store::{MemberRecord, Store};

/// `guildgate member …`
#[derive(Clone, Debug, Subcommand)]
pub enum MemberCommand {
    /// Sets a member's name or points, and makes the member if there is none
    Set {
        #[command(flatten)]
        of: MemberArgs,
        /// The member's name; a new member is named by its id
        #[arg(long)]
        name: Option<String>,
        /// The member's points; a new member has 0
        #[arg(long, allow_negative_numbers = true, value_parser = points)]
        points: Option<i64>,
    },
    /// Lists a guild's members
    List {
        /// The guild's id
        #[arg(long)]
        guild: GuildId,
        #[command(flatten)]
        json: JsonArg,
    },
    /// Shows one member
    Show {
        #[command(flatten)]
        of: MemberArgs,
        #[command(flatten)]
        json: JsonArg,
    },
    /// Removes a member with its warns and reviews
    Remove {
        #[command(flatten)]
        of: MemberArgs,
    },
}

/// A member of a guild.
#[derive(Clone, Debug, Args)]
pub struct MemberArgs {
    /// The guild's id
    #[arg(long)]
    pub guild: GuildId,
    /// The member's id
    #[arg(long)]
    pub member: MemberId,
}

fn points(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("points are a whole number, {} to {}", i64::MIN, i64::MAX))
}

impl MemberCommand {
    pub(super) async fn run(self, store: &Store, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            MemberCommand::Set { of, name, points } => {
                Ok(store.set_member(&of.guild, of.member, name.as_deref(), points).await?)
            }
            MemberCommand::Remove { of } => Ok(store.remove_member(&of.guild, of.member).await?),
            MemberCommand::List { guild, json } => {
                let members = store.members(&guild, None, usize::MAX).await?;
                print_list(out, json, members.into_iter().map(|member| member_record(&guild, member)), line)
            }
            MemberCommand::Show { of: MemberArgs { guild, member: id }, json } => {
                let member = store.member(&guild, id).await?;
                show(out, json, member.map(|member| member_record(&guild, member)), (&guild, "member", id))
            }
        }
    }
}

/// A member as the record of an export.
fn member_record(guild: &GuildId, MemberRecord { member, name, points }: MemberRecord) -> Record {
    Record::Member { guild: guild.clone(), member, name, points }
}

/// A record as one line of a list.
pub(super) fn line(record: &Record) -> String {
    match record {
        Record::Guild { guild, name } => format!("{guild}\t{name}"),
        Record::Member { member, name, points, .. } => format!("{member}\t{points}\t{name}"),
        Record::Note { member, kind, note: Note { id, author, text, number }, .. } => {
            let number = number_text(kind, *number);
            format!("{member}\t{id}\t{author}\t{number}\t{text}")
        }
    }
}

/// Prints the record, or an error that names the command which lists the existing ones. `guild`, `kind` and `id` are
/// what was asked for.
pub(super) fn show(
    out: &mut dyn Write,
    json: JsonArg,
    record: Option<Record>,
    (guild, kind, id): (&GuildId, &str, impl Display),
) -> Result<(), CommandError> {
    let record = record.ok_or_else(|| {
        CommandError::new(format!(
            "guild {guild} has no {kind} {id}; `guildgate {kind} list --guild {guild}` shows those there are"
        ))
    })?;
    print_record(out, json, &record, &page(&record))
}

/// A record as text, with one line for each field.
fn page(record: &Record) -> String {
    match record {
        Record::Guild { guild, name } => format!("guild    {guild}\nname     {name}"),
        Record::Member { guild, member, name, points } => {
            format!("guild    {guild}\nmember   {member}\nname     {name}\npoints   {points}")
        }
        Record::Note { guild, member, kind, note: Note { id, author, text, number } } => {
            let number = number_text(kind, *number);
            format!(
                "guild    {guild}\nmember   {member}\n{:<8} {id}\nauthor   {author}\n{:<8} {number}\n{:<8} {text}",
                kind.name,
                kind.number.name(),
                kind.text
            )
        }
    }
}

/// What the number of a note says.
fn number_text(kind: &NoteKind, number: i64) -> String {
    if kind.expires() { date_of(number) } else { number.to_string() }
}
