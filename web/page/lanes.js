/** The lanes of the timeline: states as bars, terms as bands, and hatching for what is not known. */

import { moment, span } from "./format.js";
import { MEANING } from "./kinds.js";
import { STALE } from "./model.js";

/** How high a bar is, as a part of its lane. @type {Record<string, number>} */
const HEIGHTS = { lead: 1, rise: 0.82, ballot: 0.66, seek: 0.5, join: 0.4, follow: 0.26 };

/**
 * Terms as bands, and the election before each as a strip above the lanes.
 * @param {import("./pen.js").Pen} pen @param {import("./pen.js").View} view */
export function drawTerms(pen, view) {
  const { g } = pen;
  const { model, picture } = view;
  const terms = /** @type {import("./model.js").Term[]} */ (model.terms ?? []);
  terms.forEach((term, k) => {
    const end = terms[k + 1] ? terms[k + 1].at : view.until;
    const [x, to] = [pen.x(term.at), Math.min(pen.x(end), pen.left + pen.plot)];
    if (to < pen.left || x > pen.left + pen.plot) return;
    const begin = Math.max(x, pen.left);
    g.fillStyle = pen.colour(k % 2 ? "band" : "band2");
    g.fillRect(begin, 4, to - begin, pen.bottom);
    const took = term.took ? `, election ${span(term.took)}` : "";
    const next = terms[k + 1]?.took ? pen.x(terms[k + 1].at - /** @type {number} */ (terms[k + 1].took)) : to;
    pen.label(`term ${term.term} · member ${term.leader} leads`, `${took}${term.cause ? `: ${term.cause}` : ""}`, begin + 6, 15, Math.min(to, next) - begin - 10);
    if (x >= pen.left) {
      g.strokeStyle = pen.colour("lead");
      pen.line(Math.round(x) + 0.5, 4, Math.round(x) + 0.5, pen.bottom + 4);
    }
    if (term.took) {
      const start = Math.max(pen.left - 1, pen.x(term.at - term.took));
      g.fillStyle = pen.colour("seek-soft");
      g.fillRect(start, 24, Math.max(2, x - start), 11);
      g.strokeStyle = pen.colour("seek");
      pen.line(start + 0.5, 24, start + 0.5, pen.bottom);
      pen.label(`election ${span(term.took)}`, term.cause ? `: ${term.cause}` : "", start + 4, 30, x - start - 8, 10);
    }
    const text = `Term ${term.term}: member ${term.leader} leads since ${moment(model.head, term.at)}${took}${term.cause ? `\nWhy: ${term.cause}` : ""}`;
    pen.hits.push({ x: begin, y: 4, w: to - begin, h: 20, at: term.at, index: -1, text });
  });
}

/**
 * A member's lane.
 * @param {import("./pen.js").Pen} pen @param {import("./pen.js").View} view
 * @param {number} id */
export function drawLane(pen, view, id) {
  const { g } = pen;
  const { model, picture } = view;
  const cut = view.follow && picture.members.find((/** @type {any} */ each) => each.id === id)?.cut;
  const lane = model.lane(id);
  const place = pen.lanes.get(id);
  if (!lane || !place) return;
  const { until } = view;
  const right = pen.from + pen.width;
  const silent = !model.omniscient && lane.seen > 0 && (until - lane.seen > STALE || cut);
  g.strokeStyle = pen.colour("line");
  pen.line(pen.left, place.y + place.h + 0.5, pen.left + pen.plot, place.y + place.h + 0.5);
  let k = Math.max(0, lane.steps.findLastIndex((each) => each.at <= pen.from));
  for (; k < lane.steps.length && lane.steps[k].at < right; k++) {
    const step = lane.steps[k];
    const end = lane.steps[k + 1]?.at ?? until;
    bar(pen, view, id, step, Math.max(step.at, pen.from), Math.min(end, right), silent && !lane.steps[k + 1] ? lane.seen : end);
  }
  const first = lane.steps[0]?.at ?? until;
  if (first > pen.from) hatch(pen, pen.from, Math.min(first, right), place, "unknown: nothing was heard of it", id);
  for (const gap of lane.gaps) hatch(pen, gap.from, gap.to, place, `not heard for ${span(gap.to - gap.from)}`, id);
  if (silent) hatch(pen, lane.seen, until, place, `not heard for ${span(until - lane.seen)}`, id);
  for (const each of lane.pauses) hatch(pen, each.from, Math.min(each.to, until), place, "paused", id);
}

/**
 * One state of a member.
 * @param {import("./pen.js").Pen} pen @param {import("./pen.js").View} view
 * @param {number} id @param {import("./model.js").Step} step @param {number} from @param {number} to
 * @param {number} end until when the member is known to have been in it */
function bar(pen, view, id, step, from, to, end) {
  const { g } = pen;
  const place = /** @type {{y: number, h: number}} */ (pen.lanes.get(id));
  const [x, wide] = [pen.x(from), Math.max(0.75, pen.x(to) - pen.x(from))];
  const text = `Member ${id}: ${step.dead || `${step.state}${step.work === "lead" ? " (leads)" : step.work === "follow" ? " (follows)" : `, ${MEANING[step.state] ?? ""}`}`}`
    + `\n${moment(view.model.head, step.at)}, for ${span(Math.max(0, end - step.at))}${step.term == null ? "" : `, term ${step.term}`}${step.reason ? `\nWhy: ${step.reason}` : ""}`;
  pen.hits.push({ x, y: place.y, w: wide, h: place.h, text, at: step.at, index: step.index });
  if (step.dead) {
    g.strokeStyle = pen.colour("bad");
    g.setLineDash([2, 4]);
    pen.line(x, place.y + place.h - 5, x + wide, place.y + place.h - 5);
    g.setLineDash([]);
    pen.label(step.dead, "", x + 12, place.y + place.h / 2, wide - 14, 11, "bad");
    return;
  }
  const high = place.h * HEIGHTS[step.work];
  const y = place.y + place.h - high;
  g.fillStyle = pen.colour(`${step.work}-fill`);
  g.fillRect(x, y, wide, high);
  if (wide > 3 && step.work !== "follow" && step.work !== "lead") {
    g.fillStyle = pen.colour(step.work);
    g.fillRect(x, y, wide, 2);
    g.fillRect(x, y, 1, high);
  }
  const name = step.work === "lead" ? "leads" : step.work === "follow" ? "follows" : step.state;
  const dwell = ` ${span(Math.max(0, end - step.at))}`;
  if (step.work === "follow") pen.label(name, dwell, x + 6, y - 7, wide - 8, 10, "ink2");
  else {
    const on = step.work === "lead" ? "on-lead" : "ink";
    pen.label(name, dwell, x + 6, y + high / 2 + (step.work === "lead" ? 0 : 1), wide - 8, 10, on, on);
  }
}

/**
 * A time about which nothing is known, or in which a member stood still.
 * @param {import("./pen.js").Pen} pen
 * @param {number} from @param {number} to @param {{y: number, h: number}} place @param {string} text @param {number} id */
function hatch(pen, from, to, place, text, id) {
  const { g } = pen;
  const [x, end] = [Math.max(pen.left, pen.x(from)), Math.min(pen.left + pen.plot, pen.x(to))];
  if (end <= x) return;
  g.save();
  g.beginPath();
  g.rect(x, place.y, end - x, place.h);
  g.clip();
  g.fillStyle = pen.colour("veil");
  g.fillRect(x, place.y, end - x, place.h);
  g.strokeStyle = pen.colour("hatch");
  for (let k = x - ((x + place.y) % 7) - place.h; k < end; k += 7) pen.line(k, place.y + place.h, k + place.h, place.y);
  g.restore();
  g.font = pen.font(10, 600);
  const short = text.startsWith("unknown") ? "unknown" : text;
  if (g.measureText(short).width + 16 < end - x) {
    g.fillStyle = pen.colour("panel");
    g.fillRect(x + 4, place.y + place.h / 2 - 8, g.measureText(short).width + 8, 16);
    pen.label(short, "", x + 8, place.y + place.h / 2, end - x, 10, "ink2");
  }
  pen.hits.push({ x, y: place.y, w: end - x, h: place.h, at: from, index: -1, text: `Member ${id}: ${text}` });
}
