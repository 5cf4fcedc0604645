// Ownership over time: one band per partition, coloured by owner, gaps in red; a time in the past can be selected.
import { h, icon, s } from "./dom.js";
import { colour, initial, pattern } from "./tags.js";
import { clock, count, duration, plural, ZONE } from "./format.js";

export const LEFT = 46;
export const RIGHT = 10;
const TOP = 8;
const KINDS = ["owned", "silent", "unowned", "halted", "ended"];
const WINDOWS = [[120, "2 min"], [300, "5 min"], [600, "10 min"], [3600, "1 h"], [21600, "6 h"]];
const USUAL_S = 600;

/** The time of the oldest known data. */
export function beginning(model) {
  let first = model.series.at[0] ?? model.now;
  for (const [oldest] of model.bands.values()) if (oldest) first = Math.min(first, oldest[0] ?? 0);
  return first;
}

/** The default window: back to the oldest known data, but at most ten minutes. */
export function usualWindow(model) {
  const age = model.now - beginning(model);
  return WINDOWS.find(([window_s]) => window_s >= age || window_s === USUAL_S)[0];
}

/** Maps times to positions in a plot of this width. Both plots share it, so that they line up. */
export function scale(now, window_s, width) {
  const from = now - window_s;
  const span = Math.max(1, width - LEFT - RIGHT);
  return { from, to: now, x: (at) => LEFT + ((at - from) / window_s) * span, at: (x) => from + ((x - LEFT) / span) * window_s };
}

export function ticks(now, window_s, width) {
  const steps = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200];
  const step = steps.find((one) => window_s / one <= Math.max(3, width / 110)) ?? 7200;
  const found = [];
  for (let at = Math.ceil((now - window_s) / step) * step; at <= now; at += step) found.push(at);
  return found;
}

export function timeline(model, view) {
  const past = view.at !== null;
  return h("section", { class: "timeline", "aria-label": "Ownership over time" },
    h("div", { class: "title" }, h("h2", {}, "Ownership over time"), h("span", { class: "grow" }), windows(view)),
    h("div", { class: "plot", id: "timeline" }, model.head.large ? sharesPlot(model, view) : bands(model, view)),
    model.head.large ? null : h("div", { class: "replay" },
      h("button", { type: "button", class: "icon", "data-do": "play", "aria-label": view.playing ? "Stop the replay" : "Replay from here", title: view.playing ? "Stop" : "Replay" }, icon(view.playing ? "pause" : "play")),
      h("input", { type: "range", id: "moment", min: "0", max: "1000", step: "1", "data-own": true, "aria-label": "Time in the past to show in the map" }),
      h("output", { class: past ? "" : "soft" }, clock(past ? view.at : view.now)),
      h("button", { type: "button", "data-do": "now", disabled: !past }, "Now")),
    key());
}

function windows(view) {
  return h("div", { class: "choice", role: "group", "aria-label": "Time window" }, WINDOWS.map(([window_s, label]) =>
    h("button", { type: "button", "data-do": "window", "data-window": window_s, "aria-pressed": String(view.window_s === window_s) }, label)));
}

function key() {
  const entry = (name, text) => h("li", {}, h("i", { class: `swatch ${name}`, "aria-hidden": "true" }), text);
  return h("ul", { class: "legend" }, entry("k-silent", "owner silent, until the takeover"), entry("k-unowned", "no owner"),
    entry("k-halted", "paused, in a seek, or between runs"), entry("k-unknown", "no longer available"),
    h("li", { class: "zone" }, `time zone: ${ZONE}`));
}

/** Current partitions, and those that ended within the window. */
const shown = (model, view) => [...model.live, ...model.overSince(view.now - view.window_s)];

function bands(model, view) {
  const { width } = view;
  const to = scale(view.now, view.window_s, width);
  const rows = shown(model, view);
  if (!rows.length) return h("p", { class: "empty" }, "No partition has an owner yet.");
  const tall = Math.max(5, Math.min(20, Math.floor(560 / rows.length)));
  const height = rows.length * tall + TOP;
  const every = Math.max(1, Math.ceil(13 / tall));
  const silent = new Map(model.members.map((member) => [member.tag, model.silentSince(member)]).filter(([, since]) => since !== null));
  return s("svg", { width, height: height + 24, role: "img", "aria-label": label(model, view) },
    s("defs", {}, hatch("h-silent", "var(--bad)", 6), hatch("h-unknown", "var(--soft)", 5), hatch("h-v1", "rgba(255,255,255,.45)", 7), dots("h-v2")),
    ticks(view.now, view.window_s, width).map((at) => [
      s("line", { class: "grid", x1: to.x(at), x2: to.x(at), y1: 0, y2: height }),
      s("text", { x: to.x(at), y: height + 17, "text-anchor": anchor(to.x(at), width) }, clock(at, view.window_s < 1200))]),
    rows.map((row, number) => lane(model, row, { y: number * tall + TOP, tall, to, width, silent, labelled: number % every === 0 })),
    view.at === null ? null : s("line", { class: "cursor", x1: to.x(view.at), x2: to.x(view.at), y1: 0, y2: height }));
}

const anchor = (x, width) => (x < LEFT + 20 ? "start" : x > width - 40 ? "end" : "middle");

function lane(model, row, { y, tall, to, width, silent, labelled }) {
  const thick = Math.max(3, tall - (tall > 9 ? 4 : 1));
  const known = model.bands.get(row.id) ?? [];
  const first = known[0]?.[0] ?? null;
  const parts = [];
  if (known.length && first !== null && first > to.from && !model.began.has(row.id)) parts.push(block({ since: to.from, until: first, y, thick, to }, "k-none"));
  for (const [since, until, owner, kind, reason] of known) {
    const end = until ?? to.to;
    const begin = since ?? to.from;
    if (end < to.from || begin > to.to) continue;
    const quiet = until === null && KINDS[kind] === "owned" ? silent.get(owner) : undefined;
    const lived = quiet === undefined ? end : Math.max(begin, quiet);
    const place = { since: begin, y, thick, to };
    const tip = `partition ${row.id}: ${KINDS[kind] === "ended" ? "ended" : owner === null ? "no owner" : model.names[owner]}\n${clock(since)} to ${until === null ? "now" : clock(until)}${since === null ? "" : ` (${duration(end - since)})`}\n${reason}`;
    if (KINDS[kind] === "owned") {
      parts.push(block({ ...place, until: lived }, `band ${colour(owner)}`, tip));
      if (pattern(owner)) parts.push(block({ ...place, until: lived }, `over h-v${pattern(owner)}`));
      if (thick >= 11 && to.x(lived) - Math.max(LEFT, to.x(begin)) > 18) parts.push(s("text", { class: `who ${colour(owner)}`, x: Math.max(LEFT, to.x(begin)) + 6, y: y + thick - (thick - 9) / 2 }, initial(owner)));
      if (quiet !== undefined) parts.push(block({ ...place, since: lived, until: end }, "k-silent", `partition ${row.id}: no heartbeat from ${model.names[owner]} for ${duration(end - lived)}`));
    } else parts.push(block({ ...place, until: end }, `k-${KINDS[kind]}`, tip));
  }
  return s("g", { "data-key": row.id, "data-do": "partition", "data-partition": row.id, class: row.status === "ended" ? "lane over" : "lane" },
    s("rect", { class: "track", x: LEFT, y, width: Math.max(0, width - LEFT - RIGHT), height: thick, rx: 2 }),
    labelled ? s("text", { class: "name", x: LEFT - 8, y: y + Math.min(thick, 12) - (thick > 12 ? -1 : 1), "text-anchor": "end" }, row.id) : null, parts);
}

function block({ since, until, y, thick, to }, kind, tip = null) {
  const [left, right] = [Math.max(LEFT, to.x(since)), Math.min(to.x(to.to), to.x(until))];
  // Even the shortest gap must be visible.
  const wide = Math.max(kind === "k-unowned" || kind === "k-silent" ? 2 : 0.5, right - left - (right - left > 4 ? 1 : 0));
  return s("rect", { class: kind, x: left.toFixed(1), y, width: wide.toFixed(1), height: thick, rx: thick > 9 ? 2 : 0, "data-tip": tip });
}

function hatch(id, stroke, size) {
  return s("pattern", { id, width: size, height: size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: size / 2, height: size, fill: stroke }));
}

function dots(id) {
  return s("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, s("circle", { cx: 3, cy: 3, r: 1.3, fill: "rgba(255,255,255,.7)" }));
}

function label(model, view) {
  const moves = (model.sections.story ?? []).filter((one) => one.at >= view.now - view.window_s);
  return `Ownership of ${plural(shown(model, view).length, "partition")} over the last ${duration(view.window_s)}: ${moves.length} moves or groups of moves, listed under Recent activity`;
}

/** For many partitions: the number of each instance, stacked, and the unowned ones in red. */
function sharesPlot(model, view) {
  const { width } = view;
  const to = scale(view.now, view.window_s, width);
  const { at: times, shares } = model.series;
  const height = 220;
  if (!times.length || !shares) return h("p", { class: "empty" }, "Loading the history…");
  const total = Math.max(1, ...times.map((_, at) => shares.reduce((sum, one) => sum + one[at], 0)));
  const y = (number) => height - (number / total) * height;
  const below = times.map(() => 0);
  const areas = shares.map((counts, tag) => {
    const unowned = tag === shares.length - 1;
    const upper = times.map((time, at) => `${to.x(time).toFixed(1)} ${y((below[at] += counts[at])).toFixed(1)}`);
    const lower = times.map((time, at) => `${to.x(time).toFixed(1)} ${y(below[at] - counts[at]).toFixed(1)}`).reverse();
    if (!counts.some(Boolean)) return null;
    const name = unowned ? "no owner" : model.names[tag];
    return s("path", { class: unowned ? "k-unowned" : `band ${colour(tag)}`, d: `M${upper.join("L")}L${lower.join("L")}Z`, "data-tip": `${name}: ${count(counts.at(-1))} now` });
  });
  return s("svg", { width, height: height + 24, role: "img", "aria-label": `How many of ${total} partitions each instance had` }, areas,
    s("text", { x: LEFT - 8, y: 10, "text-anchor": "end" }, count(total)), s("text", { x: LEFT - 8, y: height, "text-anchor": "end" }, "0"),
    ticks(view.now, view.window_s, width).map((at) => s("text", { x: to.x(at), y: height + 17, "text-anchor": anchor(to.x(at), width) }, clock(at, view.window_s < 1200))));
}
