/** The states of an election, and each member in its state. A member moves along the edge it takes. */

import { ago, brief, el, moment, put, span, svg } from "./format.js";
import { MEANING } from "./kinds.js";
import { half, nameOf, shape } from "./marker.js";

const RADIUS = 9;
/** Of a state's box; where a mark rests below its middle. */
const WIDTH = 96;
const RESTS = 24;
/** A member that took more steps than this since the last picture is put where it is now. A recording
 * is jumped through, a live cluster is not. */
const HOPS = { live: 30, recorded: 3 };
const TAKEN_MS = 5000;

/** @typedef {{g: SVGElement, x: number, y: number, state: string, shown: number,
 *   hops: {from: string, to: string}[], hop: any}} Marker */

export class Diagram {
  /** @param {HTMLElement} root @param {HTMLElement} last @param {(t: number, index: number) => void} go */
  constructor(root, last, go) {
    this.root = root;
    this.last = last;
    this.go = go;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.narrow = matchMedia("(max-width: 720px)");
    this.narrow.addEventListener("change", () => this.load());
    /** @type {Map<number, Marker>} */ this.markers = new Map();
    /** @type {SVGSVGElement | null} */ this.drawing = null;
    this.running = false;
    /** @type {import("./model.js").Model | null} */ this.model = null;
    /** @type {any} */ this.picture = null;
    this.shown = "";
  }

  /** Fetch the drawing; a single file has both in templates. */
  async load() {
    const name = this.narrow.matches ? "states-tall" : "states";
    const embedded = /** @type {HTMLTemplateElement | null} */ (document.getElementById(`${name}-drawing`));
    const text = embedded ? embedded.innerHTML : await (await fetch(`static/${name}.svg`)).text();
    const parsed = new DOMParser().parseFromString(text.trim(), "image/svg+xml").documentElement;
    this.drawing = /** @type {any} */ (document.adoptNode(parsed));
    this.root.replaceChildren(/** @type {any} */ (this.drawing));
    this.markers.clear();
    /** @type {Map<string, SVGPathElement>} */ this.edges = new Map();
    for (const path of this.root.querySelectorAll("path.edge")) {
      const { from, to } = /** @type {SVGPathElement} */ (path).dataset;
      this.edges.set(`${from}>${to}`, /** @type {SVGPathElement} */ (path));
    }
    /** @type {Map<string, {x: number, y: number, g: SVGGElement}>} */ this.places = new Map();
    /** Above the markers: one that moves along an edge may pass a name. */
    this.names = svg("g", { class: "names" });
    for (const g of /** @type {NodeListOf<SVGGElement>} */ (this.root.querySelectorAll("g.state"))) {
      const [x, y] = (g.getAttribute("transform")?.match(/-?[\d.]+/g) ?? []).map(Number);
      const name = g.dataset.state ?? "";
      g.append(svg("title", {}, `${name}: ${MEANING[name]}`));
      this.places.set(name, { x, y, g });
      const above = svg("g", { transform: g.getAttribute("transform") ?? "" });
      above.append(...g.querySelectorAll("text"));
      this.names.append(above);
    }
    this.drawing?.append(this.names);
    if (this.model && this.picture) this.update(this.model, this.picture);
  }

  /** @param {import("./model.js").Model} model @param {any} picture */
  update(model, picture) {
    [this.model, this.picture] = [model, picture];
    this.#words(model, picture);
    if (!this.drawing) return;
    for (const [id, marker] of this.markers) {
      if (picture.members.some((/** @type {any} */ each) => each.id === id)) continue;
      marker.g.remove();
      this.markers.delete(id);
    }
    for (const member of picture.members) this.#follow(model, member);
    this.#occupy(picture);
    if (!this.running) {
      this.running = true;
      requestAnimationFrame((now) => this.#frame(now));
    }
  }

  /** Queue what a member did since the last picture. @param {import("./model.js").Model} model @param {any} member */
  #follow(model, member) {
    let marker = this.markers.get(member.id);
    if (!marker) {
      const g = svg("g", { class: "marker" });
      g.append(shape(member.id, RADIUS), svg("text", { y: 3.6 }, String(member.id)), svg("text", { y: 20, class: "dwell" }), svg("title"));
      this.drawing?.insertBefore(g, this.names ?? null);
      marker = /** @type {Marker} */ ({ g, x: NaN, y: NaN, state: "", shown: -1, hops: [], hop: null });
      this.markers.set(member.id, marker);
    }
    const { steps } = model.lane(member.id);
    const now = steps.lastIndexOf(member.step);
    const forward = now - marker.shown;
    const moves = forward > 0 && marker.shown >= 0 ? steps.slice(marker.shown + 1, now + 1) : [];
    const state = lastState(steps, now);
    if (forward !== 0) {
      if (moves.length && moves.length <= HOPS[model.live ? "live" : "recorded"] && !this.still.matches) {
        for (const each of moves) if (each.state && each.state !== (each.before || marker.state)) marker.hops.push({ from: each.before, to: each.state });
      } else marker.hops = [];
      for (const each of moves.slice(-HOPS.live)) this.#light(each.before, each.state);
      if (!marker.hops.length && !marker.hop) marker.state = state;
    }
    marker.shown = now;
    const label = `Member ${member.id}: ${nameOf(member)}`;
    const dwell = member.step && !member.stale && !member.dead ? Math.max(0, this.picture.at - member.step.at) : null;
    const since = dwell == null ? "" : `, for ${span(dwell)}`;
    put(/** @type {Element} */ (marker.g.querySelector(".dwell")), dwell == null ? "" : brief(dwell));
    const why = member.step?.reason ? `\nLast step: ${member.step.reason}` : "";
    const title = /** @type {Element} */ (marker.g.querySelector("title"));
    title.textContent = `${label}${since}${why}\nReported by member ${member.by}, ${ago(this.picture, member.seen)}`;
    marker.g.setAttribute("class", `marker ${member.known ? member.step?.work ?? "seek" : "seek"}${member.dead ? " dead" : ""}${member.stale || !member.known ? " stale" : ""}`);
  }

  /** @param {string} from @param {string} to */
  #light(from, to) {
    const edge = this.edges?.get(`${from}>${to}`);
    if (!edge) return;
    edge.classList.add("taken");
    clearTimeout(/** @type {any} */ (edge).fading);
    /** @type {any} */ (edge).fading = setTimeout(() => edge.classList.remove("taken"), TAKEN_MS);
  }

  /** Tint the states in which members are. @param {any} picture */
  #occupy(picture) {
    const rank = ["follow", "join", "seek", "ballot", "rise", "lead"];
    /** @type {Map<string, number>} */ const found = new Map();
    for (const member of picture.members) {
      if (!member.known || member.dead) continue;
      const state = this.markers.get(member.id)?.state ?? "";
      found.set(state, Math.max(found.get(state) ?? 0, rank.indexOf(member.step?.work ?? "seek")));
    }
    for (const [name, place] of this.places ?? []) {
      const work = found.has(name) ? rank[/** @type {number} */ (found.get(name))] : "";
      if (place.g.dataset.work !== work) place.g.dataset.work = work;
    }
  }

  /** Where a marker rests: those in one state stand side by side on its lower border.
   * @param {number} id @param {string} state */
  #rest(id, state) {
    const place = this.places?.get(state);
    if (!place) return { x: -40, y: -40 };
    const here = [...this.markers].filter(([, each]) => each.state === state).map(([each]) => each).sort((a, b) => a - b);
    if (!here.includes(id)) here.push(id);
    const [wide, before] = [here, here.slice(0, here.indexOf(id))].map((all) => all.reduce((sum, each) => sum + room(each), 0));
    // Many members overlap before they leave their state, and have no room for how long they are there.
    const tight = Math.min(1, (WIDTH + 40) / wide);
    /** @type {Marker} */ (this.markers.get(id)).g.toggleAttribute("data-tight", tight < 1);
    return { x: place.x + (before + room(id) / 2 - wide / 2) * tight, y: place.y + RESTS };
  }

  /** @param {number} now */
  #frame(now) {
    let busy = false;
    for (const [id, marker] of this.markers) {
      if (!marker.hop && marker.hops.length) {
        const { from, to } = /** @type {any} */ (marker.hops.shift());
        const path = this.edges?.get(`${from}>${to}`);
        marker.state = to;
        marker.hop = { path, begin: now, took: Math.max(55, 420 / (1 + marker.hops.length / 2)), x: marker.x, y: marker.y };
        this.#light(from, to);
        if (this.picture) this.#occupy(this.picture);
      }
      const rest = this.#rest(id, marker.state);
      if (marker.hop) {
        const p = Math.min(1, (now - marker.hop.begin) / marker.hop.took);
        const on = along(marker.hop.path, p) ?? between(marker.hop, rest, p);
        const near = p < 0.25 ? between(marker.hop, on, p / 0.25) : p > 0.75 ? between(on, rest, (p - 0.75) / 0.25) : on;
        [marker.x, marker.y] = [near.x, near.y];
        if (p >= 1) marker.hop = null;
        busy = true;
      } else if (Math.hypot(rest.x - marker.x, rest.y - marker.y) > 0.5 && !this.still.matches) {
        const next = between(marker, rest, 0.3);
        [marker.x, marker.y] = [next.x, next.y];
        busy = true;
      } else [marker.x, marker.y] = [rest.x, rest.y];
      if (Number.isNaN(marker.x)) [marker.x, marker.y] = [rest.x, rest.y];
      // Of a member that was never heard no state is known.
      marker.g.setAttribute("visibility", marker.state ? "visible" : "hidden");
      marker.g.setAttribute("transform", `translate(${marker.x.toFixed(1)} ${marker.y.toFixed(1)})`);
      busy ||= marker.hops.length > 0;
    }
    this.running = busy;
    if (busy) requestAnimationFrame((next) => this.#frame(next));
  }

  /** The last transitions in words. @param {import("./model.js").Model} model @param {any} picture */
  #words(model, picture) {
    const found = model.ids.flatMap((id) => model.lane(id).steps.slice(-200).map((step) => ({ id, step })))
      .filter(({ step }) => step.at <= picture.at && step.before && step.state)
      .sort((a, b) => b.step.at - a.step.at).slice(0, 4);
    const key = found.map(({ step }) => step.index).join();
    if (this.shown === key) return;
    this.shown = key;
    this.last.replaceChildren(...found.map(({ id, step }) => {
      const button = el("button", { type: "button", title: "Show it on the timeline", onclick: () => this.go(step.at, step.index) },
        el("b", {}, `${id}`), ` ${step.before} → ${step.state}`);
      const line = el("li", {}, button, el("time", {}, moment(model.head, step.at)));
      if (step.reason) line.append(el("span", {}, step.reason));
      return line;
    }));
  }
}

/** How wide a marker is, with its dwell time. @param {number} id */
function room(id) {
  return Math.max(23, 2 * half(id, RADIUS)) + 3;
}

/** The state before a member died, or the one it is in. @param {any[]} steps @param {number} k */
function lastState(steps, k) {
  while (k >= 0 && !steps[k].state) k--;
  return steps[k]?.state ?? "";
}

/** @param {SVGPathElement | undefined} path @param {number} p */
function along(path, p) {
  return path ? path.getPointAtLength(path.getTotalLength() * (p < 0.5 ? 2 * p * p : 1 - 2 * (1 - p) ** 2)) : null;
}

/** @param {{x: number, y: number}} a @param {{x: number, y: number}} b @param {number} p */
function between(a, b, p) {
  return Number.isNaN(a.x) ? { x: b.x, y: b.y } : { x: a.x + (b.x - a.x) * p, y: a.y + (b.y - a.y) * p };
}
