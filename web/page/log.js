/**
 * All events, in columns: when, the member, the kind. What else an event has stays text
 * until somebody asks for it, so a file of a million events opens in a second or two.
 */

import { KINDS, NUMBER, OTHER } from "./kinds.js";

const DECODER = new TextDecoder();

export class EventLog {
  constructor(capacity = 4096) {
    this.count = 0;
    this.at = new Float64Array(capacity);
    /** When it arrived here, on the same clock; in a recording the same as `at`. */
    this.seen = new Float64Array(capacity);
    this.member = new Int32Array(capacity);
    this.kind = new Uint8Array(capacity);
    this.begin = new Float64Array(0);
    this.end = new Float64Array(0);
    /** @type {Uint8Array} */ this.text = new Uint8Array(0);
    /** @type {Map<number, Record<string, any>>} those that were made already */
    this.made = new Map();
  }

  /** @param {Record<string, any>} event @param {number} seen @param {number} at */
  push(event, seen, at) {
    if (this.count === this.at.length) this.#grow();
    const i = this.count++;
    this.at[i] = at;
    this.seen[i] = seen;
    this.member[i] = event.member ?? -1;
    this.kind[i] = NUMBER.get(event.kind) ?? OTHER;
    this.made.set(i, event);
    return i;
  }

  #grow() {
    for (const name of /** @type {const} */ (["at", "seen", "member", "kind"])) {
      const old = this[name];
      const wider = new /** @type {any} */ (old.constructor)(old.length * 2);
      wider.set(old);
      /** @type {any} */ (this)[name] = wider;
    }
  }

  /** All fields of an event. @param {number} i @param {boolean} keep for the next time */
  fields(i, keep = true) {
    const known = this.made.get(i);
    if (known) return known;
    const found = JSON.parse(DECODER.decode(this.text.subarray(this.begin[i], this.end[i])));
    if (keep) this.made.set(i, found);
    return found;
  }

  /** @param {number} i */
  kindName(i) {
    return KINDS[this.kind[i]] ?? this.fields(i).kind;
  }

  /** The integer behind `"name":` in an event, without making all of it.
   * @param {number} i @param {string} name */
  integer(i, name) {
    const known = this.made.get(i);
    if (known) return known[name] ?? -1;
    const { text } = this;
    for (let p = this.begin[i] + 1; p < this.end[i]; p++) {
      if (text[p] !== 34 || text[p + name.length + 1] !== 34) continue;
      let k = 0;
      while (k < name.length && text[p + 1 + k] === name.charCodeAt(k)) k++;
      if (k < name.length) continue;
      p += name.length + 2;
      while (text[p] === 58 || text[p] === 32) p++;
      let value = 0;
      while (text[p] >= 48 && text[p] <= 57) value = value * 10 + text[p++] - 48;
      return value;
    }
    return -1;
  }
}

/**
 * Read a recording.
 * @param {Uint8Array} text JSON lines
 * @returns {{head: Record<string, any>, log: EventLog}}
 */
export function parse(text) {
  const first = text.indexOf(10) < 0 ? text.length : text.indexOf(10);
  let head;
  try {
    head = JSON.parse(DECODER.decode(text.subarray(0, first)));
  } catch {
    throw new Error("This is no recording: its first line is no JSON.");
  }
  if (!head.quorate_trace) throw new Error("This is no recording: its head has no quorate_trace.");
  let lines = 0;
  for (let p = first; p >= 0; p = text.indexOf(10, p + 1)) lines++;
  const log = new EventLog(lines + 1);
  log.text = text;
  log.begin = new Float64Array(lines + 1);
  log.end = new Float64Array(lines + 1);
  let sorted = true;
  for (let begin = first + 1; begin < text.length;) {
    let end = text.indexOf(10, begin);
    if (end < 0) end = text.length;
    const i = log.count;
    log.begin[i] = begin;
    log.end[i] = end;
    // A last line that was cut off by a crash is no event.
    if (end > begin + 1 && (quick(log, i, begin, end) || slow(log, i))) {
      if (i && log.at[i] < log.at[i - 1]) sorted = false;
      log.count++;
    }
    begin = end + 1;
  }
  if (!sorted) sort(log);
  log.seen = log.at;
  return { head, log };
}

const START = [...'{"at":'].map((c) => c.charCodeAt(0));
const MEMBER = [...'"member":'].map((c) => c.charCodeAt(0));
const KIND = [...'"kind":"'].map((c) => c.charCodeAt(0));
const HASHES = new Map(KINDS.map((name, i) => [[...name].reduce((h, c) => (h * 31 + c.charCodeAt(0)) | 0, 0), i]));

/** Read the three fields that begin each line as our writer writes them; false if it is another's.
 * @param {EventLog} log @param {number} i @param {number} p @param {number} end */
function quick(log, i, p, end) {
  const { text } = log;
  if (text[end - 1] !== 125) return false;
  for (let k = 0; k < START.length; k++, p++) if (text[p] !== START[k]) return false;
  let [value, scale] = [0, 0];
  for (; text[p] !== 44; p++) {
    if (text[p] === 46) scale = 1;
    else if (text[p] < 48 || text[p] > 57) return false;
    else {
      value = value * 10 + text[p] - 48;
      scale *= 10;
    }
  }
  p++;
  for (let k = 0; k < MEMBER.length; k++, p++) if (text[p] !== MEMBER[k]) return false;
  let [member, sign] = [0, 1];
  if (text[p] === 45) [sign, p] = [-1, p + 1];
  while (text[p] >= 48 && text[p] <= 57) member = member * 10 + text[p++] - 48;
  p++;
  for (let k = 0; k < KIND.length; k++, p++) if (text[p] !== KIND[k]) return false;
  let hash = 0;
  while (text[p] !== 34 && p < end) hash = (hash * 31 + text[p++]) | 0;
  log.at[i] = scale ? value / scale : value;
  log.member[i] = sign * member;
  log.kind[i] = HASHES.get(hash) ?? OTHER;
  return true;
}

function slow(/** @type {EventLog} */ log, /** @type {number} */ i) {
  try {
    const event = log.fields(i, false);
    log.at[i] = event.at;
    log.member[i] = event.member ?? -1;
    log.kind[i] = NUMBER.get(event.kind) ?? OTHER;
    return true;
  } catch {
    return false;
  }
}

/** Put events in the order of time. @param {EventLog} log */
function sort(log) {
  const order = Uint32Array.from({ length: log.count }, (_, i) => i);
  order.sort((a, b) => log.at[a] - log.at[b] || a - b);
  log.made.clear();
  for (const name of /** @type {const} */ (["at", "member", "kind", "begin", "end"])) {
    const old = log[name].slice();
    for (let i = 0; i < log.count; i++) log[name][i] = old[order[i]];
  }
}

/** How many of `indexes` (ascending by time) are at or before `t`.
 * @param {EventLog} log @param {ArrayLike<number>} indexes @param {number} t */
export function upTo(log, indexes, t) {
  let [low, high] = [0, indexes.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (log.at[indexes[middle]] <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Append an index, ascending by time: live events of several members arrive nearly in order.
 * @param {EventLog} log @param {number[]} indexes @param {number} i */
export function append(log, indexes, i) {
  let k = indexes.length;
  while (k > 0 && log.at[indexes[k - 1]] > log.at[i]) k--;
  if (k === indexes.length) indexes.push(i);
  else indexes.splice(k, 0, i);
}
