// Formats numbers, durations and times. Unknown values are shown as unknown, never as 0.

const whole = new Intl.NumberFormat("en");
export const UNKNOWN = "–";
export const TRENDS = { grows: "growing", shrinks: "shrinking", steady: "steady" };

export function count(number) {
  return number === null || number === undefined ? UNKNOWN : whole.format(Math.round(number));
}

export function rate(number) {
  if (number === null || number === undefined) return UNKNOWN;
  return number > 0 && number < 10 ? number.toFixed(1) : count(number);
}

/** 0.4 s, 45 s, 12 min, 5 h, 3 d. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const some = Math.max(0, seconds);
  if (some === 0) return "0 s";
  if (some < 0.1) return "<0.1 s";
  if (some < 9.95) return `${some.toFixed(1)} s`;
  if (some < 120) return `${Math.round(some)} s`;
  if (some < 7200) return `${Math.floor(some / 60)} min`;
  if (some < 172800) return `${Math.floor(some / 3600)} h`;
  return `${Math.floor(some / 86400)} d`;
}

export function clock(at, seconds = true) {
  if (!at) return UNKNOWN;
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return new Date(at * 1000).toLocaleTimeString("en-GB", seconds ? { ...options, second: "2-digit" } : options);
}

/** Times are shown in the reader's time zone. */
export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";

/** With the date, unless it is today. */
export function moment(at, now) {
  if (!at) return UNKNOWN;
  const day = (time) => new Date(time * 1000).toDateString();
  const date = new Date(at * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return day(at) === day(now) ? clock(at) : `${date} ${clock(at, false)}`;
}

export const iso = (at) => (at ? new Date(at * 1000).toISOString() : null);

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** 0, 1, 2 and 13 more; runs of numbers are shortened: 0–3. */
export function listed(names, most = 8) {
  const runs = [];
  for (const name of names) {
    const last = runs.at(-1);
    const number = /^\d{1,9}$/.test(name) ? Number(name) : null;
    if (last && number !== null && last.to === number - 1) [last.to, last.size] = [number, last.size + 1];
    else runs.push({ name, to: number, size: 1 });
  }
  const shown = runs.flatMap((run) => {
    if (run.size === 1) return [run.name];
    return run.size === 2 ? [run.name, String(run.to)] : [`${run.name}–${run.to}`];
  });
  return shown.length > most + 1 ? `${shown.slice(0, most).join(", ")} and more` : shown.join(", ");
}

export const percent = (share) => (share === null || share === undefined ? UNKNOWN : `${Math.round(share * 100)}%`);
