// The state of the page for one group: received sections, rows and bands extracted from them, lag over time.

const WINDOW_S = 600;
/** The index of the band kind "ended". */
const ENDED = 4;

export class Model {
  constructor(key) {
    this.key = key;
    this.sections = {};
    this.rows = [];
    this.byId = new Map();
    this.bands = new Map();
    /** Partitions whose first owner is known: before that they did not exist. */
    this.began = new Set();
    this.crowd = [];
    this.series = { at: [], lag: {}, lag_s: {} };
    this.link = { kind: "connecting" };
    this.heardAt = performance.now();
    this.hasHistory = false;
  }

  /** Partitions that have not ended. */
  get live() { return this.rows.filter((row) => row.status !== "ended"); }
  get over() { return this.rows.filter((row) => row.status === "ended"); }
  get head() { return this.sections.head ?? null; }
  get names() { return this.sections.names ?? []; }
  get members() { return this.sections.members ?? []; }
  get allowed() { return this.sections.allowed?.actions ?? false; }
  /** The console announced that it stops. */
  get ended() { return this.sections.ended ?? false; }
  get stale() { return this.sections.now?.stale ?? null; }

  /** The current time by the server's clock: the browser's may differ. */
  get now() {
    const at = this.sections.now?.at;
    return at ? at + (this.stale || this.link.kind === "lost" ? 0 : (performance.now() - this.heardAt) / 1000) : Date.now() / 1000;
  }

  take(message) {
    for (const name of [...message.gone, "ended"]) delete this.sections[name];
    Object.assign(this.sections, message.sections);
    this.heardAt = performance.now();
    const came = Object.keys(message.sections).concat(message.gone);
    if (came.some((name) => name.startsWith("rows/"))) this.takeRows();
    if (came.some((name) => name.startsWith("bands/"))) this.takeBands();
    if (came.some((name) => name.startsWith("crowd/"))) this.crowd = this.blocks("crowd");
    if (message.sections.now?.at && !message.sections.now.stale) this.sample(message.sections.now.at);
  }

  blocks(name) {
    const found = Object.keys(this.sections).filter((key) => key.startsWith(`${name}/`));
    const number = (key) => Number(key.slice(name.length + 1));
    return found.sort((a, b) => number(a) - number(b)).flatMap((key) => this.sections[key]);
  }

  takeRows() {
    this.rows = this.blocks("rows").map((row) => this.row(row));
    this.byId = new Map(this.rows.map((row) => [row.id, row]));
  }

  takeBands() {
    const stories = this.blocks("bands");
    this.bands = new Map(stories.map(([id, bands]) => [id, bands]));
    this.began = new Set(stories.filter(([, , began]) => began).map(([id]) => id));
  }

  row(values) {
    return Object.fromEntries(this.head.columns.map((name, at) => [name, values[at]]));
  }

  history(series) {
    this.series = series;
    this.hasHistory = true;
  }

  sample(at) {
    const { series } = this;
    const last = series.at.at(-1);
    if (!this.hasHistory || this.head.large || (last && at - last < this.head.step_s * 0.9)) return;
    series.at.push(at);
    for (const [name, field] of [["lag", "lag"], ["lag_s", "lag_s"]]) {
      for (const row of this.live) {
        const values = (series[name][row.id] ??= new Array(series.at.length - 1).fill(null));
        values.push(row[field]);
      }
      for (const values of Object.values(series[name])) while (values.length < series.at.length) values.push(null);
    }
    const old = series.at.findIndex((time) => time >= at - WINDOW_S);
    if (old > 0) {
      series.at.splice(0, old);
      for (const name of ["lag", "lag_s"]) for (const values of Object.values(series[name])) values.splice(0, old);
    }
  }

  /** The owner at a time in the past, from the bands. */
  ownerAt(partition, at) {
    for (const [since, until, owner, kind] of this.bands.get(partition) ?? []) {
      if ((since === null || since <= at) && (until === null || at < until)) return { owner, kind };
    }
    return { owner: null, kind: null };
  }

  /** The rows at a time in the past, with partitions that have ended since. */
  rowsAt(at) {
    return this.rows.filter((row) => row.status !== "ended" || ![null, ENDED].includes(this.ownerAt(row.id, at).kind));
  }

  /** Partitions that have ended after this time. */
  overSince(at) {
    return this.over.filter((row) => (this.bands.get(row.id) ?? []).some(([, until, , kind]) => kind !== ENDED && (until === null || until > at)));
  }

  silentSince(member) {
    const { silent_s: silent, heartbeat_s: heartbeat } = member;
    return silent !== null && silent > 2 * heartbeat + 0.5 ? this.sections.now.at - silent : null;
  }
}
