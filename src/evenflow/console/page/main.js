// The page: which group is shown, its data, and the effect of clicks. Everything is drawn from one model.
import * as dialogs from "./dialogs.js";
import { h, icon, show } from "./dom.js";
import { groups } from "./groups.js";
import { figures, findings, header, notices } from "./header.js";
import { drawLag, lag, lagAt } from "./lag.js";
import { crowdAt, drawCrowd, map } from "./map.js";
import { Model } from "./model.js";
import { instances, deadLetters, log, story, whatIf } from "./panels.js";
import { ask, follow, token } from "./stream.js";
import { table } from "./table.js";
import { beginning, timeline, usualWindow } from "./timeline.js";

const PLAY_MS = 100;
const PLAY_SPEED = 12;
const CROWD_MS = 6000;
const FAR_PX = 200;
const HEAVY = 64;

const $ = (id) => document.getElementById(id);
const view = { window_s: 600, chosen: false, unit: "lag", at: null, playing: false, width: 600, now: 0, find: "", problems: false, sort: null, down: false, ended: false, page: null, start: 0 };
let model = new Model(null);
let about = {};
let end = () => {};
let many = false;
let drawn = false;
const dismissed = new Map();
const kept = new Map();
let drawnAt = 0;

// --- which group
function route() {
  const fragment = location.hash;
  const key = fragment.startsWith("#/") ? fragment.slice(2) : "";
  connect(key || null);
}

function connect(key) {
  end();
  model = new Model(key);
  Object.assign(view, { at: null, playing: false, page: null, start: 0 });
  const mine = model;
  kept.clear();
  show($("main"));
  end = follow(key, {
    picture(message) {
      const first = !mine.head;
      mine.take(message);
      if (mine.key && first && mine.head) {
        remember(mine);
        pageOf(0);
      }
      if (!mine.key) one(mine);
      soon();
    },
    state(link) {
      if (link.kind === "live" && mine.link.kind === "lost" && mine.key) remember(mine);
      mine.link = link;
      if (link.kind === "refused" && link.status === 401) dialogs.askToken(start);
      soon();
    },
  });
  soon();
}

/** When there is only one group, show it instead of the list. */
function one(mine) {
  const found = mine.sections.groups;
  if (!found) return;
  many = found.length > 1;
  if (about.group && found.length === 1 && location.hash !== "#/") location.replace(`#/${found[0].key}`);
}

async function remember(mine) {
  try {
    mine.history(await ask("history", { group: mine.key }));
    soon();
  } catch {
    // Without a history, the plot starts now.
    mine.hasHistory = true;
  }
}

// --- drawing
function soon() {
  if (!drawn) {
    drawn = true;
    requestAnimationFrame(() => { drawn = false; draw(); });
  }
}

function draw() {
  drawnAt = performance.now();
  document.title = model.head ? `${model.head.name} · ${model.head.hub} · evenflow` : "evenflow console";
  document.body.classList.toggle("is-stale", Boolean(model.stale) || model.link.kind === "lost");
  show($("head"), header(model, about, { many: many || !about.group }));
  show($("notices"), notices(model));
  const bar = $("jobs");
  bar.hidden = !(model.key && model.allowed);
  if (!bar.hidden) show(bar, dialogs.jobs(model, dismissed.get(model.key)));
  if (!model.key) show($("main"), groups(model));
  else if (!model.head) show($("main"), h("p", { class: "empty page" }, model.stale ? "This group could not be read yet." : "Loading…"));
  else drawGroup();
}

/** A section, rebuilt only if its inputs have changed; a heavy one only when it is near the visible part of the page. */
function part(key, of, make, heavy = false) {
  const there = document.querySelector(`main [data-key="${key}"]`);
  const before = kept.get(key);
  if (there && before && ((heavy && isFar(there)) || before.every((one, at) => one === of[at]))) return h("section", { "data-key": key, "data-same": true });
  const made = make();
  if (made) {
    kept.set(key, of);
    made.setAttribute("data-key", key);
  }
  return made;
}

function isFar(node) {
  const { top, bottom } = node.getBoundingClientRect();
  return bottom < -FAR_PX || top > window.innerHeight + FAR_PX;
}

function drawGroup() {
  const { sections: now, rows } = model;
  view.now = model.now;
  if (!view.chosen && view.at === null) view.window_s = usualWindow(model);
  const large = model.head.large;
  const narrow = window.innerWidth < 900;
  if (view.narrow !== narrow) {
    view.narrow = narrow;
    kept.clear(); // sections move to other columns, so none can be reused
  }
  const tick = Math.floor(view.now);
  const heavy = large || rows.length > HEAVY;
  // Redraw the timeline only when it would have moved by about a pixel.
  const step = Math.floor(view.now / Math.max(1, (view.window_s / view.width) * (heavy ? 3 : 1)));
  const small = h("div", { class: "pair", "data-key": "pair" }, part("what-if", [now.plans], () => whatIf(model)), part("dead_letters", [now.sums.dead_letters, model.head], () => deadLetters(model)));
  const left = [part("map", [rows, model.members, now.names, view.at, view.width, now["crowd/0"], now.counts], () => map(model, view.at, view.width), heavy),
    part("timeline", [step, model.bands, model.series, rows.length, view.at, view.width, view.window_s, view.playing, late()], () => timeline(model, view), heavy),
    part("lag-plot", [now.sums, view.unit, view.width, model.head], () => lag(model, view))];
  const right = [part("instances", [now.members, now.custom_actions, model.allowed, tick], () => instances(model)), part("story", [now.story, now.actions, now.names, standing()], () => story(model))];
  show($("main"), part("figures", [now.sums, now.figures, now.members, model.head], () => figures(model)), part("findings", [now.findings, model.head, model.allowed, model.link, model.stale, model.names], () => findings(model)),
    narrow ? h("div", { class: "column", "data-key": "one" }, left[0], right[0], left[1], left[2], right[1], small)
      : [h("div", { class: "column left", "data-key": "left" }, left, small), h("div", { class: "column right", "data-key": "right" }, right)],
    h("div", { class: "below", "data-key": "below" }, part("partitions", [rows, tick, view.find, view.problems, view.sort, view.down, view.ended, view.page], () => table(model, view), heavy && kept.get("partitions")?.at(-1) === view.page), part("log", [now.actions], () => log(model))));
  const width = $("timeline")?.clientWidth;
  if (width && Math.abs(width - view.width) > 1) {
    view.width = width;
    soon();
  }
  slide();
  if (!isFar($("lag"))) drawLag(model, view);
  if (large && !isFar($("crowd"))) drawCrowd(model);
}

/** A key of all instances and whether each is silent. */
const standing = () => model.members.map((member) => `${member.id}#${member.incarnation} ${member.status === "silent"}`).join();

/** The instances whose silence grows, which the timeline shows. */
const late = () => model.members.filter((member) => model.silentSince(member) !== null).map((member) => member.id).join();

function slide() {
  const range = $("moment");
  if (!range || document.activeElement === range) return;
  range.value = view.at === null ? "1000" : String(Math.round(1000 * (1 - (view.now - view.at) / view.window_s)));
}

function travel(at) {
  view.at = at >= model.now - 1 ? null : at;
  soon();
}

function play() {
  view.playing = !view.playing;
  if (view.playing && view.at === null) view.at = Math.max(beginning(model), model.now - view.window_s);
  const step = () => {
    if (!view.playing) return;
    travel(view.at + (PLAY_MS / 1000) * PLAY_SPEED);
    if (view.at === null) view.playing = false;
    else setTimeout(step, PLAY_MS);
    soon();
  };
  step();
}

async function pageOf(start = view.start) {
  if (!model.head?.large) return;
  view.start = start;
  try {
    view.page = await ask("rows", { group: model.key, start, text: view.find, status: view.problems ? "problems" : "" });
    model.history(await ask("history", { group: model.key }));
  } catch {
    view.page = null;
  }
  soon();
}

// --- the effects of clicks
const DOES = {
  close: (at) => at.closest("dialog")?.close(),
  copy: (at) => navigator.clipboard?.writeText(at.dataset.text).then(() => { show(at, icon("done")); setTimeout(() => show(at, icon("copy")), 1500); }),
  theme,
  token: () => dialogs.askToken(start),
  window: (at) => { Object.assign(view, { window_s: Number(at.dataset.window), chosen: true }); travel(model.now); },
  unit: (at) => { view.unit = at.dataset.unit; soon(); },
  sort: (at) => { [view.down, view.sort] = [view.sort === at.dataset.sort ? !view.down : ["lag", "lag_s", "per_s"].includes(at.dataset.sort), at.dataset.sort]; soon(); },
  ended: () => { view.ended = !view.ended; soon(); },
  page: (at) => pageOf(Number(at.dataset.start)),
  play,
  now: () => { view.playing = false; travel(model.now); },
  moment: (at) => { travel(Math.max(Number(at.dataset.at), model.now - view.window_s)); $("timeline")?.scrollIntoView({ block: "nearest" }); },
  partition: (at) => dialogs.partition(model, at.dataset.partition),
  plan: (at) => dialogs.plan(model, Number(at.dataset.members)),
  dead_letters: () => dialogs.deadLetters(model),
  dead_letter: (at) => dialogs.deadLetter(model, at.dataset.deadLetter),
  dismiss: () => { dismissed.set(model.key, dialogs.dismissal(model)); soon(); },
  pause: (at) => dialogs.confirm(model, { title: "Pause", verb: "Pause", what: "pause", text: "Owners finish and commit the events in progress, then release the partitions. Events wait until you resume; none are lost.", extra: named(at) }),
  resume: (at) => dialogs.confirm(model, { title: "Resume", verb: "Resume", what: "resume", text: "Handling continues where it stopped. An event that stopped a partition is retried.", extra: named(at) }),
  seek: (at) => dialogs.confirm(model, { title: "Seek", verb: "Seek", what: "seek", danger: true, text: "Moves checkpoints. In a running group these partitions are paused, moved and resumed automatically.", extra: dialogs.seekFields(model, at.dataset.partition) }),
  retire: (at) => dialogs.confirm(model, { title: `Retire ${at.dataset.instance}`, verb: "Retire", what: "retire", body: { instance: at.dataset.instance }, text: "The instance drains, commits, hands over its partitions, and its process ends. No event is handled twice." }),
  redrive: (at) => dialogs.confirm(model, { title: "Redrive", verb: "Redrive", what: "redrive", body: { dead_letters: at.dataset.deadLetter ? [at.dataset.deadLetter] : null }, text: at.dataset.deadLetter ? `The owner of its partition handles dead letter ${at.dataset.deadLetter} again.` : "The owners of the partitions handle every open dead letter again, in order." }),
  custom,
};

function named(at) {
  return (form) => {
    const [field, read] = dialogs.partitionsField(at.dataset.partition);
    form.append(field);
    return read;
  };
}

function custom(at) {
  const found = model.sections.custom_actions.find((one) => one.name === at.dataset.action);
  const about = at.dataset.subject ? `${found.label}: ${at.dataset.subject}` : found.label;
  (found.confirm ? dialogs.confirm : dialogs.atOnce)(model, { title: about, verb: found.label, what: found.name, body: { subject: at.dataset.subject ?? "" }, danger: found.danger, text: found.hint || "An action of the program that runs this console." });
}

function theme() {
  const next = { "": "light", light: "dark", dark: "" }[document.documentElement.dataset.theme ?? ""];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("evenflow-theme", next);
  soon();
}

document.addEventListener("click", (event) => {
  const at = event.target.closest("[data-do]");
  if (at && !at.disabled) DOES[at.dataset.do]?.(at);
  else if (event.target.id === "crowd") {
    const found = crowdAt(model, event);
    if (found) dialogs.partition(model, found.id);
  }
});

document.addEventListener("input", (event) => {
  if (event.target.id === "moment") travel(model.now - view.window_s * (1 - Number(event.target.value) / 1000));
  if (event.target.id === "find") { view.find = event.target.value; soon(); pageOf(0); }
  if (event.target.id === "problems") { view.problems = event.target.checked; soon(); pageOf(0); }
});

// URL fragments name groups here, so the skip link must not change the fragment.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });

// The map is one stop for the tab key; arrows move inside it.
document.addEventListener("keydown", (event) => {
  const cell = event.target.closest?.(".cell");
  if (!cell || !event.key.startsWith("Arrow")) return;
  const cells = [...cell.parentElement.children];
  const across = cells.findIndex((one) => one.offsetTop > cells[0].offsetTop);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across < 0 ? 0 : across, ArrowUp: across < 0 ? 0 : -across }[event.key];
  const next = cells[cells.indexOf(cell) + step];
  if (next) {
    next.focus();
    event.preventDefault();
  }
});

// --- tooltips for the element under the pointer or with the focus
function tip(event) {
  const at = event.target.closest?.("[data-tip]");
  const box = $("tip");
  let text = at?.dataset.tip;
  if (event.target.id === "lag") text = model.head && lagAt(model, view, event);
  if (event.target.id === "crowd") text = crowdAt(model, event)?.tip;
  box.hidden = !text;
  if (!text) return;
  if (box.textContent !== text) box.textContent = text;
  const place = event.type === "focusin" ? at.getBoundingClientRect() : null;
  const [x, y] = place ? [place.left, place.bottom] : [event.clientX, event.clientY];
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(x + 14, window.innerWidth - width - 8))}px`;
  box.style.top = `${y + 18 + height > window.innerHeight ? y - height - 12 : y + 18}px`;
}
document.addEventListener("pointermove", tip);
document.addEventListener("focusin", (event) => (event.target.matches?.(":focus-visible") ? tip(event) : null));
document.addEventListener("scroll", () => { $("tip").hidden = true; }, { passive: true, capture: true });
document.addEventListener("focusout", () => { $("tip").hidden = true; });

async function start() {
  try {
    about = await ask("about");
  } catch (error) {
    if (error.status === 401) return dialogs.askToken(start);
    about = {};
  }
  return route();
}

const wanted = localStorage.getItem("evenflow-theme");
if (wanted) document.documentElement.dataset.theme = wanted;
if (location.hash.startsWith("#token=")) {
  token.set(decodeURIComponent(location.hash.slice(7)));
  history.replaceState(null, "", location.pathname + location.search);
}
addEventListener("hashchange", route);
addEventListener("resize", soon);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
addEventListener("scroll", soon, { passive: true });
// Data arrives about once a second; without it, ages must still advance.
setInterval(() => { if (!document.hidden && performance.now() - drawnAt > 1500) soon(); }, 1000);
setInterval(() => { if (!document.hidden) pageOf(); }, CROWD_MS);
start();
