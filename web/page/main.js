/** Joins a source of events with the views: which model is shown, which moment, and how often. */

import { Charts } from "./charts.js";
import { Diagram } from "./diagram.js";
import { Events } from "./events.js";
import { bytes, count, el, moment, put, span, zone } from "./format.js";
import { Header } from "./header.js";
import { WORKS, sentence } from "./kinds.js";
import { STALE } from "./model.js";
import { Player } from "./player.js";
import { Positions } from "./positions.js";
import { Live, dropped, embedded, fetched, recorded } from "./sources.js";
import { Timeline } from "./timeline.js";

const by = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** How often a page is drawn at most, and its charts (ms). More often costs the reader's machine
 * more than it shows. */
const DRAW_MS = 100;
const CHARTS_MS = 500;

class Page {
  constructor() {
    const go = (/** @type {number} */ t, index = -1) => this.player.to(t, index);
    this.header = new Header();
    this.timeline = new Timeline(/** @type {HTMLCanvasElement} */ (by("lanes")), by("tip"), go);
    this.player = new Player(by("player"), (t, index) => this.moved(index), this.timeline);
    this.diagram = new Diagram(by("states"), by("last"), (t, index) => this.player.to(t, index));
    this.positions = new Positions(by("rows"), by("members-note"));
    this.charts = new Charts(by("plots"), by("charts-note"), go);
    this.events = new Events(by("list"), /** @type {HTMLFormElement} */ (by("filter")), by("events-note"), go);
    this.drawn = this.charted = -Infinity;
    this.waiting = false;
    this.widths = el("span", { class: "buttons" });
    by("zoom").append(this.widths,
      el("button", { type: "button", title: "shows less (+)", "aria-label": "zoom in", onclick: () => this.timeline.scale(0.5) }, "+"),
      el("button", { type: "button", title: "shows more (−)", "aria-label": "zoom out", onclick: () => this.timeline.scale(2) }, "−"));
    this.#legend();
    this.#footer();
    this.diagram.load();
  }

  /** @param {import("./model.js").Model} model @param {Live | null} live */
  begin(model, live) {
    this.model = model;
    this.live = live;
    document.documentElement.dataset.mode = model.live ? "live" : "recording";
    this.timeline.follow = model.live;
    this.timeline.begin(model);
    this.player.begin(model);
    this.#zooms();
    by("notice").hidden = true;
    if (model.order.violation.length) this.#violation(model.order.violation[0]);
    clearInterval(this.timer);
    // Ages go on while nothing is heard.
    if (model.live) this.timer = setInterval(() => this.draw(), 200);
    this.drawn = this.charted = -Infinity;
    this.draw();
  }

  get now() {
    return this.player.following && this.live ? this.live.now() : this.player.t;
  }

  /** The player stands at another moment, at this event if it is none of -1. @param {number} index */
  moved(index) {
    if (!this.model) return;
    this.timeline.follow = Boolean(this.player.following);
    // Who comes back from a close look at an election wants to see what goes on.
    if (this.timeline.follow && this.timeline.width < 10) this.timeline.zoom(this.now, 60, 0.97);
    if (index >= 0) this.#closer(index);
    this.events.mark(index);
    const words = index < 0 ? "" : this.#words(index);
    put(this.player.what, words, words);
    /** @type {HTMLElement} */ (this.player.what).dataset.kind = index < 0 ? "" : this.model.log.kindName(index);
    this.draw();
  }

  /** @param {number} i */
  #words(i) {
    const { model } = /** @type {{model: import("./model.js").Model}} */ (/** @type {unknown} */ (this));
    const member = model.log.member[i];
    const kind = model.log.kindName(i);
    return `${moment(model.head, model.log.at[i])}  ${member < 0 ? "" : `member ${member} `}${kind === "violation" ? "violation: " : ""}${sentence(kind, model.log.fields(i), { bytes, span })}`;
  }

  /** Show so short a time that the event stands apart from its neighbours. @param {number} i */
  #closer(i) {
    const { timeline, model } = this;
    if (!model || !timeline.messages) return;
    const kind = model.log.kindName(i);
    const at = model.log.at[i];
    let most = kind === "violation" || kind === "enters" ? 2 : Infinity;
    if (kind === "sends" || kind === "hears") {
      const flight = kind === "sends" ? timeline.messages.of(i) : null;
      const took = flight && !Number.isNaN(flight.heard) ? flight.heard - flight.sent : 0;
      most = Math.max(0.004, took ? took * 14 : 0.02);
      // All of a long flight is shown.
      if (took > timeline.width * 0.4) timeline.zoom(at, took * 4);
    }
    if (timeline.width > most) timeline.zoom(at, most);
  }

  /** @param {number} i */
  #violation(i) {
    const model = /** @type {import("./model.js").Model} */ (this.model);
    by("notice").hidden = false;
    by("notice").replaceChildren(el("b", {}, "✖ violation "), this.#words(i).replace(/^.*?violation: /, ""), " ",
      el("button", { type: "button", onclick: () => this.player.to(model.log.at[i], i) }, `show it, at ${moment(model.head, model.log.at[i])}`));
  }

  draw() {
    if (this.waiting || !this.model) return;
    this.waiting = true;
    const wait = this.model.live && !this.player.playing ? Math.max(0, DRAW_MS - (performance.now() - this.drawn)) : 0;
    setTimeout(() => requestAnimationFrame(() => this.#draw()), wait);
  }

  #draw() {
    this.waiting = false;
    this.drawn = performance.now();
    const model = /** @type {import("./model.js").Model} */ (this.model);
    const t = this.now;
    model.latest = this.live ? this.live.now() : model.end;
    if (this.player.following) this.player.t = Math.min(t, model.end);
    const picture = { ...model.picture(t), now: this.live && this.player.following ? "now" : "then" };
    this.header.update(model, picture, this.#source(model, t));
    this.positions.update(model, picture);
    this.diagram.update(model, picture);
    this.timeline.update(picture, Math.max(model.latest, t), this.player.index);
    this.player.show();
    this.events.update(model, picture);
    const { crowd, width } = this.timeline;
    put(by("timeline-note"), `${span(width)}, ${zone(model.head)}${crowd ? `; ${count(crowd)} sends and hears: zoom in to see them` : ""}`);
    if (this.drawn - this.charted > (model.live ? CHARTS_MS : 0)) {
      this.charted = this.drawn;
      this.charts.update(model, picture, Math.max(this.timeline.from, model.begin), Math.min(this.timeline.from + width, model.live ? t : model.end));
    }
  }

  /** @param {import("./model.js").Model} model @param {number} t */
  #source(model, t) {
    const { head } = model;
    if (!model.live) {
      const what = head.source === "live" ? "live cluster" : head.source === "torture" ? "torture run" : "simulation";
      return `recording of a ${what}${head.seed == null ? "" : `, seed ${head.seed}`} · ${count(model.log.count)} events`;
    }
    const where = `seen from member ${head.reporter}`;
    if (this.live?.connected && this.live.silence > STALE) return `○ ${where}, which is silent for ${span(this.live.silence)}`;
    if (this.live?.connected) return this.player.following ? `● live, ${where}` : `‖ ${span(this.live.now() - t)} back, ${where}`;
    return `○ ${where}, which ${this.live?.refused ? "refuses" : "does not answer"}: trying again`;
  }

  /** Ranges of time that a click shows. */
  #zooms() {
    const { model, timeline } = this;
    if (!model) return;
    const button = (/** @type {string} */ text, /** @type {string} */ title, /** @type {() => void} */ act) => el("button", { type: "button", title, onclick: act }, text);
    const election = button("last election", "shows the election before this moment", () => {
      const term = model.terms.filter((each) => each.at <= this.now + 1e-9).at(-1);
      if (!term) return;
      this.player.to(term.at);
      timeline.zoom(term.at - (term.took ?? 0) / 2, Math.max(0.4, (term.took ?? 0.5) * 1.5));
    });
    const ranges = model.live ? [10, 60, 300, 1200].map((n) => button(n < 60 ? `${n} s` : `${n / 60} min`, `shows the last ${span(n)}`, () => {
      timeline.zoom(this.now, n, 0.97);
      this.player.follow();
    })) : [button("all", "shows the whole recording", () => timeline.zoom((model.begin + model.end) / 2, Infinity))];
    this.widths.replaceChildren(...ranges, election);
  }

  #legend() {
    by("legend").append(...Object.entries({ ...WORKS, unknown: ["", "not known"] }).map(([work, [, text]]) => el("li", {}, el("i", { class: work }), text)),
      ...Object.entries({ "▲": "starts", "■": "ends", "✖": "dies, breaks a rule", "⌁": "link", "◆": "snapshot", "⚙": "config", "▪": "slow batch", "⚡": "fault" })
        .map(([sign, text]) => el("li", {}, el("b", {}, sign), text)));
  }

  #footer() {
    const input = /** @type {HTMLInputElement} */ (el("input", { type: "file", accept: ".qtrace,.zst,.jsonl,.json", hidden: true, onchange: () => input.files?.[0] && this.open(input.files[0]) }));
    const key = (/** @type {string} */ name) => el("kbd", {}, name);
    by("footer").append(
      el("span", {}, "Drop a recording onto this page, or ", el("button", { type: "button", onclick: () => input.click() }, "open one"), input),
      el("span", {}, key("space"), " play or pause ", key("←"), key("→"), " event ", key("m"), " message ", key("t"), " transition ",
        key("v"), " violation (with shift: the previous one) ", key("+"), key("−"), " zoom ", key("End"), " now"));
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      event.preventDefault();
      const file = event.dataTransfer?.files[0];
      if (file) this.open(file);
    });
  }

  /** @param {File} file */
  async open(file) {
    try {
      this.begin(recorded(await dropped(file, file.name)), null);
    } catch (error) {
      by("notice").hidden = false;
      put(by("notice"), String(/** @type {Error} */ (error).message));
    }
  }
}

async function main() {
  const page = new Page();
  const bytes = embedded() ?? (document.documentElement.dataset.source === "recording" ? await fetched() : null);
  if (bytes) return page.begin(recorded(bytes), null);
  const live = new Live((model) => page.begin(model, live), () => page.draw());
}

main();
