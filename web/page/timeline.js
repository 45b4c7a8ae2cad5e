/**
 * A lane per member on an axis of time: the state as a bar whose colour and height say what work it
 * is, terms as bands, elections with their cause, marks of what happened, and messages as arrows.
 */

import { moment, span } from "./format.js";
import { DEATHS, KINDS, MEANING, WORKS, sentence } from "./kinds.js";
import { upTo } from "./log.js";
import { nameOf, trace } from "./marker.js";
import { Messages } from "./messages.js";
import * as format from "./format.js";

const TOP = 40;
const FOOT = 22;
/** How high a bar is, as a part of its lane. @type {Record<string, number>} */
const HEIGHTS = { lead: 1, rise: 0.82, ballot: 0.66, seek: 0.5, join: 0.4, follow: 0.26 };
/** Arrows nearer to each other than so many pixels are a grey cloud; their number is written instead. */
const ARROWS_APART = 5;
/** @type {Record<string, string>} */
const SIGNS = { snapshot: "◆", config: "⚙", violation: "✖", fault: "⚡", batch: "▪", link: "⌁", starts: "▲", wiped: "∅", note: "•", fails: "✖", killed: "✖", powerless: "✖", ends: "■", stops: "■", removed: "■", pauses: "‖", resumes: "▸" };

export class Timeline {
  /** @param {HTMLCanvasElement} canvas @param {HTMLElement} tip @param {(t: number, index: number) => void} go */
  constructor(canvas, tip, go) {
    this.canvas = canvas;
    this.g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.tip = tip;
    this.go = go;
    this.width = 60;
    this.from = 0;
    this.follow = true;
    this.index = -1;
    this.until = 0;
    this.left = this.bottom = 0;
    this.plot = 1;
    /** @type {{x: number, y: number, w: number, h: number, text: string, at: number, index: number}[]} */ this.hits = [];
    this.colours = /** @type {Record<string, string>} */ ({});
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = {}; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(canvas);
    this.#listen();
  }

  /** @param {import("./model.js").Model} model */
  begin(model) {
    this.model = model;
    this.messages = new Messages(model);
    if (!model.live) [this.from, this.width] = [model.begin, Math.max(1e-3, (model.end - model.begin) * 1.02)];
  }

  /** @param {any} picture @param {number} now until when something is known
   * @param {number} index the event at which the player stands */
  update(picture, now, index = -1) {
    this.picture = picture;
    this.until = now;
    this.index = index;
    if (this.follow && this.model?.live) this.from = picture.at - this.width * 0.97;
    this.draw();
  }

  /** Show `width` seconds around `t`. @param {number} t @param {number} width */
  zoom(t, width, place = 0.5) {
    const most = this.model?.live ? 86400 : Math.max(1e-3, (this.model?.end ?? 1) - (this.model?.begin ?? 0)) * 1.02;
    this.width = Math.min(most, Math.max(2e-5, width));
    this.from = t - this.width * place;
    this.draw();
  }

  /** Zoom at the middle, or at the end if the end is followed. @param {number} factor */
  scale(factor) {
    const at = this.follow && this.model?.live ? 0.97 : this.#visible(this.picture?.at ?? 0) ? (this.picture.at - this.from) / this.width : 0.5;
    this.zoom(this.from + this.width * at, this.width * factor, at);
  }

  /** Bring `t` into view. @param {number} t */
  reveal(t) {
    if (!this.#visible(t)) this.zoom(t, this.width);
  }

  #visible(/** @type {number} */ t) {
    return t >= this.from + this.width * 0.02 && t <= this.from + this.width * 0.98;
  }

  #listen() {
    const { canvas } = this;
    /** @type {{x: number, from: number} | null} */ let drag = null;
    let moved = false;
    canvas.addEventListener("pointerdown", (e) => { [drag, moved] = [{ x: e.offsetX, from: this.from }, false]; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointermove", (e) => {
      if (drag && Math.abs(e.offsetX - drag.x) > 3) {
        [moved, this.follow] = [true, false];
        this.from = drag.from - ((e.offsetX - drag.x) / this.plot) * this.width;
        this.draw();
      } else if (!drag) this.#point(e);
    });
    canvas.addEventListener("pointerup", (e) => {
      if (!moved && e.offsetX > this.left) {
        const hit = this.#hit(e.offsetX, e.offsetY);
        this.go(hit && hit.index >= 0 ? hit.at : this.#time(e.offsetX), hit ? hit.index : -1);
      }
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("dblclick", (e) => this.zoom(this.#time(e.offsetX), this.width / 8));
    canvas.addEventListener("wheel", (e) => {
      if (e.ctrlKey || e.metaKey) {
        const at = (e.offsetX - this.left) / this.plot;
        this.follow &&= !this.model?.live || at > 0.9;
        this.zoom(this.#time(e.offsetX), this.width * 1.0025 ** e.deltaY, at);
      } else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        this.follow = false;
        this.from += (e.deltaX / this.plot) * this.width;
        this.draw();
      } else return;
      e.preventDefault();
    }, { passive: false });
  }

  /** @param {number} x */
  #time(x) {
    return this.from + ((x - this.left) / this.plot) * this.width;
  }

  /** @param {number} t */
  #x(t) {
    return this.left + ((t - this.from) / this.width) * this.plot;
  }

  /** @param {number} x @param {number} y */
  #hit(x, y) {
    return this.hits.findLast((h) => x >= h.x - 2 && x <= h.x + h.w + 2 && y >= h.y && y <= h.y + h.h);
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

  /** @param {string} name */
  #colour(name) {
    return (this.colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }

  draw() {
    const { canvas, g, model, picture } = this;
    if (!model || !picture) return;
    const ids = model.ids;
    const [w, tall] = [canvas.clientWidth, ids.length > 5 ? 30 : 38];
    const marks = model.order.mark.some((i) => model.log.member[i] < 0);
    const h = TOP + ids.length * tall + (marks ? 18 : 0) + FOOT;
    const ratio = devicePixelRatio || 1;
    if (canvas.style.height !== `${h}px`) canvas.style.height = `${h}px`;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      [canvas.width, canvas.height] = [Math.round(w * ratio), Math.round(h * ratio)];
    }
    this.left = w < 600 ? 30 : 96;
    this.plot = Math.max(10, w - this.left - 8);
    this.bottom = TOP + ids.length * tall;
    this.lanes = new Map(ids.map((id, k) => [id, { y: TOP + k * tall + 5, h: tall - 10 }]));
    this.hits = [];
    /** @type {{x: number, y: number, w: number}[]} where a word stands already */ this.words = [];
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, w, h);
    g.save();
    g.beginPath();
    g.rect(this.left, 0, this.plot, h);
    g.clip();
    this.#axis(h);
    this.#terms();
    for (const id of ids) this.#lane(id);
    this.#arrows();
    this.#marks(model.order.batch, false);
    this.#marks(model.order.mark, marks);
    this.#head(h);
    g.restore();
    this.#names(w);
  }

  /** @param {number} h */
  #axis(h) {
    const { g, model } = this;
    const step = niceStep(this.width / Math.max(2, this.plot / 110));
    const digits = step >= 1 ? 0 : Math.min(model?.head.started_ms ? 3 : 6, Math.ceil(-Math.log10(step) - 1e-9));
    // Wall clock ticks stand on whole seconds of the day, not of the recording.
    const shift = model?.head.started_ms ? (model.head.started_ms / 1000) % step : 0;
    g.font = this.#font(11);
    g.textBaseline = "middle";
    g.textAlign = "left";
    for (let n = Math.ceil((this.from + shift) / step); n * step - shift < this.from + this.width; n++) {
      const x = Math.round(this.#x(n * step - shift)) + 0.5;
      g.strokeStyle = this.#colour("line");
      this.#line(x, TOP - 4, x, this.bottom + 4);
      g.fillStyle = this.#colour("ink2");
      const text = moment(model?.head ?? {}, n * step - shift, digits);
      if (x + 3 + g.measureText(text).width < this.left + this.plot) g.fillText(text, x + 3, h - FOOT / 2);
    }
  }

  #font(/** @type {number} */ size, weight = 400) {
    return `${weight} ${size}px system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif`;
  }

  /** @param {number} x @param {number} y @param {number} toX @param {number} toY */
  #line(x, y, toX, toY) {
    this.g.beginPath();
    this.g.moveTo(x, y);
    this.g.lineTo(toX, toY);
    this.g.stroke();
  }

  #terms() {
    const { g, model, picture } = this;
    const terms = /** @type {import("./model.js").Term[]} */ (model?.terms ?? []);
    terms.forEach((term, k) => {
      const end = terms[k + 1] ? terms[k + 1].at : this.until;
      const [x, to] = [this.#x(term.at), Math.min(this.#x(end), this.left + this.plot)];
      if (to < this.left || x > this.left + this.plot) return;
      const begin = Math.max(x, this.left);
      g.fillStyle = this.#colour(k % 2 ? "band" : "band2");
      g.fillRect(begin, 4, to - begin, this.bottom);
      const took = term.took ? `, election ${span(term.took)}` : "";
      const next = terms[k + 1]?.took ? this.#x(terms[k + 1].at - /** @type {number} */ (terms[k + 1].took)) : to;
      this.#label(`term ${term.term} · ${term.leader} leads`, `${took}${term.cause ? `: ${term.cause}` : ""}`, begin + 6, 15, Math.min(to, next) - begin - 10);
      if (x >= this.left) {
        g.strokeStyle = this.#colour("lead");
        this.#line(Math.round(x) + 0.5, 4, Math.round(x) + 0.5, this.bottom + 4);
      }
      if (term.took) {
        const start = this.#x(term.at - term.took);
        g.fillStyle = this.#colour("seek-soft");
        g.fillRect(start, 24, Math.max(2, x - start), 11);
        g.strokeStyle = this.#colour("seek");
        this.#line(start + 0.5, 24, start + 0.5, this.bottom);
        this.#label(`election ${span(term.took)}`, term.cause ? `: ${term.cause}` : "", start + 4, 30, x - start - 8, 10);
      }
      this.hits.push({ x: begin, y: 4, w: to - begin, h: 20, at: term.at, index: -1, text: `Term ${term.term}: member ${term.leader} leads since ${moment(model?.head ?? {}, term.at)}${took}${term.cause ? `\nWhy: ${term.cause}` : ""}` });
    });
  }

  /** Write as much as there is room for. @param {string} strong @param {string} more @param {number} x @param {number} y @param {number} room */
  #label(strong, more, x, y, room, size = 11, colour = "ink") {
    const { g } = this;
    g.font = this.#font(size, 600);
    const wide = g.measureText(strong).width;
    if (wide > room) {
      const short = strong.split(" · ")[0].split(" ").slice(0, 2).join(" ");
      if (short !== strong && g.measureText(short).width <= room) this.#label(short, "", x, y, room, size, colour);
      return;
    }
    g.textBaseline = "middle";
    g.textAlign = "left";
    g.fillStyle = this.#colour(colour);
    g.fillText(strong, x, y);
    this.words?.push({ x, y, w: wide });
    if (!more) return;
    g.font = this.#font(size);
    let text = more;
    if (g.measureText(text).width > room - wide) {
      text = text.slice(0, Math.max(0, Math.floor((room - wide) / (size * 0.55)) - 1));
      text = text.length > 6 ? `${text.trimEnd()}…` : "";
    }
    g.fillStyle = this.#colour(colour === "ink" ? "ink2" : colour);
    g.fillText(text, x + wide, y);
  }

  /** @param {number} id */
  #lane(id) {
    const { g, model, picture } = this;
    const cut = this.follow && picture.members.find((/** @type {any} */ each) => each.id === id)?.cut;
    const lane = model?.lane(id);
    const place = this.lanes?.get(id);
    if (!lane || !place || !model) return;
    const { until } = this;
    const right = this.from + this.width;
    g.strokeStyle = this.#colour("line");
    this.#line(this.left, place.y + place.h + 0.5, this.left + this.plot, place.y + place.h + 0.5);
    let k = Math.max(0, lane.steps.findLastIndex((each) => each.at <= this.from));
    for (; k < lane.steps.length && lane.steps[k].at < right; k++) {
      const step = lane.steps[k];
      this.#bar(id, step, Math.max(step.at, this.from), Math.min(lane.steps[k + 1]?.at ?? until, right), lane.steps[k + 1]?.at ?? until);
    }
    const first = lane.steps[0]?.at ?? until;
    if (first > this.from) this.#hatch(this.from, Math.min(first, right), place, "unknown: nothing was heard of it", id);
    for (const gap of lane.gaps) this.#hatch(gap.from, gap.to, place, `not heard for ${span(gap.to - gap.from)}`, id);
    if (model.live && lane.seen > 0 && (until - lane.seen > 2 || cut)) this.#hatch(lane.seen, until, place, `not heard for ${span(until - lane.seen)}`, id);
    for (const each of lane.pauses) this.#hatch(each.from, Math.min(each.to, until), place, "paused", id);
  }

  /** @param {number} id @param {import("./model.js").Step} step @param {number} from @param {number} to @param {number} end */
  #bar(id, step, from, to, end) {
    const { g } = this;
    const place = /** @type {{y: number, h: number}} */ (this.lanes?.get(id));
    const [x, wide] = [this.#x(from), Math.max(0.75, this.#x(to) - this.#x(from))];
    const text = `Member ${id}: ${step.dead || `${step.state}${step.work === "lead" ? " (leads)" : step.work === "follow" ? " (follows)" : `, ${MEANING[step.state] ?? ""}`}`}`
      + `\n${moment(this.model?.head ?? {}, step.at)}, for ${span(Math.max(0, end - step.at))}${step.term == null ? "" : `, term ${step.term}`}${step.reason ? `\nWhy: ${step.reason}` : ""}`;
    this.hits.push({ x, y: place.y, w: wide, h: place.h, text, at: step.at, index: step.index });
    if (step.dead) {
      g.strokeStyle = this.#colour("bad");
      g.setLineDash([2, 4]);
      this.#line(x, place.y + place.h - 5, x + wide, place.y + place.h - 5);
      g.setLineDash([]);
      this.#label(step.dead, "", x + 12, place.y + place.h / 2, wide - 14, 11, "bad");
      return;
    }
    const high = place.h * HEIGHTS[step.work];
    const y = place.y + place.h - high;
    g.fillStyle = this.#colour(`${step.work}-fill`);
    g.fillRect(x, y, wide, high);
    if (wide > 3 && step.work !== "follow" && step.work !== "lead") {
      g.fillStyle = this.#colour(step.work);
      g.fillRect(x, y, wide, 2);
      g.fillRect(x, y, 1, high);
    }
    const name = step.work === "lead" ? "leads" : step.work === "follow" ? "follows" : step.state;
    if (step.work === "follow") this.#label(name, "", x + 6, y - 7, wide - 8, 10, "ink2");
    else this.#label(name, "", x + 6, step.work === "lead" ? place.y + place.h / 2 : y - 6 < place.y ? y + high / 2 + 1 : y + high / 2 + 1, wide - 8, 10, step.work === "lead" ? "on-lead" : "ink");
  }

  /** @param {number} from @param {number} to @param {{y: number, h: number}} place @param {string} text @param {number} id */
  #hatch(from, to, place, text, id) {
    const { g } = this;
    const [x, end] = [Math.max(this.left, this.#x(from)), Math.min(this.left + this.plot, this.#x(to))];
    if (end <= x) return;
    g.save();
    g.beginPath();
    g.rect(x, place.y, end - x, place.h);
    g.clip();
    g.fillStyle = this.#colour("veil");
    g.fillRect(x, place.y, end - x, place.h);
    g.strokeStyle = this.#colour("hatch");
    for (let k = x - ((x + place.y) % 7) - place.h; k < end; k += 7) this.#line(k, place.y + place.h, k + place.h, place.y);
    g.restore();
    g.font = this.#font(10, 600);
    const short = text.startsWith("unknown") ? "unknown" : text;
    if (g.measureText(short).width + 16 < end - x) {
      g.fillStyle = this.#colour("panel");
      g.fillRect(x + 4, place.y + place.h / 2 - 8, g.measureText(short).width + 8, 16);
      this.#label(short, "", x + 8, place.y + place.h / 2, end - x, 10, "ink2");
    }
    this.hits.push({ x, y: place.y, w: end - x, h: place.h, at: from, index: -1, text: `Member ${id}: ${text}` });
  }

  #arrows() {
    const { g, messages } = this;
    if (!messages) return;
    const many = messages.count(this.from, this.from + this.width);
    this.crowd = many > (2 * this.plot) / ARROWS_APART ? many : 0;
    if (!many || this.crowd) return;
    const flights = messages.between(this.from, this.from + this.width);
    // The one at which the player stands is written first, so that it has the room.
    flights.sort((a, b) => Number(this.#isHere(b)) - Number(this.#isHere(a)));
    for (const flight of flights) {
      const [from, to] = [this.lanes?.get(flight.from), this.lanes?.get(flight.to)];
      if (!from || !to) continue;
      const here = this.#isHere(flight);
      const down = to.y > from.y;
      const [x, y] = [this.#x(flight.sent), down ? from.y + from.h : from.y + from.h * 0.5];
      const lost = Number.isNaN(flight.heard);
      const toY = down ? to.y + to.h * 0.5 : to.y + to.h;
      const [endX, endY] = lost ? [x + 16, y + (toY - y) * 0.45] : [this.#x(flight.heard), toY];
      g.strokeStyle = g.fillStyle = this.#colour(here ? "lead" : lost ? "bad" : "arrow");
      g.lineWidth = here ? 2 : 1;
      this.#line(x, y, endX, endY);
      const angle = Math.atan2(endY - y, endX - x);
      if (lost) {
        for (const turn of [0.8, -0.8]) this.#line(endX - 4 * Math.cos(angle + turn), endY - 4 * Math.sin(angle + turn), endX + 4 * Math.cos(angle + turn), endY + 4 * Math.sin(angle + turn));
      } else {
        g.beginPath();
        g.moveTo(endX, endY);
        for (const turn of [0.4, -0.4]) g.lineTo(endX - 6 * Math.cos(angle + turn), endY - 6 * Math.sin(angle + turn));
        g.fill();
      }
      g.lineWidth = 1;
      if (here || many < 60) this.#text(flight, (x + endX) / 2, (y + endY) / 2, here);
      this.hits.push({ x: x - 3, y: Math.min(y, y + 8) - 4, w: 8, h: 12, at: flight.sent, index: flight.index, text: this.#flightText(flight) });
      if (!lost) this.hits.push({ x: endX - 5, y: endY - 6, w: 8, h: 12, at: flight.sent, index: flight.index, text: this.#flightText(flight) });
    }
  }

  /** @param {import("./messages.js").Flight} flight */
  #isHere(flight) {
    if (this.index < 0 || !this.model) return false;
    const { log } = this.model;
    return flight.index === this.index || (log.kindName(this.index) === "hears" && flight.heard === log.at[this.index] && log.member[this.index] === flight.to);
  }

  /** @param {import("./messages.js").Flight} flight */
  #flightText(flight) {
    const f = this.model?.log.fields(flight.index, false) ?? {};
    const how = Number.isNaN(flight.heard) ? "never heard: lost" : `heard after ${span(flight.heard - flight.sent)}`;
    return `${flight.from} → ${flight.to}: ${sentence("sends", f, format)}\n${moment(this.model?.head ?? {}, flight.sent)}, ${how}`;
  }

  /** @param {import("./messages.js").Flight} flight @param {number} x @param {number} y @param {boolean} here */
  #text(flight, x, y, here) {
    const { g } = this;
    const type = String(this.model?.log.fields(flight.index, false).type ?? "");
    g.font = this.#font(10, here ? 600 : 400);
    const w = g.measureText(type).width + 8;
    if (!here && this.words?.some((each) => Math.abs(each.y - y) < 11 && each.x < x + w && x < each.x + each.w + 8)) return;
    this.words?.push({ x, y, w });
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.lineWidth = 3;
    g.strokeStyle = this.#colour("panel");
    g.strokeText(type, x + 4, y);
    g.lineWidth = 1;
    g.fillStyle = this.#colour(here ? "lead" : "ink2");
    g.fillText(type, x + 4, y);
  }

  /** @param {number[]} marks events @param {boolean} cluster there are events of no member */
  #marks(marks, cluster) {
    const { g, model } = this;
    if (!model) return;
    const { log } = model;
    const [from, to] = [upTo(log, marks, this.from), upTo(log, marks, this.from + this.width)];
    let last = -Infinity;
    /** @type {Map<string, number>} where the last of its kind stands */ const drawn = new Map();
    const every = Math.max(1, Math.floor((to - from) / 4000));
    for (let k = from; k < to; k += every) {
      const i = marks[k];
      const kind = KINDS[log.kind[i]];
      const sign = SIGNS[kind];
      if (!sign || (kind === "link" && to - from > 30)) continue;
      const place = this.lanes?.get(log.member[i]) ?? { y: this.bottom, h: 16 };
      const x = this.#x(log.at[i]);
      const key = `${log.member[i]} ${kind}`;
      if (x - (drawn.get(key) ?? -Infinity) < 7 && i !== this.index && kind !== "violation") continue;
      drawn.set(key, x);
      const bad = kind === "violation" || kind === "fault" || DEATHS[kind];
      g.fillStyle = this.#colour(bad ? "bad" : "ink2");
      g.font = this.#font(kind === "violation" ? 15 : 11, 600);
      g.textAlign = "center";
      g.textBaseline = "middle";
      if (i === this.index) {
        g.beginPath();
        g.arc(x, place.y + 6, 9, 0, 7);
        g.strokeStyle = this.#colour("lead");
        g.stroke();
      }
      g.fillText(sign, x, place.y + 6);
      const text = sentence(kind, log.fields(i, false), format);
      if (cluster && log.member[i] < 0 && x - last > 6) {
        last = x;
        const next = marks[k + 1] === undefined ? Infinity : this.#x(log.at[marks[k + 1]]);
        this.#label(text, "", x + 9, place.y + 7, Math.min(next, this.left + this.plot) - x - 12, 10, bad ? "bad" : "ink2");
      }
      if (kind === "violation") {
        g.strokeStyle = this.#colour("bad");
        g.lineWidth = 2;
        this.#line(x, 4, x, this.bottom + 4);
        g.lineWidth = 1;
      }
      this.hits.push({ x: x - 6, y: place.y - 2, w: 12, h: 16, at: log.at[i], index: i, text: `${moment(model.head, log.at[i])} ${log.member[i] < 0 ? "" : `member ${log.member[i]} `}${kind}: ${text}` });
    }
  }

  /** The time that is shown. @param {number} h */
  #head(h) {
    const { g, picture, model } = this;
    if (model?.live && this.follow) return;
    const x = Math.round(this.#x(picture.at)) + 0.5;
    g.strokeStyle = this.#colour("ink");
    this.#line(x, 0, x, h - FOOT + 4);
    g.fillStyle = this.#colour("ink");
    g.font = this.#font(11, 600);
    const text = moment(model?.head ?? {}, picture.at, model?.head.started_ms ? 3 : 6);
    const wide = g.measureText(text).width + 10;
    const begin = Math.min(Math.max(x - wide / 2, this.left), this.left + this.plot - wide);
    g.fillRect(begin, h - FOOT + 3, wide, 17);
    g.fillStyle = this.#colour("panel");
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillText(text, begin + 5, h - FOOT + 12);
  }

  /** @param {number} w */
  #names(w) {
    const { g, picture } = this;
    for (const member of picture.members) {
      const place = this.lanes?.get(member.id);
      if (!place) continue;
      const y = place.y + place.h / 2;
      trace(g, member.id, 14, y, 8);
      const dim = !member.known || member.stale || member.dead;
      g.fillStyle = this.#colour(dim ? "panel" : member.leads ? "lead" : "ink3");
      g.fill();
      g.strokeStyle = this.#colour(member.leads && !dim ? "lead" : "ink3");
      g.stroke();
      g.fillStyle = this.#colour(dim ? "ink2" : "on-mark");
      g.font = this.#font(10, 700);
      g.textAlign = "center";
      g.textBaseline = "middle";
      g.fillText(String(member.id), 14, y + 0.5);
      if (w < 600) continue;
      g.font = this.#font(11);
      g.textAlign = "left";
      g.fillStyle = this.#colour(dim ? "bad" : "ink");
      const name = member.known && !member.stale && !member.dead && !member.paused ? WORKS[member.step?.work] : nameOf(member);
      g.fillText(name, 28, y);
    }
  }
}

/** 1, 2 or 5 times a power of ten; minutes and hours above. @param {number} rough */
function niceStep(rough) {
  if (rough > 30) return [60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find((n) => n >= rough) ?? 86400;
  if (rough > 10) return rough > 15 ? 30 : 15;
  const power = 10 ** Math.floor(Math.log10(rough));
  return ([1, 2, 5].find((n) => n * power >= rough) ?? 10) * power;
}

