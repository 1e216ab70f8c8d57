<?php
// Sends delayed messages. Usage: producer.php route, with lines of a queue, a delay in ms and perhaps a lead on standard
// input, or producer.php URL QUEUE, with lines of an id, a delay in ms, a body and perhaps a lead in ms.

require __DIR__ . '/destination.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

// Returns a channel on which publish_confirmed throws if a message was returned or refused.
function confirming(AMQPStreamConnection $connection)
{
    $channel = $connection->channel();
    $channel->confirm_select();
    $channel->set_return_listener(function ($code, $text) { throw new RuntimeException("returned: $code $text"); });
    $channel->set_nack_handler(function ($m) { throw new RuntimeException('refused'); });
    return $channel;
}

// $ahead is the number of ms by which the clock of the due time is ahead. If it is behind, the timestamp is by that clock.
function publish_confirmed($channel, string $exchange, string $key, string $body, array $properties, int $ahead = 0): void
{
    $properties = ['delivery_mode' => 2, 'timestamp' => intdiv(now_ms() + min($ahead, 0), 1000)] + $properties;
    $properties['application_headers'] = new AMQPTable($properties['application_headers'] ?? []);
    $channel->basic_publish(new AMQPMessage($body, $properties), $exchange, $key, true);
    $channel->wait_for_pending_acks_returns(30);
}

function now_ms(): int
{
    return (int) floor(microtime(true) * 1000);
}

// Delivers at the given time in ms, or up to $lead ms earlier to a consumer that holds the message. $offset is the number of
// ms by which the clock of the due time is ahead.
function send($channel, string $queue, int $due, string $body, array $properties, int $lead = 0, int $offset = 0): void
{
    $wait = max(0, $due - $offset - now_ms());
    $lead = $lead > 0 ? lead_of($wait, $lead) : 0;
    [$exchange, $key] = route($queue, $wait - $lead);
    $added = ['rabbitdelay-due' => $due, 'rabbitdelay-lead' => $lead, 'rabbitdelay-clock-offset' => max($offset, 0)];
    $properties['application_headers'] = array_filter($added) + ($properties['application_headers'] ?? []);
    publish_confirmed($channel, $exchange, $key, $body, $properties, $offset);
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
        $properties = ['message_id' => $fields[0], 'content_type' => 'text/plain'];
        send($channel, $argv[2], now_ms() + (int) $fields[1], $fields[2], $properties, (int) ($fields[3] ?? 0));
        echo "confirmed\t$fields[0]\n";
        continue;
    }
    try {
        $lead = isset($fields[2]) ? [lead_of((int) $fields[1], (int) $fields[2])] : [];
        echo implode("\t", [...route($fields[0], (int) $fields[1] - array_sum($lead)), ...$lead]), "\n";
    } catch (DomainException) {
        echo "refused\n";
    }
}
