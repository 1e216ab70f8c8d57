import com.rabbitmq.client.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.TimeoutException;

/** Sends delayed messages. Usage: Producer route | Producer URL QUEUE, with lines on standard input. */
final class Producer {
    private final Channel channel;
    private volatile String returned;

    Producer(Connection connection) throws IOException {
        channel = connection.createChannel();
        channel.confirmSelect();
        channel.addReturnListener((code, text, exchange, key, properties, body) -> returned = code + " " + text);
    }

    /** Returns when the broker has the message, and throws when it was returned or refused. */
    void publish(String exchange, String key, byte[] body, AMQP.BasicProperties properties, Map<String, Object> headers) throws IOException {
        channel.basicPublish(exchange, key, true, properties.builder().deliveryMode(2).timestamp(new Date()).headers(headers).build(), body);
        try {
            channel.waitForConfirmsOrDie(30_000);
        } catch (InterruptedException | TimeoutException e) {
            throw new IOException("it is not known whether the broker has it", e);
        }
        if (returned != null) { // before its confirm
            throw new IOException("returned: " + returned);
        }
    }

    void send(String queue, long delay, byte[] body, AMQP.BasicProperties properties, Map<String, Object> headers) throws IOException {
        Delay to = new Delay(queue, delay);
        headers.put("rabbitdelay-due", System.currentTimeMillis() + delay);
        publish(to.exchange, to.routingKey, body, properties, headers);
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
                out.print(route(f[0], Long.parseLong(f[1])) + "\n");
                continue;
            }
            var properties = new AMQP.BasicProperties.Builder().messageId(f[0]).contentType("text/plain").build();
            producer.send(args[1], Long.parseLong(f[1]), f[2].getBytes(StandardCharsets.UTF_8), properties, new HashMap<>());
            out.print("confirmed\t" + f[0] + "\n");
        }
        if (connection != null) {
            connection.close();
        }
    }

    private static String route(String queue, long delay) {
        try {
            Delay to = new Delay(queue, delay);
            return to.exchange + "\t" + to.routingKey;
        } catch (IllegalArgumentException e) {
            return "refused";
        }
    }
}
