<?php
// Consumes delayed messages. Usage: consumer.php URL QUEUE COUNT. Bodies say what becomes of a message: "fail" fails
// on each of two attempts, "reject" is given up at once, any other succeeds.

require __DIR__ . '/producer.php';

use PhpAmqpLib\Message\AMQPMessage;

const OURS = '/^(x-death$|x-(first|last)-death-|x-delay$|x-delivery-count$|x-acquired-count$|x-opt-|B?CC$)/';
const MAX_ATTEMPTS = 2;
const BACKOFF = 300; // ms

// The next attempt, or the dead letter. The received message is acknowledged after it is confirmed.
function again($channel, string $queue, AMQPMessage $m, array $headers, int $attempt, string $error): void
{
    $dead = $error === 'rejected' || $attempt >= MAX_ATTEMPTS;
    $headers = array_filter($headers, fn($name) => !preg_match(OURS, $name), ARRAY_FILTER_USE_KEY);
    $failed = array_slice(array_values($headers['rabbitdelay-attempts'] ?? []), -31);
    $failed[] = (new DateTime('now', new DateTimeZone('UTC')))->format('Y-m-d\TH:i:s.v\Z') . ' ' . $error;
    $headers['rabbitdelay-error'] = $error;
    $headers['rabbitdelay-attempts'] = $failed;
    $headers['rabbitdelay-attempt'] = $dead ? $attempt : $attempt + 1;
    $properties = ['application_headers' => $headers] + $m->get_properties();
    if (!$dead) {
        send($channel, $queue, BACKOFF, $m->body, $properties);
        return;
    }
    $properties['application_headers'] += [
        'rabbitdelay-reason' => $error === 'rejected' ? 'rejected' : 'attempts',
        'rabbitdelay-queue' => $queue, 'rabbitdelay-destination' => $queue,
    ];
    publish_confirmed($channel, '', "$queue.dead", $m->body, $properties);
}

[, $url, $queue, $count] = $argv;
$connection = connect($url);
declare_destination($connection, $queue);
$channel = $connection->channel();
$publishing = confirming($connection);
$channel->basic_qos(0, 10, false);
$channel->basic_consume($queue, '', false, false, false, false, function (AMQPMessage $m) use ($publishing, $queue, &$count) {
    $headers = $m->has('application_headers') ? $m->get('application_headers')->getNativeData() : [];
    [$due, $attempt] = [$headers['rabbitdelay-due'] ?? 0, $headers['rabbitdelay-attempt'] ?? 1];
    $early = $due - microtime(true) * 1000;
    if ($early > 0) { // the broker's clock and this one may differ by milliseconds
        usleep((int) (min($early, 20) * 1000));
    }
    echo implode("\t", [$m->get('message_id'), $attempt, $due, (int) (microtime(true) * 1000), $m->body]), "\n";
    if ($m->body === 'reject') {
        again($publishing, $queue, $m, $headers, $attempt, 'rejected');
    } elseif ($m->body === 'fail') {
        again($publishing, $queue, $m, $headers, $attempt, 'it failed');
    }
    $m->ack();
    $count--;
});
while ($count > 0) {
    $channel->wait(null, false, 60);
}
$connection->close();
