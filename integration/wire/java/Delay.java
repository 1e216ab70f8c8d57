import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.Set;
import java.util.stream.Collectors;

/** Computes where to publish for a delay, as in docs/wire.md: layout clock in steps of 10 ms, quorum, prefix delay. */
final class Delay {
    static final int[] RADICES = {100, 60, 60, 24, 32, 12}; // lowest position first
    static final long STEP = 10; // ms
    static final String DELIVER = "delay.deliver";
    static final String BINDING = "clock." + String.join("", Collections.nCopies(RADICES.length, "*."));
    private static final int MAX_HEAD = 24; // bytes before the key, with the largest digits
    private static final String[] UNITS = {"d", "h", "m", "s", "ms"};
    private static final long[] SIZES = {86_400_000, 3_600_000, 60_000, 1000, 1};
    private static final Set<String> RESERVED = Set.of("bucket", "ttl", "plugin", "native", "canary", "deliver", "parked", "lock", "declared");

    final String exchange;
    final String routingKey;

    /** Computes exchange and routing key for a target queue and a delay in ms. */
    Delay(String queue, long delay) {
        String key = key(queue);
        String[] words = queue.split("\\.", -1);
        boolean reserved = words.length > 1 && words[0].equals("delay") && RESERVED.contains(words[1]);
        if (delay < 0 || reserved || key.getBytes(StandardCharsets.UTF_8).length + MAX_HEAD > 255) {
            throw new IllegalArgumentException(queue + " in " + delay + " ms");
        }
        long n = (delay + STEP - 1) / STEP;
        long worth = STEP;
        String digits = "";
        String entry = DELIVER;
        for (int radix : RADICES) {
            if (n % radix != 0) {
                entry = "delay.bucket." + duration(n % radix * worth);
            }
            digits = n % radix + "." + digits;
            n /= radix;
            worth *= radix;
        }
        if (n > 0) {
            throw new IllegalArgumentException(delay + " ms is too long");
        }
        exchange = entry;
        routingKey = "clock." + digits + key;
    }

    /**
     * Returns the lead of a message in ms. It is at least one step shorter than the delay, so that the message goes through
     * a delay queue, whose x-death says when it left. A message with a shorter delay than two steps goes straight to its queue.
     */
    static long lead(long delay, long lead) {
        if (lead < delay) {
            return lead;
        }
        return delay >= 2 * STEP ? delay - STEP : delay;
    }

    /** Returns the destination's part of a routing key. */
    static String key(String queue) {
        return Arrays.stream(queue.split("\\.", -1))
            .map(w -> w.equals("*") ? "%2A" : w.equals("#") ? "%23" : w.replace("%", "%25"))
            .collect(Collectors.joining("."));
    }

    private static String duration(long ms) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < UNITS.length; i++) {
            if (ms >= SIZES[i]) {
                text.append(ms / SIZES[i]).append(UNITS[i]);
                ms %= SIZES[i];
            }
        }
        return text.toString();
    }
}
