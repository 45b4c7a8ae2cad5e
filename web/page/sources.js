/** Where events come from: a member's stream, or a recording (embedded, fetched, or dropped here). */

import { KINDS } from "./kinds.js";
import { parse } from "./log.js";
import { Model } from "./model.js";

/** The recording that a single file carries, or null. @returns {Uint8Array | null} */
export function embedded() {
  const block = document.getElementById("recording");
  return block?.textContent?.trim() ? new TextEncoder().encode(block.textContent.trim()) : null;
}

/** The recording that the server shows; null if it shows a member. */
export async function fetched() {
  try {
    const answer = await fetch("recording");
    return answer.ok ? new Uint8Array(await answer.arrayBuffer()) : null;
  } catch {
    return null;
  }
}

/** @param {Blob} file @param {string} name */
export async function dropped(file, name) {
  if (!name.endsWith(".zst")) return new Uint8Array(await file.arrayBuffer());
  try {
    const stream = file.stream().pipeThrough(new DecompressionStream(/** @type {any} */ ("zstd")));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new Error(`This browser cannot read ${name}: run "zstd -d ${name}", or "quorate view ${name}".`);
  }
}

/** @param {Uint8Array} bytes */
export function recorded(bytes) {
  const { head, log } = parse(bytes);
  return new Model(head, false, log);
}

/**
 * A member's stream. `now()` is the time on the stream's clock, `connected` whether it flows.
 */
export class Live {
  /** @param {(model: Model) => void} begin @param {() => void} changed */
  constructor(begin, changed) {
    this.connected = false;
    this.refused = false;
    this.since = performance.now();
    this.arrived = performance.now();
    /** @type {Model | null} */ this.model = null;
    this.base = 0;
    this.shift = 0;
    const source = new EventSource("events");
    const take = (/** @type {MessageEvent} */ message) => {
      this.#take(JSON.parse(message.data), begin);
      changed();
    };
    for (const name of ["message", "head", "event", ...KINDS]) source.addEventListener(name, take);
    source.onopen = () => this.#turn(true, changed);
    source.onerror = () => {
      this.refused = source.readyState === EventSource.CLOSED;
      this.#turn(false, changed);
    };
  }

  /** @param {boolean} connected @param {() => void} changed */
  #turn(connected, changed) {
    if (this.connected !== connected) this.since = performance.now();
    this.connected = connected;
    changed();
  }

  /** For how many seconds nothing has come, though the stream is open. */
  get silence() {
    return (performance.now() - this.arrived) / 1000;
  }

  now() {
    return this.base + performance.now() / 1000;
  }

  /** @param {Record<string, any>} event @param {(model: Model) => void} begin */
  #take(event, begin) {
    this.arrived = performance.now();
    if (event.quorate_trace) {
      if (this.model && this.model.head.cluster === event.cluster) {
        // The stream came again, perhaps of a new process: its times continue ours.
        this.shift = ((event.started_ms ?? 0) - (this.model.head.started_ms ?? 0)) / 1000;
        this.model.head.reporter = event.reporter;
      } else {
        this.shift = 0;
        this.base = NaN;
        this.model = new Model(event, true);
        begin(this.model);
      }
      return;
    }
    if (!this.model) return;
    event.at += this.shift;
    // Our clock follows that of the member which serves this page: what arrives is never of later.
    const own = event.kind === "keyframe" || event.member === this.model.head.reporter;
    if (Number.isNaN(this.base) || (own && event.at > this.now())) {
      this.base = event.at - performance.now() / 1000;
    }
    this.model.add(event, this.now());
  }
}
