// The words and pictures of the page. Times are those of the homes' own clocks, which the data gives as UTC.

export const SENSORS = ["motion", "door", "window", "glass", "co"];
export const NAMES = { motion: "Motion", door: "Front door", window: "Windows", glass: "Glass", co: "Carbon monoxide" };
export const ARMED = ["off", "night", "away"];
export const ALARM = {
  off: ["Alarm off", "Residents are at home."],
  night: ["Armed for the night", "Doors, windows and glass are watched."],
  away: ["Armed, home empty", "Everything is watched."],
};
export const ALERTS = {
  "break-in": "Break-in",
  "glass break": "Glass broken",
  "carbon monoxide": "Carbon monoxide",
};
export const ADVICE = {
  "break-in": "Stay away and call the police.",
  "glass break": "Stay away and call the police.",
  "carbon monoxide": "Leave the house, leave the door open, call the fire brigade.",
};
const PICTURES = {
  motion: "M13 4.5a1.6 1.6 0 1 0 0-.1M8 21l2.5-5.5L9 12l.8-4.5L13.5 7l2 3.2 3 1.3M9.8 7.5 6.5 9.2 6 12.5M10.5 15.5l3-1 1.5 6",
  door: "M6 21V3h12v18M3.5 21h17M14.6 12v.2",
  "door open": "M6 21V3h12v18M3.5 21H8l7-2.2V5L6 3M12 12v.2",
  window: "M4 4h16v16H4zM12 4v16M4 12h16",
  glass: "M4 4h16v16H4zM7.5 12.5l5-5M7.5 17l9-9",
  "glass broken": "M4 4h16v16H4zM12 4l-2 6 4 3-3 7M10 10 4 12M14 13l6-1",
  co: "M7 17.5a4 4 0 0 1-.4-8A5.5 5.5 0 0 1 17.2 8a4.8 4.8 0 0 1-.4 9.5zM9 21h.1M13 21h.1",
};

const WHEN_ACTIVE = { door: "door open", glass: "glass broken" };

export function picture(sensor, isActive) {
  return PICTURES[(isActive && WHEN_ACTIVE[sensor]) || sensor];
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", timeZone: "UTC" });
const exact = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: "UTC" });
const date = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", timeZone: "UTC" });

export const timeOf = (ms) => clock.format(ms);
export const exactTime = (ms) => exact.format(ms);
export const dayOf = (ms) => date.format(ms);

/** "3 min", "2 h 5 min". */
export function duration(ms) {
  const minutes = Math.floor(ms / 60000);
  if (minutes < 1) return `${Math.max(0, Math.round(ms / 1000))} s`;
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} days`;
}
