// The list of all groups in a store.
import { h } from "./dom.js";
import { pill } from "./header.js";
import { count, duration, rate, UNKNOWN } from "./format.js";

export function groups(model) {
  const found = model.sections.groups;
  if (!found) return h("p", { class: "empty page" }, model.stale || model.link.kind === "lost" ? "The groups could not be read yet." : "Loading…");
  if (!found.length) {
    return h("div", { class: "empty page" }, h("h2", {}, "This store has no groups yet"),
      h("p", {}, "A group appears when its first instance runs: ", h("code", {}, "evenflow run app:processor"), ". This page updates automatically."));
  }
  const heads = [["group", ""], ["hub", ""], ["status", ""], ["instances", "number"], ["owned", "number"], ["partitions per instance", ""], ["events/s", "number"], ["lag (events)", "number"], ["lag (time)", "number"]];
  return h("section", { class: "groups", "aria-label": "Groups" },
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))),
      h("tbody", {}, found.map(row)))));
}

function row(group) {
  const shares = group.shares.length <= 8 ? group.shares.join(" ") : `${Math.min(...group.shares)}–${Math.max(...group.shares)}`;
  return h("tr", { "data-key": group.key },
    h("td", {}, h("a", { href: `#/${group.key}` }, group.name), group.problem ? h("p", { class: "soft wrap" }, group.problem) : null),
    h("td", { class: "soft" }, `${group.namespace === "local" ? "" : `${group.namespace}/`}${group.hub}`), h("td", {}, pill(group.status)),
    h("td", { class: "number" }, count(group.running)), h("td", { class: "number" }, group.owned === null ? UNKNOWN : `${count(group.owned)} of ${count(group.partitions)}`),
    h("td", {}, shares || UNKNOWN), h("td", { class: "number" }, rate(group.per_s)), h("td", { class: "number" }, count(group.lag)), h("td", { class: "number" }, duration(group.lag_s)));
}
