/** A member's mark: its number in a shape of its own, so that it is known without colour. A number
 * of three or more digits stands in a bar as wide as it is. */

import { svg } from "./format.js";

/** A larger id does not fit into a shape. */
const LONGEST = 99;

/** How many corners; 0 is a circle. */
const CORNERS = [0, 4, 3, 5, 6, 8];

/** @param {number} id @param {number} radius */
function corners(id, radius) {
  const n = CORNERS[id % CORNERS.length];
  const [r, turn] = n === 3 ? [radius * 1.38, -Math.PI / 2] : n === 4 ? [radius * 1.28, -Math.PI / 4] : [radius * 1.12, -Math.PI / 2];
  return Array.from({ length: n }, (_, k) => {
    const angle = turn + (2 * Math.PI * k) / n;
    return [r * Math.cos(angle), r * Math.sin(angle) + (n === 3 ? radius * 0.22 : 0)];
  });
}

/** Half the width of a mark. @param {number} id @param {number} radius */
export function half(id, radius) {
  return id <= LONGEST ? radius : radius * (0.35 + 0.4 * String(id).length);
}

/** @param {number} id @param {number} radius @returns {SVGElement} */
export function shape(id, radius) {
  const w = half(id, radius);
  if (id > LONGEST) return svg("rect", { x: -w, y: -radius, width: 2 * w, height: 2 * radius, rx: 3, class: "shape" });
  const points = corners(id, radius);
  return points.length ? svg("polygon", { points: points.map((each) => each.map((n) => n.toFixed(1)).join()).join(" "), class: "shape" })
    : svg("circle", { r: radius, class: "shape" });
}

/** The same on a canvas. @param {CanvasRenderingContext2D} g @param {number} id @param {number} x @param {number} y @param {number} radius */
export function trace(g, id, x, y, radius) {
  const points = id > LONGEST ? [] : corners(id, radius);
  g.beginPath();
  if (id > LONGEST) g.roundRect(x - half(id, radius), y - radius, 2 * half(id, radius), 2 * radius, radius / 3);
  else if (!points.length) g.arc(x, y, radius, 0, 2 * Math.PI);
  for (const [dx, dy] of points) g.lineTo(x + dx, y + dy);
  g.closePath();
}

/** A mark that stands alone. @param {number} id */
export function mark(id) {
  const w = half(id, 9.5) + 3.5;
  const box = svg("svg", { viewBox: `${-w} -13 ${2 * w} 26`, class: "mark", role: "img", "aria-label": `member ${id}` });
  const g = svg("g", { class: "marker" });
  g.append(shape(id, 9.5), svg("text", { y: 3.8 }, String(id)));
  box.append(g);
  return box;
}

/** What a member is, in a word or two. @param {any} member of a picture */
export function nameOf(member) {
  if (!member.known) return "unknown";
  if (member.stale) return "not heard";
  if (member.dead) return member.dead;
  if (member.paused) return "paused";
  const { step } = member;
  if (!step) return "unknown";
  if (step.work === "lead") return "leads";
  return step.work === "follow" ? (member.status?.role === "standby" ? "stands by" : "follows") : step.state;
}
