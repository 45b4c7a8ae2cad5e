/**
 * What the events say. Events go in one after the other; `picture(t)` is what was known at `t`.
 * Nothing here draws, and nothing depends on anything but the events and the time.
 *
 * For each member (a `Lane`) there are lists of indexes into the log, ascending by time. A picture
 * is found by bisection in these, so any moment of a long recording costs the same.
 */

import { DEATHS, KINDS, NUMBER, workOf } from "./kinds.js";
import { EventLog, append, upTo } from "./log.js";

/** What was not heard for longer is not known any more (seconds). */
export const STALE = 2;

/** A member says something five times a second; one that is silent for so long may be gone. */
const SILENT = 0.7;

/** What a status says holds for so long, if no other comes; keyframes of a simulation are sparse. */
export const RECENT = 5;

/** Two equal steps that are nearer to each other (seconds) are one, which came in two ways: the times of
 * another member are moved to our clock anew each time. */
const SAME = 0.2;

/** A live page keeps this many events, then drops the older half. */
const KEPT = 24_000;

const POSITIONS = /** @type {const} */ (["append", "commit", "applied", "snapshot"]);
const K = Object.fromEntries(KINDS.map((name) => [name, /** @type {number} */ (NUMBER.get(name))]));

/**
 * @typedef {{at: number, state: string, before: string, reason: string, term: number | null,
 *   work: string, dead: string, index: number}} Step
 * @typedef {{term: number, at: number, leader: number, cause: string, took: number | null}} Term
 * @typedef {{id: number, known: boolean, stale: boolean, seen: number, by: number,
 *   step: Step | null, dead: string, cut: string, paused: boolean, leads: boolean, term: number | null,
 *   positions: Record<string, number | null>, status: Record<string, any> | null,
 *   config: Record<string, any> | null}} Member
 *   `status` is what the member said a moment ago, `config` what it said last
 */

/**
 * How far a member is behind the leader, as the leader knows it; without a leader, behind the longest
 * log that was reported. @param {Member} member @param {(Member | null)[]} all
 * @returns {{lag: number | null, by: number | null}}
 */
export function lagOf(member, all) {
  const leader = all.findLast((each) => each?.leads && !each.stale && each.positions.append != null);
  if (leader === member) return { lag: 0, by: member.id };
  const peer = leader?.status?.peers?.find((/** @type {any} */ each) => each.member_id === member.id);
  // In a recording what the leader said of its followers may be older than what its log says.
  const newest = leader && leader.status?.append_position === leader.positions.append;
  if (newest && peer?.append_position >= 0) return { lag: Math.max(0, leader.status?.append_position - peer.append_position), by: leader.id };
  // One that is silent may have a longer log.
  if (!leader && all.some((each) => !each || each.stale || each.known === false)) return { lag: null, by: null };
  const most = leader?.positions.append ?? Math.max(...all.map((each) => each?.positions.append ?? -1));
  return { lag: member.positions.append == null ? null : Math.max(0, most - member.positions.append), by: null };
}

class Lane {
  /** @param {number} id @param {string} role */
  constructor(id, role) {
    this.id = id;
    this.role = role;
    /** @type {Step[]} */ this.steps = [];
    /** @type {number[]} */ this.statuses = [];
    /** @type {number[]} */ this.positions = [];
    /** @type {{from: number, to: number}[]} when it stood still */ this.pauses = [];
    /** @type {{from: number, to: number}[]} when nothing was heard of it */ this.gaps = [];
    this.first = Infinity;
    this.seen = -Infinity;
    this.by = id;
    this.last = -Infinity;
  }
}

/** @param {Lane} lane */
const isPaused = (lane) => lane.pauses.at(-1)?.to === Infinity;

/** @param {Lane} lane @param {number} at */
function unpause(lane, at) {
  const last = lane.pauses.at(-1);
  if (last?.to === Infinity) last.to = at;
}

export class Model {
  /** @param {Record<string, any>} head @param {boolean} live @param {EventLog} log */
  constructor(head, live, log = new EventLog()) {
    this.head = head;
    this.live = live;
    this.log = log;
    /** @type {Map<number, Lane>} */ this.lanes = new Map();
    /** @type {Term[]} */ this.terms = [];
    /** @type {Record<"transition" | "message" | "violation" | "batch" | "mark", number[]>} */
    this.order = { transition: [], message: [], violation: [], batch: [], mark: [] };
    /** The newest moment about which something may be known. */ this.latest = -Infinity;
    /** Members report all the time, so one that is silent is not known any more. A flight recorder
     * writes only what changes. */
    this.frequent = live || (head.source === "live" && log.kind.includes(K.status));
    /** In a simulation all is known. */
    this.omniscient = head.source === "simulation";
    this.reset(log);
    for (let i = 0; i < log.count; i++) this.index(i);
    if (!live) this.latest = this.end;
  }

  /** @param {EventLog} log */
  reset(log) {
    this.log = log;
    this.lanes = new Map();
    this.terms = [];
    this.order = { transition: [], message: [], violation: [], batch: [], mark: [] };
    for (const each of this.head.members ?? []) this.lane(each.id, each.role);
  }

  /** Members in the order of their ids. */
  get ids() {
    return [...this.lanes.keys()].sort((a, b) => a - b);
  }

  get begin() {
    return this.log.count ? this.log.at[0] : 0;
  }

  /** The earliest event of a live page may be of before it was opened. */
  get earliest() {
    return Math.min(this.begin, this.order.mark.length ? this.log.at[this.order.mark[0]] : Infinity);
  }

  get end() {
    return this.log.count ? this.log.at[this.log.count - 1] : 0;
  }

  /** @param {number} id @returns {Lane} */
  lane(id, role = "voter") {
    let lane = this.lanes.get(id);
    if (!lane) this.lanes.set(id, (lane = new Lane(id, role)));
    return lane;
  }

  /** Take a live event. @param {Record<string, any>} event @param {number} seen */
  add(event, seen) {
    if (this.log.count >= KEPT) this.#forget();
    // Another machine's clock may be ahead of ours, and events of one member are in order anyway.
    const lane = event.member >= 0 ? this.lanes.get(event.member) : null;
    const at = Math.max(lane ? lane.last : -Infinity, Math.min(event.at ?? seen, seen));
    this.index(this.log.push(event, seen, at));
  }

  #forget() {
    const { log, terms } = this;
    this.reset(new EventLog());
    this.terms = terms;
    for (let i = log.count >> 1; i < log.count; i++) {
      // What a keyframe said stands behind it as statuses.
      if (log.kind[i] !== K.keyframe) this.index(this.log.push(log.fields(i), log.seen[i], log.at[i]));
    }
  }

  /** @param {number} i an event of the log */
  index(i) {
    const { log, order } = this;
    const [id, kind, at] = [log.member[i], log.kind[i], log.at[i]];
    if (kind === K.keyframe) return this.#keyframe(i);
    if (kind === K.sends || kind === K.hears) append(log, order.message, i);
    if (id < 0) {
      if (kind === K.violation) append(log, order.violation, i);
      if (kind !== K.sends && kind !== K.hears) append(log, order.mark, i);
      return;
    }
    const lane = this.lane(id);
    const before = lane.seen;
    this.#heard(lane, log.seen[i], log.made.get(i)?.by ?? id);
    lane.last = Math.max(lane.last, at);
    switch (kind) {
      case K.sends: case K.hears: return;
      case K.status: return this.#status(lane, i, log.fields(i).status);
      case K.positions: case K.durable: append(log, lane.positions, i); return;
      case K.enters: this.#enters(lane, i); break;
      case K.leads: this.#leads(i); break;
      // It may be paused twice.
      case K.pauses: if (!isPaused(lane)) lane.pauses.push({ from: at, to: Infinity }); break;
      case K.resumes: unpause(lane, at); break;
      case K.starts: case K.created:
        unpause(lane, at);
        // Of a member that died unseen: it was silent from its last word on.
        if (!this.omniscient && lane.steps.length && !lane.steps.at(-1)?.dead) lane.gaps.push({ from: before, to: at });
        this.#step(lane, i, { state: "INIT", reason: "starts" }); break;
      case K.violation: append(log, order.violation, i); break;
      // There may be hundreds a second: they have a list of their own.
      case K.batch: append(log, order.batch, i); return;
      case K.client: return;
    }
    if (DEATHS[KINDS[kind]]) {
      unpause(lane, at);
      this.#step(lane, i, { dead: DEATHS[KINDS[kind]] });
    }
    append(log, order.mark, i);
  }

  /** @param {Lane} lane @param {number} seen @param {number} by */
  #heard(lane, seen, by) {
    if (this.frequent && seen - lane.seen > STALE && lane.seen > 0) {
      lane.gaps.push({ from: lane.seen, to: seen });
    }
    lane.first = Math.min(lane.first, seen);
    if (seen >= lane.seen) [lane.seen, lane.by] = [seen, by];
  }

  /** @param {Lane} lane @param {number} i @param {Partial<Step>} what */
  #step(lane, i, what, at = this.log.at[i]) {
    // "killed" says more than the "ends" that follows.
    if (what.dead && lane.steps.at(-1)?.dead) return;
    const step = { state: "", before: "", reason: "", term: null, work: "seek", dead: "", ...what, at, index: i };
    lane.steps.push(step);
  }

  /** @param {Lane} lane @param {number} i */
  #enters(lane, i) {
    const f = this.log.fields(i);
    const work = workOf(f.after, f.before === "LEADER_READY");
    this.#step(lane, i, { state: f.after, before: f.before, reason: f.reason ?? "", term: f.term ?? null, work });
    append(this.log, this.order.transition, i);
    append(this.log, lane.positions, i);
    if (work !== "lead" || f.term == null) return;
    // An event `leads` knows better; a simulation has none.
    const began = lane.steps.findLastIndex((each) => each.state === "INIT");
    const took = began < 0 ? null : this.log.at[i] - lane.steps[began].at;
    this.#term({ term: f.term, at: this.log.at[i], leader: lane.id, cause: lane.steps[began]?.reason ?? "", took });
  }

  /** @param {number} i */
  #leads(i) {
    const f = this.log.fields(i);
    this.#term({ term: f.term, at: this.log.at[i], leader: this.log.member[i], cause: f.cause ?? "", took: f.took ?? null });
  }

  /** @param {Term} found */
  #term(found) {
    const known = this.terms.find((each) => each.term === found.term && each.leader === found.leader);
    if (known) {
      known.cause = found.cause || known.cause;
      known.took = found.took ?? known.took;
    } else {
      this.terms.push(found);
      this.terms.sort((a, b) => a.at - b.at);
    }
  }

  /** @param {Lane} lane @param {number} i @param {Record<string, any>} status */
  #status(lane, i, status) {
    append(this.log, lane.statuses, i);
    if (!status?.state) return;
    const last = lane.steps.at(-1);
    const work = workOf(status.state, status.role === "leader");
    if (last && last.state === status.state && last.work === work && !last.dead) return;
    // A member that was there before we looked, or whose transitions were lost on their way.
    const at = Math.max(last?.at ?? -Infinity, this.log.at[i] - (status.state_age_s ?? 0));
    this.#step(lane, i, { state: status.state, term: status.term ?? null, work }, at);
    if (work === "lead") this.#term({ term: status.term, at, leader: lane.id, cause: "", took: null });
  }

  /** @param {number} i */
  #keyframe(i) {
    const { log } = this;
    for (const [name, each] of Object.entries(log.fields(i, this.live).members ?? {})) {
      const [lane, status] = [this.lane(Number(name)), each.status];
      const seen = log.seen[i] - Math.max(0, each.heard_ms ?? 0) / 1000;
      if (!status || each.heard_ms === null || (this.live && each.heard_ms < 0)) continue;
      if (this.live && seen < lane.seen) continue;
      this.#heard(lane, seen, each.by ?? lane.id);
      if (this.live) this.#kept(lane, log.at[i], seen, each.steps ?? []);
      const at = Math.max(lane.last, seen);
      const j = this.live ? log.push({ at, member: lane.id, kind: "status", status, by: each.by }, seen, at) : i;
      this.#status(lane, j, status);
    }
  }

  /** Steps that a member took before we looked. @param {Lane} lane @param {number} now
   * @param {number} seen @param {Record<string, any>[]} steps */
  #kept(lane, now, seen, steps) {
    for (const { ago, ...each } of steps) {
      const known = lane.steps.some((one) => one.before === each.before && one.state === each.after
        && one.term === (each.term ?? null) && Math.abs(one.at - now + ago) < SAME);
      if (known) continue;
      const at = Math.max(lane.steps.at(-1)?.at ?? -Infinity, now - ago);
      // It says now in which state it was then; its figures are known from `begin` on.
      lane.first = Math.min(lane.first, at);
      this.index(this.log.push({ ...each, at, member: lane.id, kind: "enters", by: lane.id }, seen, at));
    }
  }

  /** The last step of a member at `t`. @param {Lane} lane @param {number} t */
  stepAt(lane, t) {
    let [low, high] = [0, lane.steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.steps[middle].at <= t) low = middle + 1;
      else high = middle;
    }
    return lane.steps[low - 1] ?? null;
  }

  /** The last status of a member at `t`, and when it arrived. @param {Lane} lane @param {number} t */
  statusAt(lane, t) {
    const i = lane.statuses[upTo(this.log, lane.statuses, t) - 1];
    if (i === undefined) return null;
    const fields = this.log.fields(i);
    const status = fields.status ?? fields.members?.[lane.id]?.status;
    return { status, at: this.log.at[i], seen: this.log.seen[i] };
  }

  /** Where a member's log stood at `t`; null for what is not known. @param {Lane} lane @param {number} t */
  positionsAt(lane, t) {
    /** @type {Record<string, number | null>} */
    const found = { append: null, commit: null, applied: null, snapshot: null };
    const reported = this.statusAt(lane, t);
    const since = reported ? reported.at : -Infinity;
    if (reported) {
      for (const name of POSITIONS) found[name] = reported.status[`${name}_position`] ?? null;
    }
    const { log } = this;
    /** @type {Set<string>} */ const newer = new Set();
    const n = upTo(log, lane.positions, t);
    for (let k = n - 1; k >= Math.max(0, n - 24) && newer.size < 3; k--) {
      const i = lane.positions[k];
      if (log.at[i] < since) break;
      const f = log.fields(i);
      for (const name of POSITIONS) {
        // A transition says where the log ends as its term and position.
        const value = f[name] ?? (name === "append" ? f.log_end?.[1] : null);
        if (typeof value !== "number" || newer.has(name)) continue;
        found[name] = value;
        newer.add(name);
      }
    }
    if (found.snapshot != null && found.snapshot < 0) found.snapshot = null;
    return found;
  }

  /** When something of a member was last heard, at `t`. @param {Lane} lane @param {number} t */
  seenAt(lane, t) {
    if (t >= lane.seen) return lane.seen;
    const gap = lane.gaps.find((each) => each.from <= t && t < each.to);
    return gap ? gap.from : t < lane.first ? -Infinity : t;
  }

  /** Whether nothing was heard of a member at `t` and for long after: who looks back knows that.
   * @param {Lane} lane @param {number} t */
  #wasSilent(lane, t) {
    return (t > lane.seen && this.latest - lane.seen > STALE) || lane.gaps.some((each) => each.from < t && t < each.to);
  }

  /** @param {number} id @param {number} t @returns {Member} */
  member(id, t) {
    const lane = this.lane(id);
    const [step, reported] = [this.stepAt(lane, t), this.statusAt(lane, t)];
    const seen = this.seenAt(lane, t);
    const known = seen > -Infinity && (step !== null || reported !== null);
    return {
      id, known, seen, by: lane.by, step,
      stale: known && !this.omniscient && ((this.frequent && t - seen > STALE) || this.#wasSilent(lane, t)),
      cut: "",
      dead: step?.dead ?? "",
      paused: lane.pauses.some((each) => each.from <= t && t < each.to),
      leads: step?.work === "lead",
      term: step?.term != null && step.at >= (reported?.at ?? -Infinity) ? step.term : reported?.status?.term ?? step?.term ?? null,
      positions: this.positionsAt(lane, t),
      status: reported && t - reported.at < RECENT ? reported.status : null,
      config: reported?.status ?? null,
    };
  }

  /** All that was known at `t`. @param {number} t */
  picture(t) {
    let members = this.ids.map((id) => this.member(id, t));
    if (this.live) for (const each of members) this.#cutOff(each, members, t);
    const fresh = members.filter((each) => each.known && !each.stale && !each.dead && !each.paused);
    const newest = fresh.filter((each) => each.config).sort((a, b) => (b.config?.config_version ?? 0) - (a.config?.config_version ?? 0));
    const says = newest[0] ?? members.find((each) => each.config) ?? null;
    const decided = this.#configAt(t);
    const config = decided ?? says?.config;
    // One that is silent and that nobody names any more was removed.
    const named = new Set(newest.flatMap(({ config: each }) => [each?.member_id, ...(each?.peers ?? []).map((/** @type {any} */ one) => one.member_id)]));
    if (this.live && named.size) members = members.filter((each) => fresh.includes(each) || named.has(each.id));
    const voters = config?.voters?.length ? [...config.voters] : this.ids.filter((id) => this.lane(id).role !== "standby" && this.lane(id).role !== "reader");
    const heard = voters.filter((id) => fresh.some((each) => each.id === id));
    const quorum = Math.floor(voters.length / 2) + 1;
    // Of a member that is silent here nothing is known: it may serve others. A recording of all
    // members says which ones were dead or stood still.
    const ended = (/** @type {number} */ id) => !this.live && members.some((each) => each.id === id && (each.dead || each.paused));
    const unknown = this.omniscient ? [] : voters.filter((id) => !heard.includes(id) && !ended(id));
    const term = this.terms.filter((each) => each.at <= t).at(-1) ?? null;
    return {
      at: t, members, fresh, voters, heard, term,
      reporter: this.live ? this.head.reporter ?? null : null,
      configBy: decided ? { id: decided.member, seen: decided.at, stale: false } : says,
      // Too few are heard to know what the cluster does.
      blind: fresh.length > 0 && heard.length < quorum && heard.length + unknown.length >= quorum,
      version: config?.config_version ?? config?.version ?? null,
      joint: Boolean(config?.joint),
      leaders: fresh.filter((each) => each.leads && !members.some((other) => other.leads && other.step && (other.term ?? 0) > (each.term ?? 0) && each.seen < other.step.at)),
      margin: heard.length - quorum,
      suspended: fresh.some((each) => each.status?.suspended),
    };
  }

  /** A silent member to which others report no link is not known any more either, before it is
   * stale; and what they say of it is kept. @param {Member} member @param {Member[]} all @param {number} t */
  #cutOff(member, all, t) {
    if (t - member.seen < SILENT) return;
    for (const other of all) {
      const peer = t - other.seen < SILENT ? other.status?.peers?.find((/** @type {any} */ each) => each.member_id === member.id) : null;
      if (!peer || peer.connected) continue;
      member.stale ||= member.known;
      member.cut = `member ${other.id}: ${peer.trouble || "no link to it"}`;
      return;
    }
  }

  /** The newest event `config`, if the members' statuses do not say it. @param {number} t */
  #configAt(t) {
    if (this.live) return null;
    for (let k = upTo(this.log, this.order.mark, t) - 1; k >= 0 && k > this.order.mark.length - 5000; k--) {
      if (this.log.kind[this.order.mark[k]] === K.config) return this.log.fields(this.order.mark[k]);
    }
    return null;
  }

  /** The next or previous event of a group, seen from `t`; -1 if there is none.
   * @param {"transition" | "message" | "violation" | "mark"} group @param {number} from an event, or -1
   * @param {number} t @param {1 | -1} direction */
  step(group, from, t, direction) {
    const indexes = this.order[group];
    const here = from >= 0 ? indexes.indexOf(from, Math.max(0, upTo(this.log, indexes, this.log.at[from] - 1e-9))) : -1;
    const next = here >= 0 && Math.abs(this.log.at[from] - t) < 1e-9 ? here + direction
      : direction > 0 ? upTo(this.log, indexes, t) : upTo(this.log, indexes, t - 1e-9) - 1;
    return indexes[next] ?? -1;
  }
}
