//! The last entries of the audit log: who changed what, and who logged in.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use axum::Extension;
use maud::html;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::layout::{Form, cut, page, row, table};
use super::{Answer, Visit};

/// Entries that are shown.
const MAX_ROWS: usize = 100;

/// How much of the end of the file is read: a line has some hundred bytes, and 8 KiB at most.
const TAIL: u64 = 256 * 1024;

const COLUMNS: [(&str, &str); 6] =
    [("Time", "nowrap"), ("Client", ""), ("Token", ""), ("What", "name"), ("Status", "number"), ("Sent", "")];

pub(super) async fn show(Extension(visit): Extension<Visit>) -> Answer {
    let q = visit.fields.get("q").to_lowercase();
    let Some(path) = visit.shared().gateway.state().config.log.audit.clone() else {
        let content = html! { p { "No audit log is written. Set " code { "log.audit" } " to a file and restart." } };
        return Ok(page(&visit, "Audit", content));
    };
    let (file, text) = (path.display().to_string(), q.clone());
    let lines = spawn_blocking(move || last_lines(&path, &text)).await.unwrap_or_else(|e| Err(io::Error::other(e)));
    let rows = |lines: Vec<Value>| {
        lines.into_iter().map(|line| {
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            let what =
                html! { (text("method")) " " (text("path")) @if !text("made").is_empty() { ": " (text("made")) } };
            let sent = if line["change"].is_null() {
                html! {}
            } else {
                cut(&line["change"].to_string())
            };
            row![text("time"), text("client"), text("role"), what, line["status"], sent]
        })
    };
    let content = html! {
        p { "The last changes through the API and this dashboard, and log-ins and log-outs, of " code { (file) } "." }
        (Form { visit: &visit, action: "/audit" }.search("Part of a line: an address, a path, a time"))
        section.panel {
            @match lines {
                Ok(lines) => (table("The latest first", &COLUMNS, rows(lines))),
                Err(error) => p.alert role="alert" { "The file cannot be read: " (error) "." },
            }
        }
    };
    Ok(page(&visit, "Audit", content))
}

/// The last lines with this text, the latest first. Blocks.
fn last_lines(path: &Path, text: &str) -> io::Result<Vec<Value>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    let tail = String::from_utf8_lossy(&tail);
    let lines = tail.lines().rev().filter(|line| line.to_lowercase().contains(text));
    Ok(lines.filter_map(|line| serde_json::from_str(line).ok()).take(MAX_ROWS).collect())
}
