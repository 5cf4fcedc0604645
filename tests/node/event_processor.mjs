// The official JavaScript processor with its blob checkpoint store. It says what happens, one line of JSON each, until
// its standard input ends.
//
//   node event_processor.mjs CONNECTION_STRING GROUP BLOB_ENDPOINT ACCOUNT KEY CONTAINER

import { EventHubConsumerClient, earliestEventPosition } from "@azure/event-hubs";
import { BlobCheckpointStore } from "@azure/eventhubs-checkpointstore-blob";
import { ContainerClient, StorageSharedKeyCredential } from "@azure/storage-blob";

const [connectionString, group, endpoint, account, key, container] = process.argv.slice(2);
const say = (fact) => console.log(JSON.stringify(fact));

const blobs = new ContainerClient(`${endpoint}/${container}`, new StorageSharedKeyCredential(account, key));
const client = new EventHubConsumerClient(group, connectionString, new BlobCheckpointStore(blobs), {
  loadBalancingOptions: { updateIntervalInMs: 1000, partitionOwnershipExpirationIntervalInMs: 20000 },
});

const subscription = client.subscribe(
  {
    processInitialize: async (context) => say({ opened: context.partitionId }),
    processClose: async (reason, context) => say({ closed: context.partitionId }),
    processEvents: async (events, context) => {
      for (const event of events) say({ partition: context.partitionId, body: event.body.toString() });
      if (events.length) await context.updateCheckpoint(events[events.length - 1]);
    },
    processError: async (error) => say({ error: error.message }),
  },
  { startPosition: earliestEventPosition, maxWaitTimeInSeconds: 1 },
);

process.stdin.resume();
process.stdin.on("end", async () => {
  await subscription.close();
  await client.close();
  process.exit(0);
});
