//! Chromium without a screen, and what a person does with it: reads, clicks, types, and looks at pages in both themes.

use std::path::PathBuf;
use std::process::Command;

use margrave_http::Method;
use serde_json::{Value, json};
use thirtyfour::common::command::FormatRequestData;
use thirtyfour::common::requestdata::RequestData;
use thirtyfour::{
    By, ChromiumLikeCapabilities as _, DesiredCapabilities, Key, LoggingPrefsLogLevel, SessionId, TypingData,
    WebDriver, WebElement,
};

use crate::stage::{Running, free_port, installed, skip, wait_for};

/// As on a desk, on the smallest telephone, and on a wall.
const WIDTHS: [u64; 3] = [1280, 360, 1920];
const SCHEMES: [&str; 2] = ["light", "dark"];
/// Opens whatever is folded; says how much that was.
const UNFOLD: &str = "window.margraveFolded = [...document.querySelectorAll('details:not([open])')];
    for (const folded of margraveFolded) folded.open = true;
    return margraveFolded.length";
const FOLD: &str = "for (const folded of margraveFolded) folded.open = false";
/// What axe finds, a sentence each. A scheme changes colours and nothing else: markup is audited in one of them.
const AUDIT: &str = "const colours = { type: 'rule', values: ['color-contrast', 'link-in-text-block'] };
    const asked = { resultTypes: ['violations'], ...(arguments[0] ? { runOnly: colours } : {}) };
    return axe.run(document, asked).then(found =>
        found.violations.map(rule => rule.id + ': ' + rule.help + ' ' +
            rule.nodes.map(node => node.target.join(' ') + ' (' + (node.any[0] || node.all[0] || node.none[0] || {}).message + ')').join('; ')))";

/// Chromium without a screen, and what a person does with it.
pub(crate) struct Browser {
    /// Gone once the session has ended.
    driver: Option<WebDriver>,
    runtime: tokio::runtime::Runtime,
    screenshots: Option<PathBuf>,
    /// The accessibility audit, a script of somebody else's.
    axe: Option<String>,
    _chromedriver: Running,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn start() -> Option<Self> {
        let chromium = installed("chromium")?;
        let chromedriver = installed("chromedriver")?;
        let profile = tempfile::tempdir().expect("a temporary directory");
        let port = free_port();
        let mut command = Command::new(chromedriver);
        // What the browser keeps outside its profile goes with the test, too.
        command.arg(format!("--port={port}")).env("HOME", profile.path());
        let chromedriver = Running::start("chromedriver", profile.path(), &mut command);
        wait_for("chromedriver listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());

        let mut wanted = DesiredCapabilities::chrome();
        let mut set = || {
            wanted.set_binary(chromium.to_str().expect("a plain path"))?;
            for argument in [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--no-proxy-server",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--window-size=1280,900",
            ] {
                wanted.add_arg(argument)?;
            }
            wanted.add_arg(&format!("--user-data-dir={}", profile.path().join("profile").display()))?;
            wanted.set_logging_prefs("browser", LoggingPrefsLogLevel::All)?;
            wanted.set_logging_prefs("performance", LoggingPrefsLogLevel::All)
        };
        set().expect("chromium has these capabilities");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let driver = runtime
            .block_on(WebDriver::new(format!("http://127.0.0.1:{port}"), wanted))
            .expect("chromium starts");
        let screenshots = std::env::var_os("MARGRAVE_SCREENSHOTS").map(PathBuf::from);
        Some(Browser {
            driver: Some(driver),
            runtime,
            screenshots,
            axe: axe(),
            _chromedriver: chromedriver,
            _profile: profile,
        })
    }

    fn driver(&self) -> &WebDriver {
        self.driver.as_ref().expect("the session ends with the browser")
    }

    pub(crate) fn open(&self, url: &str) {
        self.runtime.block_on(self.driver().goto(url)).expect("the page opens");
    }

    pub(crate) fn run(&self, script: &str) -> Value {
        self.run_with(script, vec![])
    }

    pub(crate) fn run_with(&self, script: &str, arguments: Vec<Value>) -> Value {
        let ran = self.runtime.block_on(self.driver().execute(script, arguments));
        ran.expect("the script runs").json().clone()
    }

    /// Waits until the script returns a text.
    pub(crate) fn see(&self, what: &str, script: &str) -> String {
        wait_for(what, || {
            // Between two pages there is nothing to ask.
            let seen = self.runtime.block_on(self.driver().execute(script, vec![])).ok()?;
            seen.json().as_str().map(str::to_owned)
        })
    }

    pub(crate) fn text(&self, selector: &str) -> String {
        let found = self.run_with(
            "const found = document.querySelector(arguments[0]); return found && found.textContent.trim()",
            vec![json!(selector)],
        );
        found.as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn wait_text(&self, selector: &str, wanted: &str) {
        let script = format!(
            "const found = document.querySelector({}); return found && found.textContent.includes({}) ? 'yes' : null",
            json!(selector),
            json!(wanted)
        );
        self.see(&format!("{selector} says {wanted}"), &script);
    }

    fn find(&self, what: &str, xpath: &str) -> WebElement {
        let find = || self.runtime.block_on(self.driver().find(By::XPath(xpath))).ok();
        wait_for(what, find)
    }

    pub(crate) fn click(&self, element: &WebElement) {
        self.runtime.block_on(async {
            element.scroll_into_view().await.expect("it is on the page");
            element.click().await.expect("it can be clicked");
        });
    }

    /// Follows the link with this text and waits for the other page.
    pub(crate) fn follow(&self, text: &str) {
        let link = self.find(
            &format!("a link {text}"),
            &format!("//a[normalize-space(.)='{text}' or normalize-space(text())='{text}']"),
        );
        self.leave(&link);
    }

    /// Presses the button with this text and waits for the answer.
    pub(crate) fn press(&self, text: &str) {
        let button =
            self.find(&format!("a button {text}"), &format!("//button[normalize-space(.)='{text}']"));
        self.leave(&button);
    }

    /// The same for a button that says more to those who do not see it.
    pub(crate) fn press_labelled(&self, label: &str) {
        let button = self.find(
            &format!("a button {label}"),
            &format!("//*[self::button or self::a][@aria-label='{label}']"),
        );
        self.leave(&button);
    }

    pub(crate) fn sign_in(&self, page: &str, token: &str) {
        self.open(&format!("{page}/sign-in"));
        self.fill("Operator token", token);
        self.press("Sign in");
    }

    /// Uses the demo's banner.
    pub(crate) fn break_device(&self, device: &str, fault: &str) {
        self.run("document.querySelector('.banner details').open = true");
        self.run_with("document.getElementById('demo-device').value = arguments[0]", vec![json!(device)]);
        self.press(fault);
    }

    fn leave(&self, by: &WebElement) {
        self.run("document.documentElement.dataset.left = 'yes'");
        self.click(by);
        self.see(
            "another page",
            "return document.readyState === 'complete' && !document.documentElement.dataset.left ? 'yes' : null",
        );
    }

    fn field(&self, label: &str) -> WebElement {
        let of = format!("//label[normalize-space(text())='{label}']/@for");
        self.find(&format!("a field {label}"), &format!("//*[@id={of}]"))
    }

    pub(crate) fn fill(&self, label: &str, text: &str) {
        let field = self.field(label);
        self.runtime.block_on(async {
            field.clear().await.expect("the field can be cleared");
            field.send_keys(text).await.expect("the field can be typed into");
        });
    }

    pub(crate) fn fill_by_id(&self, id: &str, text: &str) {
        let field = self.find(&format!("a field {id}"), &format!("//*[@id='{id}']"));
        self.runtime.block_on(field.send_keys(text)).expect("the field can be typed into");
    }

    /// Chooses one of a list.
    pub(crate) fn choose(&self, label: &str, option: &str) {
        let list = self.field(label);
        let option =
            self.runtime.block_on(list.find(By::XPath(format!("./option[normalize-space(.)='{option}']"))));
        self.click(&option.expect("the option is offered"));
    }

    /// Ticks the box, or the one of several, that stands before this text.
    pub(crate) fn tick(&self, text: &str) {
        let label = self.find(&format!("a box {text}"), &format!("//label[normalize-space(.)='{text}']"));
        self.click(&label);
    }

    pub(crate) fn value(&self, label: &str) -> String {
        let field = self.field(label);
        let value = self.runtime.block_on(field.value()).expect("the field has a value");
        value.unwrap_or_default()
    }

    pub(crate) fn choose_device(&self, name: &str) {
        let choice = self.find(&format!("the device {name}"), &format!("//label[.//b[text()='{name}']]"));
        self.click(&choice);
    }

    /// Presses keys where the focus is.
    pub(crate) fn key(&self, keys: impl Into<TypingData>) {
        self.runtime.block_on(async {
            let focused = self.driver().active_element().await.expect("something has the focus");
            focused.send_keys(keys).await.expect("it takes keys");
        });
    }

    /// Goes on with the tabulator until it comes to what is called so, which can be seen to have the focus; says how often it
    /// was pressed.
    pub(crate) fn tab_to(&self, name: &str) -> usize {
        self.walk_to(name, || Key::Tab.into())
    }

    /// The same way backwards.
    pub(crate) fn tab_back_to(&self, name: &str) -> usize {
        self.walk_to(name, || Key::Shift + Key::Tab)
    }

    /// Goes there and presses Enter: what follows a link, presses a button and unfolds.
    pub(crate) fn enter(&self, name: &str) {
        self.tab_to(name);
        self.key(Key::Enter);
    }

    /// Goes there and presses the bar: what ticks a box.
    pub(crate) fn space(&self, name: &str) {
        self.tab_to(name);
        self.key(Key::Space);
    }

    /// Goes there and types, in the place of what stands there; in a list that is what chooses.
    pub(crate) fn type_at(&self, name: &str, text: &str) {
        self.tab_to(name);
        self.key(Key::Control + "a");
        self.key(text);
    }

    fn walk_to(&self, name: &str, step: fn() -> TypingData) -> usize {
        for number in 1..=200 {
            self.key(step());
            let focused = self.run(
                "const at = document.activeElement, style = getComputedStyle(at);
                 const seen = style.outlineStyle !== 'none' || style.boxShadow !== 'none';
                 const label = at.labels && at.labels[0];
                 const called = at.getAttribute('aria-label') || (label ? label.textContent : at.textContent);
                 return [called.trim().replace(/\\s+/g, ' '), seen]",
            );
            assert_eq!(focused[1], true, "nobody sees that {} has the focus", focused[0]);
            if focused[0]
                .as_str()
                .is_some_and(|called| called == name || called.starts_with(&format!("{name} ")))
            {
                return number;
            }
        }
        panic!("the tabulator never comes to {name}");
    }

    /// Where the viewer is.
    pub(crate) fn travel_to(&self, zone: &str) {
        self.devtools("Emulation.setTimezoneOverride", json!({ "timezoneId": zone }));
    }

    /// Lets pages write to the clipboard, as people let them by pressing a button.
    pub(crate) fn allow_copying(&self) {
        let permissions = json!(["clipboardReadWrite", "clipboardSanitizedWrite"]);
        self.devtools("Browser.grantPermissions", json!({ "permissions": permissions }));
    }

    /// Leaves a mark that only a page that stays keeps.
    pub(crate) fn watch(&self) {
        self.run("window.margraveStays = true");
    }

    pub(crate) fn is_still_here(&self) -> bool {
        self.run("return window.margraveStays === true") == json!(true)
    }

    /// Waits until every device of the shown deployment is in this state, of the newest revision.
    pub(crate) fn wait_states(&self, state: &str) {
        let script = format!(
            "const rows = [...document.querySelectorAll('#devices tbody tr')];
             const there = row => row.querySelector('.badge.state').dataset.state === {} && !row.textContent.includes('older revision');
             return rows.length === 2 && rows.every(there) ? 'yes' : null",
            json!(state)
        );
        self.see(&format!("both devices are {state}"), &script);
    }

    /// No script failed and nothing was refused, apart from the answers that this journey is about, which the
    /// browser remarks on as well.
    pub(crate) fn assert_calm(&self, expected: &[(&str, u16)]) {
        let log = self.runtime.block_on(self.driver().browser_log()).expect("the browser keeps a log");
        for entry in log.iter().filter(|entry| entry.level == "SEVERE") {
            let of = |(path, status): &(&str, u16)| {
                // What an address asks for (`?after=`) is no part of where it is.
                [' ', '?'].iter().any(|end| entry.message.contains(&format!("{path}{end}")))
                    && entry.message.contains(&format!("status of {status} "))
            };
            assert!(expected.iter().any(of), "the browser complains: {}", entry.message);
        }
    }

    /// Everything that was ever asked for was asked of the page's own server.
    pub(crate) fn assert_at_home(&self, home: &str) {
        let log =
            self.runtime.block_on(self.driver().get_log("performance")).expect("the browser keeps a log");
        let mut asked = 0;
        for entry in log {
            let event: Value = serde_json::from_str(&entry.message).expect("each entry is JSON");
            let event = &event["message"];
            if event["method"] != "Network.requestWillBeSent" {
                continue;
            }
            let url = event["params"]["request"]["url"].as_str().expect("a request has a URL");
            if ["data:", "about:", "chrome:", "chrome-error:"].iter().any(|inside| url.starts_with(inside)) {
                continue;
            }
            asked += 1;
            assert!(url.starts_with(&format!("{home}/")), "{url} is not of {home}");
        }
        assert!(asked > 20, "only {asked} requests were seen");
    }

    /// Looks at the page that is open as it is on a desk, on a telephone and on a wall, light and dark, as it comes and with everything
    /// unfolded: nothing is wider than the window, and the audit finds nothing that keeps people out. With `MARGRAVE_SCREENSHOTS` it
    /// is photographed as well.
    pub(crate) fn look(&self, name: &str) {
        if let Some(folder) = &self.screenshots {
            std::fs::create_dir_all(folder).expect("the screenshots' folder can be made");
        }
        for (width, scheme) in WIDTHS.into_iter().flat_map(|width| SCHEMES.map(|scheme| (width, scheme))) {
            let media = json!([
                { "name": "prefers-color-scheme", "value": scheme },
                // What moves is looked at when it has come to rest.
                { "name": "prefers-reduced-motion", "value": "reduce" },
            ]);
            self.devtools("Emulation.setEmulatedMedia", json!({ "features": media }));
            self.picture(name, width, scheme);
            let moving = self.run("return document.getAnimations().length");
            assert_eq!(moving, json!(0), "{name} moves although that is not wanted");
            if self.run(UNFOLD) != json!(0) {
                self.picture(&format!("{name}-open"), width, scheme);
            }
            self.audit(&format!("{name}, {width} wide, {scheme}"), scheme);
            self.run(FOLD);
        }
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": [] }));
        self.devtools("Emulation.clearDeviceMetricsOverride", json!({}));
    }

    /// Nothing is wider than the window; kept as a picture where somebody wants them.
    fn picture(&self, name: &str, width: u64, scheme: &str) {
        let size = |height: &Value| json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", size(&json!(700)));
        let wide = self.run("return document.documentElement.scrollWidth");
        assert!(wide.as_u64() <= Some(width), "{name} is wider than a window of {width}: {wide}");
        let Some(folder) = &self.screenshots else { return };
        let height = self.run("return Math.min(document.documentElement.scrollHeight, 6000)");
        self.devtools("Emulation.setDeviceMetricsOverride", size(&height));
        let path = folder.join(format!("{name}-{width}-{scheme}.png"));
        self.runtime.block_on(self.driver().screenshot(&path)).expect("the page can be photographed");
    }

    /// Contrast, names, roles, landmarks, order of headings: whatever the audit knows.
    fn audit(&self, what: &str, scheme: &str) {
        let Some(axe) = &self.axe else { return };
        if self.run("return typeof axe === 'undefined'") == json!(true) {
            self.run(axe);
        }
        let found = self.run_with(AUDIT, vec![json!(scheme != SCHEMES[0])]);
        assert_eq!(found, json!([]), "{what}");
    }

    fn devtools(&self, command: &'static str, parameters: Value) {
        let done = self.runtime.block_on(self.driver().cmd(DevTools { command, parameters }));
        done.expect("chromium knows this command");
    }
}

/// Where `scripts/rig` put it; without it pages are looked at all the same, and that is said aloud.
fn axe() -> Option<String> {
    let Some(file) = std::env::var_os("MARGRAVE_TEST_AXE") else {
        skip("the accessibility audit: MARGRAVE_TEST_AXE is not set, `scripts/rig` installs it");
        return None;
    };
    Some(std::fs::read_to_string(file).expect("the audit's script can be read"))
}

impl Drop for Browser {
    fn drop(&mut self) {
        // In order: the session ends chromium, then chromedriver itself is ended.
        if let Some(driver) = self.driver.take() {
            let ended = self.runtime.block_on(driver.quit());
            if !std::thread::panicking() {
                ended.expect("the session ends");
            }
        }
    }
}

/// What WebDriver has no word for.
#[derive(Debug)]
struct DevTools {
    command: &'static str,
    parameters: Value,
}

impl FormatRequestData for DevTools {
    fn format_request(&self, session: &SessionId) -> RequestData {
        RequestData::new(Method::POST, format!("session/{session}/goog/cdp/execute"))
            .add_body(json!({ "cmd": self.command, "params": self.parameters }))
    }
}
