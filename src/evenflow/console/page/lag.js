// Lag over time: one line per partition in its owner's colour, in events or seconds, on the same time axis as the timeline.
import { h } from "./dom.js";
import { initial, paint } from "./tags.js";
import { LEFT, RIGHT, scale, ticks } from "./timeline.js";
import { clock, count, duration, plural, TRENDS } from "./format.js";

const HEIGHT = 190;
const BOTTOM = 24;
const TOP = 8;
/** Stands for the owner of a partition that has ended. */
const OVER = "over";

export function lag(model, view) {
  const { sums } = model.sections;
  return h("section", { class: "lag", "aria-label": "Lag over time" },
    h("div", { class: "title" }, h("h2", {}, model.head.large ? "Lag: median, 95th percentile, maximum" : "Lag by partition"), h("span", { class: "soft" }, summary(sums)), h("span", { class: "grow" }),
      model.head.large ? null : h("div", { class: "choice", role: "group", "aria-label": "Unit" }, [["lag", "events"], ["lag_s", "seconds"]].map(([unit, label]) =>
        h("button", { type: "button", "data-do": "unit", "data-unit": unit, "aria-pressed": String(view.unit === unit) }, label)))),
    h("div", { class: "plot" }, h("canvas", { id: "lag", "data-own": true, role: "img", "aria-label": `Lag: ${summary(sums)}` }),
      model.head.has_source ? null : h("p", { class: "empty over" }, "Lag is unknown without a source.")));
}

function summary(sums) {
  if (sums.lag === null) return "unknown";
  const trend = TRENDS[sums.trend];
  const end = sums.trend === "shrinks" && sums.catch_up_s !== null ? `, caught up in ${duration(sums.catch_up_s)}` : "";
  return `${plural(sums.lag, "event")}${sums.lag_s === null ? "" : `, ${duration(sums.lag_s)}`}${trend ? `, ${trend}` : ""}${end}`;
}

/** Numbers for an axis: 0, and two to four round ones. */
export function steps(most) {
  const rough = Math.max(most, 1e-9) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let value = 0; value <= most + step * 0.999; value += step) found.push(value);
  return found;
}

export function drawLag(model, view) {
  const canvas = document.getElementById("lag");
  if (!canvas) return;
  const { width } = view;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== HEIGHT * ratio) {
    canvas.width = Math.round(width * ratio);
    canvas.height = HEIGHT * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${HEIGHT}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, HEIGHT);
  const plot = plotted(model, view);
  axes(pen, plot, view);
  for (const line of plot.lines) stroke(pen, plot, line);
  mark(pen, plot, view);
}

function plotted(model, view) {
  const { series, head } = model;
  const to = scale(view.now, view.window_s, view.width);
  const first = Math.max(0, series.at.findIndex((at) => at >= to.from) - 1);
  const lines = head.large
    ? (series.spread ?? []).map((values, at) => ({ name: ["median", "95th percentile", "maximum"][at], values, tag: at }))
    : [...model.live, ...model.overSince(to.from)].map((row) => ({ name: row.id, values: series[view.unit][row.id] ?? [], tag: row.owner ?? (row.status === "ended" ? OVER : null) }));
  let most = 0;
  for (const line of lines) for (let at = first; at < line.values.length; at += 1) if (line.values[at] > most) most = line.values[at];
  const values = steps(Math.max(most, view.unit === "lag_s" ? 0.5 : 10));
  const top = values.at(-1);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  return { to, first, lines, values, y, times: series.at, unit: head.large ? "lag" : view.unit };
}

function axes(pen, plot, view) {
  const style = getComputedStyle(document.documentElement);
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.fillStyle = style.getPropertyValue("--soft");
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  for (const value of plot.values) {
    const y = Math.round(plot.y(value)) + 0.5;
    pen.beginPath();
    pen.moveTo(LEFT, y);
    pen.lineTo(view.width - RIGHT, y);
    pen.stroke();
    pen.fillText(plot.unit === "lag_s" ? (value >= 10 || value === 0 ? String(Math.round(value)) : value.toFixed(1)) : short(value), LEFT - 8, y + 4);
  }
  for (const at of ticks(view.now, view.window_s, view.width)) {
    const x = plot.to.x(at);
    pen.textAlign = x < LEFT + 20 ? "left" : x > view.width - 40 ? "right" : "center";
    pen.fillText(clock(at, view.window_s < 1200), x, HEIGHT - 6);
  }
}

const short = (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e4 ? `${value / 1e3}k` : count(value));

function stroke(pen, plot, line) {
  const plain = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  pen.strokeStyle = line.tag === null ? plain("--bad") : line.tag === OVER ? plain("--soft") : paint(line.tag, "--line-fill");
  pen.lineWidth = 1.5;
  pen.globalAlpha = plot.lines.length > 40 ? 0.55 : 0.9;
  pen.beginPath();
  let open = false;
  for (let at = plot.first; at < line.values.length; at += 1) {
    const value = line.values[at];
    // Unknown values are gaps in the line.
    if (value === null || value === undefined) { open = false; continue; }
    const [x, y] = [Math.max(LEFT, plot.to.x(plot.times[at])), plot.y(value)];
    if (open) pen.lineTo(x, y);
    else pen.moveTo(x, y);
    open = true;
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function mark(pen, plot, view) {
  if (view.at === null) return;
  pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
  pen.beginPath();
  pen.moveTo(plot.to.x(view.at), TOP);
  pen.lineTo(plot.to.x(view.at), HEIGHT - BOTTOM);
  pen.stroke();
}

/** The tooltip for the nearest line at the pointer. */
export function lagAt(model, view, event) {
  const box = document.getElementById("lag").getBoundingClientRect();
  const plot = plotted(model, view);
  const wanted = plot.to.at(event.clientX - box.left);
  let at = plot.times.findIndex((time) => time >= wanted);
  if (at < 0) at = plot.times.length - 1;
  let best = null;
  for (const line of plot.lines) {
    const value = line.values[at];
    if (value === null || value === undefined) continue;
    const far = Math.abs(plot.y(value) - (event.clientY - box.top));
    if (!best || far < best.far) best = { far, line, value };
  }
  if (!best) return null;
  const value = plot.unit === "lag_s" ? duration(best.value) : plural(best.value, "event");
  const owner = model.head.large || best.line.tag === null ? "" : best.line.tag === OVER ? " (ended)" : ` (${initial(best.line.tag)})`;
  return `${clock(plot.times[at])}\n${model.head.large ? best.line.name : `partition ${best.line.name}${owner}`}: ${value} behind`;
}

