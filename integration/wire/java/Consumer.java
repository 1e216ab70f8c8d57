import com.rabbitmq.client.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.*;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;

/**
 * Consumes delayed messages. Usage: Consumer URL QUEUE COUNT. Bodies say what becomes of a message: "fail" fails on
 * each of two attempts, "reject" is given up at once, any other succeeds.
 */
final class Consumer {
    private static final String OURS = "x-death|x-(first|last)-death-.*|x-delay|x-delivery-count|x-acquired-count|x-opt-.*|B?CC";
    private static final int MAX_ATTEMPTS = 2;
    private static final long BACKOFF = 300; // ms

    /** The next attempt, or the dead letter. The received message is acknowledged after it is confirmed. */
    private static void again(Producer producer, String queue, Delivery m, long attempt, String error) throws IOException {
        boolean dead = error.equals("rejected") || attempt >= MAX_ATTEMPTS;
        Map<String, Object> headers = new HashMap<>(headers(m));
        headers.keySet().removeIf(name -> name.matches(OURS));
        List<Object> failed = new ArrayList<>((List<?>) headers.getOrDefault("rabbitdelay-attempts", List.of()));
        failed.add(Instant.now() + " " + error);
        headers.put("rabbitdelay-error", error);
        headers.put("rabbitdelay-attempts", failed.subList(Math.max(0, failed.size() - 32), failed.size()));
        headers.put("rabbitdelay-attempt", dead ? attempt : attempt + 1);
        if (!dead) {
            producer.send(queue, BACKOFF, m.getBody(), m.getProperties(), headers);
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

    private static long number(Map<String, Object> headers, String name, long otherwise) {
        return ((Number) headers.getOrDefault(name, otherwise)).longValue();
    }

    public static void main(String[] args) throws Exception {
        String queue = args[1];
        CountDownLatch left = new CountDownLatch(Integer.parseInt(args[2]));
        Connection connection = Destination.connect(args[0]);
        Destination.declare(connection, queue);
        Producer producer = new Producer(connection);
        Channel channel = connection.createChannel();
        channel.basicQos(10);
        channel.basicConsume(queue, false, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) throws IOException {
                handle(producer, queue, new Delivery(envelope, properties, body));
                channel.basicAck(envelope.getDeliveryTag(), false);
                left.countDown();
            }
        });
        left.await();
        channel.close(); // after the last acknowledgement
        connection.close();
    }

    private static void handle(Producer producer, String queue, Delivery m) throws IOException {
        long due = number(headers(m), "rabbitdelay-due", 0), attempt = number(headers(m), "rabbitdelay-attempt", 1);
        // The broker's clock and this one may differ by milliseconds.
        LockSupport.parkNanos(1_000_000 * Math.min(20, due - System.currentTimeMillis())); // not at all if it is negative
        String body = new String(m.getBody(), StandardCharsets.UTF_8);
        System.out.print(String.join("\t", m.getProperties().getMessageId(), "" + attempt, "" + due, "" + System.currentTimeMillis(), body) + "\n");
        if (body.equals("reject") || body.equals("fail")) {
            again(producer, queue, m, attempt, body.equals("reject") ? "rejected" : "it failed");
        }
    }
}
