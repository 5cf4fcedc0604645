// Elements. Text is always text: nothing that was read becomes markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attrs = {}, ...kids) {
  return filled(document.createElement(tag), attrs, kids);
}

export function s(tag, attrs = {}, ...kids) {
  return filled(document.createElementNS(SVG, tag), attrs, kids);
}

function filled(node, attrs, kids) {
  for (const [name, value] of Object.entries(attrs)) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...kids.flat(Infinity).filter((kid) => kid !== null && kid !== undefined && kid !== false));
  return node;
}

/** Replaces what is in a place, unless it would be the same: a selection or a focus there survives. */
export function show(place, ...kids) {
  const fresh = document.createElement("div");
  fresh.append(...kids.flat(Infinity).filter(Boolean));
  if (place.innerHTML !== fresh.innerHTML) place.replaceChildren(...fresh.childNodes);
}
