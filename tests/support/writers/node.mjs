// `node node.mjs FOLDER KIND PORT...`: a writer with a client of Node.js; see __init__.py.
// FOLDER has the clients in its node_modules.

import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const TASKS = 4;
const PAUSE_MS = 10;

const [folder, kind, ...ports] = process.argv.slice(2);
const load = createRequire(`${folder}/`);
const acknowledged = [];
const errors = [];
let longest = 0;
let ends = false;

process.stdin.on("end", () => { ends = true; }).resume();

async function open() {
  if (kind === "ioredis") {
    const { Cluster } = load("ioredis");
    const client = new Cluster(ports.map((port) => ({ host: "127.0.0.1", port: Number(port) })));
    // It reports lost connections there, which are no errors of commands.
    client.on("error", (error) => console.error("ioredis", error));
    return [client, () => client.disconnect()];
  }
  const { createCluster } = load("redis");
  const client = createCluster({
    rootNodes: ports.map((port) => ({ url: `redis://127.0.0.1:${port}` })),
  });
  client.on("error", (error) => console.error("node-redis", error));
  await client.connect();
  return [client, () => client.destroy()];
}

async function write(client, task) {
  for (let count = 0; !ends; count += 1) {
    const key = `${kind}:${task}:${count}`;
    const began = performance.now();
    try {
      await client.set(key, key);
      acknowledged.push(key);
    } catch (error) {
      console.error(key, error);
      errors.push(`${key}: ${error.constructor.name}: ${error.message}`);
    }
    if (acknowledged.length + errors.length === 1) console.log("begins");
    longest = Math.max(longest, performance.now() - began);
    await sleep(PAUSE_MS);
  }
}

const [client, close] = await open();
await Promise.all(Array.from({ length: TASKS }, (_, task) => write(client, task)));
console.log(JSON.stringify({ acknowledged, errors, longest_s: longest / 1000 }));
close();
process.exit(0);
