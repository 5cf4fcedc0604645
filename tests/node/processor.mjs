// One instance of a group that processors of more than one make share: the official JavaScript one, with its own
// checkpoint store on blobs. What it writes down is what benchmarks/_interop.py writes down, by the same clock.
//
//   EVENTHUBS_CONNECTION_STRING=... node processor.mjs '{"account": ..., "blobs": ..., "container": ..., ...}'

import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { EventHubConsumerClient, earliestEventPosition } from "@azure/event-hubs";
import { BlobCheckpointStore } from "@azure/eventhubs-checkpointstore-blob";
import { ContainerClient } from "@azure/storage-blob";

const options = JSON.parse(process.argv[2]);
const MARK_S = 1;
const marked = new Map();

function now() {
  return Number(process.hrtime.bigint()) / 1e9;
}

function write(...parts) {
  appendFileSync(options.account, `${parts.map((part) => (Number.isInteger(part) || typeof part === "string" ? part : part.toFixed(6))).join(" ")}\n`);
}

async function processEvents(events, context) {
  if (!events.length) return;
  const partition = context.partitionId;
  const began = now();
  await sleep(options.work_s * 1000);
  const last = events.at(-1);
  write("c", partition, events[0].sequenceNumber, last.sequenceNumber, began, now());
  if (now() - (marked.get(partition) ?? 0) >= MARK_S) {
    marked.set(partition, now());
    write("a", partition, last.sequenceNumber, now());
    await context.updateCheckpoint(last);
    write("d", partition, last.sequenceNumber, now());
  }
}

const blobs = new ContainerClient(options.blobs, options.container);
const client = new EventHubConsumerClient(
  "$Default",
  process.env.EVENTHUBS_CONNECTION_STRING,
  new BlobCheckpointStore(blobs),
  {
    loadBalancingOptions: {
      strategy: "greedy",
      updateIntervalInMs: options.interval_s * 1000,
      partitionOwnershipExpirationIntervalInMs: options.expiry_s * 1000,
    },
  },
);

console.log("ready");
createInterface({ input: process.stdin }).once("line", () => {
  const subscription = client.subscribe(
    { processEvents, processError: async (error) => appendFileSync(`${options.account}.log`, `${error.code} ${error.message}\n`) },
    { startPosition: earliestEventPosition, maxBatchSize: 100, maxWaitTimeInSeconds: 1 },
  );
  process.once("SIGTERM", async () => {
    await subscription.close();
    await client.close();
    process.exit(0);
  });
});
