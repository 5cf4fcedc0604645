// The stream from the server: read with fetch, so that the token travels in a header. It reconnects automatically.

const SILENT_MS = 15000;
const FIRST_MS = 500;
const MOST_MS = 15000;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem("evenflow-token"),
  set: (text) => sessionStorage.setItem("evenflow-token", text),
  forget: () => sessionStorage.removeItem("evenflow-token"),
};

function headers(more = {}) {
  return token.get() ? { ...more, Authorization: `Bearer ${token.get()}` } : more;
}

async function answer(response) {
  const said = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, said.error ?? `The console answered ${response.status}.`);
  return said;
}

const query = (parts) => new URLSearchParams(Object.entries(parts).filter(([, value]) => value !== null)).toString();

export async function ask(what, parts = {}) {
  return answer(await fetch(`api/${what}?${query(parts)}`, { headers: headers() }));
}

export async function act(what, group, body) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) };
  return answer(await fetch(`api/${what}?${query({ group })}`, options));
}

/** Calls `on.picture(message)` and `on.state({kind, since, why, again_ms})`; returns a function that ends it. */
export function follow(group, on) {
  const ending = new AbortController();
  live(group, on, ending.signal);
  return () => ending.abort();
}

async function live(group, on, over) {
  let failures = 0;
  let lost = null;
  while (!over.aborted) {
    try {
      await read(group, over, (message) => {
        failures = 0;
        lost = null;
        on.state({ kind: "live" });
        on.picture(message);
      });
      throw new Error("the stream has ended");
    } catch (error) {
      if (over.aborted) return;
      if (error instanceof Refused && [400, 401, 421].includes(error.status)) {
        on.state({ kind: "refused", status: error.status, why: error.message });
        return;
      }
      lost ??= Date.now();
      const wait = Math.min(MOST_MS, FIRST_MS * 2 ** failures) * (0.8 + 0.4 * Math.random());
      failures += 1;
      const why = error instanceof Refused ? error.message : "the console does not answer";
      on.state({ kind: "lost", since: lost / 1000, why, again_ms: wait });
      await new Promise((done) => {
        const timer = setTimeout(done, wait);
        over.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
      });
    }
  }
}

async function read(group, over, heard) {
  const cut = new AbortController();
  const stop = () => cut.abort();
  over.addEventListener("abort", stop, { once: true });
  let silence = setTimeout(stop, SILENT_MS);
  try {
    const response = await fetch(`api/stream?${query({ group })}`, { headers: headers(), signal: cut.signal });
    if (!response.ok) await answer(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(stop, SILENT_MS);
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) heard(JSON.parse(part.slice(6)));
    }
  } finally {
    clearTimeout(silence);
    over.removeEventListener("abort", stop);
  }
}
