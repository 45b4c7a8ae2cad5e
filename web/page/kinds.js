/**
 * Names: the kinds of events (as recordings/events.py has them), the states of an election, and
 * what kind of work a state is, which is all that colour and height of a bar say.
 */

export const KINDS = [
  "keyframe", "status", "enters", "leads", "sends", "hears", "positions", "durable", "link", "disk",
  "snapshot", "config", "batch", "client", "created", "starts", "ends", "stops", "fails", "killed",
  "powerless", "pauses", "resumes", "wiped", "removed", "fault", "violation", "note",
];

export const NUMBER = new Map(KINDS.map((name, i) => [name, i]));

/** A kind that this page does not know is kept, and drawn nowhere. */
export const OTHER = KINDS.length;

/** What ends a process, and the words for it. @type {Record<string, string>} */
export const DEATHS = {
  ends: "ended", stops: "stopped", fails: "failed", killed: "killed", powerless: "without power",
  removed: "removed",
};

/**
 * What work a state is. CLOSED is "lead" or "follow".
 * @param {string} state @param {boolean} leads
 * @returns {"seek" | "ballot" | "rise" | "join" | "lead" | "follow"}
 */
export function workOf(state, leads) {
  if (state === "CLOSED") return leads ? "lead" : "follow";
  if (state.startsWith("LEADER_")) return "rise";
  if (state.endsWith("_BALLOT")) return "ballot";
  return state.startsWith("FOLLOWER_") ? "join" : "seek";
}

/** The same in a word, in more words, and of a member that is silent since.
 * @type {Record<string, [string, string, string]>} */
export const WORKS = {
  lead: ["leads", "leads", "led"], follow: ["follows", "follows", "followed"],
  seek: ["looks", "looks for a leader", "looked for a leader"], ballot: ["votes", "votes", "voted"],
  rise: ["elected", "elected", "was elected"], join: ["joins", "joins a leader", "joined a leader"],
};

/** Words for a state where the reader may not know Aeron's names. @type {Record<string, string>} */
export const MEANING = {
  INIT: "begins an election",
  CANVASS: "asks which logs and terms there are",
  NOMINATE: "waits a moment before it stands",
  CANDIDATE_BALLOT: "asks for votes",
  FOLLOWER_BALLOT: "has voted, and waits for the result",
  LEADER_LOG_REPLICATION: "elected: waits until a quorum has its log",
  LEADER_REPLAY: "elected: applies what is committed",
  LEADER_INIT: "elected: begins its term",
  LEADER_READY: "elected: waits until a quorum is ready",
  FOLLOWER_LOG_REPLICATION: "fetches the log of earlier terms",
  FOLLOWER_REPLAY: "applies what is committed",
  FOLLOWER_CATCHUP_INIT: "prepares to catch up",
  FOLLOWER_CATCHUP_AWAIT: "asks the leader for what is missing",
  FOLLOWER_CATCHUP: "catches up with the leader",
  FOLLOWER_LOG_INIT: "joins the leader's stream",
  FOLLOWER_LOG_AWAIT: "waits for the leader's stream",
  FOLLOWER_READY: "is ready, and waits for the leader's word",
  CLOSED: "the election is over: it leads or follows",
};

/**
 * One line that says what happened.
 * @param {string} kind @param {Record<string, any>} f the event's fields
 * @param {{bytes: (n: any) => string, span: (s: any) => string}} as
 */
export function sentence(kind, f, as) {
  switch (kind) {
    case "enters": return `${f.before} → ${f.after}${f.reason ? `: ${f.reason}` : ""}`;
    case "leads": return `leads term ${f.term}, after ${as.span(f.took)}${f.cause ? `: ${f.cause}` : ""}`;
    case "sends": return `sends ${f.type} to ${f.to}${detail(f)}`;
    case "hears": return `hears ${f.type} of ${f.sender}${detail(f)}`;
    case "link": return `link ${f.direction === "out" ? "to" : "with"} ${f.peer} is ${f.up ? "up" : "down"}${f.why ? `: ${f.why}` : ""}`;
    case "snapshot": return `snapshot ${f.what ?? ""}${f.position == null ? "" : ` at ${f.position}`}${f.bytes ? `, ${as.bytes(f.bytes)}` : ""}${f.took ? `, ${as.span(f.took)}` : ""}`;
    case "config": return `configuration ${f.version}: voters ${(f.voters ?? []).join(", ")}${f.joint ? " (joint)" : ""}`;
    case "disk": return `disk: ${f.what ?? ""}${f.bytes ? `, ${as.bytes(f.bytes)}` : ""}${f.took ? `, ${as.span(f.took)}` : ""}`;
    case "batch": return `slow batch at ${f.position}: ${f.entries} entries, ${as.span(f.took)} (${["receive", "sync", "quorum", "apply", "reply"].filter((n) => f[n] != null).map((n) => `${n} ${as.span(f[n])}`).join(", ")})`;
    case "positions": case "durable":
      return ["append", "commit", "applied", "snapshot"].filter((n) => f[n] != null).map((n) => `${n} ${f[n]}`).join(", ");
    case "client": return `client ${f.client ?? ""}: ${f.op ?? ""} ${f.key ?? ""} ${f.status ?? ""}${f.took ? ` after ${as.span(f.took)}` : ""}`;
    case "fault": return `${f.what ?? "fault"}${f.targets == null || !String(f.targets) ? "" : `: ${[f.targets].flat(3).join(", ")}`}`;
    case "violation": return `${f.invariant ?? ""}: ${f.text ?? ""}`;
    case "powerless": return `loses power${f.fate ? `: ${f.fate}` : ""}`;
    case "fails": return `fails: ${f.why ?? ""}`;
    case "note": return f.text ?? "";
    default: return DEATHS[kind] ?? kind;
  }
}

function detail(/** @type {Record<string, any>} */ f) {
  const parts = ["term", "position"].filter((name) => f[name] != null && f[name] >= 0);
  return parts.length ? ` (${parts.map((name) => `${name} ${f[name]}`).join(", ")})` : "";
}
