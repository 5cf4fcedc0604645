// Dialogs: one partition, a plan, dead letters, the token, and the confirmation of an action.
import { h, icon, show } from "./dom.js";
import { button, commands, pill } from "./header.js";
import { duplicates, planShares } from "./panels.js";
import { act, ask, token } from "./stream.js";
import { badge } from "./tags.js";
import { clock, count, duration, iso, listed, moment, plural, rate, TRENDS, UNKNOWN } from "./format.js";

/** A dialog with a title; `draw(body, dialog)` fills it. It is removed when it is closed. */
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

const failure = (error) => h("p", { class: "notice bad", role: "alert" }, error.message);
const line = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, value));

export function partition(model, id) {
  let closed = false;
  const dialog = open(`Partition ${id}`, async (body) => {
    show(body, h("p", { class: "soft" }, "Loading…"));
    while (!closed) {
      try {
        show(body, detail(model, id, await ask("partition", { group: model.key, partition: id })));
      } catch (error) {
        show(body, failure(error));
      }
      await new Promise((done) => setTimeout(done, 1500));
    }
  }, { side: true });
  dialog.addEventListener("close", () => { closed = true; });
}

function detail(model, id, facts) {
  const { row } = facts;
  const now = model.now;
  const age = (at) => (at ? `${duration(now - at)} ago` : UNKNOWN);
  const custom = (model.sections.custom_actions ?? []).filter((one) => one.about === "partition");
  return [
    h("p", {}, pill(row.status), " ", row.owner === null ? "" : [badge(row.owner), " ", model.names[row.owner]]),
    h("p", { class: "lead" }, facts.where), h("p", {}, facts.progress), h("p", {}, facts.next),
    facts.findings.map((one) => h("div", { class: "notice warn" }, h("p", {}, one.what, " ", commands(one.advice)))),
    h("dl", { class: "details" },
      line("lease held for", row.lease_at ? duration(now - row.lease_at) : UNKNOWN), line("expires in", row.expires_s === null ? `${UNKNOWN} (owner not observed yet)` : `${duration(row.expires_s)} without a heartbeat`),
      line("epoch", row.epoch ?? UNKNOWN), line("checkpoint", `${row.offset ?? UNKNOWN}, written ${age(row.checkpoint_at)}`), line("newest event", count(row.newest)),
      line("lag", `${plural(row.lag, "event")}, ${duration(row.lag_s)}`), line("trend", TRENDS[row.trend] ?? UNKNOWN),
      line("caught up in", row.lag === 0 ? "already caught up" : duration(row.catch_up_s)), line("events/s", rate(row.per_s)),
      facts.pause ? line("paused", `by ${facts.pause.by || "an operator"}${facts.pause.why ? `: ${facts.pause.why}` : ""}`) : null,
      facts.parked.length ? line("parked keys", listed(facts.parked)) : null,
      facts.without_progress ? line("epochs without progress", count(facts.without_progress)) : null),
    model.allowed ? h("div", { class: "acts" },
      facts.pause || facts.failure ? button("resume", "Resume…", { "data-partition": id }) : button("pause", "Pause…", { "data-partition": id }),
      button("seek", "Seek…", { "data-partition": id }),
      custom.map((one) => button("custom", one.label, { "data-action": one.name, "data-subject": id, title: one.hint || null, class: one.danger ? "danger" : null }))) : null,
    h("p", { class: "soft" }, "The same in a terminal: ", commands(`evenflow explain ${id} ${model.sections.allowed?.flags ?? ""}`)),
    h("h3", {}, "Moves of this partition"),
    facts.moves.length ? h("ol", { class: "moves" }, facts.moves.map((one) => h("li", { "data-key": one.epoch },
      h("span", { class: "time", title: iso(one.at) }, moment(one.at, now)),
      h("div", {}, h("p", {}, one.before === null ? "no owner" : badge(one.before, model.names[one.before]), " → ", one.after === null ? "no owner" : badge(one.after, model.names[one.after]), ` (epoch ${one.epoch}): ${one.reason}`), duplicates(one)))))
      : h("p", { class: "soft" }, "The store has no record of any."),
  ];
}

export function plan(model, members) {
  open("Plan for another number of instances", (body) => {
    const field = h("input", { type: "number", min: "0", max: "10000", value: String(members), id: "members" });
    const answer = h("div", { class: "answer" });
    const look = async () => {
      try {
        const plan = await ask("plan", { group: model.key, members: Number(field.value) || 0 });
        const tag = (name) => (name === null ? "no owner" : [badge(model.names.indexOf(name) < 0 ? null : model.names.indexOf(name)), " ", name]);
        show(answer, h("p", { class: "lead" }, `${plural(plan.members, "instance")}: ${count(plan.moving)} of ${plural(plan.of, "partition")} would move. Partitions per instance: `, planShares(plan, -1)),
          plan.added.length ? h("p", { class: "soft" }, `Added: ${listed(plan.added)}.`) : null, plan.removed.length ? h("p", { class: "soft" }, `Removed, the youngest first: ${listed(plan.removed)}.`) : null,
          plan.moves.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["partition", "from", "to", "why"].map((text) => h("th", { scope: "col" }, text)))),
            h("tbody", {}, plan.moves.map((one) => h("tr", { "data-key": one.partition }, h("td", { class: "number" }, one.partition), h("td", {}, tag(one.before)), h("td", {}, tag(one.after)), h("td", { class: "why soft" }, one.reason)))))) : null);
      } catch (error) {
        show(answer, failure(error));
      }
    };
    field.addEventListener("input", look);
    show(body, h("p", {}, "A preview of the plan that this number of instances would make. Nothing is changed."), h("label", { class: "field" }, "Instances ", field), answer);
    look();
  });
}

export function deadLetters(model) {
  open("Dead letters", (body) => {
    const list = h("div", { class: "answer" });
    const every = h("input", { type: "checkbox" });
    const look = async (start = 0) => {
      try {
        const found = await ask("dead_letters", { group: model.key, start, every: every.checked ? 1 : 0 });
        show(list, found.damage ? h("p", { class: "notice warn" }, found.damage) : null,
          found.dead_letters.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["dead letter", "state", "key", "reason", "error", "filed at"].map((text) => h("th", { scope: "col" }, text)))),
            h("tbody", {}, found.dead_letters.map((one) => h("tr", { "data-key": one.id }, h("td", {}, h("button", { type: "button", class: "plain", "data-do": "dead_letter", "data-dead-letter": one.id }, one.id)), h("td", {}, one.state), h("td", {}, one.key ?? UNKNOWN), h("td", {}, one.reason), h("td", { class: "wide", title: one.error }, one.error), h("td", { class: "number" }, moment(one.at, model.now)))))))
            : h("p", { class: "empty" }, every.checked || !found.all ? "There are no dead letters." : "There are no open dead letters."),
          found.total > found.dead_letters.length ? h("p", { class: "soft" }, `${count(found.dead_letters.length)} of ${count(found.total)} shown; run evenflow dead-letters list to see all.`) : null,
          model.allowed && found.dead_letters.some((one) => one.state === "dead") ? h("div", { class: "acts" }, button("redrive", "Redrive all open ones…", {})) : null);
      } catch (error) {
        show(list, failure(error));
      }
    };
    every.addEventListener("change", () => look());
    show(body, h("label", { class: "check" }, every, "Include redriven and dropped ones"), list);
    look();
  });
}

export function deadLetter(model, id) {
  open(`Dead letter ${id}`, async (body) => {
    try {
      const found = await ask("dead_letter", { group: model.key, dead_letter: id });
      const { event } = found;
      show(body, h("p", {}, pill(found.state, { dead: "bad", again: "calm", redriven: "ok", dropped: "unknown" }[found.state]), ` ${found.reason}: ${found.error}`),
        h("dl", { class: "details" }, line("partition", found.partition), line("key", found.key ?? UNKNOWN), line("enqueued", event.enqueued_at ?? UNKNOWN), line("attempts", count(found.attempts)),
          line("redrives requested", count(found.tries)), line("filed at", `${moment(found.at, model.now)} by ${found.instance || UNKNOWN}, epoch ${found.epoch}`)),
        h("h3", {}, "Body"), h("pre", {}, event.body ?? event.body_base64 ?? ""),
        event.properties ? [h("h3", {}, "Properties"), h("pre", {}, JSON.stringify(event.properties, null, 2))] : null,
        found.traceback ? h("details", {}, h("summary", {}, "Traceback"), h("pre", {}, found.traceback)) : null,
        found.verdicts.length ? [h("h3", {}, "History"), h("ul", {}, found.verdicts.map((one) => h("li", {}, `${moment(one.at, model.now)} ${one.kind}${one.by ? ` by ${one.by}` : ""}${one.why ? `: ${one.why}` : ""}`)))] : null,
        h("div", { class: "acts" }, button("dead_letters", "Back to all", {}), model.allowed && found.state === "dead" ? button("redrive", "Redrive this…", { "data-dead-letter": id }) : null));
    } catch (error) {
      show(body, failure(error));
    }
  });
}

/** Asks for the token, then calls `then`. */
export function askToken(then, why = "This console requires a token. It was printed, or set, where the console was started.") {
  open("Token", (body, dialog) => {
    const field = h("input", { type: "password", autocomplete: "off", spellcheck: "false", id: "token", "aria-label": "Token" });
    const said = h("div", {});
    const form = h("form", { method: "dialog" }, h("p", {}, why), h("label", { class: "field" }, "Token ", field), said, h("div", { class: "acts" }, h("button", { type: "submit", class: "main" }, "Continue")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      token.set(field.value.trim());
      try {
        const found = await ask("about");
        if (!found.knows_you) throw new Error("Wrong token.");
        dialog.close();
        then();
      } catch (error) {
        token.forget();
        show(said, failure(error.status === 401 ? new Error("Wrong token.") : error));
        field.select();
      }
    });
    show(body, form);
    field.focus();
  });
}

/** Shows what will be done, asks for name and reason, and does it. `extra(form)` adds fields and returns `read()`. */
export function confirm(model, { title, text, verb, what, body = {}, danger = false, extra = null }) {
  if (!token.get()) return askToken(() => confirm(model, { title, text, verb, what, body, danger, extra }), "Actions require the token of this console.");
  return open(title, (box, dialog) => {
    const name = h("input", { type: "text", maxlength: "80", value: localStorage.getItem("evenflow-name") ?? "", autocomplete: "name", id: "by" });
    const why = h("input", { type: "text", maxlength: "500", id: "why", autocomplete: "off" });
    const said = h("div", { "aria-live": "polite" });
    const go = h("button", { type: "submit", class: danger ? "main danger" : "main" }, verb);
    const form = h("form", { method: "dialog" }, h("p", { class: "lead" }, text));
    const read = extra ? extra(form, go) : () => ({});
    form.append(h("div", { class: "fields" }, h("label", { class: "field" }, "Your name ", name), h("label", { class: "field" }, "Reason, for the record ", why)), said,
      h("div", { class: "acts" }, go, h("button", { type: "button", "data-do": "close" }, "Cancel")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      localStorage.setItem("evenflow-name", name.value.trim());
      go.disabled = true;
      show(said, h("p", { class: "soft" }, "Sending…"));
      try {
        const job = await act(`act/${what}`, model.key, { ...body, ...read(), by: name.value.trim(), why: why.value.trim() });
        if (job.state === "failed") throw new Error(job.outcome);
        dialog.close();
      } catch (error) {
        go.disabled = false;
        if (error.status === 401) {
          token.forget();
          askToken(() => confirm(model, { title, text, verb, what, body, danger, extra }), "This token is no longer valid.");
          return;
        }
        show(said, failure(error));
      }
    });
    show(box, form);
    name.value ? why.focus() : name.focus();
  });
}

/** Runs an action without confirmation; its result appears in the bar like any other. */
export async function atOnce(model, asked) {
  if (!token.get()) return askToken(() => atOnce(model, asked), "Actions require the token of this console.");
  try {
    await act(`act/${asked.what}`, model.key, { ...asked.body, by: localStorage.getItem("evenflow-name") || "unnamed operator", why: "" });
  } catch (error) {
    // Fall back to the confirmation dialog, which can show the error.
    confirm(model, asked);
  }
}

/** A field for partitions: all, or the named ones. */
export function partitionsField(given) {
  const field = h("input", { type: "text", placeholder: "all", value: given ?? "", id: "partitions", autocomplete: "off" });
  const read = () => {
    const names = field.value.split(/[\s,]+/).filter(Boolean);
    return { partitions: names.length ? names : null };
  };
  return [h("label", { class: "field" }, "Partitions (empty: all) ", field), read, field];
}

const PLACES = [["earliest", "the oldest event"], ["latest", "the end of the log (skip everything)"], ["time", "the first event at or after a time"], ["offset", "after an offset"], ["shift", "forward by a number of events (negative: back)"], ["group", "the checkpoints of another group"]];

/** The fields of a seek. It can be confirmed only after a preview. */
export function seekFields(model, given) {
  return (form, go) => {
    const place = h("select", { id: "to" }, PLACES.map(([value, label]) => h("option", { value }, label)));
    const [where, partitions, names] = partitionsField(given);
    const field = h("input", { type: "text", id: "place", hidden: true, autocomplete: "off", "aria-label": "Target" });
    const preview = h("button", { type: "button", id: "preview" }, "Preview");
    const answer = h("div", { class: "answer", "aria-live": "polite" });
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
      show(answer, h("p", { class: "soft" }, "Preview the seek first: it shows what would change."));
    };
    preview.addEventListener("click", async () => {
      try {
        const { partitions: rows } = await act("preview", model.key, read());
        show(answer, h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["partition", "from", "to", "lag before", "lag after"].map((text) => h("th", { scope: "col", class: "number" }, text)))),
          h("tbody", {}, rows.map((row) => h("tr", { "data-key": row.partition }, [row.partition, row.before ?? UNKNOWN, row.after, count(row.lag_before), count(row.lag_after)].map((text) => h("td", { class: "number" }, text))))))),
        rows.filter((row) => row.note).map((row) => h("p", { class: "soft" }, row.note)));
        go.disabled = false;
      } catch (error) {
        show(answer, failure(error));
      }
    });
    for (const one of [place, field, names]) one.addEventListener("input", again);
    form.append(h("div", { class: "fields" }, h("label", { class: "field" }, "To ", place), field, where), h("div", { class: "acts" }, preview), answer);
    again();
    return read;
  };
}

/** When its message last changed: one that is closed while it runs shows again when it has ended. */
const changedAt = (one) => one.ended_at ?? one.at;

/** The time up to which messages of this group are dismissed. */
export const dismissal = (model) => Math.max(...(model.sections.jobs ?? []).map(changedAt));

/** The last action and its progress, in a bar that is always visible, so that nothing moves when it changes. */
export function jobs(model, dismissed = -Infinity) {
  const all = (model.sections.jobs ?? []).filter((one) => changedAt(one) > dismissed);
  const one = all.find(({ state }) => state === "running") ?? all[0];
  if (!one) return h("p", { class: "soft", "data-key": "none" }, "Results of your actions appear here.");
  const said = one.state === "running" ? one.lines.at(-1) ?? "running…" : one.outcome;
  const link = one.details?.link;
  return h("div", { class: `job ${one.state}`, "data-key": one.number }, h("b", {}, one.label.charAt(0).toUpperCase() + one.label.slice(1)), h("span", { class: "soft" }, `${clock(one.at)}, ${one.by}`),
    h("p", { title: said }, said, link ? [" ", h("a", { href: link }, "Open")] : null),
    h("button", { type: "button", class: "icon", "data-do": "dismiss", "aria-label": "Dismiss" }, icon("close")));
}
