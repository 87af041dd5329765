// The server under test, with the model that comes with imago, and what it counts.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

export const key = "a key for tests";

/** Starts `imago serve`; resolves once it answers. */
export async function start() {
  const process_ = spawn(
    process.env.IMAGO_PROGRAM,
    ["serve", "--port", "0", "--api-key", key, "--metrics", "--alias", "bundled", "-t", "1", "--no-ui"],
    { stdio: ["ignore", "ignore", "pipe"] },
  );
  process.on("exit", () => process_.kill("SIGKILL")); // where a test fails before it stops the server
  const lines = createInterface({ input: process_.stderr });
  const said = [];
  const url = await new Promise((resolve, reject) => {
    lines.on("line", (line) => {
      said.push(line);
      const found = line.match(/^listening on (http:\S+)$/);
      if (found) resolve(found[1]);
    });
    process_.on("exit", () => reject(new Error(`the server ended: ${said.join("\n")}`)));
  });
  while (!(await fetch(`${url}/health`)).ok) await pause(20);
  return {
    url,
    /** A number of GET /metrics. */
    async metric(name) {
      const text = await (await fetch(`${url}/metrics`, { headers: { Authorization: `Bearer ${key}` } })).text();
      return Number(text.match(new RegExp(`^llamacpp:${name} (\\S+)$`, "m"))[1]);
    },
    /** Resolves to the exit code. */
    stop() {
      const ended = new Promise((resolve) => process_.on("exit", resolve));
      process_.kill("SIGTERM");
      return ended;
    },
  };
}

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
