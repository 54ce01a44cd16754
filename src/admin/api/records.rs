//! Guilds, keys, members, warns and reviews of the store. A key's secret is in the answer that makes it, and nowhere else.
//! Of warns and reviews, `POST` gives an id; `PUT` takes the caller's and may be repeated.

use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{Answer, Api, DELETE, GET, PATCH, POST, PUT, made, row};
use crate::admin::extract::{Nothing, Page, PageLimit};
use crate::model::{GuildId, MemberId};
use crate::records::key::Rotation;
use crate::records::note::{self, NoteId, NoteInput, ReviewInput, WarnInput};
use crate::records::{guild, key, member};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams<A: ToSchema> {
    #[param(inline)]
    #[serde(default)]
    limit: PageLimit,
    /// The id after which the page begins.
    after: Option<A>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct KeyParams {
    /// Only this guild's.
    guild: Option<GuildId>,
    #[param(inline)]
    #[serde(default)]
    limit: PageLimit,
    /// The id after which the page begins.
    after: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct NoteParams {
    /// Only this member's.
    member: Option<MemberId>,
    #[param(inline)]
    #[serde(default)]
    limit: PageLimit,
    /// The id after which the page begins.
    after: Option<NoteId>,
}

/// A member of a guild.
type Member = (GuildId, MemberId);

pub(super) fn add(api: Api) -> Api {
    let api = add_members(add_keys(add_guilds(api)));
    add_notes::<ReviewInput>(add_notes::<WarnInput>(api, "Warn"), "Review")
}

fn add_guilds(api: Api) -> Api {
    let (all, one) = ("/api/guilds", "/api/guilds/{guild}");
    api.route(
        (GET, all, &[200]),
        ("listGuilds", "Lists the guilds by id."),
        async |at, (), of: ListParams<String>, ()| {
            let found = guild::list(&at.guilds()?, of.after.as_deref(), of.limit.and_one()).await?;
            row(Page::new(found, of.limit, |guild| guild.id.to_string()))
        },
    )
    .route((POST, all, &[201]), ("addGuild", "Adds a guild."), async |at, (), Nothing {}, input| {
        made(guild::add(&at.guilds()?, input).await?)
    })
    .route((GET, one, &[200]), ("getGuild", "Shows a guild."), async |at, id, Nothing {}, ()| {
        row(guild::show(&at.guilds()?, &id).await?)
    })
    .route(
        (PATCH, one, &[200]),
        ("changeGuild", "Renames a guild, or notes that the bot has left it or is back."),
        async |at, id, Nothing {}, change| row(guild::change(&at.guilds()?, &id, change).await?),
    )
    .route(
        (DELETE, one, &[200]),
        ("removeGuild", "Removes a guild with its members, warns, reviews and keys."),
        async |at, id, Nothing {}, ()| row(guild::remove(&at.guilds()?, &id).await?),
    )
}

fn add_keys(api: Api) -> Api {
    let (all, one) = ("/api/keys", "/api/keys/{id}");
    api.route((GET, all, &[200]), ("listKeys", "Lists the keys by id."), async |at, (), of: KeyParams, ()| {
        let found = key::list(&at.keys()?, of.guild.as_ref(), of.after.as_deref(), of.limit.and_one()).await?;
        row(Page::new(found, of.limit, |key| key.id.clone()))
    })
    .route(
        (POST, all, &[201]),
        ("createKey", "Makes a key. The answer alone has its secret."),
        async |at, (), Nothing {}, input| made(key::create(&at.keys()?, input).await?),
    )
    .route((GET, one, &[200]), ("getKey", "Shows a key."), async |at, id: String, Nothing {}, ()| {
        row(key::show(&at.keys()?, &id).await?)
    })
    .route(
        (PATCH, one, &[200]),
        ("changeKey", "Changes a key while it works."),
        async |at, id: String, Nothing {}, change| row(key::change(&at.keys()?, &id, change).await?),
    )
    .route(
        (DELETE, one, &[204]),
        ("revokeKey", "Takes a key away, with both secrets of a rotated one."),
        async |at, id: String, Nothing {}, ()| row(at.keys()?.store.revoke_key(&id).await?),
    )
    .route(
        (POST, "/api/keys/{id}/rotate", &[200]),
        ("rotateKey", "Gives a key another secret, which the answer alone has."),
        async |at, id: String, Nothing {}, rotation: Option<Rotation>| {
            row(key::rotate(&at.keys()?, &id, rotation.unwrap_or_default()).await?)
        },
    )
    .route(
        (POST, "/api/keys/{id}/reset-day", &[204]),
        ("resetDay", "Gives a key its whole day back (`daily`); the gateway follows within a second."),
        async |at, id: String, Nothing {}, ()| {
            let is_known = !at.gateway.usage_of(|key| **key == *id).is_empty();
            row(at.guilds()?.store.reset_day(&id, is_known).await?)
        },
    )
}

fn add_members(api: Api) -> Api {
    let one = "/api/guilds/{guild}/members/{member}";
    api.route(
        (GET, "/api/guilds/{guild}/members", &[200]),
        ("listMembers", "Lists a guild's members by id."),
        async |at, guild, of: ListParams<MemberId>, ()| {
            let found = member::list(&at.members()?, &guild, of.after, of.limit.and_one()).await?;
            row(Page::new(found, of.limit, |row| row.member.to_string()))
        },
    )
    .route((GET, one, &[200]), ("getMember", "Shows a member."), async |at, (guild, id): Member, Nothing {}, ()| {
        row(member::show(&at.members()?, &guild, id).await?)
    })
    .route(
        (PUT, one, &[200]),
        ("putMember", "Sets a member's name or points, making the member if need be."),
        async |at, (guild, id): Member, Nothing {}, input| row(member::set(&at.members()?, &guild, id, input).await?),
    )
    .route(
        (DELETE, one, &[204]),
        ("removeMember", "Removes a member with its warns and reviews."),
        async |at, (guild, id): Member, Nothing {}, ()| row(at.members()?.store.remove_member(&guild, id).await?),
    )
}

/// The routes of a kind of note. `name`: what its operations are named by.
fn add_notes<I: NoteInput + ToSchema + 'static>(api: Api, name: &str) -> Api {
    let (one, many) = (I::KIND.name, I::KIND.plural);
    let [of_guild, of_member] = ["", "/members/{member}"].map(|of| format!("/api/guilds/{{guild}}{of}/{many}"));
    api.route(
        (GET, &of_guild, &[200]),
        (&format!("list{name}s"), &format!("Lists a guild's {many} by id, expired ones too.")),
        async |at, guild, of: NoteParams, ()| {
            let found = note::list(&at.members()?, I::KIND, &guild, of.member, of.after, of.limit.and_one()).await?;
            row(Page::new(found, of.limit, |row| row.id.clone()))
        },
    )
    .route(
        (POST, &of_member, &[201]),
        (&format!("add{name}"), &format!("Adds a {one} of a member, making the member if need be.")),
        async |at, (guild, member): Member, Nothing {}, input: I| {
            made(note::add(&at.members()?, &guild, member, input).await?)
        },
    )
    .route(
        (PUT, &format!("{of_member}/{{id}}"), &[200, 201]),
        (
            &format!("put{name}"),
            &format!("Puts a {one} under an id of the caller's, or replaces the member's one of that id."),
        ),
        async |at, (guild, member, id): (GuildId, MemberId, NoteId), Nothing {}, input: I| {
            let (row, is_new) = note::put(&at.members()?, &guild, member, id, input).await?;
            Ok(Answer { row, is_new })
        },
    )
    .route(
        (DELETE, &format!("{of_guild}/{{id}}"), &[204]),
        (&format!("remove{name}"), &format!("Removes a {one}.")),
        async |at, (guild, NoteId(id)): (GuildId, NoteId), Nothing {}, ()| {
            row(at.members()?.store.remove_note(I::KIND, &guild, id).await?)
        },
    )
}
