// Journeys in Firefox. Run by browser/firefox.rs, one after the other on the same demo.
//
//   node firefox.mjs PUPPETEER JOURNEY PAGE-ADDRESS SIGN-IN-ADDRESS TOKEN
//
// WebDriver BiDi is Firefox's own; no other program stands between. Ends with 1 and a sentence when something is not so.
const [module, journey, home, welcome, token] = process.argv.slice(2);
const { default: puppeteer } = await import(module);
const browser = await puppeteer.launch({ browser: "firefox", executablePath: "/usr/bin/firefox-esr", headless: true });
const page = await browser.newPage();

const complaints = [];
page.on("console", (message) => { if (message.type() === "error") complaints.push(message.text()); });
page.on("pageerror", (error) => complaints.push(String(error)));
const strangers = [];
page.on("request", (request) => {
  if (!request.url().startsWith(home + "/") && !/^(about|data):/.test(request.url())) strangers.push(request.url());
});

function must(so, sentence) { if (!so) throw new Error(sentence); }
async function see(what, look, ...words) {
  try {
    await page.waitForFunction(look, { timeout: 60000, polling: 100 }, ...words);
  } catch (error) {
    throw new Error(`waited in vain: ${what} (${error.message})`);
  }
}
const says = (selector, words) =>
  see(`${selector} says ${words}`, (s, w) => document.querySelector(s)?.textContent.includes(w), selector, words);
const text = (selector) => page.$eval(selector, (node) => node.textContent.trim());
async function press(label, tag = "button") {
  await page.evaluate(() => { document.documentElement.dataset.left = "yes"; });
  const found = await page.evaluateHandle((tag, label) => [...document.querySelectorAll(tag)].find((node) =>
    node.textContent.trim() === label || node.firstChild?.textContent.trim() === label), tag, label);
  must(found.asElement(), `there is no ${label} to press`);
  await found.asElement().click();
  await see(`another page after ${label}`, () => document.readyState === "complete" && !document.documentElement.dataset.left);
}
const follow = (label) => press(label, "a");
async function field(label) {
  const found = await page.evaluateHandle((label) => document.getElementById([...document.querySelectorAll("label")]
    .find((node) => node.firstChild?.textContent.trim() === label)?.htmlFor), label);
  must(found.asElement(), `there is no field ${label}`);
  return found.asElement();
}
async function fill(label, words) {
  const found = await field(label);
  await found.click({ count: 3 });
  await page.keyboard.press("Backspace");
  await found.type(words);
}
const choose = async (label, value) => must((await (await field(label)).select(value)).includes(value), `${label} has no ${value}`);
const value = async (label) => (await field(label)).evaluate((node) => node.value);
const tick = (device) => page.click(`input[name=device][value="${device}"]`);
const open = (path) => page.goto(home + path);
async function signIn(secret) {
  await open("/sign-in");
  await fill("Operator token", secret);
  await press("Sign in");
}
async function signOut() {
  await press("Sign out");
  await says("h1", "Sign in");
}
// A mark that only a page that stays keeps.
const watch = () => page.evaluate(() => { window.stays = true; });
const stayed = async () =>
  must(await page.evaluate(() => window.stays === true), "the page was loaded anew instead of following by itself");
const rows = (what, state, number) => see(what, (state, number) => {
  const rows = [...document.querySelectorAll("#devices tbody tr")];
  return rows.length === number && rows.every((row) => row.querySelector(".badge").dataset.state === state);
}, state, number);
const wrong = () => page.$$eval(".field[data-wrong]", (fields) =>
  fields.map((field) => [field.querySelector("label").firstChild.textContent.trim(), field.querySelector(".wrong").textContent.trim()]));

const journeys = {
  // From the first look to a running deployment: what is wrong is told at its field, and what was typed stays.
  async deploy() {
    await page.goto(welcome);
    await see("six simulated devices", () => document.querySelectorAll(".tile .chip.sim").length === 6);
    await says("#link", "Live");
    await follow("Packages");
    await follow("Quality gate");
    await follow("Deploy");
    await fill("Name", "gate");
    await fill("Site code", "north");
    await fill("Cameras", "9");
    for (const device of ["press-1", "press-2"]) await tick(device);
    await press("See what will happen");
    await says(".notice.bad", "Nothing was changed");
    const [[first, match], [second, most], ...more] = await wrong();
    must(first === "Site code" && /match|at least/.test(match), `Site code is told ${match}`);
    must(second === "Cameras" && most.includes("at most 8"), `Cameras is told ${most}`);
    must(more.length === 0, `more is wrong: ${more}`);
    must(await value("Site code") === "north", "what was typed stays");
    must(await page.$$eval("input[name=device]:checked", (ticked) => ticked.length) === 2, "what was ticked stays");
    await fill("Site code", "NORD-01");
    await fill("Cameras", "4");
    await press("See what will happen");
    await says("h1", "What will happen");
    await says("main", "2 devices get it");
    await press("Deploy");
    await says("h1", "gate");
    await watch();
    await rows("both devices are INSTALLED", "INSTALLED", 2);
    await stayed();
    await page.setViewport({ width: 360, height: 700 });
    for (const path of ["/", "/devices", "/devices/press-1", "/packages", "/deployments/gate", "/audit", "/access", "/settings"]) {
      await open(path);
      // Also with everything unfolded.
      const wide = await page.evaluate(() => {
        for (const folded of document.querySelectorAll("details")) folded.open = true;
        return document.documentElement.scrollWidth;
      });
      must(wide <= 360, `${path} is wider than a window of 360: ${wide}`);
    }
  },

  // A wrong token, a token made, and what its holder cannot do.
  async roles() {
    await signIn("mgo_guess");
    await says(".wrong", "not known");
    await signIn(token);
    await follow("Access");
    await fill("Whose it is", "eve");
    await choose("Role", "viewer");
    await press("Make a token");
    await says("#created-title", "eve");
    const secret = await text("section[aria-labelledby=created-title] pre");
    await signOut();
    await signIn(secret);
    await says(".who", "viewer");
    for (const path of ["/", "/devices", "/packages", "/deployments/gate", "/devices/press-1", "/settings"]) {
      await open(path);
      const forms = await page.$$eval("form[method=post]", (forms) =>
        forms.map((form) => form.getAttribute("action")).filter((action) => !action.startsWith("/sign-out")));
      must(forms.length === 0, `${path} offers a viewer ${forms}`);
    }
    for (const path of ["/devices/new", "/deploy?package=quality-gate", "/deployments/gate/remove"]) {
      await open(path);
      await says("h1", "Your role does not allow this");
    }
    await open("/");
    await signOut();
  },

  // An update that fails and goes back, seen as it happens, with its cause and the way out.
  async failing() {
    await signIn(token);
    await open("/deployments/gate/edit");
    await choose("Drill", "health");
    await press("See what will happen");
    await press("Change");
    await says(".inline-facts", "revision 2");
    await watch();
    await rows("both devices went back", "went back", 2);
    await says("#causes", "2 devices");
    await stayed();
    await open("/devices/press-1");
    await says("#health", "the last good version runs and is healthy since");
    await open("/");
    await says("#needs", "2 devices");
    await open("/deployments/gate/revert?to=1");
    await press("Go back");
    await says(".inline-facts", "revision 3");
    await rows("both run what they ran", "INSTALLED", 2);
  },

  // In steps: paused, resumed, done; then all of it removed.
  async pacing() {
    await signIn(token);
    await open("/deployments/gate/edit");
    await fill("Cameras", "5");
    await page.click("input[name=pace][value=steps]");
    await fill("First on this many", "1");
    await fill("Watch these for", "5s");
    await press("See what will happen");
    await says("main", "first 1, watched for 5 s");
    await press("Change");
    await press("Pause");
    await says("#rollout header", "paused");
    await says("#rollout", "of 2 devices have it");
    await says("#devices", "keeps revision 3");
    await press("Resume");
    await watch();
    await says("#rollout header", "done");
    await says("#rollout", "2 of 2 devices have it");
    await stayed();
    await press("Remove", "a");
    await press("Remove");
    await says(".notice.ok", "is gone from every device");
    await signOut();
  },
};

try {
  await page.setViewport({ width: 1280, height: 900 });
  await journeys[journey]();
  must(complaints.length === 0, `the browser complains: ${complaints.join("; ")}`);
  must(strangers.length === 0, `others were asked: ${strangers.join(" ")}`);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  await browser.close();
}
