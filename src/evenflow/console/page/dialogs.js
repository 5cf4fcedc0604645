// What opens over the page: one partition, a plan, dead letters, the token, and the questions before an action.
import { h, icon, show } from "./dom.js";
import { button, commands, pill } from "./head.js";
import { again, planShares } from "./people.js";
import { act, ask, token } from "./stream.js";
import { badge } from "./tags.js";
import { clock, count, duration, iso, listed, moment, plural, rate, UNKNOWN } from "./words.js";

/** A dialog with a title; `draw(body, dialog)` fills it. It is gone when it is closed. */
export function open(title, draw, { side = false } = {}) {
  document.querySelector("dialog[open]")?.close();
  const body = h("div", { class: "body" });
  const dialog = h("dialog", { class: side ? "side" : "middle", "aria-label": title },
    h("header", {}, h("h2", {}, title), h("span", { class: "grow" }), h("button", { type: "button", class: "icon", "data-do": "close", "aria-label": "Close" }, icon("close"))), body);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
  draw(body, dialog);
  return dialog;
}

const trouble = (error) => h("p", { class: "notice bad", role: "alert" }, error.message);
const line = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, value));

export function partition(model, id) {
  let closed = false;
  const dialog = open(`Partition ${id}`, async (body) => {
    show(body, h("p", { class: "soft" }, "Looking…"));
    while (!closed) {
      try {
        show(body, detail(model, id, await ask("partition", { group: model.key, partition: id })));
      } catch (error) {
        show(body, trouble(error));
      }
      await new Promise((done) => setTimeout(done, 1500));
    }
  }, { side: true });
  dialog.addEventListener("close", () => { closed = true; });
}

function detail(model, id, told) {
  const { row } = told;
  const now = model.now;
  const age = (at) => (at ? `${duration(now - at)} ago` : UNKNOWN);
  const offers = (model.sections.offers ?? []).filter((offer) => offer.about === "partition");
  return [
    h("p", {}, pill(row.status), " ", row.owner === null ? "" : [badge(row.owner), " ", model.names[row.owner]]),
    h("p", { class: "lead" }, told.where), h("p", {}, told.progress), h("p", {}, told.next),
    told.findings.map((one) => h("div", { class: "notice warn" }, h("p", {}, one.what, " ", commands(one.advice)))),
    h("dl", { class: "details" },
      line("lease held for", row.lease_at ? duration(now - row.lease_at) : UNKNOWN), line("expires in", row.expires_s === null ? `${UNKNOWN} (not watched yet)` : `${duration(row.expires_s)}, if no heartbeat comes`),
      line("epoch", row.epoch ?? UNKNOWN), line("checkpoint", `${row.offset ?? UNKNOWN}, written ${age(row.checkpoint_at)}`), line("newest event", count(row.newest)),
      line("behind", `${plural(row.lag, "event")}, ${duration(row.lag_s)}`), line("trend", row.trend ?? UNKNOWN),
      line("caught up in", row.lag === 0 ? "it is" : duration(row.catch_up_s)), line("events a second", rate(row.per_s)),
      told.pause ? line("paused", `by ${told.pause.by || "somebody"}${told.pause.why ? `: ${told.pause.why}` : ""}`) : null,
      told.parked.length ? line("parked keys", listed(told.parked)) : null,
      told.fruitless ? line("epochs without progress", count(told.fruitless)) : null),
    model.allowed ? h("div", { class: "acts" },
      told.pause || told.failure ? button("resume", "Resume…", { "data-partition": id }) : button("pause", "Pause…", { "data-partition": id }),
      button("seek", "Seek…", { "data-partition": id }),
      offers.map((offer) => button("offer", offer.label, { "data-offer": offer.name, "data-subject": id, title: offer.hint || null, class: offer.danger ? "danger" : null }))) : null,
    h("p", { class: "soft" }, "The same in a terminal: ", commands(`evenflow explain ${id} ${model.sections.allowed?.flags ?? ""}`)),
    h("h3", {}, "Its moves"),
    told.moves.length ? h("ol", { class: "moves" }, told.moves.map((one) => h("li", { "data-key": one.epoch },
      h("span", { class: "time", title: iso(one.at) }, moment(one.at, now)),
      h("div", {}, h("p", {}, one.before === null ? "nobody" : badge(one.before, model.names[one.before]), " → ", one.after === null ? "nobody" : badge(one.after, model.names[one.after]), ` epoch ${one.epoch}. ${one.reason}`), again(one)))))
      : h("p", { class: "soft" }, "The store remembers none."),
  ];
}

export function plan(model, members) {
  open("What would move", (body) => {
    const field = h("input", { type: "number", min: "0", max: "10000", value: String(members), id: "members" });
    const answer = h("div", { class: "answer" });
    const look = async () => {
      try {
        const told = await ask("plan", { group: model.key, members: Number(field.value) || 0 });
        const tag = (name) => (name === null ? "nobody" : [badge(model.names.indexOf(name) < 0 ? null : model.names.indexOf(name)), " ", name]);
        show(answer, h("p", { class: "lead" }, `${plural(told.members, "instance")}: ${count(told.moving)} of ${plural(told.of, "partition")} would move. Shares: `, planShares(told, -1)),
          told.added.length ? h("p", { class: "soft" }, `Added: ${listed(told.added)}.`) : null, told.removed.length ? h("p", { class: "soft" }, `Gone: ${listed(told.removed)}, the youngest.`) : null,
          told.moves.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["partition", "from", "to", "why"].map((text) => h("th", { scope: "col" }, text)))),
            h("tbody", {}, told.moves.map((one) => h("tr", { "data-key": one.partition }, h("td", { class: "number" }, one.partition), h("td", {}, tag(one.before)), h("td", {}, tag(one.after)), h("td", { class: "why soft" }, one.reason)))))) : null);
      } catch (error) {
        show(answer, trouble(error));
      }
    };
    field.addEventListener("input", look);
    show(body, h("p", {}, "This changes nothing: it is the plan that so many instances would make of what is now."), h("label", { class: "field" }, "Instances ", field), answer);
    look();
  });
}

export function deadLetters(model) {
  open("Dead letters", (body) => {
    const list = h("div", { class: "answer" });
    const every = h("input", { type: "checkbox" });
    const look = async (start = 0) => {
      try {
        const told = await ask("dead_letters", { group: model.key, start, every: every.checked ? 1 : 0 });
        show(list, told.damage ? h("p", { class: "notice warn" }, told.damage) : null,
          told.dead_letters.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["dead letter", "state", "key", "reason", "error", "filed"].map((text) => h("th", { scope: "col" }, text)))),
            h("tbody", {}, told.dead_letters.map((one) => h("tr", { "data-key": one.id }, h("td", {}, h("button", { type: "button", class: "plain", "data-do": "dead_letter", "data-dead-letter": one.id }, one.id)), h("td", {}, one.state), h("td", {}, one.key ?? UNKNOWN), h("td", {}, one.reason), h("td", { class: "wide", title: one.error }, one.error), h("td", { class: "number" }, moment(one.at, model.now)))))))
            : h("p", { class: "empty" }, every.checked || !told.all ? "There are none." : "None is open."),
          told.total > told.dead_letters.length ? h("p", { class: "soft" }, `${count(told.dead_letters.length)} of ${count(told.total)} are shown; evenflow dead-letters list shows all.`) : null,
          model.allowed && told.dead_letters.some((one) => one.state === "dead") ? h("div", { class: "acts" }, button("redrive", "Redrive all that are open…", {})) : null);
      } catch (error) {
        show(list, trouble(error));
      }
    };
    every.addEventListener("change", () => look());
    show(body, h("label", { class: "check" }, every, "also those that were redriven or dropped"), list);
    look();
  });
}

export function deadLetter(model, id) {
  open(`Dead letter ${id}`, async (body) => {
    try {
      const told = await ask("dead_letter", { group: model.key, dead_letter: id });
      const { event } = told;
      show(body, h("p", {}, pill(told.state, { dead: "bad", again: "calm", redriven: "ok", dropped: "unknown" }[told.state]), ` ${told.reason}: ${told.error}`),
        h("dl", { class: "details" }, line("partition", told.partition), line("key", told.key ?? UNKNOWN), line("enqueued", event.enqueued_at ?? UNKNOWN), line("attempts", count(told.attempts)),
          line("asked for again", count(told.tries)), line("filed", `${moment(told.at, model.now)} by ${told.instance || UNKNOWN}, epoch ${told.epoch}`)),
        h("h3", {}, "Body"), h("pre", {}, event.body ?? event.body_base64 ?? ""),
        event.properties ? [h("h3", {}, "Properties"), h("pre", {}, JSON.stringify(event.properties, null, 2))] : null,
        told.traceback ? h("details", {}, h("summary", {}, "Traceback"), h("pre", {}, told.traceback)) : null,
        told.verdicts.length ? [h("h3", {}, "What was done with it"), h("ul", {}, told.verdicts.map((one) => h("li", {}, `${moment(one.at, model.now)} ${one.kind}${one.by ? ` by ${one.by}` : ""}${one.why ? `: ${one.why}` : ""}`)))] : null,
        h("div", { class: "acts" }, button("dead_letters", "Back to all", {}), model.allowed && told.state === "dead" ? button("redrive", "Redrive this…", { "data-dead-letter": id }) : null));
    } catch (error) {
      show(body, trouble(error));
    }
  });
}

/** Asks for the token; `then` goes on with it. */
export function askToken(then, why = "This console asks for its token. It was printed, or set, where the console was started.") {
  open("Token", (body, dialog) => {
    const field = h("input", { type: "password", autocomplete: "off", spellcheck: "false", id: "token", "aria-label": "Token" });
    const said = h("div", {});
    const form = h("form", { method: "dialog" }, h("p", {}, why), h("label", { class: "field" }, "Token ", field), said, h("div", { class: "acts" }, h("button", { type: "submit", class: "main" }, "Go on")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      token.set(field.value.trim());
      try {
        const told = await ask("about");
        if (!told.knows_you) throw new Error("That is not the token.");
        dialog.close();
        then();
      } catch (error) {
        token.forget();
        show(said, trouble(error.status === 401 ? new Error("That is not the token.") : error));
        field.select();
      }
    });
    show(body, form);
    field.focus();
  });
}

/** Asks who and why, shows what will be done, and does it. `extra(form)` adds fields and returns `read()`. */
export function confirm(model, { title, text, verb, what, body = {}, danger = false, extra = null }) {
  if (!token.get()) return askToken(() => confirm(model, { title, text, verb, what, body, danger, extra }), "Actions ask for the token of this console.");
  return open(title, (box, dialog) => {
    const name = h("input", { type: "text", maxlength: "80", value: localStorage.getItem("evenflow-name") ?? "", autocomplete: "name", id: "by" });
    const why = h("input", { type: "text", maxlength: "500", id: "why", autocomplete: "off" });
    const said = h("div", { "aria-live": "polite" });
    const go = h("button", { type: "submit", class: danger ? "main danger" : "main" }, verb);
    const form = h("form", { method: "dialog" }, h("p", { class: "lead" }, text));
    const read = extra ? extra(form, go) : () => ({});
    form.append(h("div", { class: "fields" }, h("label", { class: "field" }, "Your name ", name), h("label", { class: "field" }, "Why, for the record ", why)), said,
      h("div", { class: "acts" }, go, h("button", { type: "button", "data-do": "close" }, "Cancel")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      localStorage.setItem("evenflow-name", name.value.trim());
      go.disabled = true;
      show(said, h("p", { class: "soft" }, "Asked for…"));
      try {
        const work = await act(`act/${what}`, model.key, { ...body, ...read(), by: name.value.trim(), why: why.value.trim() });
        if (work.state === "failed") throw new Error(work.outcome);
        dialog.close();
      } catch (error) {
        go.disabled = false;
        if (error.status === 401) {
          token.forget();
          askToken(() => confirm(model, { title, text, verb, what, body, danger, extra }), "That token is not the right one any more.");
          return;
        }
        show(said, trouble(error));
      }
    });
    show(box, form);
    name.value ? why.focus() : name.focus();
  });
}

/** Does what needs no second thought. What came of it is told as for everything that was asked for. */
export async function atOnce(model, asked) {
  if (!token.get()) return askToken(() => atOnce(model, asked), "Actions ask for the token of this console.");
  try {
    await act(`act/${asked.what}`, model.key, { ...asked.body, by: localStorage.getItem("evenflow-name") || "somebody", why: "" });
  } catch (error) {
    // Asked again in the usual way, where there is a place to say what is wrong.
    confirm(model, asked);
  }
}

/** Which partitions: all, or those named. */
export function partitionsField(given) {
  const field = h("input", { type: "text", placeholder: "all", value: given ?? "", id: "partitions", autocomplete: "off" });
  const read = () => {
    const names = field.value.split(/[\s,]+/).filter(Boolean);
    return { partitions: names.length ? names : null };
  };
  return [h("label", { class: "field" }, "Partitions (none are all) ", field), read, field];
}

const PLACES = [["earliest", "the oldest event there is"], ["latest", "beyond the newest: skip all there is"], ["time", "the first event at or after a time"], ["offset", "after an offset"], ["shift", "so many events ahead, or back below 0"], ["group", "where another group of this hub is"]];

/** The fields of a seek, with a look before and after: only what was looked at can be done. */
export function seekFields(model, given) {
  return (form, go) => {
    const place = h("select", { id: "to" }, PLACES.map(([value, label]) => h("option", { value }, label)));
    const [where, partitions, names] = partitionsField(given);
    const field = h("input", { type: "text", id: "place", hidden: true, autocomplete: "off", "aria-label": "Where to" });
    const preview = h("button", { type: "button", id: "preview" }, "Preview");
    const told = h("div", { class: "answer", "aria-live": "polite" });
    const read = () => {
      const to = place.value;
      const text = field.value.trim();
      const more = { time: { time: text ? new Date(text).getTime() / 1000 : null }, offset: { offset: text }, shift: { shift: Number.parseInt(text, 10) || 0 }, group: { group: text } }[to] ?? {};
      return { to, ...more, ...partitions() };
    };
    const again = () => {
      go.disabled = true;
      field.hidden = !["time", "offset", "shift", "group"].includes(place.value);
      field.type = { time: "datetime-local", shift: "number" }[place.value] ?? "text";
      show(told, h("p", { class: "soft" }, "Preview it first: nothing is done before you have seen what would change."));
    };
    preview.addEventListener("click", async () => {
      try {
        const { partitions: rows } = await act("preview", model.key, read());
        show(told, h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["partition", "from", "to", "behind before", "behind after"].map((text) => h("th", { scope: "col", class: "number" }, text)))),
          h("tbody", {}, rows.map((row) => h("tr", { "data-key": row.partition }, [row.partition, row.before ?? UNKNOWN, row.after, count(row.lag_before), count(row.lag_after)].map((text) => h("td", { class: "number" }, text))))))),
        rows.filter((row) => row.note).map((row) => h("p", { class: "soft" }, row.note)));
        go.disabled = false;
      } catch (error) {
        show(told, trouble(error));
      }
    });
    for (const one of [place, field, names]) one.addEventListener("input", again);
    form.append(h("div", { class: "fields" }, h("label", { class: "field" }, "To ", place), field, where), h("div", { class: "acts" }, preview), told);
    again();
    return read;
  };
}

/** When something was last said of this: one that is closed while it goes on speaks again when it has ended. */
const spoken = (one) => one.ended_at ?? one.at;

/** Everything that was said of this group until now. */
export const dismissal = (model) => Math.max(...(model.sections.works ?? []).map(spoken));

/** What was asked for last, in a bar that is always there: it covers nothing, and nothing moves when it speaks. */
export function works(model, dismissed = -Infinity) {
  const all = (model.sections.works ?? []).filter((one) => spoken(one) > dismissed);
  const one = all.find(({ state }) => state === "running") ?? all[0];
  if (!one) return h("p", { class: "soft", "data-key": "none" }, "What you ask for is told here.");
  const said = one.state === "running" ? one.lines.at(-1) ?? "goes on…" : one.outcome;
  const link = one.details?.link;
  return h("div", { class: `work ${one.state}`, "data-key": one.number }, h("b", {}, one.label.charAt(0).toUpperCase() + one.label.slice(1)), h("span", { class: "soft" }, `${clock(one.at)}, ${one.by}`),
    h("p", { title: said }, said, link ? [" ", h("a", { href: link }, "See it")] : null),
    h("button", { type: "button", class: "icon", "data-do": "dismiss", "aria-label": "Close this" }, icon("close")));
}
