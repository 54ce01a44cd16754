//! `guild` and `member`: single records in the store.

use std::io::{self, IsTerminal, Write};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::error::CommandError;
use super::told::report;
use crate::model::{GuildId, MemberId, date_of};
use crate::store::transfer::Record;
use crate::store::{AnyStore, Directory, IfMissing, MemberRecord, Members, RemovedGuild};

/// `guildgate guild …`
#[derive(Clone, Debug, Subcommand)]
pub enum GuildCommand {
    /// Adds a guild to the store
    Add {
        /// The guild's id, such as 81384788765712384
        id: GuildId,
        /// What it is called
        #[arg(long, value_parser = guild_name)]
        name: String,
    },
    /// Lists the guilds, those the bot has left among them
    List(ListArgs),
    /// Calls a guild by another name
    Rename {
        /// The guild's id
        id: GuildId,
        /// What it is called from now on
        #[arg(long, value_parser = guild_name)]
        name: String,
    },
    /// Removes a guild with its members, warns, reviews and keys
    ///
    /// Nothing of it is left: a guild that is added again under the same id begins empty. A running server
    /// follows within a second.
    Remove {
        /// The guild's id
        id: GuildId,
        /// Does not ask first
        #[arg(long)]
        yes: bool,
    },
    /// Notes that the bot has left a guild: its keys answer 03 until it returns
    Leave {
        /// The guild's id
        id: GuildId,
    },
    /// Notes that the bot is back in a guild
    Return {
        /// The guild's id
        id: GuildId,
    },
}

/// How a list is printed.
#[derive(Clone, Copy, Debug, Args)]
pub struct ListArgs {
    /// Prints one JSON array, ids as texts and times as Unix seconds
    #[arg(long)]
    pub json: bool,
}

/// How one record is printed.
#[derive(Clone, Copy, Debug, Args)]
pub struct ShowArgs {
    /// Prints one JSON object, ids as texts and times as Unix seconds
    #[arg(long)]
    pub json: bool,
}

/// Whose record it is.
#[derive(Clone, Debug, Args)]
pub struct MemberArgs {
    /// The guild's id
    #[arg(long)]
    pub guild: GuildId,
    /// The member's id
    #[arg(long)]
    pub member: MemberId,
}

/// `guildgate member …`
#[derive(Clone, Debug, Subcommand)]
pub enum MemberCommand {
    /// Sets a member's name or points, making the member if need be
    Set {
        #[command(flatten)]
        of: MemberArgs,
        /// What it is called; a new member is called by its id
        #[arg(long)]
        name: Option<String>,
        /// Its points; a new member has 0
        #[arg(long, allow_negative_numbers = true, value_parser = points)]
        points: Option<i64>,
    },
    /// Lists a guild's members
    List {
        /// The guild's id
        #[arg(long)]
        guild: GuildId,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Shows one member
    Show {
        #[command(flatten)]
        of: MemberArgs,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Removes a member with its warns and reviews
    Remove {
        #[command(flatten)]
        of: MemberArgs,
    },
}

/// A guild's name. Control characters in it are stored as spaces, as everywhere; one of nothing else is more likely a
/// variable of the shell that was not set.
fn guild_name(text: &str) -> Result<String, &'static str> {
    if text.chars().all(|c| c.is_whitespace() || c.is_control()) {
        return Err("a guild's name is not empty");
    }
    Ok(text.to_owned())
}

fn points(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("points are a whole number, {} to {}", i64::MIN, i64::MAX))
}

#[derive(Serialize)]
struct GuildRow {
    id: GuildId,
    name: String,
    left: bool,
}

impl GuildCommand {
    /// What the command does where there is no store.
    pub(super) fn if_missing(&self) -> IfMissing {
        if matches!(self, GuildCommand::Add { .. }) { IfMissing::Make } else { IfMissing::Refuse }
    }

    /// Does it; what is asked for goes to `out`.
    pub async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            GuildCommand::Add { id, name } => Ok(store.add_guild(&id, &name).await?),
            GuildCommand::Rename { id, name } => Ok(store.rename_guild(&id, &name).await?),
            GuildCommand::Remove { id, yes } => {
                if !yes {
                    confirm_removal(store, &id).await?;
                }
                let RemovedGuild { members, warns, reviews, keys } = store.remove_guild(&id).await?;
                report(
                    out,
                    &format!(
                        "guild {id} was removed, with {} and {}",
                        [some(members, "member"), some(warns, "warn"), some(reviews, "review")].join(", "),
                        some(keys, "key")
                    ),
                )
            }
            GuildCommand::Leave { id } => Ok(store.set_guild_left(&id, true).await?),
            GuildCommand::Return { id } => Ok(store.set_guild_left(&id, false).await?),
            GuildCommand::List(list) => {
                let guilds = store.guilds().await?;
                let rows = guilds.into_iter().map(|g| GuildRow { id: g.id, name: g.name, left: g.left });
                print(out, list, rows)
            }
        }
    }
}

/// Asks whether the guild is to be removed: an error says that it is not.
async fn confirm_removal(store: &AnyStore, id: &GuildId) -> Result<(), CommandError> {
    let guilds = store.guilds().await?;
    let Some(guild) = guilds.iter().find(|guild| guild.id == *id) else { return Ok(()) }; // the removal says so
    if !io::stdin().is_terminal() {
        return Err(CommandError::new(format!(
            "guild {id} ({}) was not removed: its removal takes its members, warns, reviews and keys with it, and there \
             is no terminal to ask on; --yes removes it without asking",
            guild.name
        )));
    }
    let question = format!("Remove guild {id} ({}) with its members, warns, reviews and keys? [y/N] ", guild.name);
    let mut answer = String::new();
    let asked = io::stderr().write_all(question.as_bytes()).and_then(|()| io::stdin().read_line(&mut answer));
    asked.map_err(|e| CommandError::new(format!("the answer could not be read: {e}; guild {id} was not removed")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CommandError::new(format!("guild {id} was not removed"))),
    }
}

/// So many of these.
fn some(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

impl MemberCommand {
    /// Does it; what is asked for goes to `out`.
    pub async fn run(self, store: &AnyStore, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            MemberCommand::Set { of, name, points } => {
                Ok(store.set_member(&of.guild, of.member, name.as_deref(), points).await?)
            }
            MemberCommand::Remove { of } => Ok(store.remove_member(&of.guild, of.member).await?),
            MemberCommand::List { guild, list } => {
                let members = store.members(&guild).await?;
                print(out, list, members.into_iter().map(|member| record(&guild, member)))
            }
            MemberCommand::Show { of: MemberArgs { guild, member }, show: how } => {
                let members = store.members(&guild).await?;
                let found = members.into_iter().find(|there| there.member == member).ok_or_else(|| {
                    CommandError::new(format!(
                        "guild {guild} has no member {member}; `guildgate member list --guild {guild}` shows those there are"
                    ))
                })?;
                show(out, how, &record(&guild, found))
            }
        }
    }
}

/// As in an export, so that the one can be turned into the other.
fn record(guild: &GuildId, MemberRecord { member, name, points }: MemberRecord) -> Record {
    Record::Member { guild: guild.clone(), member, name, points }
}

impl Row for GuildRow {
    fn line(&self) -> String {
        format!("{}\t{}{}", self.id, self.name, if self.left { "\tleft" } else { "" })
    }
}

impl Row for Record {
    fn line(&self) -> String {
        match self {
            Record::Guild { guild, name } => format!("{guild}\t{name}"),
            Record::Member { member, name, points, .. } => format!("{member}\t{points}\t{name}"),
            Record::Warn { member, warn, author, reason, expires, .. } => {
                format!("{member}\t{warn}\t{author}\t{}\t{reason}", date_of(*expires))
            }
            Record::Review { member, review, author, rating, text, .. } => {
                format!("{member}\t{review}\t{author}\t{rating}\t{text}")
            }
        }
    }
}

/// What can be listed.
pub(super) trait Row: Serialize {
    /// For a person: columns apart by tabs, which no stored text holds.
    fn line(&self) -> String;
}

/// Prints one record as the caller wants it: a line for each of its fields, or one object.
pub(super) fn show(out: &mut dyn Write, how: ShowArgs, record: &Record) -> Result<(), CommandError> {
    if how.json {
        return Ok(writeln!(out, "{}", serde_json::to_string(record)?)?);
    }
    let fields: &[(&str, String)] = match record {
        Record::Guild { guild, name } => &[("guild", guild.to_string()), ("name", name.clone())],
        Record::Member { guild, member, name, points } => &[
            ("guild", guild.to_string()),
            ("member", member.to_string()),
            ("name", name.clone()),
            ("points", points.to_string()),
        ],
        Record::Warn { guild, member, warn, author, reason, expires } => &[
            ("guild", guild.to_string()),
            ("member", member.to_string()),
            ("warn", warn.to_string()),
            ("author", author.clone()),
            ("expires", date_of(*expires)),
            ("reason", reason.clone()),
        ],
        Record::Review { guild, member, review, author, rating, text } => &[
            ("guild", guild.to_string()),
            ("member", member.to_string()),
            ("review", review.to_string()),
            ("author", author.clone()),
            ("rating", rating.to_string()),
            ("text", text.clone()),
        ],
    };
    Ok(fields.iter().try_for_each(|(name, value)| writeln!(out, "{name:<8} {value}"))?)
}

/// Prints rows as the caller wants them: lines, or one array.
pub(super) fn print<T: Row>(
    out: &mut dyn Write,
    list: ListArgs,
    rows: impl Iterator<Item = T>,
) -> Result<(), CommandError> {
    if !list.json {
        for row in rows {
            writeln!(out, "{}", row.line())?;
        }
        return Ok(());
    }
    let mut before = "[";
    for row in rows {
        write!(out, "{before}")?;
        serde_json::to_writer(&mut *out, &row)?;
        before = ",\n";
    }
    Ok(writeln!(out, "{}", if before == "[" { "[]" } else { "]" })?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tempfile::TempDir;

    use super::*;
    use crate::cli::notes::{ReviewCommand, WarnCommand};
    use crate::store::SqliteStore;

    #[derive(Debug, Parser)]
    enum Command {
        #[command(subcommand)]
        Guild(GuildCommand),
        #[command(subcommand)]
        Member(MemberCommand),
        #[command(subcommand)]
        Warn(WarnCommand),
        #[command(subcommand)]
        Review(ReviewCommand),
    }

    struct Desk {
        store: AnyStore,
        _folder: TempDir,
    }

    impl Desk {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = SqliteStore::open(folder.path().join("store.db")).unwrap().into();
            Desk { store, _folder: folder }
        }

        /// Runs a command as typed, but for texts with spaces, which have a `_` for each.
        async fn run(&self, line: &str) -> Result<String, CommandError> {
            let words = line.split(' ').map(|word| word.replace('_', " "));
            let mut out = Vec::new();
            match Command::try_parse_from(std::iter::once("guildgate".to_owned()).chain(words)).unwrap() {
                Command::Guild(command) => command.run(&self.store, &mut out).await?,
                Command::Member(command) => command.run(&self.store, &mut out).await?,
                Command::Warn(command) => command.run(&self.store, &mut out).await?,
                Command::Review(command) => command.run(&self.store, &mut out).await?,
            }
            Ok(String::from_utf8(out).unwrap())
        }
    }

    fn usage(line: &str) -> String {
        Command::try_parse_from(std::iter::once("guildgate").chain(line.split(' '))).unwrap_err().to_string()
    }

    #[tokio::test]
    async fn what_add_made_list_shows_and_remove_takes_away() {
        let desk = Desk::new();
        assert_eq!(desk.run("guild list --json").await.unwrap(), "[]\n");
        assert_eq!(desk.run("guild add 81 --name Night_Watch").await.unwrap(), "");
        desk.run("guild leave 81").await.unwrap();
        assert_eq!(desk.run("guild list").await.unwrap(), "81\tNight Watch\tleft\n");
        desk.run("guild return 81").await.unwrap();
        assert_eq!(
            desk.run("guild list --json").await.unwrap(),
            "[{\"id\":\"81\",\"name\":\"Night Watch\",\"left\":false}]\n"
        );

        desk.run("member set --guild 81 --member 007 --name Ada --points -5").await.unwrap();
        desk.run("member set --guild 81 --member 8").await.unwrap();
        assert_eq!(desk.run("member list --guild 81").await.unwrap(), "7\t-5\tAda\n8\t0\t8\n");
        assert_eq!(
            desk.run("member list --guild 81 --json").await.unwrap(),
            "[{\"guild\":\"81\",\"member\":\"7\",\"name\":\"Ada\",\"points\":-5},\n\
             {\"guild\":\"81\",\"member\":\"8\",\"name\":\"8\",\"points\":0}]\n"
        );

        let warn = "warn add --guild 81 --member 7 --author Mod --reason spam --expires 10000000000";
        assert_eq!(desk.run(warn).await.unwrap(), "1\n");
        assert_eq!(desk.run(warn).await.unwrap(), "2\n");
        desk.run("warn remove --guild 81 1").await.unwrap();
        assert_eq!(desk.run("warn list --guild 81").await.unwrap(), "7\t2\tMod\t2286-11-20T17:46:40Z\tspam\n");
        let review = "review add --guild 81 --member 7 --author Bo --rating 5 --text Quick_and_kind";
        assert_eq!(desk.run(review).await.unwrap(), "1\n");
        assert_eq!(
            desk.run("review list --guild 81 --member 7 --json").await.unwrap(),
            "[{\"guild\":\"81\",\"member\":\"7\",\"review\":\"1\",\"author\":\"Bo\",\"rating\":5,\
             \"text\":\"Quick and kind\"}]\n"
        );
        assert_eq!(desk.run("review list --guild 81 --member 8").await.unwrap(), "");
        desk.run("review remove --guild 81 1").await.unwrap();
        desk.run("member remove --guild 81 --member 7").await.unwrap();
        assert_eq!(desk.run("member list --guild 81").await.unwrap(), "8\t0\t8\n");
    }

    #[tokio::test]
    async fn a_warn_may_expire_a_while_from_now() {
        let desk = Desk::new();
        desk.run("guild add 81 --name G").await.unwrap();
        let before = crate::clock::Clock::system().unix();
        desk.run("warn add --guild 81 --member 7 --author Mod --reason spam --expires 30d").await.unwrap();
        let expires = desk.store.list_warns(&"81".parse().unwrap(), None).await.unwrap()[0].1.expires;
        assert!((0..60).contains(&(expires - before - 30 * 86_400)), "{expires}");
    }

    #[tokio::test]
    async fn a_command_that_fails_says_what_to_do() {
        let desk = Desk::new();
        let message = desk.run("member list --guild 81").await.unwrap_err().message;
        assert_eq!(message, "guild 81 is not in the store; `guildgate guild add 81 --name NAME` adds it");
        desk.run("guild add 81 --name G").await.unwrap();
        for line in ["guild add 81 --name G", "member remove --guild 81 --member 7", "warn remove --guild 81 1"] {
            desk.run(line).await.unwrap_err();
        }
    }

    #[test]
    fn what_cannot_be_meant_is_bad_usage() {
        assert!(usage("review add --guild 1 --member 7 --author B --rating 6 --text t").contains("1 to 5"));
        assert!(usage("member set --guild 1 --member x").contains("digits"));
        assert!(usage("warn add --guild 1 --member 7 --author B --reason r --expires soon").contains("90d"));
        assert!(usage("warn remove --guild 1 -2").contains("-2"));
    }
}
