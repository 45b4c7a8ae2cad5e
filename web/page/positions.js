/** A row for each member: what it does, and where its log stands on one axis of bytes. */

import { UNKNOWN, ago, bytes, count, el, moment, put, span } from "./format.js";
import { MEANING, WORKS } from "./kinds.js";
import { half, mark, nameOf } from "./marker.js";
import { lagOf } from "./model.js";

const NAMES = /** @type {const} */ (["append", "commit", "applied", "snapshot"]);
const WORDS = { append: "log ends (durable)", commit: "committed", applied: "applied", snapshot: "newest snapshot" };

export class Positions {
  /** @param {HTMLElement} root @param {HTMLElement} note */
  constructor(root, note) {
    this.root = root;
    this.note = note;
    /** @type {Map<number, Record<string, HTMLElement>>} */ this.rows = new Map();
    this.span = 4096;
    this.axis = el("div", { class: "row head", "aria-hidden": "true" });
    for (const name of ["", "state", "for", "term", "last step", "", "log", "lag", "as of"]) this.axis.append(el("span", {}, name));
    this.scale = /** @type {HTMLElement} */ (this.axis.children[5]);
    this.scale.className = "scale";
    this.scale.append(el("span"), el("span"));
    const sample = (/** @type {string} */ name) => el("i", { class: name });
    note.after(el("span", { class: "key" }, sample("applied"), "applied", sample("commit"), "committed", sample("append"), "durable", el("b", {}, "◆"), "snapshot"));
    root.append(this.axis);
  }

  /** @param {import("./model.js").Model} model @param {any} picture */
  update(model, picture) {
    const axis = this.#axis(picture);
    for (const [id, row] of this.rows) {
      if (picture.members.some((/** @type {any} */ each) => each.id === id)) continue;
      row.row.remove();
      this.rows.delete(id);
    }
    for (const member of picture.members) this.#row(model, picture, member, axis);
    put(this.note, model.live ? "each as it reported itself last, at its own moment; not heard for 2 s: hatched, or a broken outline" : `each as it had reported itself until ${moment(model.head, picture.at)}`);
  }

  /** The part of the log that is shown: its end, and as much before it as members differ by.
   * @param {any} picture */
  #axis(picture) {
    /** @type {number[]} */
    const all = picture.members.flatMap((/** @type {any} */ { positions: each }) => [each.append, each.commit, each.applied])
      .filter((/** @type {any} */ n) => typeof n === "number" && n >= 0);
    if (!all.length) return null;
    const [low, high] = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
    // Powers of four, and narrower only when it is much too wide: the axis is calm.
    while (this.span < (high - low) * 1.15) this.span *= 4;
    while (this.span > 4096 && this.span > (high - low) * 16) this.span /= 4;
    const begin = Math.max(0, high - this.span);
    put(/** @type {Element} */ (this.scale.firstElementChild), bytes(begin), `${count(begin)} bytes`);
    put(/** @type {Element} */ (this.scale.lastElementChild), bytes(high), `${count(high)} bytes`);
    return { begin, width: Math.max(1, high - begin), high };
  }

  /** @param {number} id */
  #make(id) {
    /** @type {Record<string, HTMLElement>} */
    const row = {};
    for (const name of ["state", "for", "term", "why", "append", "lag", "seen"]) row[name] = el("span", { class: name });
    for (const name of NAMES) row[`bar-${name}`] = el("i", { class: name });
    row.bar = el("span", { class: "bar" }, row["bar-append"], row["bar-commit"], row["bar-applied"], row["bar-snapshot"]);
    const who = el("span", { class: "who" }, /** @type {any} */ (mark(id)));
    row.row = el("div", { class: "row member", "data-member": String(id) }, who, row.state, row.for, row.term, row.why, row.bar, row.append, row.lag, row.seen);
    this.rows.set(id, row);
    this.root.append(row.row);
    // The longest number decides how wide the column of numbers is, here and in the list of events.
    document.documentElement.style.setProperty("--who", `${Math.max(26, ...[...this.rows.keys()].map((each) => 2 * half(each, 9)))}px`);
    return row;
  }

  /** @param {import("./model.js").Model} model @param {any} picture @param {any} member @param {any} axis */
  #row(model, picture, member, axis) {
    const row = this.rows.get(member.id) ?? this.#make(member.id);
    const { step, status, positions } = member;
    row.row.className = `row member ${member.dead ? "dead" : step?.work ?? ""}${member.stale || !member.known ? " stale" : ""}`;
    const title = `Member ${member.id}, ${member.known ? `as it reported itself, ${ago(picture, member.seen)}` : "not heard yet"}`;
    put(row.state, nameOf(member), `${title}: ${step?.state ?? UNKNOWN}${step ? `, ${MEANING[step.state] ?? step.dead}` : ""}${status ? `; ${status.standing}` : ""}`);
    put(row.for, step && member.known && !member.stale ? span(Math.max(0, picture.at - step.at)) : UNKNOWN, step ? `since ${moment(model.head, step.at)}` : title);
    put(row.term, member.term == null || member.term < 0 ? UNKNOWN : String(member.term), title);
    const why = trouble(model, picture, member);
    put(row.why, why.text, why.text);
    row.why.classList.toggle("trouble", why.bad);
    const log = positions.append;
    put(row.append, log == null ? UNKNOWN : count(log), NAMES.map((name) => `${WORDS[name]}: ${positions[name] == null ? UNKNOWN : `${count(positions[name])} bytes`}`).join("\n") + `\n${title}`);
    const { lag, by } = lagOf(member, picture.members);
    // A leader knows how far a member is behind that is silent here.
    const other = lag != null && member.stale && by != null;
    row.lag.classList.toggle("old", !other);
    put(row.lag, `${lag === 0 ? "0" : bytes(lag)}${other ? `, by ${by}` : ""}`, by == null ? `behind the longest log that was reported. ${title}` : `as its leader, member ${by}, reports it`);
    const when = moment(model.head, member.seen);
    put(row.seen, member.known ? (picture.now === "now" ? heard(picture, member) : when) : UNKNOWN, member.known ? `reported by member ${member.by} at ${when}` : title);
    for (const name of NAMES) place(row[`bar-${name}`], name, positions[name], axis);
  }
}

/** How old a row is, and which member reported it if that was another one. @param {any} picture @param {any} member */
function heard(picture, member) {
  return `${ago(picture, member.seen)}${member.by === member.id ? "" : `, by ${member.by}`}`;
}

/** @param {HTMLElement} bar @param {string} name @param {number | null} position @param {any} axis */
function place(bar, name, position, axis) {
  bar.hidden = position == null || !axis;
  if (position == null || !axis) return;
  const at = Math.max(0, Math.min(100, (100 * (position - axis.begin)) / axis.width));
  if (name === "snapshot") {
    bar.style.left = `${at}%`;
    bar.textContent = position < axis.begin ? "◂" : "◆";
  } else bar.style.width = `${Math.max(at, 0.4)}%`;
}

/** What is wrong with a member, or why it took its last step.
 * @param {import("./model.js").Model} model @param {any} picture @param {any} member */
function trouble(model, picture, member) {
  const cut = member.cut ? `; ${member.cut}` : "";
  if (!member.known) return { text: `nothing was heard of it${cut}`, bad: true };
  if (member.stale) return { text: `silent for ${span(picture.at - member.seen)}; it ${WORKS[member.step?.work]?.[2] ?? "was"} then${cut}`, bad: true };
  const { status, step } = member;
  if (status?.damage) return { text: status.damage, bad: true };
  if (status?.disk_full) return { text: "its disk is full: it appends nothing", bad: true };
  if (status?.not_heard?.length) return { text: `waits for members ${status.not_heard.join(", ")}`, bad: true };
  if (status?.snapshot_failure) return { text: `snapshot: ${status.snapshot_failure}`, bad: true };
  return { text: step?.reason || status?.snapshot_activity || "", bad: false };
}
