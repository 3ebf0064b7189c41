// Makes the pages live; every page is complete without it. It fetches the page that is shown and morphs
// regions marked `data-live`, so that focus, scroll, open details and half-typed forms stay as they are.
"use strict";
(() => {
  const link = document.getElementById("link");

  // Times: in the viewer's zone, with UTC on hover.
  const format = (options) => new Intl.DateTimeFormat([], options);
  const clock = format({ timeStyle: "medium" });
  const day = format({ day: "numeric", month: "short", hour: "numeric", minute: "2-digit" });
  const year = format({ dateStyle: "medium", timeStyle: "short" });
  const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
  const units = [["second", 1, 60], ["minute", 60, 3600], ["hour", 3600, 86400], ["day", 86400, Infinity]];
  function words(at, ago) {
    const seconds = (at - Date.now()) / 1000, size = Math.abs(seconds);
    if (ago && size < 10) return "just now";
    if (ago)
      for (const [unit, length, limit] of units)
        if (size < limit) return relative.format(Math.trunc(seconds / length), unit);
    const date = new Date(at);
    const today = new Date();
    if (date.toDateString() === today.toDateString()) return clock.format(date);
    return (date.getFullYear() === today.getFullYear() ? day : year).format(date);
  }
  function times(root) {
    for (const node of root.querySelectorAll("time")) {
      const at = Date.parse(node.dateTime);
      if (at) node.textContent = words(at, "ago" in node.dataset);
    }
  }
  times(document);
  setInterval(() => times(document), 10000);

  // Narrow: the open section is in sight.
  const here = document.querySelector(".sections [aria-current]");
  const sight = () => {
    if (!here) return;
    const row = here.parentNode, left = here.offsetLeft - row.offsetLeft;
    row.scrollLeft = left + here.offsetWidth + 24 > row.clientWidth ? left - 40 : 0;
  };
  addEventListener("resize", sight);
  sight();

  // Copy buttons.
  const show = (root) => root.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = false; });
  show(document);
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = button.parentNode.querySelector("pre, code"), said = button.querySelector("span");
    try {
      await navigator.clipboard.writeText(text.dataset.whole || text.textContent);
      said.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      said.textContent = "Selected";
    }
    setTimeout(() => { said.textContent = "Copy"; }, 2000);
  });

  // Enter in a single line sends the form, as in any field; Shift+Enter begins another line.
  document.addEventListener("keydown", (event) => {
    const field = event.target;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || !field.matches("textarea.line")) return;
    if (field.value.includes("\n")) return;
    event.preventDefault();
    [...field.form.elements].find((other) => other.type === "submit").click();
  });

  // A form is sent once, however often its button is pressed; again when the page is shown again, or after a while: what it
  // asked for may have been a file.
  let sent = null;
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target === sent) return event.preventDefault();
    sent = event.target;
    setTimeout(() => { sent = null; }, 5000);
  });
  addEventListener("pageshow", () => { sent = null; });

  // One box for all, and how many are ticked.
  const every = document.querySelector("[data-all]"), ticked = document.querySelector("[data-ticked]");
  let recount = () => {};
  if (every) {
    const boxes = () => [...document.querySelectorAll(`input[name="${every.dataset.all}"]`)];
    recount = () => {
      const names = boxes().filter((box) => box.checked).map((box) => box.value), number = names.length;
      every.checked = number > 0 && number === boxes().length;
      every.indeterminate = number > 0 && !every.checked;
      ticked.textContent = number ? `With ${number} ticked:` : "With the ticked devices:";
      // Ids need no quotes.
      for (const code of document.querySelectorAll("#bulk code"))
        code.textContent = code.textContent.replace(/ in .*?;/, ` in ${names.join(" ") || "DEVICE…"};`);
    };
    every.hidden = false;
    document.addEventListener("change", (event) => {
      if (event.target === every) for (const box of boxes()) box.checked = every.checked;
      recount();
    });
    recount();
  }

  // Live regions.
  const regions = document.querySelectorAll("[data-live]");
  if (!regions.length) return;

  // A form that somebody is filling in stays; one with nothing but buttons does not, they may be wrong by now.
  // Where a list says nothing of what is chosen, its first is.
  const chosen = (list) => Math.max(0, [...list.options].findLastIndex((option) => option.defaultSelected));
  const changed = (field) =>
    field.options ? field.selectedIndex !== chosen(field)
      : field.checked !== field.defaultChecked || field.value !== field.defaultValue;
  const filling = (field) => field === document.activeElement || changed(field);
  const busy = (node) =>
    node.nodeType === 1 && [...node.querySelectorAll("form :is(input, select, textarea)")].some(filling);

  function morph(now, next) {
    if (now.nodeType !== 1) {
      if (now.data !== next.data) now.data = next.data;
      return;
    }
    if (now.isEqualNode(next) || (now.tagName === "FORM" && busy(now))) return;
    const state = now.dataset.state;
    for (const { name } of [...now.attributes])
      if (!next.hasAttribute(name) && name !== "open") now.removeAttribute(name);
    for (const { name, value } of next.attributes)
      if (now.getAttribute(name) !== value && !(name === "hidden" && now === every)) now.setAttribute(name, value);
    if (state !== now.dataset.state) now.classList.add("fresh");
    // What is gone goes first: then what stays need not move, and keeps its focus.
    const ids = new Set([...next.children].map((child) => child.id));
    for (const child of [...now.children]) if (child.id && !ids.has(child.id) && !busy(child)) child.remove();
    let at = now.firstChild;
    for (const wanted of [...next.childNodes]) {
      let match = at;
      if (wanted.id) { // Found wherever it moved to.
        match = [...now.children].find((child) => child.id === wanted.id);
        if (match && match !== at) now.insertBefore(match, at);
      }
      if (match && match.nodeName === wanted.nodeName && (match.id || "") === (wanted.id || "")) {
        at = match.nextSibling;
        morph(match, wanted);
      } else {
        now.insertBefore(document.importNode(wanted, true), at);
      }
    }
    while (at) {
      const rest = at.nextSibling;
      if (!busy(at)) at.remove();
      at = rest;
    }
  }

  const address = document.body.dataset.here || location.href; // Refused forms have another.
  const PAUSE_MIN = 250; // Four refreshes a second at most, however busy the fleet is.
  let running = false, again = false, timer = 0, pause = PAUSE_MIN, out = false;
  async function refresh() {
    timer = 0;
    if (running) { again = true; return; }
    running = true;
    const began = performance.now();
    try {
      const answer = await fetch(address, { cache: "no-store" });
      // Signed out: to the door, unless somebody would lose what they are filling in.
      if (answer.redirected && !busy(document.body)) return location.reload();
      if (answer.status === 404) return location.replace(gone);
      out = answer.redirected;
      if (out) say("offline", "Signed out");
      else if (answer.ok) {
        const next = new DOMParser().parseFromString(await answer.text(), "text/html");
        times(next);
        show(next);
        for (const region of regions) {
          const wanted = next.getElementById(region.id);
          if (wanted) morph(region, wanted);
        }
        recount();
      }
    } catch { /* The link is down: the stream says so, and refreshes when it is back. */ }
    pause = Math.max(PAUSE_MIN, 3 * (performance.now() - began)); // A slow server is asked less often.
    running = false;
    if (again) { again = false; soon(); }
  }
  function soon() { timer ||= setTimeout(refresh, pause); }

  // What the page is about, as `device:line-1`; changes elsewhere do not concern it.
  const { stream, watch = "", after: newest, gone = "/" } = document.body.dataset;
  const [kind, name] = watch.split(/:(.*)/s);
  const concerns = (change) => !change[kind] || change[kind] === name;

  function say(state, text) {
    link.hidden = false;
    link.dataset.link = state;
    link.textContent = text;
  }
  let source = null, after = newest, patience = 0;
  function open() {
    source = new EventSource(`${stream}?after=${after}`);
    // A request that neither begins nor fails would be waited for as long as the page is open.
    clearTimeout(patience);
    patience = setTimeout(() => { if (source.readyState === EventSource.CONNECTING) follow(); }, 15000);
    source.onopen = () => {
      if (link.dataset.link === "offline") soon();
      say("live", "Live");
    };
    source.onmessage = (event) => {
      after = event.lastEventId;
      const changes = JSON.parse(event.data);
      if (!changes.length || changes.some(concerns)) soon();
    };
    source.onerror = () => {
      say("offline", out ? "Signed out" : "Offline");
      // It tries again by itself unless refused: signed out, or no stream is free.
      if (source.readyState === EventSource.CLOSED) { soon(); setTimeout(follow, 5000); }
    };
  }
  // A browser has six connections per server: a page that nobody looks at holds none.
  function follow() {
    if (source) source.close();
    if (document.hidden) say("paused", "Paused");
    else open();
  }
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => source && source.close());
  // Shown again as it was left, with its stream closed.
  addEventListener("pageshow", (event) => { if (event.persisted) { follow(); soon(); } });
  follow();
})();
