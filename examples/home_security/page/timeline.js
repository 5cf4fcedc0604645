// The last hours of a home as a picture: one row for the alarm, one for each sensor, minute by minute.

import { h, s } from "./dom.js";
import { ALARM, ARMED, NAMES, SENSORS, dayOf, timeOf } from "./words.js";
import { alertsOf } from "./home.js";

const ROW = 30, BAR = 14, TOP = 26, FOOT = 24, RIGHT = 10;
export const WINDOWS = { "1 hour": 60, "6 hours": 360, "24 hours": 1440 };
const STEPS = [5, 10, 15, 30, 60, 120, 180, 240, 360];

/** The smallest window that shows all that is known. */
export function fitting(home) {
  const known = home.spans.length ? Math.floor(home.complete_ms / 60000) - home.spans[0][0] : 0;
  return Object.keys(WINDOWS).find((name) => WINDOWS[name] >= known) ?? "24 hours";
}

export function timeline(home, minutes, width, at) {
  const left = width < 560 ? 74 : 128;
  const end = Math.floor(home.complete_ms / 60000) + 1, begin = end - minutes;
  const x = (minute) => left + ((minute - begin) / minutes) * (width - left - RIGHT);
  const rows = ["alarm", ...home.sensors.map((one) => one.sensor)];
  const height = TOP + rows.length * ROW + FOOT;
  const spans = home.spans.filter((span) => span[0] + span[1] > begin);
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary(home, minutes) },
    axis(begin, end, minutes, x, height, width),
    rows.map((name, row) => s("g", {},
      s("text", { class: "row", x: 0, y: TOP + row * ROW + BAR - 2 }, name === "alarm" ? "Alarm" : short(name, width)),
      s("rect", { class: "unknown", x: left, y: TOP + row * ROW, width: width - left - RIGHT, height: BAR, rx: 3 }),
      bars(spans, () => "known", begin, x, TOP + row * ROW),
      bars(spans, (span) => mark(name, span), begin, x, TOP + row * ROW),
    )),
    alertsOf(home).filter((alert) => alert.lastMs / 60000 > begin).map((alert) => {
      const place = Math.max(x(alert.atMs / 60000), left);
      return s("g", { class: "alert" },
        s("line", { x1: place, x2: place, y1: TOP - 8, y2: height - FOOT }),
        s("path", { d: `M${place - 6} ${TOP - 8}h12l-6 -11z` }));
    }),
    at === null ? null : s("line", { class: "cursor", x1: x(at + 0.5), x2: x(at + 0.5), y1: TOP - 6, y2: height - FOOT }),
  );
}

/** What a row says of these minutes: the class of its bar, or null for none. */
function mark(name, [, , , active, , armed]) {
  if (name === "alarm") return armed ? `armed ${ARMED[armed]}` : null;
  return active[SENSORS.indexOf(name)] ? `mark s-${name}` : null;
}

/** Neighbours that say the same are one bar: no seams, and few elements. */
function bars(spans, said, begin, x, y) {
  const runs = [];
  for (const span of spans) {
    const word = said(span), last = runs.at(-1);
    if (word === null) continue;
    if (last && last.word === word && last.end === span[0]) last.end = span[0] + span[1];
    else runs.push({ word, from: Math.max(span[0], begin), end: span[0] + span[1] });
  }
  return runs.map((run) => s("rect", { class: run.word, x: round(x(run.from)), y, width: Math.max(1.5, round(x(run.end) - x(run.from))), height: BAR }));
}

const round = (pixels) => Math.round(pixels * 10) / 10;

function axis(begin, end, minutes, x, height, width) {
  const most = Math.max(2, Math.floor(width / 90));
  const step = STEPS.find((one) => minutes / one <= most) ?? 360;
  const marks = [];
  for (let minute = Math.ceil(begin / step) * step; minute <= end; minute += step) {
    marks.push(s("line", { class: "tick", x1: x(minute), x2: x(minute), y1: TOP - 4, y2: height - FOOT + 2 }));
    marks.push(s("text", { class: "time", x: Math.min(x(minute), width), y: height - 6, "text-anchor": x(minute) > width - 34 ? "end" : "middle" }, timeOf(minute * 60000)));
  }
  return marks;
}

const short = (name, width) => (width < 560 && name === "co" ? "CO" : width < 560 && name === "door" ? "Door" : NAMES[name]);

/** One minute in words: what the picture shows there. */
export function minuteInWords(home, minute) {
  const span = home.spans.find((one) => one[0] <= minute && minute < one[0] + one[1]);
  const when = `${dayOf(minute * 60000)}, ${timeOf(minute * 60000)}`;
  if (!span) return `${when}: no reports`;
  const [, , , active, , armed] = span;
  const said = home.sensors.filter((one) => active[SENSORS.indexOf(one.sensor)]).map((one) => `${NAMES[one.sensor].toLowerCase()} active`);
  return `${when}: ${said.length ? said.join(", ") : "all quiet"}; ${ALARM[ARMED[armed]][0].toLowerCase()}`;
}

function summary(home, minutes) {
  const since = Math.floor(home.complete_ms / 60000) + 1 - minutes;
  const counts = home.sensors.map((one) => {
    const index = SENSORS.indexOf(one.sensor);
    const active = home.spans.filter((span) => span[0] + span[1] > since && span[3][index]).reduce((sum, span) => sum + span[1], 0);
    return `${NAMES[one.sensor]} active in ${active} minutes`;
  });
  return `The last ${minutes / 60} hours. ${counts.join("; ")}.`;
}

/** Follows the pointer and the arrow keys; reports the minute, or null. */
export function pointed(place, bounds, report) {
  const minuteAt = (event) => {
    const { left, width } = place.getBoundingClientRect();
    const labels = width < 560 ? 74 : 128;
    const { begin, minutes } = bounds();
    const share = (event.clientX - left - labels) / (width - labels - RIGHT);
    return share < 0 || share > 1 ? null : Math.min(begin + minutes - 1, Math.floor(begin + share * minutes));
  };
  place.addEventListener("pointermove", (event) => report(minuteAt(event)));
  place.addEventListener("pointerdown", (event) => report(minuteAt(event)));
  place.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && report(null));
  place.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -60, PageDown: 60, Home: -Infinity, End: Infinity }[event.key];
    if (steps === undefined) return;
    event.preventDefault();
    const { begin, minutes, at } = bounds();
    report(Math.min(begin + minutes - 1, Math.max(begin, (at ?? begin + minutes) + steps)));
  });
}

export function frame() {
  return h("div", { class: "chart", tabindex: "0", role: "group", "aria-label": "Timeline. Arrow keys go from minute to minute." });
}
