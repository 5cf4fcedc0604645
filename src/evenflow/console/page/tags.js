// An instance's colour and initial. After eight instances colours repeat with a pattern; colour is never the only cue.
import { h } from "./dom.js";

export const COLOURS = 8;
export const PATTERNS = 3;

export function initial(tag) {
  const base = String.fromCharCode(65 + (tag % 26));
  return tag < 26 ? base : `${base}${Math.floor(tag / 26) + 1}`;
}

export const colour = (tag) => `o${tag % COLOURS}`;
export const pattern = (tag) => Math.floor(tag / COLOURS) % PATTERNS;

/** The CSS classes for an instance's colour. */
export function dress(tag) {
  if (tag === null || tag === undefined) return "o-none";
  return pattern(tag) ? `${colour(tag)} v${pattern(tag)}` : colour(tag);
}

export function badge(tag, name = "") {
  if (tag === null || tag === undefined) return h("span", { class: "tag o-none", title: "no owner" }, "·");
  return h("span", { class: `tag ${dress(tag)}`, title: name || null, "aria-hidden": "true" }, initial(tag));
}

/** The colour value, for a canvas. */
export function paint(tag, property = "--fill") {
  const probe = document.getElementById(`probe-${tag % COLOURS}`) ?? probed(tag % COLOURS);
  return getComputedStyle(probe).getPropertyValue(property).trim();
}

function probed(number) {
  const probe = h("i", { id: `probe-${number}`, class: `o${number}`, hidden: true });
  document.body.append(probe);
  return probe;
}
