//! An operator's first ten minutes, in a real browser: sign in, deploy, watch, change, remove.
//!
//! With `MARGRAVE_SCREENSHOTS` set to a directory, every page on the way is photographed, wide and narrow,
//! light and dark.

use std::path::PathBuf;
use std::process::Command;

use margrave_http::Method;
use serde_json::{Value, json};
use thirtyfour::common::command::FormatRequestData;
use thirtyfour::common::requestdata::RequestData;
use thirtyfour::{
    By, ChromiumLikeCapabilities as _, DesiredCapabilities, LoggingPrefsLogLevel, SessionId, WebDriver,
    WebElement,
};

use crate::stage::{Running, free_port, installed, program, wait_for};

#[test]
fn an_operator_deploys_watches_changes_and_removes_without_touching_reload() {
    let Some(browser) = Browser::start() else { return };
    let mut demo = Demo::start();
    browser.open(&demo.sign_in);

    assert_eq!(browser.see("the fleet page", "return document.querySelector('h1').textContent"), "Fleet");
    wait_for("six devices, each labelled simulated", || {
        let shown = browser.run(
            "return [document.querySelectorAll('.tile').length, document.querySelectorAll('.tile .chip.sim').length]",
        );
        (shown == json!([6, 6])).then_some(())
    });
    assert!(browser.text("aside.banner").contains("simulated"), "{}", browser.text("aside.banner"));
    browser.photograph("fleet");
    browser.follow("Add a device");
    browser.photograph("device-new");

    browser.follow("Packages");
    browser.photograph("packages");
    browser.follow("Quality gate");
    browser.photograph("package");
    browser.follow("Deploy");

    // What is wrong is told where it is, and nothing that was typed is lost.
    browser.fill("Name", "gate");
    browser.fill("Site code", "north");
    browser.fill("Cameras", "4");
    browser.choose_device("press-1");
    browser.choose_device("gate-1");
    browser.press("Deploy");
    browser.wait_text(".notice.bad", "Nothing was changed");
    let wrong = browser.run(
        "return [...document.querySelectorAll('.field[data-wrong]')].map(field => field.querySelector('label').textContent.trim())",
    );
    assert_eq!(wrong, json!(["Site code"]));
    assert!(!browser.text(".field[data-wrong] .wrong").is_empty());
    assert_eq!(browser.value("Site code"), "north");
    assert_eq!(browser.value("Cameras"), "4");
    let chosen = browser.run(
        "return [...document.querySelectorAll('input[name=device]:checked')].map(device => device.value)",
    );
    assert_eq!(chosen, json!(["gate-1", "press-1"]));
    browser.photograph("deploy-wrong");

    browser.fill("Site code", "NORD-01");
    browser.press("Deploy");
    browser.wait_text("h1", "gate");
    browser.watch();
    browser.wait_states("INSTALLED");
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");
    browser.photograph("deployment");

    browser.follow("Change");
    assert_eq!(browser.value("Cameras"), "4");
    browser.fill("Cameras", "5");
    browser.photograph("deployment-edit");
    browser.press("Change");
    browser.wait_text(".inline-facts", "revision 2");
    browser.watch();
    browser.wait_states("INSTALLED");
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");

    browser.follow("press-1");
    browser.wait_text("#timeline", "UPDATING");
    browser.photograph("device");
    browser.follow("Devices");
    browser.photograph("devices");
    browser.follow("Deployments");
    browser.photograph("deployments");
    browser.open(&format!("{}/why?subject=press-1", demo.page));
    browser.photograph("why");
    browser.open(&format!("{}/nowhere", demo.page));
    browser.photograph("error");
    browser.assert_calm(&[("/deploy", 422), ("/nowhere", 404)]);

    browser.open(&format!("{}/deployments/gate", demo.page));
    browser.follow("Remove");
    browser.photograph("remove");
    browser.press("Remove");
    // The page of something that is gone leads on to the list, by itself.
    browser.wait_text(".notice.ok", "is gone from every device");
    browser.photograph("gone");
    browser.follow("Fleet");
    wait_for("no device runs it any more", || {
        (browser.run("return document.querySelectorAll('.tile ul li').length") == json!(0)).then_some(())
    });

    browser.assert_calm(&[("/deployments/gate", 404)]);
    browser.assert_at_home(&demo.page);
    browser.press("Sign out");
    browser.wait_text("h1", "Sign in");
    browser.photograph("sign-in");
    assert!(demo.process.terminate().success());
    assert!(demo.process.log().contains("Nothing of the demo is left."), "{}", demo.process.log());
    let left = std::fs::read_dir(demo.directory.path()).expect("a directory can be read").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| name != "demo.log").collect();
    assert!(left.is_empty(), "the demo left {left:?}");
}

/// `margrave demo`, as somebody without Docker starts it.
struct Demo {
    process: Running,
    page: String,
    sign_in: String,
    directory: tempfile::TempDir,
}

impl Demo {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(program("margrave"));
        command.args(["demo", "--simulated", "--json"]).env("TMPDIR", directory.path());
        for option in ["--listen", "--device-listen", "--local-listen"] {
            command.args([option, "127.0.0.1:0"]);
        }
        let process = Running::start("demo", directory.path(), &mut command);
        let greeting: Value = wait_for("the demo greets", || {
            process.log().lines().find_map(|line| serde_json::from_str(line).ok())
        });
        let text = |key: &str| greeting[key].as_str().expect("a text").to_owned();
        assert_eq!(greeting["simulated"], true);
        Demo { page: text("page"), sign_in: text("signIn"), process, directory }
    }
}

/// Chromium without a screen, and what a person does with it.
struct Browser {
    /// Gone once the session has ended.
    driver: Option<WebDriver>,
    runtime: tokio::runtime::Runtime,
    screenshots: Option<PathBuf>,
    _chromedriver: Running,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn start() -> Option<Self> {
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
            _chromedriver: chromedriver,
            _profile: profile,
        })
    }

    fn driver(&self) -> &WebDriver {
        self.driver.as_ref().expect("the session ends with the browser")
    }

    fn open(&self, url: &str) {
        self.runtime.block_on(self.driver().goto(url)).expect("the page opens");
    }

    fn run(&self, script: &str) -> Value {
        self.run_with(script, vec![])
    }

    fn run_with(&self, script: &str, arguments: Vec<Value>) -> Value {
        let ran = self.runtime.block_on(self.driver().execute(script, arguments));
        ran.expect("the script runs").json().clone()
    }

    /// Waits until the script returns a text.
    fn see(&self, what: &str, script: &str) -> String {
        wait_for(what, || {
            // Between two pages there is nothing to ask.
            let seen = self.runtime.block_on(self.driver().execute(script, vec![])).ok()?;
            seen.json().as_str().map(str::to_owned)
        })
    }

    fn text(&self, selector: &str) -> String {
        let found = self.run_with(
            "const found = document.querySelector(arguments[0]); return found && found.textContent.trim()",
            vec![json!(selector)],
        );
        found.as_str().unwrap_or_default().to_owned()
    }

    fn wait_text(&self, selector: &str, wanted: &str) {
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

    fn click(&self, element: &WebElement) {
        self.runtime.block_on(async {
            element.scroll_into_view().await.expect("it is on the page");
            element.click().await.expect("it can be clicked");
        });
    }

    /// Follows the link with this text and waits for the other page.
    fn follow(&self, text: &str) {
        let link = self.find(
            &format!("a link {text}"),
            &format!("//a[normalize-space(.)='{text}' or normalize-space(text())='{text}']"),
        );
        self.leave(&link);
    }

    /// Presses the button with this text and waits for the answer.
    fn press(&self, text: &str) {
        let button =
            self.find(&format!("a button {text}"), &format!("//button[normalize-space(.)='{text}']"));
        self.leave(&button);
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

    fn fill(&self, label: &str, text: &str) {
        let field = self.field(label);
        self.runtime.block_on(async {
            field.clear().await.expect("the field can be cleared");
            field.send_keys(text).await.expect("the field can be typed into");
        });
    }

    fn value(&self, label: &str) -> String {
        let field = self.field(label);
        let value = self.runtime.block_on(field.value()).expect("the field has a value");
        value.unwrap_or_default()
    }

    fn choose_device(&self, name: &str) {
        let choice = self.find(&format!("the device {name}"), &format!("//label[.//b[text()='{name}']]"));
        self.click(&choice);
    }

    /// Leaves a mark that only a page that stays keeps.
    fn watch(&self) {
        self.run("window.margraveStays = true");
    }

    fn is_still_here(&self) -> bool {
        self.run("return window.margraveStays === true") == json!(true)
    }

    /// Waits until every device of the shown deployment is in this state, of the newest revision.
    fn wait_states(&self, state: &str) {
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
    fn assert_calm(&self, expected: &[(&str, u16)]) {
        let log = self.runtime.block_on(self.driver().browser_log()).expect("the browser keeps a log");
        for entry in log.iter().filter(|entry| entry.level == "SEVERE") {
            let of = |(path, status): &(&str, u16)| {
                entry.message.contains(&format!("{path} "))
                    && entry.message.contains(&format!("status of {status} "))
            };
            assert!(expected.iter().any(of), "the browser complains: {}", entry.message);
        }
    }

    /// Everything that was ever asked for was asked of the page's own server.
    fn assert_at_home(&self, home: &str) {
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

    fn photograph(&self, name: &str) {
        let Some(folder) = &self.screenshots else { return };
        std::fs::create_dir_all(folder).expect("the screenshots' folder can be made");
        for (width, scheme) in [(1280, "light"), (390, "light"), (1280, "dark"), (390, "dark")] {
            let media = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
            self.devtools("Emulation.setEmulatedMedia", json!({ "features": media }));
            let size = |height: &Value| json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
            self.devtools("Emulation.setDeviceMetricsOverride", size(&json!(700)));
            let height = self.run("return Math.min(document.documentElement.scrollHeight, 6000)");
            self.devtools("Emulation.setDeviceMetricsOverride", size(&height));
            let path = folder.join(format!("{name}-{width}-{scheme}.png"));
            self.runtime.block_on(self.driver().screenshot(&path)).expect("the page can be photographed");
            let wide = self.run("return document.documentElement.scrollWidth");
            assert!(wide.as_u64() <= Some(width), "{name} is wider than a window of {width}: {wide}");
        }
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": [] }));
        self.devtools("Emulation.clearDeviceMetricsOverride", json!({}));
    }

    fn devtools(&self, command: &'static str, parameters: Value) {
        let done = self.runtime.block_on(self.driver().cmd(DevTools { command, parameters }));
        done.expect("chromium knows this command");
    }
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
