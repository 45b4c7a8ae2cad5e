/** The first line: who leads, how many more may fail, how much is done. */

import { UNKNOWN, ago, el, put, rate, span, word } from "./format.js";

export class Header {
  constructor() {
    const id = (/** @type {string} */ name) => /** @type {HTMLElement} */ (document.getElementById(name));
    this.cluster = id("cluster");
    this.source = id("source");
    this.leader = id("leader");
    this.margin = id("margin");
    this.facts = id("facts");
    /** @type {Map<string, {dt: HTMLElement, dd: HTMLElement, box: HTMLElement}>} */ this.boxes = new Map();
  }

  /** @param {import("./model.js").Model} model @param {any} picture @param {string} source */
  update(model, picture, source) {
    put(this.cluster, model.head.cluster || "quorate");
    put(this.source, source);
    const { text, title, kind } = leading(picture);
    put(this.leader, text, title);
    this.leader.dataset.kind = kind;
    const margin = marginOf(picture);
    put(this.margin, margin.text, margin.title);
    this.margin.dataset.kind = margin.kind;
    document.title = `${margin.kind === "good" ? "" : "⚠ "}${text} · ${model.head.cluster || "quorate"}`;
    for (const [name, value, hint] of facts(model, picture)) this.#fact(name, value, hint);
  }

  /** @param {string} name @param {string} value @param {string} title */
  #fact(name, value, title) {
    let box = this.boxes.get(name);
    if (!box) {
      const [dt, dd] = [el("dt", {}, name), el("dd")];
      box = { dt, dd, box: el("div", {}, dt, dd) };
      this.facts.append(box.box);
      this.boxes.set(name, box);
    }
    put(box.dd, value);
    if (box.box.title !== title) box.box.title = title;
    box.box.classList.toggle("unknown", value === UNKNOWN);
  }
}

/** @param {any} picture */
function leading(picture) {
  const { leaders, term, members } = picture;
  if (leaders.length > 1) {
    const who = leaders.map((/** @type {any} */ each) => `member ${each.id} (term ${each.term ?? "?"})`).join(" and ");
    return { text: `${who} both claim to lead`.replace(/^m/, "M"), title: "An older leader that has not heard of its successor serves no reads once its lease is over.", kind: "bad" };
  }
  if (leaders.length) {
    const [one] = leaders;
    return { text: `Member ${one.id} leads term ${one.term ?? "?"}`, kind: "good", title: `Reported by member ${one.by}, ${ago(picture.at - one.seen)}.${term?.cause ? ` Why there was an election: ${term.cause}.` : ""}` };
  }
  const before = term ? `; member ${term.leader} led term ${term.term}` : "";
  if (picture.fresh.some((/** @type {any} */ each) => !each.leads && each.step?.work !== "follow")) return { text: `No leader: election${before}`, title: "", kind: "warn" };
  const last = members.find((/** @type {any} */ each) => each.leads || (each.dead && term?.leader === each.id));
  if (last?.stale) return { text: `No leader is heard; member ${last.id} led term ${last.term}`, title: `It is silent for ${span(picture.at - last.seen)}.`, kind: "bad" };
  if (!picture.fresh.length) return { text: "No member is heard", title: "", kind: "bad" };
  return { text: `No leader${before}`, title: "", kind: "warn" };
}

/** @param {any} picture */
function marginOf(picture) {
  const { margin, heard, voters } = picture;
  const title = `${heard.length} of ${voters.length} voters are heard (${heard.join(", ") || "none"}), a quorum is ${Math.floor(voters.length / 2) + 1}.`;
  if (!voters.length) return { text: UNKNOWN, title: "No configuration is known.", kind: "warn" };
  if (!picture.fresh.length) return { text: `${UNKNOWN} not known`, title: "No member is heard here; the cluster may be well.", kind: "unknown" };
  if (margin < 0) return { text: "■ no quorum", title, kind: "bad" };
  if (picture.suspended) return { text: "▲ suspended", title: "An operator has suspended the cluster: it takes no commands.", kind: "warn" };
  if (margin === 0) return { text: "▲ none may fail", title, kind: "warn" };
  return { text: `● ${word(margin)} more may fail`, title, kind: "good" };
}

/** @param {import("./model.js").Model} model @param {any} picture @returns {[string, string, string][]} */
function facts(model, picture) {
  const told = picture.fresh.filter((/** @type {any} */ each) => each.status?.rates?.commands != null);
  const silent = model.ids.filter((id) => !told.some((/** @type {any} */ each) => each.id === id));
  const from = told.length ? `Reported by ${told.map((/** @type {any} */ each) => `${each.id} (${ago(picture.at - each.seen)})`).join(", ")}.` : "Nobody reports this.";
  const without = silent.length && told.length ? ` Without ${silent.join(", ")}, which did not report.` : "";
  const sum = (/** @type {string} */ name) => told.length ? told.reduce((/** @type {number} */ all, /** @type {any} */ each) => all + (each.status.rates[name] ?? 0), 0) : null;
  const slowest = (/** @type {string} */ name, /** @type {string} */ part) => {
    const all = told.map((/** @type {any} */ each) => ({ id: each.id, value: each.status.quantiles?.[name]?.[part] })).filter((/** @type {any} */ each) => each.value != null);
    return all.sort((/** @type {any} */ a, /** @type {any} */ b) => b.value - a.value)[0];
  };
  const [p50, p99] = [slowest("command", "p50"), slowest("command", "p99")];
  const of = (/** @type {any} */ each) => each ? `The slowest member is ${each.id}; over the last 10 s.` : "No command in the last 10 s, or nobody reports it.";
  /** @type {[string, string, string][]} */
  const found = [
    ["voters heard", picture.voters.length && picture.fresh.length ? `${picture.heard.length}\u202f/\u202f${picture.voters.length}` : UNKNOWN, `Heard: ${picture.heard.join(", ") || "none"}. Voters: ${picture.voters.join(", ")}.`],
    ["config", picture.version == null ? UNKNOWN : `v${picture.version}${picture.joint ? " joint" : ""}`, picture.joint ? "The voters are changing: both sets must agree." : "The version of the configuration."],
  ];
  if (!model.live && !told.length) return found;
  return [...found,
    ["commands/s", rate(sum("commands")), `${from}${without}`],
    ["reads/s", rate(sum("reads")), `${from}${without}`],
    ["p50", span(p50?.value), of(p50)],
    ["p99", span(p99?.value), of(p99)],
  ];
}
