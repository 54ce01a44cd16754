//! A real browser: Chromium without a window, with a folder of its own, driven through chromedriver on a free port.
//! Both are stopped by their process ids when it is dropped.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::key::Key;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use url::{ParseError, Url};

use super::{PATIENCE, Process, eventually, free_address};

/// A browser shares the cores with other tests.
const BROWSER_PATIENCE: Duration = Duration::from_secs(4 * PATIENCE.as_secs());

/// More than there are controls on any page.
const MAX_TABS: usize = 80;

/// A browser with one page.
pub struct Browser {
    pub client: Client,
    folder: TempDir,
    _driver: Process,
}

/// A command of the DevTools protocol.
#[derive(Debug)]
struct DevTools(&'static str, Value);

impl WebDriverCompatibleCommand for DevTools {
    fn endpoint(&self, base_url: &Url, session_id: Option<&str>) -> Result<Url, ParseError> {
        base_url.join(&format!("session/{}/goog/cdp/execute", session_id.unwrap_or_default()))
    }

    fn method_and_body(&self, _request_url: &Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(json!({ "cmd": self.0, "params": self.1 }).to_string()))
    }
}

impl Browser {
    pub async fn start() -> Browser {
        let folder = tempfile::tempdir().unwrap();
        // With port 0 it takes one of IPv4, and ends where another process has the same one of IPv6.
        let address = free_address();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", address.port())).env("HOME", folder.path()).env("TMPDIR", folder.path());
        let driver = Process::start(&mut command);
        let starts = async || driver.stdout().contains("started successfully");
        eventually(BROWSER_PATIENCE, "chromedriver starts", starts).await;
        let arguments = json!([
            format!("--user-data-dir={}", folder.path().join("profile").display()),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--window-size=1200,900",
        ]);
        let mut capabilities = serde_json::Map::new();
        capabilities.insert("goog:chromeOptions".to_owned(), json!({ "args": arguments }));
        let mut builder = ClientBuilder::new(HttpConnector::new());
        let client = builder.capabilities(capabilities).connect(&format!("http://{address}")).await.unwrap();
        Browser { client, folder, _driver: driver }
    }

    pub async fn open(&self, url: &str) {
        self.client.goto(url).await.unwrap();
    }

    /// Presses a key, wherever the focus is.
    pub async fn press(&self, key: Key) {
        let value = key.into();
        let keys = KeyActions::new("keyboard".to_owned()).then(KeyAction::Down { value }).then(KeyAction::Up { value });
        self.client.perform_actions(keys).await.unwrap();
    }

    /// Moves the focus to the control that this selector names, by Tab alone, and asserts that it is seen to have it.
    pub async fn tab_to(&self, selector: &str) {
        for _ in 0..MAX_TABS {
            self.press(Key::Tab).await;
            if self.evaluate(&format!("document.activeElement.matches({selector:?})")).await == true {
                let outline = self.evaluate("getComputedStyle(document.activeElement).outlineStyle").await;
                assert_ne!(outline, "none", "the focus cannot be seen on {selector}");
                return;
            }
        }
        panic!("Tab does not come to {selector}");
    }

    /// Types a text, wherever the focus is.
    pub async fn type_text(&self, text: &str) {
        self.client.active_element().await.unwrap().send_keys(text).await.unwrap();
    }

    /// Presses Enter on the control that this selector names, and waits for the page with this title.
    pub async fn enter(&self, selector: &str, title: &str) {
        self.tab_to(selector).await;
        self.press(Key::Enter).await;
        self.shows(&format!("h1 = {title}"), &format!("document.querySelector('h1')?.innerText === {title:?}")).await;
    }

    pub async fn evaluate(&self, expression: &str) -> Value {
        self.client.execute(&format!("return {expression};"), vec![]).await.unwrap()
    }

    /// Waits until the expression is true.
    pub async fn shows(&self, what: &str, expression: &str) {
        let script = format!("return Boolean({expression});");
        // A page that is just being replaced cannot be asked.
        let holds = || async { self.client.execute(&script, vec![]).await.is_ok_and(|value| value == true) };
        eventually(BROWSER_PATIENCE, what, holds).await;
    }

    pub async fn text(&self, selector: &str) -> String {
        self.client.find(Locator::Css(selector)).await.unwrap().text().await.unwrap()
    }

    /// Light or dark, and how wide the page is.
    pub async fn emulate(&self, scheme: &str, width: u32) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.dev_tools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
        let metrics = json!({ "width": width, "height": 680, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.dev_tools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// The controls of the page that have no name in the accessibility tree: role and description.
    pub async fn nameless_controls(&self) -> Vec<String> {
        const CONTROLS: [&str; 7] = ["button", "link", "textbox", "combobox", "checkbox", "meter", "searchbox"];
        let tree = self.dev_tools("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().unwrap().clone();
        assert!(nodes.len() > 5, "{tree}");
        let is_control = |node: &&Value| {
            node["ignored"] == false && CONTROLS.contains(&node["role"]["value"].as_str().unwrap_or_default())
        };
        let has_no_name = |node: &&Value| node["name"]["value"].as_str().is_none_or(str::is_empty);
        nodes.iter().filter(is_control).filter(has_no_name).map(ToString::to_string).collect()
    }

    async fn dev_tools(&self, command: &'static str, params: Value) -> Value {
        self.client.issue_cmd(DevTools(command, params)).await.unwrap()
    }

    /// Writes what is seen of the page into the folder.
    pub async fn screenshot(&self, folder: &Path, name: &str) {
        // The second frame begins once the first one, with the page as it is now, was drawn.
        let drawn = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]));";
        self.client.execute_async(drawn, vec![]).await.unwrap();
        std::fs::write(folder.join(name), self.client.screenshot().await.unwrap()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium names its process in a link of its own: HOST-PID.
        let link = std::fs::read_link(self.folder.path().join("profile/SingletonLock")).unwrap_or_default();
        let pid = link.to_string_lossy().rsplit('-').next().and_then(|pid| pid.parse().ok());
        if let Some(pid) = pid {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}
