// The first journey in Firefox: sign in, deploy, watch, remove. Run by browser/firefox.rs.
//
//   node firefox.mjs PUPPETEER SIGN-IN-ADDRESS PAGE-ADDRESS
//
// WebDriver BiDi is Firefox's own; no other program stands between. Ends with 1 and a sentence when something is not so.
const [module, signIn, home] = process.argv.slice(2);
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
    await page.waitForFunction(look, { timeout: 40000, polling: 100 }, ...words);
  } catch (error) {
    throw new Error(`waited in vain: ${what} (${error.message})`);
  }
}
const says = (selector, words) =>
  see(`${selector} says ${words}`, (s, w) => document.querySelector(s)?.textContent.includes(w), selector, words);
async function press(label, tag) {
  await page.evaluate(() => { document.documentElement.dataset.left = "yes"; });
  const found = await page.evaluateHandle((tag, label) => [...document.querySelectorAll(tag)].find((node) =>
    node.textContent.trim() === label || node.firstChild?.textContent.trim() === label), tag, label);
  must(found.asElement(), `there is no ${label} to press`);
  await found.asElement().click();
  await see(`another page after ${label}`, () => document.readyState === "complete" && !document.documentElement.dataset.left);
}
async function fill(label, text) {
  const field = (await page.evaluateHandle((label) => document.getElementById([...document.querySelectorAll("label")]
    .find((node) => node.firstChild?.textContent.trim() === label).htmlFor), label)).asElement();
  await field.click({ count: 3 });
  await page.keyboard.press("Backspace");
  await field.type(text);
}

try {
  await page.setViewport({ width: 1280, height: 900 });
  await page.goto(signIn);
  await see("six simulated devices", () => document.querySelectorAll(".tile .chip.sim").length === 6);
  await says("#link", "Live");
  await press("Packages", "a");
  await press("Quality gate", "a");
  await press("Deploy", "a");
  await fill("Name", "gate");
  await fill("Site code", "north");
  for (const device of ["press-1", "gate-1"]) await page.click(`input[name=device][value="${device}"]`);
  await press("See what will happen", "button");
  await says(".notice.bad", "Nothing was changed");
  await fill("Site code", "NORD-01");
  await press("See what will happen", "button");
  await says("h1", "What will happen");
  await press("Deploy", "button");
  await says("h1", "gate");
  await page.evaluate(() => { window.stays = true; });
  await see("both devices are INSTALLED", () => {
    const rows = [...document.querySelectorAll("#devices tbody tr")];
    return rows.length === 2 && rows.every((row) => row.querySelector(".badge.state").dataset.state === "INSTALLED");
  });
  must(await page.evaluate(() => window.stays === true), "the page was loaded anew instead of following by itself");

  await page.setViewport({ width: 360, height: 700 });
  for (const path of ["/", "/devices", "/devices/press-1", "/packages", "/deployments/gate", "/audit", "/access", "/settings"]) {
    await page.goto(home + path);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    must(wide <= 360, `${path} is wider than a window of 360: ${wide}`);
  }
  await page.setViewport({ width: 1280, height: 900 });
  await page.goto(`${home}/deployments/gate`);
  await press("Remove", "a");
  await press("Remove", "button");
  await says(".notice.ok", "is gone from every device");
  await press("Sign out", "button");
  await says("h1", "Sign in");
  must(complaints.length === 0, `the browser complains: ${complaints.join("; ")}`);
  must(strangers.length === 0, `others were asked: ${strangers.join(" ")}`);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  await browser.close();
}
