// Scenarios with the official JavaScript client. Prints what each found, as one line of JSON; the test judges.
//
//   node event_hubs.mjs SCENARIO[,SCENARIO...] CONNECTION_STRING [WEBSOCKETS]

import {
  EventHubBufferedProducerClient,
  EventHubConsumerClient,
  EventHubProducerClient,
  earliestEventPosition,
  latestEventPosition,
} from "@azure/event-hubs";

const [names, connectionString, websockets] = process.argv.slice(2);
const PATIENCE_MS = 20000;
const options = {
  retryOptions: { maxRetries: 0, timeoutInMs: 10000 },
  ...(websockets ? { webSocketOptions: { webSocket: WebSocket } } : {}),
};

function consumer(group = "$Default") {
  return new EventHubConsumerClient(group, connectionString, options);
}

async function withProducer(use) {
  const producer = new EventHubProducerClient(connectionString, options);
  try {
    return await use(producer);
  } finally {
    await producer.close();
  }
}

// So many events of a partition, from a position, or the error that came instead.
async function received(count, position, { partition = "0", group = "$Default", rest = 0, ...more } = {}) {
  const client = consumer(group);
  const found = [];
  let subscription;
  try {
    return await new Promise((resolve) => {
      setTimeout(() => resolve({ error: "patience", found }), PATIENCE_MS).unref();
      const handlers = {
        processEvents: async (events, context) => {
          for (const event of events) found.push(shown(event, context));
          await new Promise((done) => setTimeout(done, rest));
          if (found.length >= count) resolve(found);
        },
        processError: async (error) => resolve({ error: error.code ?? error.name, message: error.message }),
      };
      subscription = client.subscribe(partition, handlers, { startPosition: position, maxWaitTimeInSeconds: 1, ...more });
    });
  } finally {
    await subscription?.close();
    await client.close();
  }
}

function shown(event, context) {
  return {
    body: Buffer.isBuffer(event.body) ? event.body.toString() : event.body,
    offset: event.offset,
    sequence: event.sequenceNumber,
    at: event.enqueuedTimeUtc.getTime(),
    key: event.partitionKey ?? null,
    properties: event.properties ?? null,
    messageId: event.messageId ?? null,
    contentType: event.contentType ?? null,
    correlationId: event.correlationId ?? null,
    last: context.lastEnqueuedEventProperties?.sequenceNumber ?? null,
  };
}

async function failure(doing) {
  try {
    await doing();
    return null;
  } catch (error) {
    return error.code ?? error.name;
  }
}

const scenarios = {
  async send() {
    await withProducer(async (producer) => {
      await producer.sendBatch([{ body: "single" }], { partitionId: "0" });
      const batch = await producer.createBatch({ partitionId: "0" });
      for (let i = 0; i < 5; i++) batch.tryAdd({ body: `batch ${i}`, properties: { i, text: "x", right: true } });
      await producer.sendBatch(batch);
      await producer.sendBatch([{ body: "keyed" }], { partitionKey: "home-7" });
      await producer.sendBatch([{ body: "anywhere" }]);
      await producer.sendBatch(
        [{ body: { a: [1, 2] }, messageId: "id", contentType: "application/json", correlationId: "c" }],
        { partitionId: "0" },
      );
    });
    const problems = [];
    const buffered = new EventHubBufferedProducerClient(connectionString, {
      ...options,
      onSendEventsErrorHandler: async (context) => problems.push(context.error.message),
    });
    for (let i = 0; i < 20; i++) await buffered.enqueueEvent({ body: `buffered ${i}` }, { partitionId: "3" });
    await buffered.close({ flush: true });
    return problems;
  },

  async receive() {
    return {
      earliest: await received(7, earliestEventPosition),
      properties: await received(1, { sequenceNumber: 2, isInclusive: true }),
      after: await received(1, { sequenceNumber: 2 }),
      offset: await received(1, { offset: "3" }),
      atOffset: await received(1, { offset: "3", isInclusive: true }),
      buffered: await received(20, earliestEventPosition, { partition: "3" }),
      tracked: await received(1, earliestEventPosition, { trackLastEnqueuedEventProperties: true }),
      group: await received(1, earliestEventPosition, { group: "alerts" }),
    };
  },

  async byTime() {
    const [first] = await received(1, earliestEventPosition);
    return {
      first,
      since: (await received(1, { enqueuedOn: new Date(first.at - 1) }))[0],
      latest: await latest(),
    };
  },

  async facts() {
    return withProducer(async (producer) => ({
      hub: await producer.getEventHubProperties(),
      ids: await producer.getPartitionIds(),
      partition: await producer.getPartitionProperties("0"),
      unknown: await failure(() => producer.getPartitionProperties("77")),
    }));
  },

  async epochs() {
    const first = consumer();
    const events = [];
    const stolen = await new Promise((resolve) => {
      setTimeout(() => resolve("patience"), PATIENCE_MS).unref();
      let second;
      first.subscribe("0", {
        processEvents: async () => {
          second ??= received(1, earliestEventPosition, { ownerLevel: 6 }).then((found) => events.push(found));
        },
        processError: async (error) => resolve(error.code),
      }, { startPosition: earliestEventPosition, ownerLevel: 5, maxWaitTimeInSeconds: 1 });
    });
    await first.close();
    return { stolen };
  },

  async epochsHeld() {
    // One holds the partition at epoch 9; who comes with less, or without, is sent away.
    const holder = consumer();
    const began = new Promise((resolve) => {
      holder.subscribe("1", {
        processEvents: async () => resolve(null),
        processError: async (error) => resolve(error.code),
      }, { startPosition: earliestEventPosition, ownerLevel: 9, maxWaitTimeInSeconds: 1 });
    });
    const problem = await began;
    const lower = await received(1, earliestEventPosition, { partition: "1", ownerLevel: 8 });
    const none = await received(1, earliestEventPosition, { partition: "1" });
    await holder.close();
    return { problem, lower: lower.error, none: none.error };
  },

  async refusals() {
    return {
      group: (await received(1, earliestEventPosition, { group: "nobody" })).error,
      partition: (await received(1, earliestEventPosition, { partition: "99" })).error,
      sendPartition: await failure(() => withProducer((p) => p.sendBatch([{ body: "x" }], { partitionId: "99" }))),
      beyond: (await received(1, { sequenceNumber: 1000000 })).error,
      tooLarge: await failure(() => withProducer((p) => p.sendBatch([{ body: Buffer.alloc(1100000) }]))),
    };
  },

  async large() {
    await withProducer((producer) => producer.sendBatch([{ body: Buffer.alloc(1000000, "L") }], { partitionId: "2" }));
    const found = await received(1, earliestEventPosition, { partition: "2" });
    return found[0].body.length;
  },

  async connect() {
    return withProducer(async (producer) => failure(() => producer.getEventHubProperties()));
  },

  async roundTrip() {
    // All the way there and back, in several frames.
    const body = "W".repeat(200000);
    await withProducer((producer) => producer.sendBatch([{ body }], { partitionId: "0" }));
    const found = await received(1, earliestEventPosition);
    return found[0]?.body === body || found;
  },

  async keyed() {
    const found = {};
    await withProducer(async (producer) => {
      for (const partition of await producer.getPartitionIds()) {
        const { isEmpty, lastEnqueuedSequenceNumber } = await producer.getPartitionProperties(partition);
        const count = isEmpty ? 0 : lastEnqueuedSequenceNumber + 1;
        const events = count ? await received(count, earliestEventPosition, { partition }) : [];
        found[partition] = events.filter((event) => event.key !== null);
      }
    });
    return found;
  },

  async slow() {
    // Large events, a few at a time, for a receiver that takes its time: sent as fast as they are taken.
    await withProducer(async (producer) => {
      const sends = [];
      for (let i = 0; i < 60; i++) {
        const body = Buffer.alloc(300000, "s");
        sends.push(producer.sendBatch([{ body, properties: { i } }], { partitionId: "0" }));
      }
      await Promise.all(sends);
    });
    const slow = { prefetchCount: 4, maxBatchSize: 2, rest: 30 };
    const found = await received(60, earliestEventPosition, slow);
    return (found.found ?? found).map((event) => [event.sequence, event.body.length]);
  },

  async follow() {
    // Tells what comes, line by line, whatever happens to the connection, until somebody says that it is the end.
    const patient = { retryOptions: { maxRetries: 50, retryDelayInMs: 200, maxRetryDelayInMs: 500 } };
    const client = new EventHubConsumerClient("$Default", connectionString, patient);
    let errors = 0;
    await new Promise((resolve) => {
      client.subscribe("0", {
        processEvents: async (events) => {
          for (const event of events) console.log(JSON.stringify(event.body.toString()));
          if (events.some((event) => event.body.toString() === "end")) resolve();
        },
        processError: async () => { errors += 1; },
      }, { startPosition: earliestEventPosition, maxWaitTimeInSeconds: 1 });
    });
    await client.close();
    return { errors };
  },
};

async function latest() {
  const waiting = received(1, latestEventPosition, { partition: "1" });
  const stop = setInterval(() => withProducer((p) => p.sendBatch([{ body: "news" }], { partitionId: "1" })), 700);
  try {
    const found = await waiting;
    return found[0]?.body ?? found;
  } finally {
    clearInterval(stop);
  }
}

const found = {};
for (const name of names.split(",")) found[name] = (await scenarios[name]()) ?? null;
console.log(JSON.stringify(found));
process.exit(0);
