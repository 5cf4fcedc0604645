// The top of a group's page: what it is, how it is in a word, the figures, and what is wrong.
import { h, icon } from "./dom.js";
import { clock, count, duration, plural, rate, UNKNOWN } from "./words.js";

const BAD = [
  "another hub", "unowned", "owner gone", "owner silent", "damaged", "stopped", "tripped", "events gone", "position lost",
  "no instances",
];
const CALM = ["paused", "dead letters", "imbalance", "parked", "between runs"];

export function mood(status) {
  if (status === null || status === undefined) return "unknown";
  if (["ok", "third-party", "starting", "moving", "waiting", "ended"].includes(status)) return "ok";
  return BAD.includes(status) ? "bad" : CALM.includes(status) ? "calm" : "warn";
}

const SIGNS = { ok: "●", warn: "▲", bad: "■", calm: "◆", unknown: "○" };

/** A word with a sign and a colour: three cues. */
export function pill(word, how = mood(word)) {
  return h("span", { class: `pill ${how}` }, h("span", { "aria-hidden": "true" }, SIGNS[how]), ` ${word ?? "unknown"}`);
}

export function header(model, about, { many }) {
  const head = model?.head;
  return [
    h("nav", { class: "crumbs", "aria-label": "Where you are" },
      h("a", { class: "brand", href: "#/", "aria-label": "evenflow: all groups" }, mark()),
      many && head ? [h("a", { href: "#/" }, "Groups"), h("span", { class: "soft", "aria-hidden": "true" }, "/")] : null,
      head ? h("h1", {}, head.name, h("span", {}, ` on hub ${head.hub}${head.namespace && head.namespace !== "local" ? `, ${head.namespace}` : ""}`))
        : h("h1", {}, model?.key ? "Group" : "Groups of this store")),
    head ? h("p", { class: "state" }, pill(...word(model)), h("span", { class: "soft", title: sentence(model) }, sentence(model))) : null,
    h("span", { class: "grow" }),
    h("span", { class: "end" }, link(model),
      h("button", { class: "icon", "data-do": "theme", "aria-label": "Light, dark, or as the system", title: "Light, dark, or as the system" }, icon("half"))),
    head && model.allowed ? h("span", { class: "acts" },
      head.pause ? button("resume", "Resume…", {}) : button("pause", "Pause…", {}),
      button("seek", "Seek…", {}),
      (model.sections.offers ?? []).filter((offer) => offer.about === "group").map((offer) => button("offer", offer.label,
        { "data-offer": offer.name, title: offer.hint || null, class: offer.danger ? "danger" : null }))) : null,
  ];
}

export function button(act, label, more) {
  return h("button", { type: "button", "data-do": act, ...more }, label);
}

function mark() {
  return h("span", { class: "mark", "aria-hidden": "true" }, h("i"), h("i"), h("i"), h("i"), h("i"));
}

function word(model) {
  const { head, sections } = model;
  if (!head.exists) return ["gone", "bad"];
  if (head.status !== "ok") return [head.status, mood(head.status)];
  if (sections.sums.to_move) return ["moving", "ok"];
  return head.settled ? ["settled", "ok"] : ["ok", "ok"];
}

function sentence(model) {
  const { head, members, sections } = model;
  if (!head.exists) return "The store does not know this group any more: it was deleted, or nobody has run in it.";
  const owned = `${count(head.owned)} of ${count(head.partitions)} owned`;
  const there = members.filter((member) => member.status !== "silent");
  const moving = sections.sums.to_move ? `, ${plural(sections.sums.to_move, "partition")} to move` : "";
  if (!there.length) return head.owned ? `${owned}, but by nobody who is there` : owned;
  return `${owned} by ${plural(there.length, "instance")}${moving}`;
}

function link(model) {
  const kind = !model ? "connecting" : model.link.kind === "live" && model.stale ? "stale" : model.link.kind;
  const told = { live: "live", stale: "stale", lost: "not connected", connecting: "connecting", refused: "not connected" }[kind];
  return h("span", { class: `link ${kind}`, role: "status" }, h("i", { "aria-hidden": "true" }), told);
}

/** What the page itself has to say: each a mood, a title, a sentence, and perhaps something to press. */
function notes(model) {
  const found = [];
  const { link, stale, head } = model;
  if (link.kind === "lost") {
    const [title, then] = model.ended ? ["The console was ended at", "This page goes on by itself when it is started again."] : ["No connection since", `${full(link.why)} Tried again in ${duration(link.again_ms / 1000)}.`];
    found.push({ how: "bad", title: `${title} ${clock(link.since)}`, text: `What you see is from then. ${then}` });
  } else if (link.kind === "refused") {
    found.push({ how: "bad", title: { 400: "There is nothing to show", 401: "A token is asked for" }[link.status] ?? "The console refuses", text: link.why, more: link.status === 401 ? button("token", "Give the token", {}) : h("a", { href: "#/" }, "See all groups") });
  } else if (stale) {
    found.push({ how: "bad", title: `Stale since ${clock(stale.since)}`, text: `${full(stale.why)} What you see is from then. Tried again every few seconds.` });
  }
  for (const problem of head?.problems ?? []) found.push({ how: "warn", title: "Something is missing", text: full(problem) });
  if (head?.pause) {
    const { by, why, at } = head.pause;
    found.push({ how: "calm", title: "The whole group is paused", text: `By ${by || "somebody"} at ${clock(at)}${why ? `: ${why}` : ""}. Nobody owns anything until it is resumed.`, more: model.allowed ? button("resume", "Resume…", {}) : null });
  }
  if (head && !head.has_source) {
    found.push({ how: "calm", title: "Lag is unknown", text: "The console was not told where this group's events come from: start it with --source." });
  }
  return found;
}

/** Where there is no group to show them with. */
export function notices(model) {
  return model.head ? [] : notes(model).map(({ how, title, text, more }) => notice(how, title, text, more));
}

/** A sentence; one that begins with an instance's name leaves it as it is. */
function full(text, names = []) {
  const first = names.includes(text.split(" ", 1)[0]) ? text.charAt(0) : text.charAt(0).toUpperCase();
  return `${first}${text.slice(1).replace(/\.?$/, ".")}`;
}

function notice(how, title, text, more = null) {
  return h("div", { class: `notice ${how}`, "data-key": title, role: how === "bad" ? "alert" : null },
    h("span", { "aria-hidden": "true" }, SIGNS[how]), h("p", {}, h("b", {}, title), " ", text), more);
}

/** One line, whatever is wrong: nothing below it moves when something is. Whoever opens it sees all. */
export function findings(model) {
  const wrong = (model.sections.findings ?? []).filter((one) => one.kind !== "paused" || !model.head.pause)
    .map((one, at) => ({ key: `${one.kind}${one.partitions[0] ?? ""}${at}`, word: [one.kind], text: full(one.what, model.names), body: [h("p", { class: "soft" }, commands(one.advice)), model.allowed ? mending(one) : null] }));
  const said = notes(model).map(({ how, title, text, more }) => ({ key: title, word: [title, how], text, body: more ? h("div", { class: "acts" }, more) : null }));
  const all = [...said, ...wrong];
  return h("section", { class: "findings", "aria-label": "What is wrong" }, all.length ? several(all) : h("p", { class: "line", "data-key": "fine" }, pill("nothing is wrong", "ok")));
}

function several(all) {
  const [first] = all;
  const more = all.length > 1 ? `all ${all.length}` : "what to do";
  return h("details", { "data-key": "wrong" },
    h("summary", { class: "line" }, pill(...first.word), h("span", { class: "first", title: first.text }, first.text), h("span", { class: "more soft" }, more)),
    h("ul", { tabindex: "0", "aria-label": "What is wrong, the worst first" }, all.map((one) => h("li", { "data-key": one.key },
      h("p", {}, pill(...one.word), " ", one.text), h("div", { class: "advice" }, one.body)))));
}

function mending(one) {
  const which = { "data-partition": one.partitions.join(", ") };
  if (["stopped", "paused"].includes(one.kind)) return h("div", { class: "acts" }, button("resume", "Resume…", which), one.kind === "stopped" ? button("seek", "Seek…", which) : null);
  if (["events gone", "position lost"].includes(one.kind)) return h("div", { class: "acts" }, button("seek", "Seek…", which));
  return ["dead letters", "parked"].includes(one.kind) ? h("div", { class: "acts" }, button("dead_letters", "Browse dead letters…", {})) : null;
}

/** Commands in a sentence can be copied. */
export function commands(text) {
  return text.split(/(evenflow [^;]+)/).map((part) => {
    if (!part.startsWith("evenflow ")) return part;
    return h("span", { class: "command" }, h("code", {}, part.trim()),
      h("button", { type: "button", class: "icon", "data-do": "copy", "data-text": part.trim(), "aria-label": `Copy ${part.trim()}`, title: "Copy" }, icon("copy")));
  });
}

function tile(label, value, note, how = "", tip = null) {
  return h("div", { class: `tile ${how}`, "data-key": label, "data-tip": tip }, h("dd", {}, value), h("dt", {}, label), h("dd", { class: "note", title: tip ? null : note }, note));
}

const TILES_MOST = 8;

export function figures(model) {
  const { sums, figures: extra } = model.sections;
  const tiles = [
    ...(extra ?? []).map((one) => tile(one.label, typeof one.value === "number" ? count(one.value) : one.value ?? UNKNOWN, one.note, one.mood)),
    tile("events a second", rate(sums.per_s), sums.per_s === null ? "after two looks" : "by checkpoints"),
    tile("events behind", count(sums.lag), behind(sums), sums.trend === "grows" ? "warn" : ""),
    tile("shares", shares(model), even(model), sums.uneven > 1 ? "warn" : ""),
    plannedMoves(sums),
    crashes(sums),
    tile("longest gap", sums.gap_s === null ? "none" : duration(sums.gap_s), "in 10 minutes", "",
      "The longest time in the last 10 minutes for which a partition had no owner, or one that sent no heartbeats, from its last heartbeat on; also one that still goes on. Pauses do not count."),
  ];
  // Rows of about the same length, where there are several.
  const across = Math.ceil(tiles.length / Math.ceil(tiles.length / TILES_MOST));
  return h("section", { class: "figures", "aria-label": "Figures" }, h("dl", { vars: { "--across": across } }, tiles));
}

function behind(sums) {
  if (sums.lag === null) return "unknown";
  const ends = sums.trend === "shrinks" && sums.catch_up_s !== null;
  const parts = [sums.lag_s === null ? null : duration(sums.lag_s), ends ? `done in ${duration(sums.catch_up_s)}` : sums.trend];
  if (sums.unknown_lags) parts.push(`${count(sums.unknown_lags)} unknown`);
  return parts.filter(Boolean).join(", ");
}

function shares(model) {
  const owned = model.members.filter((member) => member.share !== null).map((member) => member.partitions);
  if (!owned.length) return UNKNOWN;
  if (owned.length <= 6) return owned.join(" ");
  const [least, most] = [Math.min(...owned), Math.max(...owned)];
  return least === most ? `${owned.length} × ${count(most)}` : `${count(least)}–${count(most)}`;
}

function even(model) {
  const { sums } = model.sections;
  const wanted = [...new Set(model.members.filter((member) => member.share !== null).map((member) => member.share))].sort((a, b) => a - b);
  if (!wanted.length) return "nobody gets one";
  const fair = `fair: ${wanted.length > 2 ? `${wanted[0]}–${wanted.at(-1)}` : wanted.join(" or ")}`;
  if (model.head.by_load) return `${fair}, by load`;
  return sums.uneven ? `${fair}; uneven by ${sums.uneven}` : `${fair}, even`;
}

function plannedMoves(sums) {
  const tip = "Events handled again after planned moves of the last 10 minutes: counted from where each new owner began, against what was committed before. Owners drain and commit before they pass a partition on, so it is 0; but with manual checkpoints, what the application has not marked comes again.";
  const label = "again, planned";
  const { events, unknown } = sums.planned;
  if (!sums.planned_moves) return tile(label, UNKNOWN, "no such move lately", "", tip);
  if (events === null) return tile(label, UNKNOWN, `${plural(sums.planned_moves, "move")}, not watched`, "", tip);
  const more = unknown ? `\n${plural(unknown, "more move")} happened while nobody watched.` : "";
  return tile(label, count(events), `exact, ${plural(sums.planned_moves - unknown, "move")}`, events ? "warn" : "", `${tip}${more}`);
}

function crashes(sums) {
  const tip = "Events handled again after takeovers of the last 10 minutes. Nobody knows how far a dead instance had come, so this is an upper bound: what was in the log when it last can have begun a call, less what it had checkpointed.";
  const label = "again, crashed";
  if (!sums.unplanned_moves) return tile(label, "0", "no takeover in 10 min", "", tip);
  if (sums.again.events === null) return tile(label, UNKNOWN, `${plural(sums.unplanned_moves, "takeover")}, not watched`, "", tip);
  const seen = sums.unplanned_moves - sums.again.unknown;
  const more = sums.again.unknown ? `\n${plural(sums.again.unknown, "more takeover")} happened while nobody watched.` : "";
  return tile(label, `≤ ${count(sums.again.events)}`, `at most, ${plural(seen, "takeover")}`, "", `${tip}\nIf the instances were only cut off from the store: at most ${count(sums.again.cut_off)}.${more}`);
}
