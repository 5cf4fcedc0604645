// Azure's JavaScript checkpoint store on one container: lists, claims the first partition, writes a checkpoint for it.
const { ContainerClient } = require("@azure/storage-blob");
const { BlobCheckpointStore } = require("@azure/eventhubs-checkpointstore-blob");

async function main([connectionString, container, namespace, hub, group, ownerId]) {
  const store = new BlobCheckpointStore(new ContainerClient(connectionString, container));
  const owned = await store.listOwnership(namespace, hub, group);
  const checkpoints = await store.listCheckpoints(namespace, hub, group);
  const claimed = await store.claimOwnership([{ ...owned[0], ownerId }]);
  const where = { fullyQualifiedNamespace: namespace, eventHubName: hub, consumerGroup: group };
  await store.updateCheckpoint({ ...where, partitionId: owned[0].partitionId, sequenceNumber: 9, offset: "900" });
  console.log(JSON.stringify({ owned, checkpoints, claimed }));
}

main(process.argv.slice(2));
