//! One member of a guild: its points, warns and reviews, with the store as the origin.

use axum::Extension;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::guilds::{member_fields, member_input, number};
use super::layout::{Form, page, row, table, tick};
use super::{Answer, Visit, in_path};
use crate::admin::problem::Problem;
use crate::admin::tokens::Role;
use crate::model::{GuildId, MemberId, NOTE_KINDS, NoteKind, Number, date_of};
use crate::records::{Records, member, note};

/// Notes of a kind that are shown.
const MAX_NOTES: usize = 100;

pub(super) async fn show(Extension(visit): Extension<Visit>, Path((guild, id)): Path<(String, String)>) -> Answer {
    let records = visit.shared().members()?;
    let guild: GuildId = guild.parse().map_err(|_| Problem::not_found(format!("there is no guild {guild}")))?;
    let of_id = id.parse::<MemberId>().map_err(|why| Problem::not_found(format!("no member {id}: {why}")))?;
    let found = member::show(&records, &guild, of_id).await?;
    let path = format!("/guilds/{}/members/{of_id}", in_path(guild.as_str()));
    let [set, remove] = ["set", "remove"].map(|action| format!("{path}/{action}"));
    let (set, remove) = (Form { visit: &visit, action: &set }, Form { visit: &visit, action: &remove });
    let content = html! {
        section.panel {
            dl.facts {
                dt { "Name" } dd { bdi { (found.name) } }
                dt { "Points" } dd { (found.points) }
                dt { "Guild" } dd { a.id href={ "guilds/" (in_path(guild.as_str())) } { (guild) } }
            }
        }
        div.halves {
            @for kind in NOTE_KINDS { (notes(&visit, &records, kind, &guild, of_id, &path).await?) }
            (set.post("Set", ("primary", "Set the member"), member_fields(&set, &found.name, &found.points.to_string())))
            (remove.post("Remove", ("danger", "Remove the member"), html! {
                p { "Its points, warns and reviews are removed with it. It cannot be undone." }
                (tick("confirmed", &format!("Yes, remove {of_id}"), true))
            }))
        }
    };
    Ok(page(&visit, &format!("Member {of_id}"), content))
}

/// The notes of a kind, each with a button to remove it, and a form to add one.
async fn notes(
    visit: &Visit,
    records: &Records,
    kind: &'static NoteKind,
    guild: &GuildId,
    member: MemberId,
    path: &str,
) -> Result<Markup, Problem> {
    let (one, is_admin) = (kind.name, visit.role == Role::Admin);
    let found = note::list(records, kind, guild, Some(member), None, MAX_NOTES).await?;
    let rows = found.iter().map(|note| {
        let of = json!(note);
        let number = of[kind.number.name()].as_i64().unwrap_or_default();
        let number = if kind.number == Number::Rating { number.to_string() } else { date_of(number) };
        let remove = html! {
            @if is_admin {
                form method="post" action={ "." (path) "/remove-" (one) } {
                    input type="hidden" name="id" value=(note.id);
                    button.danger aria-label={ "Remove the " (one) " " (note.id) } { "Remove" }
                }
            }
        };
        row![
            note.id,
            html! { bdi { (note.author) } },
            html! { bdi { (of[kind.text].as_str().unwrap_or_default()) } },
            number,
            remove
        ]
    });
    let columns = [("Id", ""), ("Author", "name"), (kind.text, "name"), (kind.number.name(), ""), ("", "")];
    let action = format!("{path}/{one}");
    let form = Form { visit, action: &action };
    let field = |name: &str, hint: &str| form.text(&format!("{one}-{name}"), name, "", hint);
    let hint = if kind.number == Number::Rating { "Stars, 1 to 5." } else { "Such as 90d or 2030-12-24." };
    let caption = format!("The first {MAX_NOTES} {}, by id, with those that have expired", kind.plural);
    Ok(html! {
        div.column {
            section.panel {
                h2 { (kind.plural[..1].to_uppercase()) (kind.plural[1..]) }
                @if found.is_empty() { p { "There are none." } } @else { (table(&caption, &columns, rows)) }
            }
            (form.post(&format!("Add a {one}"), ("primary", &format!("Add the {one}")), html! {
                (field("author", "Who writes it."))
                (field(kind.text, ""))
                (field(kind.number.name(), hint))
            }))
        }
    })
}

/// Does with a member what one of its forms says.
pub(super) async fn act(
    Extension(visit): Extension<Visit>,
    Path((guild, id, action)): Path<(String, String, String)>,
) -> Answer {
    let fields = &visit.fields;
    let of_guild = format!("/guilds/{}", in_path(&guild));
    let (api_guild, here) = (format!("/api{of_guild}"), format!("{of_guild}/members/{}", in_path(&id)));
    let (api, mut back) = (format!("/api{here}"), format!("{here}?done=member"));
    let kind = NOTE_KINDS.iter().find(|kind| kind.name == action.strip_prefix("remove-").unwrap_or(&action));
    let (method, path, body) = match (&*action, kind) {
        (action, Some(kind)) if action == kind.name => {
            let given = |name: &str| fields.get(&format!("{}-{name}", kind.name));
            let name = kind.number.name();
            let value = if kind.number == Number::Rating { number(given(name)) } else { given(name).into() };
            let body = json!({ "author": given("author"), (kind.text): given(kind.text), (name): value });
            (Method::POST, format!("{api}/{}", kind.plural), body)
        }
        (_, Some(kind)) => {
            (Method::DELETE, format!("{api_guild}/{}/{}", kind.plural, in_path(fields.get("id"))), Value::Null)
        }
        ("set", _) => (Method::PUT, api, member_input(fields)),
        ("remove", _) if fields.given("confirmed").is_some() => {
            back = format!("{of_guild}?done=member");
            (Method::DELETE, api, Value::Null)
        }
        ("remove", _) => {
            let problem = Problem::bad_request("Nothing was changed. Tick the box to remove the member.");
            return show(Extension(visit.refused(problem)), Path((guild, id))).await;
        }
        _ => return Err(Problem::not_found("there is no such form")),
    };
    match visit.api(method, &path, body).await {
        Ok(_) => Ok(Redirect::to(&back).into_response()),
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => Err(problem),
        Err(problem) => show(Extension(visit.refused(problem)), Path((guild, id))).await,
    }
}
