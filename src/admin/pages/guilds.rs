//! Guilds: each with its members, renaming and removing it, and whether the bot is there.

use axum::Extension;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::layout::{Form, cut, page, row, table, tick};
use super::{Answer, Visit, in_path};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::model::{GuildId, MemberId};
use crate::records::{guild, member};
use crate::store::GuildRecord;

/// Guilds, or members of one, on a page.
const PAGE: usize = 50;

pub(super) async fn list(Extension(visit): Extension<Visit>) -> Answer {
    let form = Form { visit: &visit, action: "/guilds" };
    let text = visit.fields.get("q").to_lowercase();
    let has_text =
        |guild: &GuildRecord| [guild.id.as_str(), &guild.name].iter().any(|of| of.to_lowercase().contains(&text));
    let mut found = visit.shared().guilds()?.store.guilds().await?;
    found.retain(has_text);
    let rows = found.iter().take(PAGE).map(|guild| {
        let link = html! { a.id href={ "guilds/" (in_path(guild.id.as_str())) } { (guild.id) } };
        row![link, cut(&guild.name), state(guild)]
    });
    let caption = format!("Guilds: {}, by id; at most the first {PAGE} are shown", found.len());
    let content = html! {
        (form.search("Part of an id or name"))
        section.panel { (table(&caption, &[("Guild", ""), ("Name", "name"), ("The bot", "")], rows)) }
        (form.post("Add a guild", ("primary", "Add the guild"), html! {
            (form.text("id", "Id", "", "Such as 81384788765712384."))
            (form.text("name", "Name", "", "For people."))
        }))
    };
    Ok(page(&visit, "Guilds", content))
}

fn state(guild: &GuildRecord) -> Markup {
    html! { @if guild.departed { span.badge.warn { "has left: keys are answered with 03" } } @else { "is there" } }
}

pub(super) async fn add(Extension(visit): Extension<Visit>) -> Answer {
    let [id, name] = ["id", "name"].map(|name| visit.fields.get(name));
    match visit.api(Method::POST, "/api/guilds", json!({ "id": id, "name": name })).await {
        Ok(_) => Ok(Redirect::to(&format!("/guilds/{}?done=guild", in_path(id))).into_response()),
        Err(problem) => list(Extension(visit.refused(problem))).await,
    }
}

pub(super) async fn show(Extension(visit): Extension<Visit>, Path(id): Path<String>) -> Answer {
    let path = format!("/guilds/{}", in_path(&id));
    if let Some(member) = visit.fields.given("q") {
        return Ok(Redirect::to(&format!("{path}/members/{}", in_path(member))).into_response());
    }
    let guild_id: GuildId = id.parse().map_err(|_| Problem::not_found(format!("there is no guild {id}")))?;
    let record = guild::show(&visit.shared().guilds()?, &guild_id).await?;
    let (moved, button, words) = match record.departed {
        true => ("return", "Note that the bot is back", "Its keys work again within a second."),
        false => {
            ("leave", "Note that the bot has left", "Its keys are answered with 03 until it is back. Nothing is lost.")
        }
    };
    let [rename, moved, remove] = ["rename", moved, "remove"].map(|name| format!("{path}/{name}"));
    let [rename, moved, remove, find] = [&rename, &moved, &remove, &path].map(|action| Form { visit: &visit, action });
    let after = visit.fields.given("after").and_then(|after| after.parse().ok());
    let content = html! {
        dl.facts.panel {
            dt { "Id" } dd { span.id { (record.id) } }
            dt { "The bot" } dd { (state(&record)) }
            dt { "Keys" } dd { a href={ "keys?q=" (in_path(&id)) } { "The keys of this guild" } }
        }
        @match members(visit.shared(), &guild_id, after, &path).await {
            Ok(members) => section.panel { h2 { "Members" } (find.search("Id of a member, or of a new one")) (members) },
            Err(problem) => p { (problem.detail) "." },
        }
        div.halves {
            (rename.post("Rename", ("primary", "Rename the guild"), rename.text("name", "Name", &record.name, "")))
            (moved.post("The bot", ("", button), html! { p { (words) } }))
            (remove.post("Remove", ("danger", "Remove the guild"), html! {
                p { "Its members, warns, reviews and keys are removed with it. It cannot be undone." }
                (tick("confirmed", &format!("Yes, remove {id}"), true))
            }))
        }
    };
    Ok(page(&visit, &format!("Guild {}", record.name), content))
}

/// Some of a guild's members with their points, and a way to each.
async fn members(shared: &Shared, guild: &GuildId, after: Option<MemberId>, path: &str) -> Result<Markup, Problem> {
    let found = member::list(&shared.members()?, guild, after, PAGE).await?;
    let rows = found.iter().map(|member| {
        let link = html! { a.id href={ "." (path) "/members/" (member.member) } { (member.member) } };
        row![link, cut(&member.name), member.points]
    });
    Ok(html! {
        (table("By id", &[("Member", ""), ("Name", "name"), ("Points", "number")], rows))
        @if let Some(last) = found.get(PAGE - 1) { p { a href={ "." (path) "?after=" (last.member) } { "More members" } } }
    })
}

/// Does with a guild what one of its forms says.
pub(super) async fn act(Extension(visit): Extension<Visit>, Path((id, action)): Path<(String, String)>) -> Answer {
    let (method, body) = match &*action {
        "rename" => (Method::PATCH, json!({ "name": visit.fields.get("name") })),
        "leave" | "return" => (Method::PATCH, json!({ "left": action == "leave" })),
        "remove" if visit.fields.given("confirmed").is_some() => (Method::DELETE, Value::Null),
        _ => {
            let problem = Problem::bad_request("Nothing was changed. Tick the box to remove the guild.");
            return show(Extension(visit.refused(problem)), Path(id)).await;
        }
    };
    let below = if action == "remove" { String::new() } else { format!("/{}", in_path(&id)) };
    match visit.api(method, &format!("/api/guilds/{}", in_path(&id)), body).await {
        Ok(_) => Ok(Redirect::to(&format!("/guilds{below}?done={action}")).into_response()),
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => Err(problem),
        Err(problem) => show(Extension(visit.refused(problem)), Path(id)).await,
    }
}
