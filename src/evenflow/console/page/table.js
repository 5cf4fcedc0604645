// Every partition as a row. Up to a few hundred are sorted here; of thousands the server sends one page at a time.
import { h } from "./dom.js";
import { pill } from "./header.js";
import { badge } from "./tags.js";
import { count, duration, plural, rate, TRENDS, UNKNOWN } from "./format.js";

const COLUMNS = [
  ["id", "partition", "number"], ["owner", "owner", ""], ["status", "status", ""], ["lag", "lag (events)", "number"], ["lag_s", "lag (time)", "number"],
  ["trend", "trend", ""], ["per_s", "events/s", "number"], ["catch_up_s", "caught up in", "number"], ["epoch", "epoch", "number"],
  ["lease_at", "lease age", "number"], ["expires_s", "expires in", "number"], ["checkpoint_at", "checkpoint age", "number"], ["reason", "last change of the lease", ""],
];
const FINE = ["ok", "third-party", "waiting", "ended", "starting", "moving"];

export function table(model, view) {
  const { large } = model.head;
  const rows = large ? (view.page?.rows ?? []).map((row) => model.row(row)) : chosen(model, view);
  const total = large ? view.page?.total ?? 0 : rows.filter((row) => row.status !== "ended").length;
  return h("section", { class: "partitions", "aria-label": "Partitions in detail" },
    h("div", { class: "title" }, h("h2", {}, "Partitions"), h("span", { class: "soft" }, plural(total, "row")), h("span", { class: "grow" }),
      h("label", { class: "check" }, h("input", { type: "checkbox", id: "problems", "data-own": true }), "Show problems only"),
      h("input", { type: "search", id: "find", placeholder: "partition or owner", "aria-label": "Find a partition or owner", "data-own": true })),
    rows.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Partitions in detail" },
      h("table", {}, h("thead", {}, h("tr", {}, COLUMNS.map(([name, label, kind]) => head(view, name, label, kind, large)))),
        h("tbody", {}, large ? rows.map((row) => line(model, row)) : folded(model, view, rows))))
      : h("p", { class: "empty" }, model.head.partitions ? "No partition matches." : "There are no partitions yet."),
    large ? pager(view, total) : null);
}

/** Ended partitions come last, behind a line that expands; a search shows them, too. */
function folded(model, view, rows) {
  const [live, over] = [rows.filter((row) => row.status !== "ended"), rows.filter((row) => row.status === "ended")];
  const open = view.ended || Boolean(view.find);
  const fold = h("tr", { "data-key": " ended", class: "fold" }, h("td", { colspan: COLUMNS.length },
    h("button", { type: "button", class: "plain", "data-do": "ended", "aria-expanded": String(open) }, plural(over.length, "ended partition"), h("span", { "aria-hidden": "true" }, open ? " ▴" : " ▾"))));
  return [...live.map((row) => line(model, row)), over.length ? fold : null, ...(open ? over.map((row) => line(model, row)) : [])];
}

function head(view, name, label, kind, large) {
  const sorted = view.sort === name ? (view.down ? "descending" : "ascending") : null;
  if (large) return h("th", { scope: "col", class: kind }, label);
  return h("th", { scope: "col", class: kind, "aria-sort": sorted }, h("button", { type: "button", "data-do": "sort", "data-sort": name }, label, h("span", { "aria-hidden": "true" }, sorted ? (view.down ? " ↓" : " ↑") : "")));
}

function chosen(model, view) {
  const text = view.find.toLowerCase();
  const named = (row) => (row.owner === null ? "" : model.names[row.owner] ?? "");
  const fitting = model.rows.filter((row) => (!text || row.id.toLowerCase() === text || named(row).toLowerCase().includes(text)) && (!view.problems || !FINE.includes(row.status)));
  if (!view.sort) return fitting;
  const value = (row) => (view.sort === "owner" ? named(row) : view.sort === "id" ? model.rows.indexOf(row) : row[view.sort]);
  const sign = view.down ? -1 : 1;
  return fitting.sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    if (one === other) return 0;
    // Unknown values come last in both directions.
    if (one === null) return 1;
    if (other === null) return -1;
    return (one < other ? -1 : 1) * sign;
  });
}

function line(model, row) {
  const age = (at) => (at ? duration(model.now - at) : UNKNOWN);
  const over = row.status === "ended";
  const owner = over ? UNKNOWN : row.owner === null ? h("span", { class: row.status === "paused" ? "soft" : "bad" }, "no owner") : [badge(row.owner), " ", model.names[row.owner]];
  return h("tr", { "data-key": row.id, "data-row": row.id, class: over ? "over soft" : null },
    h("td", { class: "number" }, h("button", { type: "button", class: "plain", "data-do": "partition", "data-partition": row.id }, row.id)),
    h("td", { class: "owner" }, owner), h("td", {}, row.status === "ok" || over ? h("span", { class: "soft" }, row.status) : pill(row.status)),
    h("td", { class: "number" }, over ? UNKNOWN : count(row.lag)), h("td", { class: "number" }, over ? UNKNOWN : duration(row.lag_s)), h("td", {}, over ? UNKNOWN : TRENDS[row.trend] ?? UNKNOWN),
    h("td", { class: "number" }, over ? UNKNOWN : rate(row.per_s)), h("td", { class: "number" }, over ? UNKNOWN : row.lag === 0 ? "0 s" : duration(row.catch_up_s)),
    h("td", { class: "number" }, row.epoch ?? UNKNOWN), h("td", { class: "number" }, age(row.lease_at)), h("td", { class: "number" }, duration(row.expires_s)),
    h("td", { class: "number" }, age(row.checkpoint_at)), h("td", { class: "wide soft", title: row.reason }, row.reason ?? UNKNOWN));
}

function pager(view, total) {
  const start = view.page?.start ?? 0;
  const end = start + (view.page?.rows.length ?? 0);
  return h("div", { class: "pager" }, h("button", { type: "button", "data-do": "page", "data-start": Math.max(0, start - 200), disabled: start === 0 }, "Previous"),
    h("span", { class: "soft" }, total ? `${count(start + 1)} to ${count(end)} of ${count(total)}` : ""),
    h("button", { type: "button", "data-do": "page", "data-start": end, disabled: end >= total }, "Next"));
}
