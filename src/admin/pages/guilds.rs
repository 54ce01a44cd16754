//! Guilds: each with its members, renaming and removing it, and whether the bot is there.

use axum::Extension;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::layout::{Form, cut, page, row, table, tick};
use super::{Answer, Fields, Visit, in_path};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::model::{GuildId, MemberId};
use crate::records::{guild, member};
use crate::store::GuildRecord;

/// Guilds, or members of one, on a page.
const PAGE: usize = 50;

pub(super) async fn list(Extension(visit): Extension<Visit>) -> Answer {
    let form = Form { visit: &visit, action: "/guilds" };
    let content = match visit.shared().guilds() {
        Err(problem) => html! { p { (problem.detail) "." } },
        Ok(records) => html! {
            (form.search("Id or name"))
            @match records.store.guilds().await {
                Ok(found) => (guilds(found, visit.fields.get("q"), visit.fields.get("after"))),
                Err(error) => p.alert role="alert" { "The guilds cannot be read now: " (error) "." },
            }
            (form.post("Add a guild", ("primary", "Add the guild"), html! {
                (form.text("id", "Id", "", "Such as 81384788765712384: at most 64 letters, digits or signs."))
                (form.text("name", "Name", "", "For people."))
            }))
        },
    };
    Ok(page(&visit, "Guilds", content))
}

fn guilds(mut found: Vec<GuildRecord>, q: &str, after: &str) -> Markup {
    let text = q.to_lowercase();
    found.retain(|guild| [guild.id.as_str(), &guild.name].iter().any(|of| of.to_lowercase().contains(&text)));
    let heading = format!("Guilds: {}, by id", found.len());
    let mut shown: Vec<_> = found.iter().filter(|guild| guild.id.as_str() > after).take(PAGE + 1).collect();
    let last = shown.get(PAGE).and(shown.get(PAGE - 1)).map(|guild| in_path(guild.id.as_str()));
    shown.truncate(PAGE);
    let rows = shown.iter().map(|guild| {
        let link = html! { a.id href={ "guilds/" (in_path(guild.id.as_str())) } { (guild.id) } };
        row![link, cut(&guild.name), state(guild)]
    });
    html! {
        section.panel {
            (table(&heading, &[("Guild", ""), ("Name", "name"), ("The bot", "")], rows))
            @if let Some(last) = last { p { a href={ "guilds?q=" (in_path(q)) "&after=" (last) } rel="next" { "More guilds" } } }
        }
    }
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
    let shared = visit.shared();
    let path = format!("/guilds/{}", in_path(&id));
    if let Some(member) = visit.fields.given("member").filter(|_| visit.refused.is_none()) {
        return Ok(Redirect::to(&format!("{path}/members/{}", in_path(member))).into_response());
    }
    let guild_id: GuildId = id.parse().map_err(|_| Problem::not_found(format!("there is no guild {id}")))?;
    let record = guild::show(&shared.guilds()?, &guild_id).await?;
    let after = visit.fields.given("after").and_then(|after| after.parse().ok());
    let action = |name: &str| format!("{path}/{name}");
    let [rename, member, remove] = ["rename", "member", "remove"].map(action);
    let moved = action(if record.departed { "return" } else { "leave" });
    let (moved_button, moved_words) = match record.departed {
        true => ("Note that the bot is back", "Its keys work again within a second."),
        false => ("Note that the bot has left", "Its keys are answered with 03 until it is back. Nothing is lost."),
    };
    let content = html! {
        section.panel {
            dl.facts {
                dt { "Id" } dd { span.id { (record.id) } }
                dt { "The bot" } dd { (state(&record)) }
                dt { "Keys" } dd { a href={ "keys?q=" (in_path(&id)) } { "The keys of this guild" } }
            }
        }
        @match members(shared, &guild_id, after, &path).await {
            Ok(members) => {
                (members)
                @let form = Form { visit: &visit, action: &member };
                (form.post("Set a member", ("primary", "Set the member"), html! {
                    (form.text("member", "Member", "", "An id. A new member is added."))
                    (member_fields(&form, "", ""))
                }))
            },
            Err(problem) => p { (problem.detail) "." },
        }
        div.halves {
            @let form = Form { visit: &visit, action: &rename };
            (form.post("Rename", ("primary", "Rename the guild"), form.text("name", "Name of the guild", &record.name, "")))
            (Form { visit: &visit, action: &moved }.post("The bot", ("", moved_button), html! { p { (moved_words) } }))
            (Form { visit: &visit, action: &remove }.post("Remove", ("danger", "Remove the guild"), html! {
                p { "Its members, warns, reviews and keys are removed with it. It cannot be undone." }
                (tick("confirmed", &format!("Yes, remove {id}"), true))
            }))
        }
    };
    let title = if record.name.is_empty() { "Guild without a name" } else { &record.name };
    Ok(page(&visit, title, content))
}

/// A guild's members with their points, and a way to each.
async fn members(shared: &Shared, guild: &GuildId, after: Option<MemberId>, path: &str) -> Result<Markup, Problem> {
    let mut found = member::list(&shared.members()?, guild, after, PAGE + 1).await?;
    let last = found.get(PAGE).and(found.get(PAGE - 1)).map(|member| member.member);
    found.truncate(PAGE);
    let rows = found.iter().map(|member| {
        let link = html! { a.id href={ "." (path) "/members/" (member.member) } { (member.member) } };
        row![link, cut(&member.name), member.points]
    });
    Ok(html! {
        section.panel {
            form.search method="get" action={ "." (path) } role="search" {
                div.field {
                    label for="find-member" { "Member's id" }
                    input #find-member name="member" required autocomplete="off" inputmode="numeric";
                }
                button { "Show the member" }
            }
            (table("Members, by id", &[("Member", ""), ("Name", "name"), ("Points", "number")], rows))
            @if found.is_empty() { p { "There are none here." } }
            @if let Some(last) = last { p { a href={ "." (path) "?after=" (last) } rel="next" { "More members" } } }
        }
    })
}

/// The fields of a member's form.
pub(super) fn member_fields(form: &Form<'_>, name: &str, points: &str) -> Markup {
    html! {
        (form.text("member-name", "Name of the member", name, "Left empty, it stays, or is the id."))
        (form.text("points", "Points", points, "A whole number, which may be negative. Left empty, they stay, or are 0."))
    }
}

/// What a member's form says.
pub(super) fn member_input(fields: &Fields) -> Value {
    json!({ "name": fields.given("member-name"), "points": fields.given("points").map(number) })
}

/// A whole number, or whatever was typed, for the API to refuse.
pub(super) fn number(text: &str) -> Value {
    text.parse::<i64>().map_or(text.into(), Value::from)
}

/// Does with a guild what one of its forms says.
pub(super) async fn act(Extension(visit): Extension<Visit>, Path((id, action)): Path<(String, String)>) -> Answer {
    let fields = &visit.fields;
    let [mut api, here] = ["/api/guilds", "/guilds"].map(|path| format!("{path}/{}", in_path(&id)));
    let mut back = format!("{here}?done={action}");
    let (method, body) = match &*action {
        "rename" => (Method::PATCH, json!({ "name": fields.get("name") })),
        "leave" | "return" => (Method::PATCH, json!({ "left": action == "leave" })),
        "member" => {
            let member = in_path(fields.given("member").unwrap_or("-"));
            api += &format!("/members/{member}");
            back = format!("{here}/members/{member}?done=member");
            (Method::PUT, member_input(fields))
        }
        "remove" if fields.given("confirmed").is_some() => {
            back = format!("/guilds?done={action}");
            (Method::DELETE, Value::Null)
        }
        "remove" => {
            let problem = Problem::bad_request("Nothing was changed. Tick the box to remove the guild.");
            return show(Extension(visit.refused(problem)), Path(id)).await;
        }
        _ => return Err(Problem::not_found("there is no such form")),
    };
    match visit.api(method, &api, body).await {
        Ok(_) => Ok(Redirect::to(&back).into_response()),
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => Err(problem),
        Err(problem) => show(Extension(visit.refused(problem)), Path(id)).await,
    }
}
