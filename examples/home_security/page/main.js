// Selects the page, and refreshes it: a home is read once a second while its page is visible.

import { h, show } from "./dom.js";
import { alerts, headline, sensors, warnings } from "./home.js";
import { WINDOWS, fitting, frame, minuteInWords, pointed, timeline } from "./timeline.js";
import { duration, exactTime, timeOf } from "./words.js";

const EVERY_MS = 1000, LATE_S = 15, PATIENCE_MS = 10_000;
const main = document.getElementById("main");
const number = /^\/homes\/(\d+)$/.exec(location.pathname)?.[1];

searching();
if (number !== undefined) watch(Number(number));
else if (location.pathname === "/") start();
else nowhere();

/** Why a page cannot show something, in a sentence; `isFinal` if a retry would not help. */
class PageError extends Error {
  constructor(sentence, isFinal = false) {
    super(sentence);
    this.isFinal = isFinal;
  }
}

async function ask(path, headers = {}) {
  const answer = await fetch(path, { headers, signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.status === 304) return { answer, facts: null };
  const facts = await answer.json();
  if (!answer.ok) throw new PageError(facts.error ?? `The server answered ${answer.status}.`, answer.status === 404);
  if (facts.waiting) throw new PageError(facts.waiting);
  return { answer, facts };
}

function nowhere() {
  show(main, h("section", { class: "welcome" }, h("h1", {}, "There is no such page"), h("p", {}, "Find a home by its address or number, or ", h("a", { href: "/" }, "begin at the beginning"), ".")));
}

// --- the first page
async function start() {
  try {
    const { facts } = await ask("/api/about");
    const some = [42, 1042, 2042, 7042].filter((home) => home < facts.homes);
    show(main, h("section", { class: "welcome" },
      h("h1", {}, "What happens at home?"),
      h("p", {}, `${facts.homes.toLocaleString()} homes report every minute. Find yours by its address or number.`),
      h("p", { class: "some" }, "For instance ", (some.length ? some : [0]).map((home, index) => [index ? ", " : "", h("a", { href: `/homes/${home}` }, `home ${home}`)]), "."),
    ));
    document.getElementById("text").focus({ preventScroll: true });
  } catch (error) {
    show(main, h("section", { class: "welcome" }, h("h1", {}, "There is nothing to show yet"), h("p", {}, error.message)));
    setTimeout(start, 2 * EVERY_MS);
  }
}

// --- one home
function watch(home) {
  const places = {
    state: h("p", { class: "state", role: "status" }), head: h("div", { class: "headline" }), warnings: h("div", { role: "alert" }),
    sensors: h("ul", { class: "sensors" }), windows: h("div", { class: "choice", role: "group", "aria-label": "How much of the past" }),
    chart: frame(), lost: h("p", { class: "lost", hidden: true }), words: h("p", { class: "words soft" }), alerts: h("div", {}),
  };
  const seen = { facts: null, tag: null, at: null, chosen: null, error: null, offset: 0 };
  const windowName = () => seen.chosen ?? fitting(seen.facts);
  const bounds = () => {
    const minutes = WINDOWS[windowName()];
    return { minutes, begin: Math.floor(seen.facts.complete_ms / 60000) + 1 - minutes, at: seen.at };
  };

  function draw() {
    drawState();
    if (!seen.facts) return;
    document.title = `${seen.facts.address} · Home security`;
    show(places.head, headline(seen.facts));
    show(places.warnings, warnings(seen.facts));
    show(places.sensors, sensors(seen.facts));
    show(places.alerts, alerts(seen.facts));
    places.lost.hidden = seen.facts.lost_before_ms === null;
    places.lost.textContent = places.lost.hidden ? "" : `What happened before ${timeOf(seen.facts.lost_before_ms)} is lost: what had it was damaged or removed.`;
    show(places.windows, Object.keys(WINDOWS).map((name) => h("button", { type: "button", "aria-pressed": String(name === windowName()), "data-window": name }, name)));
    drawChart();
  }

  function drawChart() {
    const width = Math.max(280, Math.floor(places.chart.clientWidth));
    show(places.chart, timeline(seen.facts, bounds().minutes, width, seen.at));
    places.words.textContent = seen.at === null ? "Point at a minute to read it." : minuteInWords(seen.facts, seen.at);
  }

  function drawState() {
    if (!seen.facts) return;
    const age_s = (Date.now() + seen.offset) / 1000 - seen.facts.stored_us / 1e6;
    const until = `Complete up to ${exactTime(seen.facts.complete_ms)} UTC`;
    const isLate = age_s > LATE_S;
    places.state.className = `state ${seen.error ? "away" : isLate ? "late" : "live"}`;
    places.state.textContent = seen.error ? `${until}. Not up to date: ${seen.error}` : isLate ? `${until}. Nothing new for ${duration(age_s * 1000)}.` : `Live. ${until}.`;
  }

  function firstLook() {
    show(main, places.state, places.head, places.warnings,
      h("section", {}, h("h2", {}, "Now"), places.sensors),
      h("section", {}, h("div", { class: "title" }, h("h2", {}, "What happened"), places.windows), places.lost, places.chart, legend(), places.words),
      h("section", {}, h("h2", {}, "Alerts"), places.alerts));
    new ResizeObserver(() => seen.facts && drawChart()).observe(places.chart);
    pointed(places.chart, bounds, (minute) => { seen.at = minute; drawChart(); });
    places.windows.addEventListener("click", (event) => {
      const name = event.target.closest("button")?.dataset.window;
      if (name) { seen.chosen = name; seen.at = null; draw(); }
    });
  }

  async function look() {
    if (document.visibilityState === "visible") {
      try {
        const { answer, facts } = await ask(`/api/homes/${home}`, seen.tag ? { "if-none-match": seen.tag } : {});
        seen.offset = (Date.parse(answer.headers.get("date")) || Date.now()) - Date.now();
        seen.error = null;
        if (facts) {
          if (!seen.facts) firstLook();
          [seen.facts, seen.tag] = [facts, answer.headers.get("etag")];
        }
      } catch (error) {
        seen.error = error.name === "TypeError" || error.name === "TimeoutError" ? "the server does not answer: it was ended, or cannot be reached." : error.message;
        if (!seen.facts) show(main, h("section", { class: "welcome" }, h("h1", {}, `Home ${home}`), h("p", {}, seen.error)));
        if (error.isFinal) return;
      }
      draw();
    }
    setTimeout(look, EVERY_MS);
  }
  look();
}

function legend() {
  const entry = (name, text) => h("li", {}, h("span", { class: `swatch ${name}` }), text);
  return h("ul", { class: "legend soft" }, entry("night", "armed for the night"), entry("away", "armed, home empty"), entry("gap", "no reports"), h("li", {}, "All times are UTC."));
}

// --- search
function searching() {
  const form = document.getElementById("search"), text = document.getElementById("text"), found = document.getElementById("found");
  let asked = 0, chosen = -1;
  const options = () => [...found.querySelectorAll("a")];
  const close = () => { found.hidden = true; text.setAttribute("aria-expanded", "false"); };
  const choose = (index) => {
    chosen = options().length ? (index + options().length) % options().length : -1;
    options().forEach((option, place) => option.parentElement.setAttribute("aria-selected", String(place === chosen)));
    text.setAttribute("aria-activedescendant", chosen < 0 ? "" : `found-${chosen}`);
  };

  async function find() {
    const mine = ++asked;
    if (!text.value.trim()) return close();
    let homes = [], said = "No such home. Try a street, as Acacia, or a number.";
    try {
      homes = (await ask(`/api/search?text=${encodeURIComponent(text.value)}`)).facts.homes;
    } catch (error) { said = error.name === "TypeError" ? "The server does not answer." : error.message; }
    if (mine !== asked) return;
    const items = homes.map(({ home, address }, index) =>
      h("li", { role: "option", id: `found-${index}`, "aria-selected": "false" }, h("a", { href: `/homes/${home}`, tabindex: "-1" }, h("span", {}, address), h("span", { class: "soft" }, `home ${home}`))));
    found.replaceChildren(...(items.length ? items : [h("li", { class: "none", role: "option", "aria-selected": "false" }, said)]));
    found.hidden = false;
    text.setAttribute("aria-expanded", "true");
    choose(-1 + (items.length ? 1 : 0));
  }

  text.addEventListener("input", find);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    choose(chosen + (event.key === "ArrowDown" ? 1 : -1));
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (found.hidden) await find();
    options()[Math.max(0, chosen)]?.click();
  });
  document.addEventListener("click", (event) => { if (!form.contains(event.target)) close(); });
}
