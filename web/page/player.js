/** Moves through a recording, or back through what a live page has seen: buttons, keys, a slider. */

import { el, moment, put } from "./format.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 5, 10, 100];
/** @type {Record<string, "transition" | "message" | "violation" | "mark">} */
const KEYS = { t: "transition", m: "message", v: "violation", e: "mark" };
const GROUPS = /** @type {const} */ (["message", "transition", "violation"]);

export class Player {
  /** @param {HTMLElement} root @param {(t: number, index: number) => void} moved
   * @param {{scale: (factor: number) => void, reveal: (t: number) => void, model?: any}} timeline */
  constructor(root, moved, timeline) {
    this.root = root;
    this.moved = moved;
    this.timeline = timeline;
    this.t = 0;
    this.index = -1;
    this.playing = false;
    this.speed = 1;
    this.play = el("button", { type: "button", class: "play", onclick: () => this.toggle() }, "▶");
    this.slider = /** @type {HTMLInputElement} */ (el("input", { type: "range", min: "0", max: "100000", "aria-label": "Time", oninput: () => this.to(this.#at()) }));
    this.clock = el("output", {});
    this.select = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "Speed", onchange: () => { this.speed = Number(this.select.value); } },
      ...SPEEDS.map((n) => el("option", { value: String(n), selected: n === 1 }, `×${n}`))));
    this.steps = el("span", { class: "buttons" }, ...GROUPS.map((group) => el("span", { class: "pair", "data-group": group },
      el("button", { type: "button", title: `previous ${group} (${group[0].toUpperCase()})`, "aria-label": `previous ${group}`, onclick: () => this.step(group, -1) }, "‹"),
      el("button", { type: "button", title: `next ${group} (${group[0]})`, "aria-label": `next ${group}`, onclick: () => this.step(group, 1) }, `${group} ›`))));
    this.live = el("button", { type: "button", hidden: true, onclick: () => this.follow() }, "back to now");
    this.what = el("p", { class: "what", role: "status" });
    root.append(el("div", { class: "controls" }, this.play, this.select, this.slider, this.clock, this.steps, this.live), this.what);
    addEventListener("keydown", (event) => this.#key(event));
  }

  /** @param {import("./model.js").Model} model */
  begin(model) {
    this.model = model;
    this.following = model.live;
    this.t = model.live ? model.end : model.begin;
    this.index = -1;
    this.root.classList.toggle("live", model.live);
    this.show();
  }

  get range() {
    const model = /** @type {import("./model.js").Model} */ (this.model);
    return { begin: model.begin, length: Math.max(1e-9, model.end - model.begin) };
  }

  #at() {
    const { begin, length } = this.range;
    return begin + (Number(this.slider.value) / 1e5) * length;
  }

  toggle() {
    this.playing = !this.playing;
    const { begin, length } = this.range;
    if (this.playing && !this.model?.live && this.t >= begin + length) this.t = begin;
    if (this.playing && this.following) this.playing = this.following = false;
    if (this.playing) {
      this.last = performance.now();
      requestAnimationFrame((now) => this.#tick(now));
    }
    this.show();
    this.moved(this.t, this.index);
  }

  /** @param {number} now */
  #tick(now) {
    if (!this.playing) return;
    const { begin, length } = this.range;
    this.t += ((now - (this.last ?? now)) / 1000) * this.speed;
    this.last = now;
    this.index = -1;
    if (this.t >= begin + length) {
      [this.t, this.playing] = [begin + length, false];
      if (this.model?.live) this.follow();
    } else requestAnimationFrame((next) => this.#tick(next));
    this.timeline.reveal(this.t);
    this.show();
    this.moved(this.t, -1);
  }

  /** @param {number} t @param {number} index the event that is shown there, or -1 */
  to(t, index = -1) {
    const { begin, length } = this.range;
    // An event that was before a live page was opened has a moment, too.
    this.t = Math.min(begin + length, Math.max(index < 0 ? begin : this.model?.earliest ?? begin, t));
    [this.index, this.playing, this.following] = [index, false, false];
    this.timeline.reveal(this.t);
    this.show();
    this.moved(this.t, index);
  }

  /** Show what happens now, again. */
  follow() {
    if (!this.model?.live) return;
    [this.following, this.playing, this.index] = [true, false, -1];
    this.show();
    this.moved(this.t, -1);
  }

  /** @param {"transition" | "message" | "violation" | "mark"} group @param {1 | -1} direction */
  step(group, direction) {
    const next = this.model?.step(group, this.index, this.t, direction) ?? -1;
    if (next >= 0) this.to(/** @type {any} */ (this.model).log.at[next], next);
  }

  show() {
    if (!this.model) return;
    const { begin, length } = this.range;
    if (document.activeElement !== this.slider || this.playing || this.index >= 0) this.slider.value = String(Math.round(((this.t - begin) / length) * 1e5));
    put(this.play, this.playing ? "❚❚" : this.following ? "❚❚" : "▶", this.playing || this.following ? "pause (space)" : "play (space)");
    put(this.clock, moment(this.model.head, this.t, this.model.head.started_ms ? 3 : 6));
    this.slider.setAttribute("aria-valuetext", this.clock.textContent ?? "");
    for (const pair of /** @type {NodeListOf<HTMLElement>} */ (this.steps.querySelectorAll(".pair"))) {
      pair.hidden = !this.model.order[/** @type {"message"} */ (pair.dataset.group)].length;
    }
    this.live.hidden = !this.model.live || Boolean(this.following);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) && target !== this.slider) return;
    const group = KEYS[event.key.toLowerCase()];
    if (group && this.model) this.step(group, event.shiftKey ? -1 : 1);
    else if (event.key === " " && target.tagName !== "BUTTON") this.toggle();
    else if (event.key === "+" || event.key === "=") this.timeline.scale(0.5);
    else if (event.key === "-") this.timeline.scale(2);
    else if (event.key === "ArrowLeft" && target !== this.slider) this.step("mark", -1);
    else if (event.key === "ArrowRight" && target !== this.slider) this.step("mark", 1);
    else if (event.key === "Home") this.to(this.range.begin);
    else if (event.key === "End") this.model?.live ? this.follow() : this.to(this.range.begin + this.range.length);
    else return;
    event.preventDefault();
  }
}
