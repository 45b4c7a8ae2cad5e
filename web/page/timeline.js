/**
 * A lane per member on an axis of time: the state as a bar whose colour and height say what work it
 * is, terms as bands, elections with their cause, marks of what happened, and messages as arrows.
 */

import { drawArrows, drawMarks } from "./arrows.js";
import { moment } from "./format.js";
import { WORKS } from "./kinds.js";
import { drawLane, drawTerms } from "./lanes.js";
import { half, nameOf, trace } from "./marker.js";
import { Messages } from "./messages.js";
import { Pen } from "./pen.js";

/** Half the height of a member's mark. */
const MARK = 8;

export class Timeline {
  /** @param {HTMLCanvasElement} canvas @param {HTMLElement} tip @param {(t: number, index: number) => void} go */
  constructor(canvas, tip, go) {
    this.canvas = canvas;
    this.pen = new Pen(/** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")));
    this.tip = tip;
    this.go = go;
    this.follow = true;
    this.index = -1;
    this.until = 0;
    this.half = MARK;
    /** How many sends and hears there are, if too many to draw. */ this.crowd = 0;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.pen.colours = {}; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(canvas);
    this.#listen();
  }

  /** How long a time is shown, in seconds. */
  get width() {
    return this.pen.width;
  }

  get from() {
    return this.pen.from;
  }

  /** @param {import("./model.js").Model} model */
  begin(model) {
    this.model = model;
    this.messages = new Messages(model);
    if (!model.live) [this.pen.from, this.pen.width] = [model.begin, Math.max(1e-3, (model.end - model.begin) * 1.02)];
  }

  /** @param {any} picture @param {number} now until when something is known
   * @param {number} index the event at which the player stands */
  update(picture, now, index = -1) {
    this.picture = picture;
    this.until = now;
    this.index = index;
    if (this.follow && this.model?.live) this.pen.from = picture.at - this.pen.width * 0.97;
    this.draw();
  }

  /** Show `width` seconds around `t`. @param {number} t @param {number} width */
  zoom(t, width, place = 0.5) {
    const most = this.model?.live ? 86400 : Math.max(1e-3, (this.model?.end ?? 1) - (this.model?.begin ?? 0)) * 1.02;
    this.pen.width = Math.min(most, Math.max(2e-5, width));
    this.pen.from = t - this.pen.width * place;
    this.draw();
  }

  /** Zoom at the middle, or at the end if the end is followed. @param {number} factor */
  scale(factor) {
    const at = this.follow && this.model?.live ? 0.97 : this.#visible(this.picture?.at ?? 0) ? (this.picture.at - this.pen.from) / this.pen.width : 0.5;
    this.zoom(this.pen.from + this.pen.width * at, this.pen.width * factor, at);
  }

  /** Bring `t` into view. @param {number} t */
  reveal(t) {
    if (!this.#visible(t)) this.zoom(t, this.pen.width);
  }

  #visible(/** @type {number} */ t) {
    return t >= this.pen.from + this.pen.width * 0.02 && t <= this.pen.from + this.pen.width * 0.98;
  }

  #listen() {
    const { canvas } = this;
    /** @type {{x: number, from: number} | null} */ let drag = null;
    let moved = false;
    canvas.addEventListener("pointerdown", (e) => { [drag, moved] = [{ x: e.offsetX, from: this.pen.from }, false]; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointermove", (e) => {
      if (drag && Math.abs(e.offsetX - drag.x) > 3) {
        [moved, this.follow] = [true, false];
        this.pen.from = drag.from - ((e.offsetX - drag.x) / this.pen.plot) * this.pen.width;
        this.draw();
      } else if (!drag) this.#point(e);
    });
    canvas.addEventListener("pointerup", (e) => {
      if (!moved && e.offsetX > this.pen.left) {
        const hit = this.#hit(e.offsetX, e.offsetY);
        this.go(hit && hit.index >= 0 ? hit.at : this.pen.time(e.offsetX), hit ? hit.index : -1);
      }
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("dblclick", (e) => this.zoom(this.pen.time(e.offsetX), this.pen.width / 8));
    canvas.addEventListener("wheel", (e) => {
      if (e.ctrlKey || e.metaKey) {
        const at = (e.offsetX - this.pen.left) / this.pen.plot;
        this.follow &&= !this.model?.live || at > 0.9;
        this.zoom(this.pen.time(e.offsetX), this.pen.width * 1.0025 ** e.deltaY, at);
      } else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        this.follow = false;
        this.pen.from += (e.deltaX / this.pen.plot) * this.pen.width;
        this.draw();
      } else return;
      e.preventDefault();
    }, { passive: false });
  }

  /** @param {number} x @param {number} y */
  #hit(x, y) {
    return this.pen.hits.findLast((h) => x >= h.x - 2 && x <= h.x + h.w + 2 && y >= h.y && y <= h.y + h.h);
  }

  /** @param {PointerEvent} e */
  #point(e) {
    const hit = this.#hit(e.offsetX, e.offsetY);
    this.tip.hidden = !hit;
    if (!hit) return;
    this.tip.textContent = hit.text;
    const [w, h] = [this.tip.offsetWidth, this.tip.offsetHeight];
    this.tip.style.left = `${Math.max(4, Math.min(e.clientX + 12, innerWidth - w - 8))}px`;
    this.tip.style.top = `${e.clientY + 16 + h > innerHeight ? e.clientY - h - 12 : e.clientY + 16}px`;
  }

  draw() {
    const { canvas, model, picture, messages, pen } = this;
    if (!model || !picture || !messages) return;
    const { g, top, foot } = pen;
    const ids = model.ids;
    const [w, tall] = [canvas.clientWidth, ids.length > 5 ? 30 : 38];
    const marks = model.order.mark.some((i) => model.log.member[i] < 0);
    const h = top + ids.length * tall + (marks ? 18 : 0) + foot;
    const ratio = devicePixelRatio || 1;
    if (canvas.style.height !== `${h}px`) canvas.style.height = `${h}px`;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      [canvas.width, canvas.height] = [Math.round(w * ratio), Math.round(h * ratio)];
    }
    this.half = Math.max(...ids.map((id) => half(id, MARK)));
    pen.left = 2 * this.half + (w < 600 ? 14 : 80);
    pen.plot = Math.max(10, w - pen.left - 8);
    pen.bottom = top + ids.length * tall;
    pen.lanes = new Map(ids.map((id, k) => [id, { y: top + k * tall + 5, h: tall - 10 }]));
    pen.hits = [];
    pen.words = [];
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, w, h);
    g.save();
    g.beginPath();
    g.rect(pen.left, 0, pen.plot, h);
    g.clip();
    const view = { model, picture, messages, until: this.until, follow: this.follow, index: this.index };
    pen.axis(h, model);
    drawTerms(pen, view);
    for (const id of ids) drawLane(pen, view, id);
    this.crowd = drawArrows(pen, view);
    drawMarks(pen, view, model.order.batch, false);
    drawMarks(pen, view, model.order.mark, marks);
    this.#head(h);
    g.restore();
    this.#names(w);
  }

  /** The time that is shown. @param {number} h */
  #head(h) {
    const { picture, model } = this;
    const { g, foot } = this.pen;
    if (model?.live && this.follow) return;
    const x = Math.round(this.pen.x(picture.at)) + 0.5;
    g.strokeStyle = this.pen.colour("ink");
    this.pen.line(x, 0, x, h - foot + 4);
    g.fillStyle = this.pen.colour("ink");
    g.font = this.pen.font(11, 600);
    const text = moment(model?.head ?? {}, picture.at, model?.head.started_ms ? 3 : 6);
    const wide = g.measureText(text).width + 10;
    const begin = Math.min(Math.max(x - wide / 2, this.pen.left), this.pen.left + this.pen.plot - wide);
    g.fillRect(begin, h - foot + 3, wide, 17);
    g.fillStyle = this.pen.colour("panel");
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillText(text, begin + 5, h - foot + 12);
  }

  /** @param {number} w */
  #names(w) {
    const { picture } = this;
    const { g } = this.pen;
    for (const [id, place] of this.pen.lanes) {
      const member = picture.members.find((/** @type {any} */ each) => each.id === id) ?? { id, known: true, dead: "removed" };
      const y = place.y + place.h / 2;
      const x = this.half + 5;
      trace(g, member.id, x, y, MARK);
      const dim = !member.known || member.stale || member.dead;
      g.fillStyle = this.pen.colour(dim ? "panel" : member.leads ? "lead" : "ink3");
      g.fill();
      g.strokeStyle = this.pen.colour(member.leads && !dim ? "lead" : "ink3");
      g.stroke();
      g.fillStyle = this.pen.colour(dim ? "ink2" : "on-mark");
      g.font = this.pen.font(10, 700);
      g.textAlign = "center";
      g.textBaseline = "middle";
      g.fillText(String(member.id), x, y + 0.5);
      if (w < 600) continue;
      g.font = this.pen.font(11);
      g.textAlign = "left";
      g.fillStyle = this.pen.colour(dim ? "bad" : "ink");
      const name = member.known && !member.stale && !member.dead && !member.paused ? WORKS[member.step?.work]?.[0] ?? "" : nameOf(member);
      g.fillText(name, x + this.half + 6, y);
    }
  }
}
