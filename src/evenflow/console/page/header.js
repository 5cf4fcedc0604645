// The top of a group's page: its name and status, the figures, and what is wrong.
import { h, icon } from "./dom.js";
import { clock, count, duration, plural, rate, TRENDS, UNKNOWN } from "./format.js";

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

/** A word with a symbol and a colour. */
export function pill(word, how = mood(word)) {
  return h("span", { class: `pill ${how}` }, h("span", { "aria-hidden": "true" }, SIGNS[how]), ` ${word ?? "unknown"}`);
}

export function header(model, about, { many }) {
  const head = model?.head;
  return [
    h("nav", { class: "crumbs", "aria-label": "Breadcrumbs" },
      h("a", { class: "brand", href: "#/", "aria-label": "evenflow: all groups" }, mark()),
      many && head ? [h("a", { href: "#/" }, "Groups"), h("span", { class: "soft", "aria-hidden": "true" }, "/")] : null,
      head ? h("h1", {}, head.name, h("span", {}, ` on hub ${head.hub}${head.namespace && head.namespace !== "local" ? `, ${head.namespace}` : ""}`))
        : h("h1", {}, model?.key ? "Group" : "Groups in this store")),
    head ? h("p", { class: "state" }, pill(...word(model)), h("span", { class: "soft", title: sentence(model) }, sentence(model))) : null,
    h("span", { class: "grow" }),
    h("span", { class: "end" }, link(model),
      h("button", { class: "icon", "data-do": "theme", "aria-label": "Theme: system, light or dark", title: "Theme: system, light or dark" }, icon("half"))),
    head && model.allowed ? h("span", { class: "acts" },
      head.pause ? button("resume", "Resume…", {}) : button("pause", "Pause…", {}),
      button("seek", "Seek…", {}),
      (model.sections.custom_actions ?? []).filter((one) => one.about === "group").map((one) => button("custom", one.label,
        { "data-action": one.name, title: one.hint || null, class: one.danger ? "danger" : null }))) : null,
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
  if (!head.exists) return ["deleted", "bad"];
  if (head.status !== "ok") return [head.status, mood(head.status)];
  if (sections.sums.to_move) return ["moving", "ok"];
  return head.settled ? ["settled", "ok"] : ["ok", "ok"];
}

function sentence(model) {
  const { head, members, sections } = model;
  if (!head.exists) return "The store has no such group: it was deleted, or no instance has run in it yet.";
  const owned = `${count(head.owned)} of ${count(head.partitions)} owned`;
  const there = members.filter((member) => member.status !== "silent");
  const moving = sections.sums.to_move ? `, ${plural(sections.sums.to_move, "partition")} to move` : "";
  if (!there.length) return head.owned ? `${owned}, but no instance is live` : owned;
  return `${owned} by ${plural(there.length, "instance")}${moving}`;
}

function link(model) {
  const kind = !model ? "connecting" : model.link.kind === "live" && model.stale ? "stale" : model.link.kind;
  const text = { live: "live", stale: "stale", lost: "not connected", connecting: "connecting", refused: "not connected" }[kind];
  return h("span", { class: `link ${kind}`, role: "status" }, h("i", { "aria-hidden": "true" }), text);
}

/** Messages about the page itself: each with a mood, a title, a sentence, and perhaps a button. */
function notes(model) {
  const found = [];
  const { link, stale, head } = model;
  if (link.kind === "lost") {
    const [title, then] = model.ended ? ["The console was stopped at", "This page reconnects when the console is started again."] : ["No connection since", `${full(link.why)} Retrying in ${duration(link.again_ms / 1000)}.`];
    found.push({ how: "bad", title: `${title} ${clock(link.since)}`, text: `The data on this page is from that time. ${then}` });
  } else if (link.kind === "refused") {
    found.push({ how: "bad", title: { 400: "Nothing to show", 401: "A token is required" }[link.status] ?? "The console refused the request", text: link.why, more: link.status === 401 ? button("token", "Enter the token", {}) : h("a", { href: "#/" }, "See all groups") });
  } else if (stale) {
    found.push({ how: "bad", title: `Stale since ${clock(stale.since)}`, text: `${full(stale.why)} The data on this page is from that time. Retrying every few seconds.` });
  }
  for (const problem of head?.problems ?? []) found.push({ how: "warn", title: "Incomplete data", text: full(problem) });
  if (head?.pause) {
    const { by, why, at } = head.pause;
    found.push({ how: "calm", title: "The whole group is paused", text: `Paused by ${by || "an operator"} at ${clock(at)}${why ? `: ${why}` : ""}. No partition has an owner until the group is resumed.`, more: model.allowed ? button("resume", "Resume…", {}) : null });
  }
  if (head && !head.has_source) {
    found.push({ how: "calm", title: "Lag is unknown", text: "The console does not know the source of this group. Start it with --source." });
  }
  return found;
}

/** Shown at the top when there is no group to show them with. */
export function notices(model) {
  return model.head ? [] : notes(model).map(({ how, title, text, more }) => notice(how, title, text, more));
}

/** Capitalizes a sentence, unless it begins with an instance's name. */
function full(text, names = []) {
  const first = names.includes(text.split(" ", 1)[0]) ? text.charAt(0) : text.charAt(0).toUpperCase();
  return `${first}${text.slice(1).replace(/\.?$/, ".")}`;
}

function notice(how, title, text, more = null) {
  return h("div", { class: `notice ${how}`, "data-key": title, role: how === "bad" ? "alert" : null },
    h("span", { "aria-hidden": "true" }, SIGNS[how]), h("p", {}, h("b", {}, title), " ", text), more);
}

/** Always one line, so that nothing below it moves; it opens to show all findings. */
export function findings(model) {
  const wrong = (model.sections.findings ?? []).filter((one) => one.kind !== "paused" || !model.head.pause)
    .map((one, at) => ({ key: `${one.kind}${one.partitions[0] ?? ""}${at}`, word: [one.kind], text: full(one.what, model.names), body: [h("p", { class: "soft" }, commands(one.advice)), model.allowed ? repairs(one) : null] }));
  const said = notes(model).map(({ how, title, text, more }) => ({ key: title, word: [title, how], text, body: more ? h("div", { class: "acts" }, more) : null }));
  const all = [...said, ...wrong];
  return h("section", { class: "findings", "aria-label": "Problems" }, all.length ? several(all) : h("p", { class: "line", "data-key": "fine" }, pill("no problems", "ok")));
}

function several(all) {
  const [first] = all;
  const more = all.length > 1 ? `show all ${all.length}` : "what to do";
  return h("details", { "data-key": "wrong" },
    h("summary", { class: "line" }, pill(...first.word), h("span", { class: "first", title: first.text }, first.text), h("span", { class: "more soft" }, more)),
    h("ul", { tabindex: "0", "aria-label": "Problems, the worst first" }, all.map((one) => h("li", { "data-key": one.key },
      h("p", {}, pill(...one.word), " ", one.text), h("div", { class: "advice" }, one.body)))));
}

function repairs(one) {
  const which = { "data-partition": one.partitions.join(", ") };
  if (["stopped", "paused"].includes(one.kind)) return h("div", { class: "acts" }, button("resume", "Resume…", which), one.kind === "stopped" ? button("seek", "Seek…", which) : null);
  if (["events gone", "position lost"].includes(one.kind)) return h("div", { class: "acts" }, button("seek", "Seek…", which));
  return ["dead letters", "parked"].includes(one.kind) ? h("div", { class: "acts" }, button("dead_letters", "Browse dead letters…", {})) : null;
}

/** Makes the commands in a sentence copyable. */
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
    tile("events/s", rate(sums.per_s), sums.per_s === null ? "known in a moment" : "measured by checkpoints"),
    tile("lag", count(sums.lag), behind(sums), sums.trend === "grows" ? "warn" : ""),
    tile("partitions per instance", shares(model), even(model), sums.uneven > 1 ? "warn" : ""),
    plannedMoves(sums),
    crashes(sums),
    tile("longest time unowned", sums.gap_s === null ? "none" : duration(sums.gap_s), "in 10 minutes", "",
      "The longest time in the last 10 minutes for which a partition had no live owner, counted from the last heartbeat of a silent one. A gap that has not ended counts, too; pauses do not."),
  ];
  // If there are several rows, make them about equally long.
  const across = Math.ceil(tiles.length / Math.ceil(tiles.length / TILES_MOST));
  return h("section", { class: "figures", "aria-label": "Figures" }, h("dl", { vars: { "--across": across } }, tiles));
}

function behind(sums) {
  if (sums.lag === null) return "unknown";
  const ends = sums.trend === "shrinks" && sums.catch_up_s !== null;
  const parts = [sums.lag_s === null ? null : duration(sums.lag_s), ends ? `caught up in ${duration(sums.catch_up_s)}` : TRENDS[sums.trend]];
  if (sums.unknown_lags) parts.push(`unknown for ${plural(sums.unknown_lags, "partition")}`);
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
  if (!wanted.length) return "no live instances";
  const fair = `fair share ${wanted.length > 2 ? `${wanted[0]}–${wanted.at(-1)}` : wanted.join(" or ")}`;
  if (model.head.by_load) return `${fair}, balanced by load`;
  return sums.uneven ? `${fair}; off by ${sums.uneven}` : `${fair}, balanced`;
}

function plannedMoves(sums) {
  const tip = "Events handled twice because of planned moves in the last 10 minutes: an exact count. Owners drain and commit before they hand over a partition, so it is 0, except with manual checkpoints: there the events that the application has not checkpointed are handled again.";
  const label = "duplicates (planned)";
  const { events, unknown } = sums.planned;
  if (!sums.planned_moves) return tile(label, UNKNOWN, "no moves in 10 min", "", tip);
  if (events === null) return tile(label, UNKNOWN, `${plural(sums.planned_moves, "move")}; not observed`, "", tip);
  const more = unknown ? `\n${plural(unknown, "more move")} could not be observed.` : "";
  return tile(label, count(events), `exact, ${plural(sums.planned_moves - unknown, "move")}`, events ? "warn" : "", `${tip}${more}`);
}

function crashes(sums) {
  const tip = "Events handled twice because of takeovers in the last 10 minutes. The real progress of a dead instance is unknown, so this is an upper bound: the events in the log when it last can have begun a call, less those before its checkpoint.";
  const label = "duplicates (crash)";
  if (!sums.unplanned_moves) return tile(label, "0", "no takeovers in 10 min", "", tip);
  if (sums.crashed.events === null) return tile(label, UNKNOWN, `${plural(sums.unplanned_moves, "takeover")}; not observed`, "", tip);
  const seen = sums.unplanned_moves - sums.crashed.unknown;
  const more = sums.crashed.unknown ? `\n${plural(sums.crashed.unknown, "more takeover")} could not be observed.` : "";
  return tile(label, `≤ ${count(sums.crashed.events)}`, `upper bound, ${plural(seen, "takeover")}`, "", `${tip}\nIf the instances were only cut off from the store: at most ${count(sums.crashed.cut_off)}.${more}`);
}
