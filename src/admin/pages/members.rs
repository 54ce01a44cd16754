//! One member of a guild: its points, warns and reviews, with the store as the origin.

use axum::Extension;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::layout::{Form, page, row, table, tick};
use super::{Answer, Visit, in_path};
use crate::admin::problem::Problem;
use crate::admin::tokens::Role;
use crate::model::{GuildId, MemberId, NOTE_KINDS, NoteKind, Number, date_of};
use crate::records::note;

/// Notes of a kind that are shown.
const MAX_NOTES: usize = 100;

/// The path of a member.
type Ids = (String, String);

pub(super) async fn show(Extension(visit): Extension<Visit>, Path((guild, id)): Path<Ids>) -> Answer {
    let guild: GuildId = guild.parse().map_err(|_| Problem::not_found(format!("there is no guild {guild}")))?;
    let id: MemberId = id.parse().map_err(|why| Problem::bad_request(format!("{id}: {why}")))?;
    let found = visit.shared().members()?.store.member(&guild, id).await?;
    let path = format!("/guilds/{}/members/{id}", in_path(guild.as_str()));
    let [set, remove] = ["set", "remove"].map(|action| format!("{path}/{action}"));
    let [set, remove] = [&set, &remove].map(|action| Form { visit: &visit, action });
    let (name, points) = found.as_ref().map_or(("", 0), |found| (&*found.name, found.points));
    let content = html! {
        p { "A member of guild " a.id href={ "guilds/" (in_path(guild.as_str())) } { (guild) } "." }
        @if found.is_none() { p.warn role="status" { "There is no such member yet. Setting it, or a warn or review, adds it." } }
        div.halves {
            (set.post("Name and points", ("primary", "Set the member"), html! {
                (set.text("name", "Name", name, "Left empty, it stays, or is the id of a new member."))
                (set.text("points", "Points", &points.to_string(), "A whole number, which may be negative."))
            }))
            (remove.post("Remove", ("danger", "Remove the member"), html! {
                p { "Its points, warns and reviews are removed with it. It cannot be undone." }
                (tick("confirmed", &format!("Yes, remove {id}"), true))
            }))
            @for kind in NOTE_KINDS { (notes(&visit, kind, &guild, id, &path).await?) }
        }
    };
    Ok(page(&visit, &format!("Member {id} {name}"), content))
}

/// The notes of a kind, each with a button to remove it, and a form to add one.
async fn notes(
    visit: &Visit,
    kind: &'static NoteKind,
    guild: &GuildId,
    member: MemberId,
    path: &str,
) -> Result<Markup, Problem> {
    let (one, text, number) = (kind.name, kind.text, kind.number.name());
    let found = note::list(&visit.shared().members()?, kind, guild, Some(member), None, MAX_NOTES).await?;
    let rows = found.iter().map(|note| {
        let of = json!(note);
        let said = |name: &str| html! { bdi { (of[name].as_str().unwrap_or_default()) } };
        let ends = of["expires"].as_i64().map(date_of);
        let remove = html! {
            @if visit.role == Role::Admin {
                form method="post" action={ "." (path) "/remove-" (one) } {
                    input type="hidden" name="id" value=(note.id);
                    button.danger aria-label={ "Remove the " (one) " " (note.id) } { "Remove" }
                }
            }
        };
        row![note.id, said("author"), said(text), ends.unwrap_or_else(|| of[number].to_string()), remove]
    });
    let columns = [("Id", ""), ("author", "name"), (text, "name"), (number, "nowrap"), ("", "")];
    let action = format!("{path}/{one}");
    let form = Form { visit, action: &action };
    let hint = if kind.number == Number::Rating { "Stars, 1 to 5." } else { "Such as 90d or 2030-12-24." };
    let fields = [("author", "Who writes it."), (text, ""), (number, hint)];
    Ok(html! {
        div.column {
            section.panel { (table(&format!("The first {MAX_NOTES} {}, by id", kind.plural), &columns, rows)) }
            (form.post(&format!("Add a {one}"), ("primary", &format!("Add the {one}")), html! {
                @for (name, hint) in fields { (form.text(&format!("{one}-{name}"), name, "", hint)) }
            }))
        }
    })
}

/// A whole number, or whatever was typed, for the API to refuse.
fn number(text: &str) -> Value {
    text.parse::<i64>().map_or(text.into(), Value::from)
}

/// Does with a member what one of its forms says.
pub(super) async fn act(
    Extension(visit): Extension<Visit>,
    Path((guild, id, action)): Path<(String, String, String)>,
) -> Answer {
    let fields = &visit.fields;
    let [of_guild, of_member] = [String::new(), format!("/members/{}", in_path(&id))]
        .map(|below| format!("/guilds/{}{below}", in_path(&guild)));
    let is_of = |kind: &&&NoteKind| action.strip_prefix("remove-").unwrap_or(&action) == kind.name;
    let (method, path, body) = match NOTE_KINDS.iter().find(is_of) {
        Some(kind) if action == kind.name => {
            let [author, text, last] =
                ["author", kind.text, kind.number.name()].map(|name| (name, fields.get(&format!("{action}-{name}"))));
            let last = (last.0, if kind.number == Number::Rating { number(last.1) } else { last.1.into() });
            let body = [(author.0, author.1.into()), (text.0, text.1.into()), last].into_iter();
            (
                Method::POST,
                format!("{of_member}/{}", kind.plural),
                body.map(|(name, of)| (name.to_owned(), of)).collect(),
            )
        }
        Some(kind) => {
            (Method::DELETE, format!("{of_guild}/{}/{}", kind.plural, in_path(fields.get("id"))), Value::Null)
        }
        None if action == "set" => {
            let body = json!({ "name": fields.given("name"), "points": fields.given("points").map(number) });
            (Method::PUT, of_member.clone(), body)
        }
        None if fields.given("confirmed").is_some() => (Method::DELETE, of_member.clone(), Value::Null),
        None => {
            let problem = Problem::bad_request("Nothing was changed. Tick the box to remove the member.");
            return show(Extension(visit.refused(problem)), Path((guild, id))).await;
        }
    };
    match visit.api(method, &format!("/api{path}"), body).await {
        Ok(_) => Ok(Redirect::to(&format!("{of_member}?done=member")).into_response()),
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => Err(problem),
        Err(problem) => show(Extension(visit.refused(problem)), Path((guild, id))).await,
    }
}
