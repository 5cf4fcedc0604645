import com.azure.cosmos.ChangeFeedProcessor;
import com.azure.cosmos.ChangeFeedProcessorBuilder;
import com.azure.cosmos.CosmosAsyncContainer;
import com.azure.cosmos.CosmosAsyncDatabase;
import com.azure.cosmos.CosmosClientBuilder;
import com.azure.cosmos.models.ChangeFeedProcessorItem;
import com.azure.cosmos.models.ChangeFeedProcessorOptions;
import com.azure.cosmos.models.CosmosQueryRequestOptions;
import com.azure.cosmos.models.SqlParameter;
import com.azure.cosmos.models.SqlQuerySpec;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.time.Duration;
import java.util.List;

/**
 * A host of Java's own change feed processor, which tells what it is given: a line of JSON for each batch.
 *
 * ChangeFeedHost ENDPOINT KEY DATABASE NAME PREFIX WAY EXPIRY_S
 *
 * WAY is "changes" (leases by the ids of ranges), "latest" or "all" (leases by where ranges begin and end). Its times
 * are shorter than the usual ones, in the same proportion. SIGTERM stops it: stop() returns before leases are released,
 * so it waits for that, though not for long, since one whose checkpoint was under way may stay its own. SIGKILL leaves
 * them all as they are.
 */
public class ChangeFeedHost {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int RELEASE_TRIES = 15;

    public static void main(String[] told) throws InterruptedException {
        String name = told[3], way = told[5];
        CosmosAsyncDatabase database = new CosmosClientBuilder()
            .endpoint(told[0]).key(told[1]).gatewayMode().contentResponseOnWriteEnabled(true)
            .buildAsyncClient().getDatabase(told[2]);
        CosmosAsyncContainer leases = database.getContainer("leases");
        ChangeFeedProcessorBuilder builder = new ChangeFeedProcessorBuilder()
            .hostName(name)
            .feedContainer(database.getContainer("orders"))
            .leaseContainer(leases)
            .options(options(told[4], way, Double.parseDouble(told[6])));
        switch (way) {
            case "changes" -> builder.handleChanges(changes -> changes.forEach(one -> tell(one, one.get("_lsn"))));
            case "latest" -> builder.handleLatestVersionChanges(ChangeFeedHost::tellItems);
            default -> builder.handleAllVersionsAndDeletesChanges(ChangeFeedHost::tellItems);
        }
        ChangeFeedProcessor processor = builder.buildChangeFeedProcessor();
        processor.start().block();
        print(JSON.createObjectNode().put("ready", name));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(processor, leases, name)));
        Thread.currentThread().join();
    }

    private static ChangeFeedProcessorOptions options(String prefix, String way, double expiryS) {
        return new ChangeFeedProcessorOptions()
            .setLeasePrefix(prefix)
            .setStartFromBeginning(!way.equals("all"))
            .setLeaseExpirationInterval(seconds(expiryS))
            .setLeaseRenewInterval(seconds(expiryS * 17 / 60))
            .setLeaseAcquireInterval(seconds(expiryS * 13 / 60))
            .setFeedPollDelay(Duration.ofMillis(100))
            .setMaxItemCount(50);
    }

    private static Duration seconds(double seconds) {
        return Duration.ofMillis(Math.round(1000 * seconds));
    }

    private static void stop(ChangeFeedProcessor processor, CosmosAsyncContainer leases, String name) {
        processor.stop().block();
        SqlQuerySpec mine = new SqlQuerySpec(
            "SELECT * FROM c WHERE c.Owner = @owner", List.of(new SqlParameter("@owner", name)));
        for (int nth = 0; nth < RELEASE_TRIES; nth++) {
            if (!leases.queryItems(mine, new CosmosQueryRequestOptions(), JsonNode.class).hasElements().block()) {
                return;
            }
            pause();
        }
    }

    private static void pause() {
        try {
            Thread.sleep(100);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static void tellItems(List<ChangeFeedProcessorItem> items) {
        for (ChangeFeedProcessorItem item : items) {
            JsonNode one = item.toJsonNode();
            JsonNode document = one.path("current").has("id") ? one.get("current") : one.get("previous");
            tell(document, one.path("metadata").get("lsn"));
        }
    }

    private static void tell(JsonNode document, JsonNode lsn) {
        ObjectNode line = JSON.createObjectNode();
        line.set("id", document.get("id"));
        line.set("lsn", lsn);
        print(line);
    }

    private static synchronized void print(ObjectNode line) {
        System.out.println(line);
    }
}
