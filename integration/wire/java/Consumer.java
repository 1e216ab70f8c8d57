import com.rabbitmq.client.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.*;
import java.util.concurrent.*;

/**
 * Consumes delayed messages, none before it is due. Usage: Consumer URL QUEUE COUNT. The body decides the outcome of a
 * message: "fail" fails on each of two attempts, "reject" is rejected immediately, any other body succeeds.
 */
final class Consumer {
    private static final String OURS = "x-death|x-(first|last)-death-.*|x-delay|x-delivery-count|x-acquired-count|x-opt-.*|B?CC"
        + "|rabbitdelay-(lead|absolute|clock-offset|returned|expired|deliveries)";
    private static final int MAX_ATTEMPTS = 2;
    private static final long BACKOFF = 300; // ms
    private static final int PREFETCH = 200; // messages received during a lead, and messages being handled
    private static final long ALLOWED = 2000; // ms by which clocks may differ

    private final String queue;
    private final Producer producer;
    private final Channel channel;
    private final CountDownLatch left;
    private final ScheduledExecutorService held = Executors.newSingleThreadScheduledExecutor(); // runs held messages, which are unacknowledged

    private Consumer(Connection connection, String queue, int count) throws IOException {
        this.queue = queue;
        producer = new Producer(connection);
        channel = connection.createChannel();
        left = new CountDownLatch(count);
    }

    /** Holds a message until it is due, or sends it back for the rest of its delay. */
    private void hold(Delivery m) {
        long now = System.currentTimeMillis(), lead = number(m, "rabbitdelay-lead", 0);
        long due = number(m, "rabbitdelay-due", 0) - number(m, "rabbitdelay-clock-offset", 0), early = due - now;
        Date sent = m.getProperties().getTimestamp();
        long rest = sent == null ? lead : Math.max(0, Math.min(lead, due - sent.getTime()));
        if (early < rest - ALLOWED) {
            begin(m, now + rest, false); // a clock may be wrong
        } else if (early <= lead + ALLOWED) {
            begin(m, now + Math.max(0, early), false);
        } else if (!Boolean.TRUE.equals(headers(m).get("rabbitdelay-absolute")) && sent != null && sent.getTime() - now > ALLOWED) {
            begin(m, now + lead, false); // the publisher's clock is ahead, or this one is behind; a delay is the same by both
        } else if (number(m, "rabbitdelay-returned", 0) >= 5) {
            begin(m, now + Math.min(early, 60_000), early > 60_000);
        } else {
            begin(m, now, true);
        }
    }

    /** Begins at the given time by this clock, even if the clock is changed in the meantime. */
    private void begin(Delivery m, long at, boolean back) {
        long wait = at - System.currentTimeMillis();
        if (wait > 0) {
            held.schedule(() -> begin(m, at, back), wait, TimeUnit.MILLISECONDS);
            return;
        }
        if (left.getCount() == 0) {
            return; // the end of the connection returns it to the queue
        }
        try {
            if (back) {
                sendBack(m);
            } else {
                handle(m);
            }
            channel.basicAck(m.getEnvelope().getDeliveryTag(), false);
            if (!back) {
                left.countDown();
            }
        } catch (Exception e) { // an executor ignores exceptions
            e.printStackTrace();
            System.exit(1);
        }
    }

    /** Sends a message again with its id and due time, without counting an attempt. */
    private void sendBack(Delivery m) throws IOException {
        Map<String, Object> headers = kept(m);
        headers.put("rabbitdelay-absolute", true);
        headers.put("rabbitdelay-returned", number(m, "rabbitdelay-returned", 0) + 1);
        long offset = number(m, "rabbitdelay-clock-offset", 0);
        producer.send(queue, number(m, "rabbitdelay-due", 0), m.getBody(), m.getProperties(), headers, 0, offset);
    }

    private void handle(Delivery m) throws IOException {
        long attempt = number(m, "rabbitdelay-attempt", 1);
        String body = new String(m.getBody(), StandardCharsets.UTF_8);
        System.out.print(String.join("\t", m.getProperties().getMessageId(), "" + attempt, "" + number(m, "rabbitdelay-due", 0),
            "" + System.currentTimeMillis(), body) + "\n");
        if (body.equals("reject") || body.equals("fail")) {
            again(m, attempt, body.equals("reject") ? "rejected" : "it failed");
        }
    }

    /** Publishes the next attempt, or the dead letter. The received message is acknowledged after the confirm. */
    private void again(Delivery m, long attempt, String error) throws IOException {
        boolean dead = error.equals("rejected") || attempt >= MAX_ATTEMPTS;
        Map<String, Object> headers = kept(m);
        List<Object> failed = new ArrayList<>((List<?>) headers.getOrDefault("rabbitdelay-attempts", List.of()));
        failed.add(Instant.now() + " " + error);
        headers.put("rabbitdelay-error", error);
        headers.put("rabbitdelay-attempts", failed.subList(Math.max(0, failed.size() - 32), failed.size()));
        headers.put("rabbitdelay-attempt", dead ? attempt : attempt + 1);
        if (!dead) {
            producer.send(queue, System.currentTimeMillis() + BACKOFF, m.getBody(), m.getProperties(), headers, 0, 0);
            return;
        }
        headers.put("rabbitdelay-reason", error.equals("rejected") ? "rejected" : "attempts");
        headers.put("rabbitdelay-queue", queue);
        headers.put("rabbitdelay-destination", queue);
        producer.publish("", queue + ".dead", m.getBody(), m.getProperties(), headers);
    }

    private static Map<String, Object> headers(Delivery m) {
        Map<String, Object> headers = m.getProperties().getHeaders();
        return headers == null ? Map.of() : headers;
    }

    private static Map<String, Object> kept(Delivery m) {
        Map<String, Object> headers = new HashMap<>(headers(m));
        headers.keySet().removeIf(name -> name.matches(OURS));
        return headers;
    }

    private static long number(Delivery m, String name, long otherwise) {
        return ((Number) headers(m).getOrDefault(name, otherwise)).longValue();
    }

    public static void main(String[] args) throws Exception {
        Connection connection = Destination.connect(args[0]);
        Destination.declare(connection, args[1]);
        Consumer consumer = new Consumer(connection, args[1], Integer.parseInt(args[2]));
        consumer.channel.basicQos(PREFETCH);
        consumer.channel.basicConsume(args[1], false, new DefaultConsumer(consumer.channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                consumer.held.execute(() -> consumer.hold(new Delivery(envelope, properties, body)));
            }
        });
        consumer.left.await();
        consumer.held.submit(() -> {
            consumer.channel.close(); // after the last acknowledgement; what is held goes back to the queue
            connection.close();
            return null;
        }).get();
        consumer.held.shutdownNow();
    }
}
