// Panels: instances, plans for one more or less, recent activity, recorded actions, dead letters.
import { h } from "./dom.js";
import { button, pill } from "./header.js";
import { badge, dress, initial } from "./tags.js";
import { count, duration, iso, listed, moment, percent, plural, rate, UNKNOWN } from "./format.js";

export function instances(model) {
  const { members } = model;
  return h("section", { class: "instances", "aria-label": "Instances" },
    h("div", { class: "title" }, h("h2", {}, "Instances"), h("span", { class: "soft" }, members.length ? plural(members.length, "member") : "")),
    members.length ? h("ul", {}, [...members].sort((a, b) => isDead(a) - isDead(b)).map((member) => (isDead(member) ? dead(model, member) : instance(model, member))))
      : h("p", { class: "empty" }, "This group has no instances. Events wait until one starts: ", h("code", {}, "evenflow run app:processor")));
}

/** It is silent, and others have taken over all its partitions. */
const isDead = (member) => member.status === "silent" && !member.partitions;

function dead(model, member) {
  return h("li", { "data-key": `${member.id}#${member.incarnation}`, "data-instance": member.id, class: "is-gone" },
    badge(member.tag, member.id), h("div", { class: "name" }, h("b", {}, member.id), " ", h("span", { class: "soft" }, `last heartbeat ${moment(member.heartbeat_at, model.now)}`)), pill("silent", "bad"));
}

function instance(model, member) {
  const custom = (model.sections.custom_actions ?? []).filter((one) => one.about === "instance");
  const word = member.retired && member.status === "alive" ? "leaving" : member.status;
  return h("li", { "data-key": `${member.id}#${member.incarnation}`, "data-instance": member.id },
    badge(member.tag, member.id),
    h("div", { class: "name" }, h("b", {}, member.id), " ", h("span", { class: "soft" }, [member.host, member.pid ? `pid ${member.pid}` : null, member.version].filter(Boolean).join(", "))),
    pill(word === "alive" ? "alive" : word, { alive: "ok", leaving: "calm", silent: "bad" }[word] ?? "unknown"),
    h("dl", { class: "facts" },
      fact("partitions", h("span", {}, count(member.partitions), h("span", { class: "soft" }, member.share === null ? "" : ` (fair: ${count(member.share)})`)), "The number of its partitions, and its fair share."),
      fact("events/s", rate(member.per_s)),
      fact("busy", member.busy === null ? UNKNOWN : percent(member.busy), member.busy === null ? "Unknown: instances publish this only when they balance by load (balance=\"load\")." : "How many of its handlers run at the same time, on average. 100%: one handler all the time."),
      fact("started", moment(member.started_at, model.now), iso(member.started_at)),
      member.charges ? spent(Object.entries(member.charges)) : null),
    heartbeat(member),
    model.allowed ? h("div", { class: "acts" }, button("retire", "Retire…", { "data-instance": member.id, disabled: word !== "alive" && word !== "unknown" }),
      custom.filter((one) => one.subjects === null || one.subjects.includes(member.id)).map((one) => button("custom", one.label, { "data-action": one.name, "data-subject": member.id, title: one.hint || null, class: one.danger ? "danger" : null }))) : null);
}

function fact(label, value, tip = null) {
  return h("div", { "data-tip": tip }, h("dt", {}, label), h("dd", {}, value));
}

/** For services that charge for requests, such as Cosmos DB. */
function spent(charges) {
  const kinds = charges.filter(([, units]) => units >= 0.05).sort((a, b) => b[1] - a[1]).map(([kind, units]) => `${kind} ${units.toFixed(1)}`);
  return fact("request units", count(charges.reduce((sum, [, units]) => sum + units, 0)), `Charged since it started: ${kinds.join(", ")}. Updated with every tenth heartbeat.`);
}

/** The margin before expiry: how much of the time-to-live has passed, and the maximum that ever passed. */
function heartbeat(member) {
  const { ttl_s: ttl, silent_s: silent, longest_silence_s: longest, heartbeat_s: every } = member;
  const share = silent === null ? 0 : Math.min(1, silent / ttl);
  const late = silent !== null && silent > 2 * every + 0.5;
  const known = silent === null ? "heartbeat not observed yet" : late ? `no heartbeat for ${duration(silent)}` : silent < 0.1 ? "heartbeat just now" : `heartbeat ${duration(silent)} ago`;
  const left = silent === null ? "" : silent >= ttl ? ", expired" : `, expires in ${duration(ttl - silent)}`;
  const closest = longest === null ? "" : `The longest silence in 10 minutes was ${duration(longest)} of ${duration(ttl)}.`;
  return h("div", { class: `heartbeat ${late ? "late" : ""}`, "data-tip": `It sends a heartbeat every ${duration(every)}; others take over after ${duration(ttl)} without one. ${closest}` },
    h("span", { class: "bar", "aria-hidden": "true" }, h("i", { vars: { "--part": share.toFixed(3) } }),
      h("b", { vars: { "--part": Math.min(1, every / ttl).toFixed(3) } }), longest === null ? null : h("u", { vars: { "--part": Math.min(1, longest / ttl).toFixed(3) } })),
    h("span", { class: "soft" }, known, left));
}

export function whatIf(model) {
  const plans = model.sections.plans ?? [];
  const now = plans.find((plan) => !plan.added.length && !plan.removed.length)?.members ?? 0;
  return h("section", { class: "what-if", "aria-label": "What if" },
    h("div", { class: "title" }, h("h2", {}, "With one instance more or less"), h("span", { class: "grow" }), button("plan", "Other number…", { "data-members": now + 1 })),
    h("table", {}, h("thead", {}, h("tr", {}, ["instances", "would move", "partitions per instance"].map((text, at) => h("th", { scope: "col", class: at < 2 ? "number" : null }, text)))),
      h("tbody", {}, plans.map((plan) => h("tr", { "data-key": plan.members, class: plan.members === now ? "is-now" : null },
        h("td", { class: "number" }, count(plan.members)),
        h("td", { class: "number" }, plan.members === 0 ? UNKNOWN : `${count(plan.moving)} of ${count(plan.of)}`),
        h("td", {}, planShares(plan, now)))))));
}

export function planShares(plan, now) {
  if (!plan.members) return "no owners: events would wait";
  const shares = plan.shares.map(([, share]) => share);
  const text = shares.length <= 8 ? shares.join(" ") : `${Math.min(...shares)}–${Math.max(...shares)}`;
  const what = plan.members === now ? " (now)" : plan.members < now ? ` (without ${plan.removed.at(-1)})` : "";
  return [text, h("span", { class: "soft" }, what), plan.unowned ? h("span", { class: "bad" }, ` ${count(plan.unowned)} unowned`) : null];
}

export function story(model) {
  const events = [
    ...(model.sections.story ?? []).map((one) => ({ ...one, is: "move" })),
    ...(model.sections.actions ?? []).map((one) => ({ ...one, is: "action" })),
    ...model.members.filter((one) => one.started_at).map((one) => ({ ...one, at: one.started_at, is: "joined" })),
    ...model.members.filter((one) => one.status === "silent" && one.heartbeat_at).map((one) => ({ ...one, at: one.heartbeat_at, is: "silent" })),
  ].sort((a, b) => b.at - a.at).slice(0, 60);
  return h("section", { class: "story", "aria-label": "Recent activity" },
    h("div", { class: "title" }, h("h2", {}, "Recent activity"), h("span", { class: "soft" }, events.length ? "newest first" : "")),
    events.length ? h("ol", { tabindex: "0", "aria-label": "Recent activity, newest first" }, events.map((one) => ({ move, action, joined, silent: fell })[one.is](model, one)))
      : h("p", { class: "empty" }, "Nothing yet. Every move appears here with its reason."));
}

const VERBS = { claimed: "claimed", "taken over": "took over", "taken again": "reclaimed", "handed over": "handed over", released: "released", appeared: "appeared" };

function move(model, one) {
  const [before, after] = [who(model, one.before), who(model, one.after)];
  const what = h("b", { title: one.partitions.join(", ") }, listed(one.partitions));
  const why = one.reason.includes(":") ? one.reason.slice(one.reason.indexOf(":") + 1).trim() : "";
  const text = {
    "handed over": [before, " handed ", what, " over to ", after],
    "taken over": [after, " took over ", what, " from ", before],
    "taken again": [after, " reclaimed ", what],
    claimed: [after, " claimed ", what],
    released: [before, " released ", what],
    seek: ["a seek moved the checkpoint of ", what],
    ended: [what, " ended"],
  }[one.kind] ?? [VERBS[one.kind] ?? one.kind, " ", what];
  return h("li", { class: `move ${one.kind === "taken over" || one.kind === "taken again" ? "unplanned" : ""}`, "data-key": `m${one.at}${one.kind}${one.partitions[0]}`, "data-kind": one.kind },
    h("button", { type: "button", class: "time", "data-do": "moment", "data-at": one.began - 0.5, title: `${iso(one.at)}: show the owners just before` }, moment(one.at, model.now)),
    h("div", {}, h("p", {}, text, why ? `: ${why}` : ""), duplicates(one)));
}

function who(model, tag) {
  return tag === null ? "no owner" : h("span", { class: "who", title: model.names[tag] }, h("span", { class: `tag ${dress(tag)}`, "aria-hidden": "true" }, initial(tag)), h("span", { class: "sr" }, model.names[tag]));
}

/** How many events were handled twice: an exact count, an upper bound, or unknown. */
export function duplicates(one) {
  if (one.kind === "ended") return null;
  if (one.certainty === "exact" && one.duplicates) return h("p", { class: "soft" }, h("b", {}, `${plural(one.duplicates, "event")} handled twice`), ": the application had not checkpointed them");
  if (one.certainty === "exact") return one.kind === "handed over" ? h("p", { class: "soft" }, "0 events handled twice: drained and committed first") : null;
  if (one.certainty === "at most") {
    const other = one.cut_off !== null && one.cut_off !== one.duplicates ? `; at most ${count(one.cut_off)} if it was only cut off from the store` : "";
    return h("p", { class: "soft" }, h("b", {}, `at most ${plural(one.duplicates, "event")} handled twice`), ` (an upper bound)${other}`);
  }
  if (one.certainty === "asked for") return null;
  return one.kind === "taken over" || one.kind === "taken again" ? h("p", { class: "soft" }, "events handled twice: unknown, the move was not observed") : null;
}

function joined(model, one) {
  return line(model, one, "j", [who(model, one.tag), h("b", {}, " joined"), `: ${one.id}${one.host ? ` on ${one.host}` : ""}`]);
}

function fell(model, one) {
  return line(model, one, "s", [who(model, one.tag), h("b", {}, " fell silent"), ": this was its last heartbeat; others may take over after ", duration(one.ttl_s)]);
}

function line(model, one, initial, text) {
  return h("li", { class: initial === "s" ? "move unplanned" : "move", "data-key": `${initial}${one.at}${one.id}` },
    h("time", { class: "time", datetime: iso(one.at), title: iso(one.at) }, moment(one.at, model.now)), h("div", {}, h("p", {}, text)));
}

function action(model, one) {
  return h("li", { class: "action", "data-key": `a${one.at}${one.kind}` },
    h("time", { class: "time", datetime: iso(one.at), title: iso(one.at) }, moment(one.at, model.now)),
    h("div", {}, h("p", {}, h("b", {}, one.kind), ` by ${one.by}: ${short(one.what)}`), one.why ? h("p", { class: "soft" }, `“${one.why}”`) : null));
}

const short = (text) => (text.length > 140 ? `${text.slice(0, 140)}…` : text);

export function log(model) {
  const done = model.sections.actions ?? [];
  return h("section", { class: "log", "aria-label": "Record of actions" },
    h("div", { class: "title" }, h("h2", {}, "Actions of operators"), h("span", { class: "soft" }, done.length ? "recorded in the store" : "")),
    done.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Record of actions" }, h("table", {},
      h("thead", {}, h("tr", {}, ["time", "action", "operator", "details", "reason"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, done.map((one) => h("tr", { "data-key": `${one.at}${one.kind}` }, h("td", { title: iso(one.at) }, moment(one.at, model.now)), h("td", {}, one.kind), h("td", {}, one.by), h("td", { class: "wide", title: one.what }, short(one.what)), h("td", {}, one.why || UNKNOWN))))))
      : h("p", { class: "empty" }, "No actions yet. Pauses, seeks, retirements and so on are recorded here, with the reason."));
}

export function deadLetters(model) {
  const open = model.sections.sums.dead_letters;
  const has = model.head.has_dead_letters;
  return h("section", { class: "dead-letters", "aria-label": "Dead letters" },
    h("div", { class: "title" }, h("h2", {}, "Dead letters"), h("span", { class: "grow" }), has ? button("dead_letters", "Browse…", {}) : null),
    !has ? h("p", { class: "empty" }, "The location of the dead letters is unknown. Start the console with ", h("code", {}, "--dead-letters"), ".")
      : h("p", { class: "line" }, h("b", {}, count(open)), open === null ? " could not be counted" : ` open: `,
        open === null ? "" : open ? "events that could not be handled, each with its error" : "all events were handled"));
}

