import com.rabbitmq.client.*;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;

/** Prepares a queue for its first use as a destination. */
final class Destination {
    private static final Map<String, Object> QUORUM = Map.of("x-queue-type", "quorum", "x-delivery-limit", 1_000_000_000L);

    static Connection connect(String url) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        factory.setHandshakeTimeout(60_000); // a busy broker takes its time
        return factory.newConnection();
    }

    /** Declares a missing queue. The check for it closes the channel if the queue is missing, so it uses a separate channel. */
    private static void declareMissing(Connection connection, String queue, Map<String, Object> arguments) throws Exception {
        try {
            Channel looking = connection.createChannel();
            looking.queueDeclarePassive(queue);
            looking.close();
        } catch (IOException e) {
            Channel declaring = connection.createChannel();
            declaring.queueDeclare(queue, true, false, false, arguments);
            declaring.close();
        }
    }

    /** Declares everything that must exist before the first message to a queue. */
    static void declare(Connection connection, String queue) throws Exception {
        Map<String, Object> arguments = new HashMap<>(QUORUM);
        arguments.putAll(Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", queue + ".dead",
            "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish"));
        declareMissing(connection, queue + ".dead", QUORUM);
        declareMissing(connection, queue, arguments);
        Channel binding = connection.createChannel();
        binding.queueBind(queue, Delay.DELIVER, Delay.BINDING + Delay.key(queue));
        binding.close();
    }
}
