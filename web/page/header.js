/** The first line: who leads, how many more may fail, how much is done, and who says so. */

import { UNKNOWN, about, ago, count, el, put, rate, span, word } from "./format.js";

/** More members than this are counted in place of named. */
const NAMED = 3;

/** @typedef {{text: string, by?: string, title: string, kind: string}} Verdict */
/** @typedef {{name: string, value: string, by: string, title: string, old?: boolean}} Fact */

/** The members whose words a verdict rests on, and how old the oldest is.
 * @param {any} picture @param {any[]} members */
function reportedBy(picture, members) {
  if (!members.length) return "";
  const named = members.length > NAMED ? `${members.length} members` : `${members.length > 1 ? "members" : "member"} ${members.map((each) => each.by).join(", ")}`;
  return `reported by ${named}, ${ago(picture, Math.min(...members.map((each) => each.seen)))}`;
}

/** A group of a cluster with partitions has a name that says which: "orders.p3", "orders.meta".
 * @param {string} name */
function inWords(name) {
  return name.replace(/\.p(\d{1,2})$/, " · partition $1").replace(/\.meta$/, " · metadata");
}

export class Header {
  constructor() {
    const id = (/** @type {string} */ name) => /** @type {HTMLElement} */ (document.getElementById(name));
    this.cluster = id("cluster");
    this.source = id("source");
    this.leader = id("leader");
    this.leaderBy = id("leader-by");
    this.margin = id("margin");
    this.facts = id("facts");
    /** @type {Map<string, {dd: HTMLElement, by: HTMLElement, box: HTMLElement}>} */ this.boxes = new Map();
  }

  /** @param {import("./model.js").Model} model @param {any} picture @param {string} source */
  update(model, picture, source) {
    const name = inWords(model.head.cluster || "quorate");
    put(this.cluster, name);
    put(this.source, source);
    const { text, by, title, kind } = leading(picture);
    put(this.leader, text, title);
    put(this.leaderBy, by ?? "");
    this.leader.dataset.kind = kind;
    const margin = marginOf(picture);
    put(this.margin, margin.text, margin.title);
    this.margin.dataset.kind = margin.kind;
    document.title = `${margin.kind === "good" ? "" : "⚠ "}${text} · ${name}`;
    for (const fact of facts(model, picture)) this.#fact(fact);
  }

  /** @param {Fact} fact */
  #fact({ name, value, by, title, old }) {
    let box = this.boxes.get(name);
    if (!box) {
      const [dd, small] = [el("dd"), el("dd", { class: "by" })];
      box = { dd, by: small, box: el("div", {}, el("dt", {}, name), dd, small) };
      this.facts.append(box.box);
      this.boxes.set(name, box);
    }
    put(box.dd, value);
    put(box.by, by);
    if (box.box.title !== title) box.box.title = title;
    box.box.classList.toggle("unknown", value === UNKNOWN || Boolean(old));
  }
}

/** @param {any} picture @returns {Verdict} */
function leading(picture) {
  const { leaders, term, members, heard, voters, reporter } = picture;
  if (leaders.length > 1) {
    const who = leaders.map((/** @type {any} */ each) => `member ${each.id} (term ${each.term ?? "?"})`).join(" and ");
    const title = "An older leader that has not heard of its successor serves no reads once its lease is over.";
    return { text: `${who} both claim to lead`.replace(/^m/, "M"), by: reportedBy(picture, leaders), title, kind: "bad" };
  }
  if (leaders.length) {
    const [one] = leaders;
    const by = reportedBy(picture, [one]);
    const why = term?.cause ? `Why there was an election: ${term.cause}.` : "";
    // Other members may have elected another one.
    if (picture.blind) return { text: `Member ${one.id} says that it leads term ${one.term ?? "?"}`, by, kind: "warn", title: why };
    return { text: `Member ${one.id} leads term ${one.term ?? "?"}`, by, kind: "good", title: why };
  }
  const before = term ? `; member ${term.leader} led term ${term.term}` : "";
  const was = term ? members.find((/** @type {any} */ each) => each.id === term.leader) : null;
  if (picture.blind) {
    const hears = reporter == null ? `${heard.length} of ${voters.length} voters heard` : `Member ${reporter} hears ${heard.length} of ${voters.length} voters`;
    const by = was?.known ? `last known: member ${term.leader} led term ${term.term}, heard ${ago(picture, was.seen)}` : "";
    return { text: `${hears}; the rest is not known`, by, title: "Members that are not heard here may have a leader and serve.", kind: "warn" };
  }
  if (picture.fresh.some((/** @type {any} */ each) => !each.leads && each.step?.work !== "follow")) return { text: `No leader: election${before}`, by: reportedBy(picture, picture.fresh), title: "", kind: "warn" };
  const last = members.find((/** @type {any} */ each) => each.leads || (each.dead && term?.leader === each.id));
  if (last?.stale) {
    const silent = `silent for ${span(picture.at - last.seen)}`;
    return { text: `No leader is heard; member ${last.id} led term ${last.term}`, by: silent, title: "", kind: "bad" };
  }
  if (!picture.fresh.length) return { text: "No member is heard", title: "", kind: "bad" };
  return { text: `No leader${before}`, by: reportedBy(picture, picture.fresh), title: "", kind: "warn" };
}

/** @param {any} picture @returns {Verdict} */
function marginOf(picture) {
  const { margin, heard, voters } = picture;
  const title = `${heard.length} of ${voters.length} voters are heard (${heard.join(", ") || "none"}), a quorum is ${Math.floor(voters.length / 2) + 1}.`;
  if (!voters.length) return { text: UNKNOWN, title: "No configuration is known.", kind: "warn" };
  if (!picture.fresh.length) return { text: `${UNKNOWN} not known`, title: "No member is heard here; the cluster may be well.", kind: "unknown" };
  // Two members that this one can't hear may serve very well.
  if (picture.blind) return { text: "? quorum not known", title: `${title} The cluster may be well without those that are heard here.`, kind: "unknown" };
  if (margin < 0) return { text: "■ no quorum", title, kind: "bad" };
  if (picture.suspended) return { text: "▲ suspended", title: "An operator has suspended the cluster: it takes no commands.", kind: "warn" };
  if (margin === 0) return { text: "▲ none may fail", title, kind: "warn" };
  return { text: `● ${word(margin)} more may fail`, title, kind: "good" };
}

/** @param {import("./model.js").Model} model @param {any} picture @returns {Fact[]} */
function facts(model, picture) {
  const age = (/** @type {any} */ each) => ago(picture, each.seen);
  const said = (/** @type {any} */ each) => (each?.id >= 0 ? `member ${each.id}, ${age(each)}` : "");
  const { voters, heard, fresh, reporter, configBy } = picture;
  const here = fresh.find((/** @type {any} */ each) => each.id === reporter);
  /** @type {Fact[]} */
  const found = [
    {
      name: "voters heard", value: voters.length && fresh.length ? `${heard.length}\u202f/\u202f${voters.length}` : UNKNOWN, by: model.live ? said(here) : "in the recording",
      title: `Heard: ${heard.join(", ") || "none"}. Voters: ${voters.join(", ")}.`,
    },
    {
      name: "config", value: picture.version == null ? UNKNOWN : `v${picture.version}${picture.joint ? " joint" : ""}`, by: said(configBy), old: configBy?.stale,
      title: picture.joint ? "The voters are changing: both sets must agree." : "The version of the configuration.",
    },
  ];
  found.push(...etcd());
  const reporting = fresh.filter((/** @type {any} */ each) => each.status?.rates?.commands != null);
  if (!model.live && !reporting.length) return found;
  return [...found, sum("commands/s", "commands"), sum("reads/s", "reads"), slowest("p50"), slowest("p99")];

  /** etcd's keyspace by the member that has most of it; nothing if no member has a port for its clients. @returns {Fact[]} */
  function etcd() {
    const [newest] = fresh.filter((/** @type {any} */ each) => each.status?.etcd)
      .sort((/** @type {any} */ a, /** @type {any} */ b) => b.status.etcd.revision - a.status.etcd.revision);
    if (!newest) return [];
    const { revision, compacted, keys, leases } = newest.status.etcd;
    const clients = fresh.filter((/** @type {any} */ each) => each.status?.etcd)
      .map((/** @type {any} */ each) => `Member ${each.id}: ${count(each.status.etcd.watches)} watches, ${count(each.status.etcd.connections)} connections.`);
    const readable = compacted ? `Readable from revision ${count(compacted)} on.` : "All revisions are readable.";
    return [
      { name: "etcd revision", value: count(revision), by: said(newest), title: [readable, ...clients].join("\n") },
      { name: "etcd keys", value: count(keys), by: `${count(leases)} ${leases === 1 ? "lease" : "leases"}`, title: `Keys and leases of etcd's clients, by ${said(newest)}.` },
    ];
  }

  /** The sum of a rate; a lower bound if a member is silent. @param {string} name @param {string} of @returns {Fact} */
  function sum(name, of) {
    const by = reporting.filter((/** @type {any} */ each) => each.status.rates[of] != null);
    if (!by.length) return { name, value: UNKNOWN, by: "not reported", title: "No member reports this." };
    const all = by.reduce((/** @type {number} */ total, /** @type {any} */ each) => total + each.status.rates[of], 0);
    const silent = picture.members.map((/** @type {any} */ each) => each.id).filter((/** @type {number} */ id) => !by.some((/** @type {any} */ each) => each.id === id));
    const title = `Reported by ${by.map((/** @type {any} */ each) => `${each.id} (${age(each)})`).join(", ")}.`;
    const oldest = ago(picture, Math.min(...by.map((/** @type {any} */ each) => each.seen)));
    if (!silent.length) return { name, value: rate(all), by: `${by.length > 1 ? `all ${by.length}` : `member ${by[0].id}`}, ${oldest}`, title };
    const only = by.length > NAMED ? `${by.length} of ${picture.members.length}` : by.map((/** @type {any} */ each) => each.id).join(", ");
    return { name, value: `≥ ${rate(all)}`, by: `only ${only}, ${oldest}`, title: `${title} Without ${silent.join(", ")}: not heard.` };
  }

  /** The member whose commands take longest. @param {"p50" | "p99"} part @returns {Fact} */
  function slowest(part) {
    const value = (/** @type {any} */ each) => each.status.quantiles?.command?.[part] ?? null;
    const [most] = reporting.filter((/** @type {any} */ each) => value(each) !== null).sort((/** @type {any} */ a, /** @type {any} */ b) => value(b) - value(a));
    if (!most) return { name: part, value: UNKNOWN, by: "none in 10 s", title: "No command in the last 10 s, or no member reports it." };
    return { name: part, value: about(value(most)), by: said(most), title: `The slowest of the members that are heard is ${most.id}; an estimate over the last 10 s.` };
  }
}
