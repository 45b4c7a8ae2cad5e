/** A canvas with an axis of time: where a moment is, colours of the style sheet, words that fit. */

import { moment } from "./format.js";

/**
 * What is drawn.
 * @typedef {{model: import("./model.js").Model, picture: any, messages: import("./messages.js").Messages,
 *   until: number, follow: boolean, index: number}} View
 *   `until` is the newest moment about which something is known, `index` the event at which the player
 *   stands, or -1
 * @typedef {{x: number, y: number, w: number, h: number, text: string, at: number, index: number}} Hit
 */

export class Pen {
  /** @param {CanvasRenderingContext2D} g */
  constructor(g) {
    this.g = g;
    /** The time that is shown, in seconds. */ this.from = 0;
    this.width = 60;
    this.left = this.bottom = 0;
    this.plot = 1;
    this.top = 40;
    this.foot = 22;
    /** @type {Map<number, {y: number, h: number}>} */ this.lanes = new Map();
    /** @type {Hit[]} what the pointer finds */ this.hits = [];
    /** @type {{x: number, y: number, w: number}[]} where a word stands already */ this.words = [];
    /** @type {Record<string, string>} */ this.colours = {};
  }

  /** Ticks of time. @param {number} h @param {import("./model.js").Model} model */
  axis(h, model) {
    const { g } = this;
    const step = niceStep(this.width / Math.max(2, this.plot / 110));
    const digits = step >= 1 ? 0 : Math.min(model.head.started_ms ? 3 : 6, Math.ceil(-Math.log10(step) - 1e-9));
    // Wall clock ticks stand on whole seconds of the day, not of the recording.
    const shift = model.head.started_ms ? (model.head.started_ms / 1000) % step : 0;
    g.font = this.font(11);
    g.textBaseline = "middle";
    g.textAlign = "left";
    for (let n = Math.ceil((this.from + shift) / step); n * step - shift < this.from + this.width; n++) {
      const x = Math.round(this.x(n * step - shift)) + 0.5;
      g.strokeStyle = this.colour("line");
      this.line(x, this.top - 4, x, this.bottom + 4);
      g.fillStyle = this.colour("ink2");
      const text = moment(model.head, n * step - shift, digits);
      if (x + 3 + g.measureText(text).width < this.left + this.plot) g.fillText(text, x + 3, h - this.foot / 2);
    }
  }

  font(/** @type {number} */ size, weight = 400) {
    return `${weight} ${size}px system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif`;
  }

  /** @param {number} x @param {number} y @param {number} toX @param {number} toY */
  line(x, y, toX, toY) {
    this.g.beginPath();
    this.g.moveTo(x, y);
    this.g.lineTo(toX, toY);
    this.g.stroke();
  }

  /** Write as much as there is room for. @param {string} strong @param {string} more @param {number} x @param {number} y @param {number} room */
  label(strong, more, x, y, room, size = 11, colour = "ink", soft = colour === "ink" ? "ink2" : colour) {
    const { g } = this;
    g.font = this.font(size, 600);
    const wide = g.measureText(strong).width;
    if (wide > room) {
      const short = strong.split(" · ")[0].split(" ").slice(0, 2).join(" ");
      if (short !== strong && g.measureText(short).width <= room) this.label(short, "", x, y, room, size, colour);
      return;
    }
    g.textBaseline = "middle";
    g.textAlign = "left";
    g.fillStyle = this.colour(colour);
    g.fillText(strong, x, y);
    this.words.push({ x, y, w: wide });
    if (!more) return;
    g.font = this.font(size);
    let text = more;
    if (g.measureText(text).width > room - wide) {
      text = text.slice(0, Math.max(0, Math.floor((room - wide) / (size * 0.55)) - 1));
      text = text.length > 6 ? `${text.trimEnd()}…` : "";
    }
    g.fillStyle = this.colour(soft);
    g.fillText(text, x + wide, y);
    this.words[this.words.length - 1].w += g.measureText(text).width;
  }

  /** @param {string} name */
  colour(name) {
    return (this.colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }

  /** @param {number} x */
  time(x) {
    return this.from + ((x - this.left) / this.plot) * this.width;
  }

  /** @param {number} t */
  x(t) {
    return this.left + ((t - this.from) / this.width) * this.plot;
  }
}

/** 1, 2 or 5 times a power of ten; minutes and hours above. @param {number} rough */
function niceStep(rough) {
  if (rough > 30) return [60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find((n) => n >= rough) ?? 86400;
  if (rough > 10) return rough > 15 ? 30 : 15;
  const power = 10 ** Math.floor(Math.log10(rough));
  return ([1, 2, 5].find((n) => n * power >= rough) ?? 10) * power;
}

