<?php
// Sends delayed messages. Usage: producer.php route | producer.php URL QUEUE, with lines on standard input.

require __DIR__ . '/destination.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

// A channel on which publish_confirmed throws for a message that came back or was refused.
function confirming(AMQPStreamConnection $connection)
{
    $channel = $connection->channel();
    $channel->confirm_select();
    $channel->set_return_listener(function ($code, $text) { throw new RuntimeException("returned: $code $text"); });
    $channel->set_nack_handler(function ($m) { throw new RuntimeException('refused'); });
    return $channel;
}

function publish_confirmed($channel, string $exchange, string $key, string $body, array $properties): void
{
    $properties = ['delivery_mode' => 2, 'timestamp' => time()] + $properties;
    $properties['application_headers'] = new AMQPTable($properties['application_headers'] ?? []);
    $channel->basic_publish(new AMQPMessage($body, $properties), $exchange, $key, true);
    $channel->wait_for_pending_acks_returns(30);
}

function send($channel, string $queue, int $delay, string $body, array $properties): void
{
    [$exchange, $key] = route($queue, $delay);
    $properties['application_headers']['rabbitdelay-due'] = (int) floor(microtime(true) * 1000) + $delay;
    publish_confirmed($channel, $exchange, $key, $body, $properties);
}

if (realpath($argv[0]) !== __FILE__) {
    return; // required by the consumer
}
if ($argv[1] !== 'route') {
    $connection = connect($argv[1]);
    declare_destination($connection, $argv[2]);
    $channel = confirming($connection);
}
while (($line = fgets(STDIN)) !== false) {
    $fields = explode("\t", rtrim($line, "\n"));
    if ($argv[1] !== 'route') {
        send($channel, $argv[2], (int) $fields[1], $fields[2], ['message_id' => $fields[0], 'content_type' => 'text/plain']);
        echo "confirmed\t$fields[0]\n";
        continue;
    }
    try {
        echo implode("\t", route($fields[0], (int) $fields[1])), "\n";
    } catch (DomainException) {
        echo "refused\n";
    }
}
