/** Numbers, times and small elements as text: the same everywhere on the page. */

export const UNKNOWN = "–";

const COUNTS = new Intl.NumberFormat("en");

/** @param {number | null | undefined} n */
export function count(n) {
  return n == null || Number.isNaN(n) ? UNKNOWN : COUNTS.format(Math.round(n));
}

/** A rate: three digits are enough. @param {number | null | undefined} n */
export function rate(n) {
  if (n == null) return UNKNOWN;
  if (n >= 1e6) return `${(n / 1e6).toPrecision(3)} M`;
  if (n >= 1e5) return `${Math.round(n / 1e3)} k`;
  return n < 10 && n > 0 ? n.toPrecision(2) : count(n);
}

/** @param {number | null | undefined} n */
export function bytes(n) {
  if (n == null) return UNKNOWN;
  let [value, unit] = [Math.abs(n), "B"];
  for (const next of ["KiB", "MiB", "GiB", "TiB"]) {
    if (value < 1024) break;
    [value, unit] = [value / 1024, next];
  }
  const text = unit === "B" ? count(value) : value.toPrecision(value < 1000 ? 3 : 4);
  return `${n < 0 ? "−" : ""}${text} ${unit}`;
}

/** A duration. @param {number | null | undefined} s seconds */
export function span(s) {
  if (s == null) return UNKNOWN;
  if (s === 0) return "0 s";
  if (s < 0.0995) return s < 0.001 ? `${Math.max(0, Math.round(s * 1e6))} µs` : `${sig(s * 1e3)} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(s < 1 ? 2 : 1) : Math.round(s)} s`;
  const [part, large, small] = s < 3600 ? [60, "min", "s"] : s < 86400 ? [3600, "h", "min"] : [86400, "d", "h"];
  const rest = Math.floor((s % part) / (part === 86400 ? 3600 : part / 60));
  return `${Math.floor(s / part)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

/** A duration in four letters. @param {number} s seconds */
export function brief(s) {
  if (s < 1) return "<1s";
  return s < 100 ? `${Math.floor(s)}s` : s < 6000 ? `${Math.floor(s / 60)}m` : s < 360_000 ? `${Math.floor(s / 3600)}h` : `${Math.floor(s / 86400)}d`;
}

/** A duration that is estimated. @param {number | null | undefined} s seconds */
export function about(s) {
  return s == null ? UNKNOWN : `≈ ${span(s)}`;
}

function sig(/** @type {number} */ n) {
  return n < 10 ? n.toFixed(1) : Math.round(n);
}

/** How old something was when the page shows it: now, or then if it looks back.
 * @param {{at: number, now?: string}} picture @param {number} seen */
export function ago(picture, seen) {
  const age = picture.at - seen;
  return age < 0.5 ? picture.now ?? "now" : `${span(age)} ${picture.now === "then" ? "before" : "ago"}`;
}

/**
 * A moment: local time of day if the recording has wall clock, else seconds of virtual time.
 * @param {{started_ms?: number}} head
 * @param {number} at seconds since the recording began
 * @param {number} digits of the seconds' fraction
 */
export function moment(head, at, digits = 3) {
  if (!head.started_ms) return `${at.toFixed(digits)} s`;
  const date = new Date(head.started_ms + at * 1000);
  const pad = (/** @type {number} */ n, width = 2) => String(n).padStart(width, "0");
  const day = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return digits ? `${day}.${pad(date.getMilliseconds(), 3).slice(0, digits)}` : day;
}

/** The zone of `moment`, for a title. @param {{started_ms?: number}} head */
export function zone(head) {
  if (!head.started_ms) return "virtual time, in seconds";
  const minutes = -new Date(head.started_ms).getTimezoneOffset();
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!minutes) return "UTC";
  const sign = minutes < 0 ? "−" : "+";
  const hours = String(Math.floor(Math.abs(minutes) / 60)).padStart(2, "0");
  return `${name}, UTC${sign}${hours}:${String(Math.abs(minutes) % 60).padStart(2, "0")}`;
}

/**
 * Make an element.
 * @param {string} tag
 * @param {Record<string, any>} attributes
 * @param {...(Node | string)} children
 */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} tag @param {Record<string, any>} attributes */
export function svg(tag, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  if (text) made.textContent = text;
  return made;
}

/** Set a text only if it changed: an unchanged page costs the browser nothing.
 * @param {Element} element @param {string} text @param {string | null} title */
export function put(element, text, title = null) {
  if (element.textContent !== text) element.textContent = text;
  if (title !== null && element.getAttribute("title") !== title) element.setAttribute("title", title);
}

/** The word for a small number. @param {number} n */
export function word(n) {
  return ["none", "one", "two", "three", "four", "five"][n] ?? String(n);
}
