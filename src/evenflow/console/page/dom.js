// Creates elements, and updates a tree in place without disturbing focus, selection or scrolling.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `vars` sets style properties (the page's policy forbids style attributes); null omits an attribute or a child. */
export function h(tag, attrs = {}, ...kids) {
  const node = document.createElement(tag);
  return fill(node, attrs, kids);
}

export function s(tag, attrs = {}, ...kids) {
  return fill(document.createElementNS(SVG, tag), attrs, kids);
}

function fill(node, attrs, kids) {
  for (const [name, value] of Object.entries(attrs)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "vars") for (const [key, to] of Object.entries(value)) node.style.setProperty(key, to);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const kid of kids.flat(Infinity)) {
    if (kid === null || kid === undefined || kid === false) continue;
    node.append(kid.nodeType ? kid : document.createTextNode(String(kid)));
  }
  return node;
}

const ICONS = {
  copy: "M5 5V2.5h8.5V11H11M2.5 5H11v8.5H2.5z",
  close: "M3.5 3.5l9 9m0-9l-9 9",
  play: "M4 2.5v11l9-5.5z",
  pause: "M4.5 3v10m7-10v10",
  done: "M3 8.5l3.5 3.5L13 4.5",
  half: "M8 2a6 6 0 100 12zM8 2a6 6 0 010 12",
};

/** A small icon in the colour of the text beside it. */
export function icon(name) {
  const filled = name === "play" || name === "half";
  const path = s("path", { d: ICONS[name], fill: filled ? "currentColor" : "none", stroke: "currentColor", "stroke-width": name === "pause" ? 3 : 1.5 });
  const half = name === "half" ? s("path", { d: "M8 2a6 6 0 010 12z", fill: "var(--panel)", stroke: "currentColor", "stroke-width": 1.5 }) : null;
  return s("svg", { class: "icon-svg", viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" }, path, half);
}

/** Replaces the children of `parent`. Matching nodes are kept, and with them focus, selection and scrolling. */
export function show(parent, ...kids) {
  const wanted = kids.flat(Infinity).filter((kid) => kid !== null && kid !== undefined && kid !== false)
    .map((kid) => (kid.nodeType ? kid : document.createTextNode(String(kid))));
  children(parent, wanted);
}

const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute("data-key") : null);

function children(parent, wanted) {
  const keyed = new Map();
  for (const kid of parent.childNodes) if (keyOf(kid) !== null) keyed.set(keyOf(kid), kid);
  let at = parent.firstChild;
  for (const want of wanted) {
    const key = keyOf(want);
    const have = key !== null ? keyed.get(key) : at && keyOf(at) === null ? at : null;
    if (have && have.nodeName === want.nodeName) {
      if (have === at) at = at.nextSibling;
      else parent.insertBefore(have, at);
      if (!want.hasAttribute?.("data-same")) patch(have, want);
    } else parent.insertBefore(want, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function patch(have, want) {
  if (have.nodeType !== 1) {
    if (have.data !== want.data) have.data = want.data;
    return;
  }
  for (const { name, value } of want.attributes) {
    if (name !== "style" && have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
  for (const { name } of [...have.attributes]) {
    // What the user has opened stays open.
    if (name !== "style" && name !== "open" && !want.hasAttribute(name)) have.removeAttribute(name);
  }
  if (have.style.cssText !== want.style.cssText) have.style.cssText = want.style.cssText;
  // An element that draws its own content (a canvas, a field) only gets new attributes.
  if (!want.hasAttribute("data-own")) children(have, [...want.childNodes]);
}
