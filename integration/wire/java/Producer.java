import com.rabbitmq.client.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.TimeoutException;

/**
 * Sends delayed messages. Usage: Producer route, with lines of a queue, a delay in ms and perhaps a lead on standard input,
 * or Producer URL QUEUE, with lines of an id, a delay in ms, a body and perhaps a lead in ms.
 */
final class Producer {
    private final Channel channel;
    private volatile String returned;

    Producer(Connection connection) throws IOException {
        channel = connection.createChannel();
        channel.confirmSelect();
        channel.addReturnListener((code, text, exchange, key, properties, body) -> returned = code + " " + text);
    }

    void publish(String exchange, String key, byte[] body, AMQP.BasicProperties properties, Map<String, Object> headers) throws IOException {
        publish(exchange, key, body, properties, headers, new Date());
    }

    /** Returns when the broker has confirmed the message, and throws if it was returned or refused. */
    private void publish(String exchange, String key, byte[] body, AMQP.BasicProperties properties, Map<String, Object> headers, Date sent) throws IOException {
        channel.basicPublish(exchange, key, true, properties.builder().deliveryMode(2).timestamp(sent).headers(headers).build(), body);
        try {
            channel.waitForConfirmsOrDie(30_000);
        } catch (InterruptedException | TimeoutException e) {
            throw new IOException("it is not known whether the broker has it", e);
        }
        if (returned != null) { // a return arrives before the confirm
            throw new IOException("returned: " + returned);
        }
    }

    /**
     * Delivers at the given time in ms, or up to lead ms earlier to a consumer that holds the message. offset is the number
     * of ms by which the clock of the due time is ahead.
     */
    void send(String queue, long due, byte[] body, AMQP.BasicProperties properties, Map<String, Object> headers, long lead, long offset) throws IOException {
        long wait = Math.max(0, due - offset - System.currentTimeMillis());
        long shorter = lead > 0 ? Delay.lead(wait, lead) : 0;
        Delay to = new Delay(queue, wait - shorter);
        headers.put("rabbitdelay-due", due);
        if (shorter > 0) {
            headers.put("rabbitdelay-lead", shorter);
        }
        if (offset > 0) {
            headers.put("rabbitdelay-clock-offset", offset);
        }
        Date sent = new Date(System.currentTimeMillis() + Math.min(offset, 0)); // by the clock of the due time, if that is behind
        publish(to.exchange, to.routingKey, body, properties, headers, sent);
    }

    public static void main(String[] args) throws Exception {
        Connection connection = args[0].equals("route") ? null : Destination.connect(args[0]);
        if (connection != null) {
            Destination.declare(connection, args[1]);
        }
        Producer producer = connection == null ? null : new Producer(connection);
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        for (String line : (Iterable<String>) new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).lines()::iterator) {
            String[] f = line.split("\t", -1);
            if (producer == null) {
                out.print(route(f) + "\n");
                continue;
            }
            var properties = new AMQP.BasicProperties.Builder().messageId(f[0]).contentType("text/plain").build();
            long due = System.currentTimeMillis() + Long.parseLong(f[1]);
            producer.send(args[1], due, f[2].getBytes(StandardCharsets.UTF_8), properties, new HashMap<>(), f.length > 3 ? Long.parseLong(f[3]) : 0, 0);
            out.print("confirmed\t" + f[0] + "\n");
        }
        if (connection != null) {
            connection.close();
        }
    }

    private static String route(String[] f) {
        long delay = Long.parseLong(f[1]);
        long lead = f.length > 2 ? Delay.lead(delay, Long.parseLong(f[2])) : 0;
        try {
            Delay to = new Delay(f[0], delay - lead);
            return to.exchange + "\t" + to.routingKey + (f.length > 2 ? "\t" + lead : "");
        } catch (IllegalArgumentException e) {
            return "refused";
        }
    }
}
