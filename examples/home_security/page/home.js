// A home's state, its sensors and its alerts.

import { h, s } from "./dom.js";
import { ADVICE, ALARM, ALERTS, NAMES, SENSORS, dayOf, duration, exactTime, picture, timeOf } from "./words.js";

const RECENT_MS = 15 * 60_000;

export function headline(home) {
  const [alarm, meaning] = ALARM[home.armed];
  return [
    h("div", {}, h("h1", {}, home.address), h("p", { class: "soft" }, `Home ${home.home}`)),
    h("div", { class: `alarm ${home.armed}` }, drawn("M6 11V8a6 6 0 0 1 12 0v3M4.5 11h15v10h-15z"), h("div", {}, h("strong", {}, alarm), h("p", {}, meaning))),
  ];
}

export function warnings(home) {
  return alertsOf(home)
    .filter((alert) => home.complete_ms - alert.lastMs < RECENT_MS)
    .map((alert) =>
      h("div", { class: "warning" },
        drawn("M12 3 2 20.5h20zM12 9.5v5M12 17.3v.2"),
        h("div", {}, h("strong", {}, `${ALERTS[alert.kind] ?? alert.kind} at ${timeOf(alert.atMs)}`), h("p", {}, ADVICE[alert.kind] ?? "")),
      ),
    );
}

export function sensors(home) {
  return home.sensors.map((one) => {
    const began = home.spans.length ? home.spans[0][0] * 60_000 : home.complete_ms;
    // Before what is known it may have been the same, or not.
    const lasts = one.since_ms <= began ? `since ${timeOf(began)} at least` : `since ${timeOf(one.since_ms)}`;
    const isBad = one.is_active && (one.sensor === "glass" || one.sensor === "co");
    return h("li", { class: `sensor ${one.is_active ? "active" : "quiet"} ${isBad ? "bad" : ""} s-${one.sensor}` },
      drawn(picture(one.sensor, one.is_active)),
      h("h3", {}, NAMES[one.sensor]),
      h("p", { class: "word" }, one.state),
      h("p", { class: "soft" }, lasts),
    );
  });
}

export function alerts(home) {
  const all = alertsOf(home);
  if (home.alerts_unknown) return h("p", { class: "lost" }, "Unknown: their data is damaged. New alerts will be shown once it is repaired.");
  if (!all.length) return h("p", { class: "empty" }, "None in the last 24 hours.");
  return h("ol", { class: "alerts" }, all.map((alert) =>
    h("li", {},
      h("span", { class: "kind" }, ALERTS[alert.kind] ?? alert.kind),
      h("span", {}, `${NAMES[SENSORS.includes(alert.sensor) ? alert.sensor : ""] ?? alert.sensor}, ${alert.reports} ${alert.reports === 1 ? "report" : "reports"}`),
      h("time", { datetime: new Date(alert.atMs).toISOString() }, `${exactTime(alert.atMs)}, ${dayOf(alert.atMs)}`),
      alert.lastMs - alert.atMs >= 60_000 ? h("span", { class: "soft" }, `for ${duration(alert.lastMs - alert.atMs)}`) : null,
    ),
  ));
}

export function alertsOf(home) {
  return home.alerts.map(([, kind, sensor, atMs, lastMs, , , reports]) => ({ kind, sensor, atMs, lastMs, reports }));
}

function drawn(path) {
  return s("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: path }));
}
