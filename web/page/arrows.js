/** What happens in the lanes of the timeline: messages as arrows, events as signs. */

import * as format from "./format.js";
import { moment, span } from "./format.js";
import { DEATHS, KINDS, sentence } from "./kinds.js";
import { upTo } from "./log.js";

/** Arrows nearer to each other than so many pixels are a grey cloud; their number is written instead. */
const ARROWS_APART = 5;
/** @type {Record<string, string>} */
const SIGNS = {
  snapshot: "◆", config: "⚙", violation: "✖", fault: "⚡", batch: "▪", link: "⌁", starts: "▲", wiped: "∅", note: "•",
  fails: "✖", killed: "✖", powerless: "✖", ends: "■", stops: "■", removed: "■", pauses: "‖", resumes: "▸",
};

/**
 * Messages as arrows, unless there are too many; returns how many there are then.
 * @param {import("./pen.js").Pen} pen @param {import("./pen.js").View} view */
export function drawArrows(pen, view) {
  const { g } = pen;
  const { messages } = view;
  const many = messages.count(pen.from, pen.from + pen.width);
  if (!many) return 0;
  if (many > (2 * pen.plot) / ARROWS_APART) return many;
  const flights = messages.between(pen.from, pen.from + pen.width);
  // The one at which the player stands is written first, so that it has the room.
  flights.sort((a, b) => Number(isHere(view, b)) - Number(isHere(view, a)));
  for (const flight of flights) {
    const [from, to] = [pen.lanes.get(flight.from), pen.lanes.get(flight.to)];
    if (!from || !to) continue;
    const here = isHere(view, flight);
    const down = to.y > from.y;
    const [x, y] = [pen.x(flight.sent), down ? from.y + from.h : from.y + from.h * 0.5];
    const unheard = Number.isNaN(flight.heard);
    const lost = unheard && messages.lost(flight);
    const toY = down ? to.y + to.h * 0.5 : to.y + to.h;
    const [endX, endY] = unheard ? [x + 16, y + (toY - y) * 0.45] : [pen.x(flight.heard), toY];
    g.strokeStyle = g.fillStyle = pen.colour(here ? "lead" : lost ? "bad" : "arrow");
    g.lineWidth = here ? 2 : 1;
    pen.line(x, y, endX, endY);
    const angle = Math.atan2(endY - y, endX - x);
    if (lost) {
      for (const turn of [0.8, -0.8]) pen.line(endX - 4 * Math.cos(angle + turn), endY - 4 * Math.sin(angle + turn), endX + 4 * Math.cos(angle + turn), endY + 4 * Math.sin(angle + turn));
    } else if (!unheard) {
      g.beginPath();
      g.moveTo(endX, endY);
      for (const turn of [0.4, -0.4]) g.lineTo(endX - 6 * Math.cos(angle + turn), endY - 6 * Math.sin(angle + turn));
      g.fill();
    }
    g.lineWidth = 1;
    if (here || many < 60) writeType(pen, view, flight, (x + endX) / 2, (y + endY) / 2, here);
    pen.hits.push({ x: x - 3, y: Math.min(y, y + 8) - 4, w: 8, h: 12, at: flight.sent, index: flight.index, text: flightText(view, flight) });
    if (!unheard) pen.hits.push({ x: endX - 5, y: endY - 6, w: 8, h: 12, at: flight.sent, index: flight.index, text: flightText(view, flight) });
  }
  return 0;
}

/**
 * Whether the player stands at this message.
 * @param {import("./pen.js").View} view
 * @param {import("./messages.js").Flight} flight */
function isHere(view, flight) {
  if (view.index < 0) return false;
  const { log } = view.model;
  return flight.index === view.index || (log.kindName(view.index) === "hears" && flight.heard === log.at[view.index] && log.member[view.index] === flight.to);
}

/**
 * A message in words.
 * @param {import("./pen.js").View} view
 * @param {import("./messages.js").Flight} flight */
function flightText(view, flight) {
  const f = view.model.log.fields(flight.index, false) ?? {};
  const unheard = view.messages.lost(flight) ? "never heard: lost" : `no messages of member ${flight.to} are in this recording`;
  const how = Number.isNaN(flight.heard) ? unheard : `heard after ${span(flight.heard - flight.sent)}`;
  return `${flight.from} → ${flight.to}: ${sentence("sends", f, format)}\n${moment(view.model.head, flight.sent)}, ${how}`;
}

/**
 * The type of a message, where no other word stands.
 * @param {import("./pen.js").Pen} pen @param {import("./pen.js").View} view
 * @param {import("./messages.js").Flight} flight @param {number} x @param {number} y @param {boolean} here */
function writeType(pen, view, flight, x, y, here) {
  const { g } = pen;
  const type = String(view.model.log.fields(flight.index, false).type ?? "");
  g.font = pen.font(10, here ? 600 : 400);
  const w = g.measureText(type).width + 8;
  if (!here && pen.words.some((each) => Math.abs(each.y - y) < 11 && each.x < x + w && x < each.x + each.w + 8)) return;
  pen.words.push({ x, y, w });
  g.textAlign = "left";
  g.textBaseline = "middle";
  g.lineWidth = 3;
  g.strokeStyle = pen.colour("panel");
  g.strokeText(type, x + 4, y);
  g.lineWidth = 1;
  g.fillStyle = pen.colour(here ? "lead" : "ink2");
  g.fillText(type, x + 4, y);
}

/**
 * Signs of what happened.
 * @param {import("./pen.js").Pen} pen @param {import("./pen.js").View} view
 * @param {number[]} marks events @param {boolean} cluster there are events of no member */
export function drawMarks(pen, view, marks, cluster) {
  const { g } = pen;
  const { model } = view;
  const { log } = model;
  const [from, to] = [upTo(log, marks, pen.from), upTo(log, marks, pen.from + pen.width)];
  let last = -Infinity;
  /** @type {Map<string, number>} where the last of its kind stands */ const drawn = new Map();
  const every = Math.max(1, Math.floor((to - from) / 4000));
  for (let k = from; k < to; k += every) {
    const i = marks[k];
    const kind = KINDS[log.kind[i]];
    const sign = SIGNS[kind];
    if (!sign || (kind === "link" && to - from > 30)) continue;
    const place = pen.lanes.get(log.member[i]) ?? { y: pen.bottom, h: 16 };
    // There may be many slow batches: they are small, and leave room for words below them.
    const [y, size] = kind === "batch" ? [place.y + 3, 8] : [place.y + 6, kind === "violation" ? 15 : 11];
    const x = pen.x(log.at[i]);
    const key = `${log.member[i]} ${kind}`;
    if (x - (drawn.get(key) ?? -Infinity) < 7 && i !== view.index && kind !== "violation") continue;
    drawn.set(key, x);
    const bad = kind === "violation" || kind === "fault" || DEATHS[kind];
    g.fillStyle = pen.colour(bad ? "bad" : "ink2");
    g.font = pen.font(size, 600);
    g.textAlign = "center";
    g.textBaseline = "middle";
    if (i === view.index) {
      g.beginPath();
      g.arc(x, y, 9, 0, 7);
      g.strokeStyle = pen.colour("lead");
      g.stroke();
    }
    // It may stand on a bar of any colour.
    g.lineWidth = 2;
    g.strokeStyle = pen.colour("panel");
    g.strokeText(sign, x, y);
    g.lineWidth = 1;
    g.fillText(sign, x, y);
    const text = sentence(kind, log.fields(i, false), format);
    if (cluster && log.member[i] < 0 && x - last > 6) {
      last = x;
      const next = marks[k + 1] === undefined ? Infinity : pen.x(log.at[marks[k + 1]]);
      pen.label(text, "", x + 9, place.y + 7, Math.min(next, pen.left + pen.plot) - x - 12, 10, bad ? "bad" : "ink2");
    }
    if (kind === "violation") {
      g.strokeStyle = pen.colour("bad");
      g.lineWidth = 2;
      pen.line(x, 4, x, pen.bottom + 4);
      g.lineWidth = 1;
    }
    pen.hits.push({ x: x - 6, y: place.y - 2, w: 12, h: 16, at: log.at[i], index: i, text: `${moment(model.head, log.at[i])} ${log.member[i] < 0 ? "" : `member ${log.member[i]} `}${kind}: ${text}` });
  }
}
