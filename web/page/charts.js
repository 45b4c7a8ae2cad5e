/** Small charts of what members report over time. A gap is a time for which nothing was reported. */

import { UNKNOWN, about, bytes, el, moment, put, rate, span } from "./format.js";
import { half, trace } from "./marker.js";
import { RECENT, STALE, lagOf } from "./model.js";

/** Lines differ by colour, by dashes, and by the number at their end. */
const COLOURS = ["line-0", "line-1", "line-2", "line-3", "line-4", "line-5"];
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 2], [10, 4]];
const SAMPLES = 240;
/** Half the height of a member's mark, and how far marks are apart (px). */
const MARK = 5.5;
const APART = 11;

/**
 * @typedef {{title: string, unit: (n: any) => string, now?: (n: any) => string,
 *   of: (one: any, all: any[]) => number | null, hint: string, log?: boolean}} Chart
 *   `unit` is for the axis; `now`, if it differs, for the newest value
 */
/** @type {Chart[]} */
const LIVE = [
  { title: "Commands per second", unit: rate, of: (one) => one.status?.rates?.commands ?? null, hint: "Commands of each member's own clients." },
  { title: "Lag", unit: bytes, of: lag, hint: "How far a member's durable log is behind the leader's, as the leader knows it." },
  quantile("Command p99", "command", "p99", "99 of 100 commands took no longer; an estimate, each point covers the last 10 s."),
  quantile("Command p50", "command", "p50", "Half of the commands took no longer; an estimate, each point covers the last 10 s."),
  quantile("Disk sync p99", "sync", "p99", "99 of 100 durable writes took no longer; an estimate, each point covers the last 10 s."),
  {
    title: "Loop delay", unit: span, of: (one) => one.status?.loop_delay ?? null, log: true,
    hint: "How late a timer fires: the worst of the last second. Near a quarter of the heartbeat timeout, elections begin for no other reason.",
  },
];
/** @type {Chart[]} */
const RECORDED = [
  { title: "Log written", unit: (n) => `${bytes(n)}/s`, of: (one) => one.speed, hint: "How fast the durable log grows." },
  { title: "Lag", unit: bytes, of: lag, hint: "How far a member's durable log is behind the leader's." },
  { title: "Not committed", unit: bytes, of: ({ positions }) => between(positions.append, positions.commit), hint: "What is durable here, and not known to be committed." },
  { title: "Not applied", unit: bytes, of: ({ positions }) => between(positions.commit, positions.applied), hint: "What is committed, and waits for the state machine." },
];

/** @param {string} title @param {string} name @param {"p50" | "p99"} part @param {string} hint @returns {Chart} */
function quantile(title, name, part, hint) {
  return { title, unit: span, now: about, of: (one) => one.status?.quantiles?.[name]?.[part] ?? null, hint, log: true };
}

/** The powers of ten around what is drawn. @param {any} _u @param {number} low @param {number} high */
function powers(_u, low, high) {
  return [10 ** Math.floor(Math.log10(low || 1e-4)), 10 ** Math.ceil(Math.log10((high || 1e-3) * 1.0001))];
}

/** @param {any} _u @param {number} _low @param {number} high */
function fromZero(_u, _low, high) {
  return [0, Math.max(4, high || 0) * 1.1];
}

/** Lines at powers of ten, or labels at powers of two. @param {Chart} chart @param {Record<string, any>} lines */
function grid(chart, lines) {
  const filter = (/** @type {any} */ _u, /** @type {number[]} */ all) => all.map((n) => (isPower(n) ? n : null));
  return {
    ...(chart.log ? { grid: { ...lines, filter } } : {}),
    ...(chart.unit === bytes ? { incrs: Array.from({ length: 40 }, (_, k) => 2 ** k) } : {}),
  };
}

/** @param {Chart} chart @param {number | null} n */
function label(chart, n) {
  return n == null || (chart.log && !isPower(n)) ? "" : chart.unit(n);
}

/** @param {number | null} end @param {number | null} begin */
function between(end, begin) {
  return end == null || begin == null ? null : end - begin;
}

/** @param {any} one @param {any[]} all */
function lag(one, all) {
  return lagOf(one, all).lag;
}

export class Charts {
  /** @param {HTMLElement} root @param {HTMLElement} note @param {(t: number) => void} go */
  constructor(root, note, go) {
    this.root = root;
    this.note = note;
    this.go = go;
    /** @type {{chart: Chart, plot: any, box: HTMLElement, value: HTMLElement}[]} */ this.made = [];
    this.key = "";
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.key = ""; });
    new ResizeObserver(() => this.#resize()).observe(root);
  }

  /** @param {import("./model.js").Model} model @param {any} picture @param {number} from @param {number} to */
  update(model, picture, from, to) {
    const reported = model.frequent;
    const key = `${model.ids.join()} ${reported} ${model.head.cluster}`;
    if (this.key !== key) this.#make(model, reported ? LIVE : RECORDED);
    this.key = key;
    const { times, series } = this.#sample(model, from, to);
    for (const { chart, plot, box, value } of this.made) {
      const rows = model.ids.map((_, k) => times.map((_t, n) => series[k][n] && chart.of(series[k][n], series.map((each) => each[n]))));
      if (chart.log) rows.forEach((row) => row.forEach((n, i) => { if (n != null && n < 1e-6) row[i] = 1e-6; }));
      plot.setData([times, ...rows], false);
      plot.setScale("x", { min: from, max: to });
      const shown = model.ids.map((id) => picture.members.find((/** @type {any} */ one) => one.id === id));
      const now = shown.map((one) => (one?.known && !one.stale && !one.dead ? chart.of({ ...one, speed: null }, picture.members) : null));
      box.classList.toggle("silent", rows.every((row) => row.every((n) => n == null)));
      put(value, model.ids.map((id, k) => `${id}: ${now[k] == null ? UNKNOWN : (chart.now ?? chart.unit)(now[k])}`).join("   "));
    }
    put(this.note, "each line as its member reported it, lag as the leader did; gaps: not reported");
  }

  /** What each member had said at each of the sampled moments.
   * @param {import("./model.js").Model} model @param {number} from @param {number} to */
  #sample(model, from, to) {
    // Whole steps since the beginning, so that a sliding window samples the same moments again.
    const step = (to - from) / SAMPLES;
    const first = Math.ceil(from / step);
    const times = Array.from({ length: SAMPLES }, (_, n) => (first + n) * step).filter((t) => t <= to);
    const series = model.ids.map((id) => {
      const lane = model.lane(id);
      let before = /** @type {any} */ (null);
      return times.map((t) => {
        const dead = model.stepAt(lane, t)?.dead;
        if (t < lane.first || dead || (model.frequent && t - model.seenAt(lane, t) > STALE)) return (before = null);
        const reported = model.statusAt(lane, t);
        const recent = reported && t - reported.at < RECENT ? reported.status : null;
        const one = { id, leads: model.stepAt(lane, t)?.work === "lead", stale: false, status: recent, positions: model.positionsAt(lane, t), speed: /** @type {number | null} */ (null) };
        if (before?.positions.append != null && one.positions.append != null) one.speed = Math.max(0, (one.positions.append - before.positions.append) / step);
        return (before = one);
      });
    });
    return { times, series };
  }

  /** @param {import("./model.js").Model} model @param {Chart[]} charts */
  #make(model, charts) {
    for (const { plot } of this.made) plot.destroy();
    const colour = (/** @type {string} */ name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    const times = (/** @type {any} */ _u, /** @type {number[]} */ all) => {
      const digits = all.length > 1 && all[1] - all[0] < 1 ? 3 : 0;
      return all.map((t) => moment(model.head, t, digits));
    };
    this.root.replaceChildren();
    this.made = charts.map((chart) => {
      const value = el("p");
      const box = el("figure", { title: chart.hint }, el("figcaption", {}, chart.title), value);
      this.root.append(box);
      const axis = { stroke: colour("ink2"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const plot = new /** @type {any} */ (globalThis).uPlot({
        ...this.#size(box), legend: { show: false }, padding: [6, 2 * Math.max(...model.ids.map((id) => half(id, MARK))) + 7, 0, 0], pxAlign: 1,
        cursor: { drag: { x: false, y: false }, points: { size: 5 }, y: false, sync: { key: "figures" } },
        scales: { x: { time: false }, y: chart.log ? { distr: 3, range: powers } : { range: fromZero } },
        axes: [
          { ...axis, size: 24, gap: 6, space: 90, values: times },
          { ...axis, ...grid(chart, axis.grid), size: 62, gap: 4, space: 26, values: (/** @type {any} */ _u, /** @type {number[]} */ all) => all.map((n) => label(chart, n)) },
        ],
        series: [{}, ...model.ids.map((id) => ({ label: String(id), stroke: colour(COLOURS[id % 6]), width: 1.6, dash: DASHES[id % 6], points: { show: false }, spanGaps: false }))],
        hooks: { draw: [(/** @type {any} */ u) => ends(u, model.ids, colour)], setCursor: [(/** @type {any} */ u) => this.#point(u, chart, model)] },
      }, [[], ...model.ids.map(() => [])], box);
      plot.over.addEventListener("click", () => plot.cursor.left >= 0 && this.go(plot.posToVal(plot.cursor.left, "x")));
      return { chart, plot, box, value };
    });
  }

  /** @param {any} u @param {Chart} chart @param {import("./model.js").Model} model */
  #point(u, chart, model) {
    const value = this.made.find((each) => each.plot === u)?.value;
    if (!value || u.cursor.idx == null) return;
    const at = u.data[0][u.cursor.idx];
    put(value, `${moment(model.head, at)}  ${model.ids.map((id, k) => `${id}: ${u.data[k + 1][u.cursor.idx] == null ? UNKNOWN : chart.unit(u.data[k + 1][u.cursor.idx])}`).join("   ")}`);
  }

  /** @param {HTMLElement} box */
  #size(box) {
    return { width: Math.max(160, box.clientWidth - 2), height: 122 };
  }

  #resize() {
    for (const { plot, box } of this.made) {
      const size = this.#size(box);
      if (plot.width !== size.width) plot.setSize(size);
    }
  }
}

/** Of ten: only these are labelled on a logarithmic axis. @param {number} n */
function isPower(n) {
  return n != null && Math.abs(Math.log10(n) - Math.round(Math.log10(n))) < 0.01;
}

/** Write each member's number where its line ends. @param {any} u @param {number[]} ids @param {(name: string) => string} colour */
function ends(u, ids, colour) {
  const { ctx } = u;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.font = `700 ${9 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  /** @type {number[]} */ const taken = [];
  ids.forEach((id, k) => {
    const row = u.data[k + 1];
    const n = row.findLastIndex((/** @type {any} */ each) => each != null);
    if (n < 0) return;
    const x = Math.min(u.valToPos(u.data[0][n], "x", true), u.bbox.left + u.bbox.width) + (half(id, MARK) + 3.5) * ratio;
    const top = u.bbox.top + 3 * ratio;
    let y = Math.max(top, u.valToPos(row[n], "y", true));
    // Where another number stands already, the next one goes above it; at the top, below all.
    while (taken.some((each) => Math.abs(each - y) < APART * ratio)) y -= APART * ratio;
    if (y < top) y = Math.max(...taken) + APART * ratio;
    taken.push(y);
    trace(ctx, id, x, y, MARK * ratio);
    ctx.fillStyle = colour("panel");
    ctx.fill();
    ctx.strokeStyle = colour(COLOURS[id % 6]);
    ctx.lineWidth = ratio;
    ctx.stroke();
    ctx.fillStyle = colour("ink");
    ctx.fillText(String(id), x, y + 0.5 * ratio);
  });
  ctx.restore();
}
