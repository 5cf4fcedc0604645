// The map: every partition, coloured by its owner. A few hundred are buttons; thousands are a canvas.
import { h } from "./dom.js";
import { mood } from "./header.js";
import { dress, initial, paint } from "./tags.js";
import { clock, count, duration, plural } from "./format.js";

const SIZES = { big: 80, middle: 54, small: 41 };

/** The number of columns that gives rows of equal length: 8 and 8, not 11 and 5. */
function across(number, wide, width) {
  const most = Math.max(1, Math.floor(width / wide));
  return Math.ceil(number / Math.ceil(number / most));
}

export function map(model, at, width) {
  const past = at !== null;
  return h("section", { class: "map", "aria-label": "Partitions and their owners" },
    h("div", { class: "title" }, h("h2", {}, past ? `Owners at ${clock(at)}` : "Current owners"),
      h("span", { class: "soft" }, past ? "from the moves that the store remembers" : `${plural(model.head.partitions, "partition")}${model.head.ended ? `, and ${count(model.head.ended)} ended` : ""}; the bars show lag`)),
    model.head.large ? crowd(model) : cells(model, at, width),
    legend(model));
}

function cells(model, at, width) {
  const rows = at === null ? model.live : model.rowsAt(at);
  if (!rows.length) return h("p", { class: "empty" }, model.head.ended ? "All partitions have ended." : "There are no partitions yet. They appear when the source reports them, or when an instance first runs.");
  const most = Math.max(1, ...rows.map((row) => row.lag ?? 0));
  const size = rows.length <= 32 ? "big" : rows.length <= 100 ? "middle" : "small";
  const columns = across(rows.length, width < 500 ? SIZES[size] * 0.8 : SIZES[size], width);
  return h("div", { class: `cells ${size}`, role: "group", "aria-label": "Partitions; use the arrow keys to move", vars: { "--columns": String(columns) } },
    rows.map((row, number) => cell(model, row, number, { at, most })));
}

function cell(model, row, number, { at, most }) {
  const { owner, kind } = at === null ? { owner: row.owner, kind: null } : model.ownerAt(row.id, at);
  const trouble = at === null && !["ok", "waiting"].includes(row.status) ? row.status : kind === "silent" ? "owner silent" : null;
  const name = owner === null ? "no owner" : model.names[owner];
  const part = row.lag === null || at !== null ? 0 : row.lag / most;
  return h("button", {
    type: "button", class: `cell ${dress(owner)} ${trouble ? `is-${mood(trouble)}` : ""}`, "data-key": row.id, "data-do": "partition", "data-partition": row.id,
    tabindex: number === 0 ? "0" : "-1", "data-status": row.status, "data-owner": name,
    "aria-label": `Partition ${row.id}, ${name}, ${trouble ?? "ok"}, ${row.lag === null ? "lag unknown" : `${row.lag} behind`}`,
    "data-tip": at === null ? tip(row, name) : `partition ${row.id}: ${name}`,
  },
  h("span", { class: "id" }, row.id), h("span", { class: "who" }, owner === null ? "–" : initial(owner)),
  trouble ? h("span", { class: "flag" }, trouble) : null,
  h("i", { class: "lag", vars: { "--part": String(Math.round(part * 100) / 100) } }));
}

function tip(row, name) {
  const lag = row.lag === null ? "lag unknown" : `${count(row.lag)} behind (${duration(row.lag_s)})`;
  return `partition ${row.id}: ${name}, epoch ${row.epoch ?? "–"}\n${row.status}, ${lag}\n${row.reason ?? ""}`;
}

function legend(model) {
  const counts = model.members;
  if (!counts.length) return null;
  return h("ul", { class: "legend", "aria-label": "Colours" }, counts.map((member) =>
    h("li", { "data-key": member.id }, h("span", { class: `tag ${dress(member.tag)}`, "aria-hidden": "true" }, initial(member.tag)), member.id)));
}

/** The size of a square: ten thousand must fit on a screen. */
const side = (model) => (model.crowd.length > 2500 ? 7 : 10);

function crowd(model) {
  const { counts } = model.sections;
  const summary = Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([status, number]) => `${count(number)} ${status}`).join(", ");
  return h("div", { class: "crowd" },
    h("canvas", { "data-own": true, id: "crowd", role: "img", "aria-label": `${plural(model.head.partitions, "partition")}: ${summary}` }),
    h("p", { class: "soft" }, summary));
}

/** One small square per partition; a taller dark foot means more lag, a red frame means that no instance handles it. */
let drawnOf = null;

export function drawCrowd(model) {
  const canvas = document.getElementById("crowd");
  if (!canvas) return;
  const width = canvas.parentElement.clientWidth;
  const cell_px = side(model);
  const across = Math.max(1, Math.floor(width / cell_px));
  const ratio = window.devicePixelRatio || 1;
  const bad = getComputedStyle(document.documentElement).getPropertyValue("--bad");
  const what = [model.crowd, width, ratio, bad];
  if (drawnOf?.every((one, at) => one === what[at]) && canvas.width) return;
  drawnOf = what;
  const height = Math.ceil(model.crowd.length / across) * cell_px;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const fills = model.names.map((_, tag) => paint(tag));
  const style = getComputedStyle(document.documentElement);
  const none = style.getPropertyValue("--track");
  const fine = (model.sections.statuses ?? []).map((status) => mood(status));
  model.crowd.forEach(([, owner, status, level], at) => {
    const [x, y] = [(at % across) * cell_px, Math.floor(at / across) * cell_px];
    pen.fillStyle = owner < 0 ? none : fills[owner];
    pen.fillRect(x, y, cell_px - 1, cell_px - 1);
    if (fine[status] === "bad") {
      pen.strokeStyle = bad;
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, y + 1, cell_px - 3, cell_px - 3);
    }
    if (level > 1) {
      pen.fillStyle = "rgba(0,0,0,.45)";
      pen.fillRect(x, y + cell_px - 1 - Math.min(cell_px - 2, level), cell_px - 1, Math.min(cell_px - 2, level));
    }
  });
}

export function crowdAt(model, event) {
  const canvas = document.getElementById("crowd");
  const box = canvas.getBoundingClientRect();
  const cell_px = side(model);
  const across = Math.max(1, Math.floor(box.width / cell_px));
  const [x, y] = [Math.floor((event.clientX - box.left) / cell_px), Math.floor((event.clientY - box.top) / cell_px)];
  const found = x < across ? model.crowd[y * across + x] : undefined;
  if (!found) return null;
  const [id, owner, status, level] = found;
  const lag = level < 0 ? "lag unknown" : level === 0 ? "no lag" : `fewer than ${count(10 ** level)} events behind`;
  return { id, tip: `partition ${id}: ${owner < 0 ? "no owner" : model.names[owner]}\n${model.sections.statuses[status]}, ${lag}` };
}
