/** The list of events, newest first, filtered by member, kind and words. */

import { bytes, el, moment, put, span, zone } from "./format.js";
import { KINDS, sentence } from "./kinds.js";
import { upTo } from "./log.js";

const SHOWN = 200;
const GROUPS = {
  "changes": null,
  "transitions": ["enters", "leads"],
  "life and faults": ["starts", "ends", "stops", "fails", "killed", "powerless", "pauses", "resumes", "wiped", "removed", "fault", "violation", "link", "created"],
  "snapshots, config, disk": ["snapshot", "config", "disk"],
  "slow batches": ["batch"],
  "messages": ["sends", "hears"],
};

export class Events {
  /** @param {HTMLElement} list @param {HTMLElement} form @param {HTMLElement} note
   * @param {(t: number, index: number) => void} go */
  constructor(list, form, note, go) {
    this.list = list;
    this.note = note;
    this.go = go;
    this.key = this.ids = "";
    this.at = -1;
    /** @type {import("./model.js").Model | null} */ this.model = null;
    /** @type {any} */ this.picture = null;
    this.member = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "Member" }, el("option", { value: "" }, "all members")));
    this.group = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "Kind" }, ...Object.keys(GROUPS).map((name) => el("option", {}, name))));
    this.words = /** @type {HTMLInputElement} */ (el("input", { type: "search", placeholder: "words", "aria-label": "Words in the event" }));
    form.append(this.member, this.group, this.words);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => this.model && this.update(this.model, this.picture));
  }

  /** @param {import("./model.js").Model} model @param {any} picture */
  update(model, picture) {
    [this.model, this.picture] = [model, picture];
    const ids = model.ids.join();
    if (this.ids !== ids) {
      this.ids = ids;
      this.member.replaceChildren(el("option", { value: "" }, "all members"), ...model.ids.map((id) => el("option", { value: String(id) }, `member ${id}`)));
    }
    const kinds = GROUPS[/** @type {keyof typeof GROUPS} */ (this.group.value)];
    const { message, batch, mark } = model.order;
    const source = this.group.value === "messages" ? message : this.group.value === "slow batches" ? batch : mark;
    const last = upTo(model.log, source, picture.at);
    const key = [last, source.length, source[last - 1], this.member.value, this.group.value, this.words.value].join();
    if (this.key === key) return;
    this.key = key;
    /** @type {Node[]} */ const lines = [];
    let k = last - 1;
    for (let read = 0; k >= 0 && lines.length < SHOWN && read < 20000; k--, read++) {
      const line = this.#line(model, source[k], kinds);
      if (line) lines.push(line);
    }
    this.list.replaceChildren(...lines);
    put(this.note, `${zone(model.head)}${lines.length === SHOWN ? `; the newest ${SHOWN} up to now` : ""}`);
    if (!lines.length) this.list.append(el("li", { class: "none" }, model.live ? "Nothing of this kind since this page was opened." : "Nothing of this kind until this moment."));
  }

  /** @param {import("./model.js").Model} model @param {number} i @param {string[] | null} kinds */
  #line(model, i, kinds) {
    const { log } = model;
    const [id, kind] = [log.member[i], KINDS[log.kind[i]] ?? log.kindName(i)];
    if (this.member.value !== "" && id !== Number(this.member.value)) return null;
    if (kinds && !kinds.includes(kind)) return null;
    const text = sentence(kind, log.fields(i, model.live), { bytes, span });
    const words = this.words.value.toLowerCase();
    if (words && !`${kind} ${text}`.toLowerCase().includes(words)) return null;
    return el("li", { "data-kind": kind, class: i === this.at ? "here" : "" },
      el("button", { type: "button", title: "Show it on the timeline", onclick: () => this.go(log.at[i], i) },
        el("time", {}, moment(model.head, log.at[i])), el("b", {}, id < 0 ? "" : String(id)), el("em", {}, kind), el("span", {}, text)));
  }

  /** The event at which the player stands. @param {number} index */
  mark(index) {
    this.at = index;
    this.key = "";
  }
}
