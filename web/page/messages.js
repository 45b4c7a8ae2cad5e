/**
 * Messages as arrows: the n-th that was sent on a link is the n-th that is heard there, since links
 * are ordered. What was sent and never heard was lost with its link; of a member none of whose messages
 * are in the recording nobody knows what it heard.
 */

import { NUMBER } from "./kinds.js";
import { upTo } from "./log.js";

const SENDS = NUMBER.get("sends");

/** @typedef {{from: number, to: number, sent: number, heard: number, index: number}} Flight
 *   `sent` and `heard` are times, `heard` is NaN if no event says so; `index` is the event of sending */

export class Messages {
  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.read = 0;
    /** @type {Map<string, Int32Array | number[]>} for each link, its n-th message: event heard */
    this.heard = new Map();
    /** @type {Set<number>} members whose own messages were recorded */
    this.tellers = new Set();
  }

  /** @param {number} from @param {number} to @param {number} i */
  #link(from, to, i) {
    const key = `${from}>${to}#${this.model.log.integer(i, "link")}`;
    let found = this.heard.get(key);
    if (!found) this.heard.set(key, (found = []));
    return found;
  }

  /** Index what was heard since the last time: once for a file. */
  #index() {
    const { log, order } = this.model;
    for (; this.read < order.message.length; this.read++) {
      const i = order.message[this.read];
      this.tellers.add(log.member[i]);
      if (log.kind[i] === SENDS) continue;
      this.#link(log.integer(i, "sender"), log.member[i], i)[log.integer(i, "n")] = i;
    }
  }

  /** How many messages were sent in a range of time. @param {number} from @param {number} to */
  count(from, to) {
    const { log, order } = this.model;
    return upTo(log, order.message, to) - upTo(log, order.message, from);
  }

  /** The flights that touch a range of time. @param {number} from @param {number} to
   * @returns {Flight[]} */
  between(from, to) {
    this.#index();
    const { log, order } = this.model;
    const slack = Math.max(0.25, to - from);
    /** @type {Flight[]} */ const found = [];
    for (let k = upTo(log, order.message, from - slack); k < order.message.length; k++) {
      const i = order.message[k];
      if (log.at[i] > to) break;
      if (log.kind[i] !== SENDS) continue;
      const flight = this.of(i);
      if (!(flight.heard < from)) found.push(flight);
    }
    return found;
  }

  /** Whether a flight without an event of hearing was lost, as far as anybody knows.
   * @param {Flight} flight */
  lost(flight) {
    return this.model.omniscient || this.tellers.has(flight.to);
  }

  /** The flight of an event of sending. @param {number} i @returns {Flight} */
  of(i) {
    this.#index();
    const { log } = this.model;
    const [from, to] = [log.member[i], log.integer(i, "to")];
    const end = this.#link(from, to, i)[log.integer(i, "n")];
    return { from, to, sent: log.at[i], heard: end === undefined ? NaN : log.at[end], index: i };
  }
}
