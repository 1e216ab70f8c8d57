<?php
// Consumes delayed messages, none before it is due. Usage: consumer.php URL QUEUE COUNT. The body decides the outcome of a
// message: "fail" fails on each of two attempts, "reject" is rejected immediately, any other body succeeds.

require __DIR__ . '/producer.php';

use PhpAmqpLib\Exception\AMQPTimeoutException;
use PhpAmqpLib\Message\AMQPMessage;

const OURS = '/^(x-death$|x-(first|last)-death-|x-delay$|x-delivery-count$|x-acquired-count$|x-opt-|B?CC$'
    . '|rabbitdelay-(lead|absolute|clock-offset|returned|expired|deliveries)$)/';
const MAX_ATTEMPTS = 2;
const BACKOFF = 300; // ms
const PREFETCH = 200; // messages received during a lead, and messages being handled
const ALLOWED = 2000; // ms by which clocks may differ

// Returns how long a message waits here, in ms, and whether it is then sent back for the rest of its delay.
function hold(AMQPMessage $m, array $headers, int $now): array
{
    $lead = $headers['rabbitdelay-lead'] ?? 0;
    $due = ($headers['rabbitdelay-due'] ?? 0) - ($headers['rabbitdelay-clock-offset'] ?? 0);
    $early = $due - $now;
    $sent = $m->has('timestamp') ? $m->get('timestamp') * 1000 : 0;
    $rest = max(0, min($lead, $due - $sent));
    $absolute = $headers['rabbitdelay-absolute'] ?? false;
    return match (true) {
        $early < $rest - ALLOWED => [$rest, false], // a clock may be wrong
        $early <= $lead + ALLOWED => [max(0, $early), false],
        // The publisher's clock is ahead, or this one is behind; a delay is the same by both.
        !$absolute && $sent - $now > ALLOWED => [$lead, false],
        ($headers['rabbitdelay-returned'] ?? 0) >= 5 => [min($early, 60000), $early > 60000],
        default => [0, true],
    };
}

function headers(AMQPMessage $m): array
{
    return $m->has('application_headers') ? $m->get('application_headers')->getNativeData() : [];
}

function kept(array $headers): array
{
    return array_filter($headers, fn($name) => !preg_match(OURS, $name), ARRAY_FILTER_USE_KEY);
}

// Publishes the next attempt, or the dead letter. The received message is acknowledged after the confirm.
function again($channel, string $queue, AMQPMessage $m, array $headers, int $attempt, string $error): void
{
    $dead = $error === 'rejected' || $attempt >= MAX_ATTEMPTS;
    $failed = array_slice(array_values($headers['rabbitdelay-attempts'] ?? []), -31);
    $failed[] = (new DateTime('now', new DateTimeZone('UTC')))->format('Y-m-d\TH:i:s.v\Z') . ' ' . $error;
    $headers = kept($headers);
    $headers['rabbitdelay-error'] = $error;
    $headers['rabbitdelay-attempts'] = $failed;
    $headers['rabbitdelay-attempt'] = $dead ? $attempt : $attempt + 1;
    $properties = ['application_headers' => $headers] + $m->get_properties();
    if (!$dead) {
        send($channel, $queue, now_ms() + BACKOFF, $m->body, $properties);
        return;
    }
    $properties['application_headers'] += [
        'rabbitdelay-reason' => $error === 'rejected' ? 'rejected' : 'attempts',
        'rabbitdelay-queue' => $queue, 'rabbitdelay-destination' => $queue,
    ];
    publish_confirmed($channel, '', "$queue.dead", $m->body, $properties);
}

// Sends a message again with its id and due time, without counting an attempt.
function send_back($channel, string $queue, AMQPMessage $m, array $old): void
{
    $headers = ['rabbitdelay-absolute' => true, 'rabbitdelay-returned' => ($old['rabbitdelay-returned'] ?? 0) + 1] + kept($old);
    $properties = ['application_headers' => $headers] + $m->get_properties();
    send($channel, $queue, $old['rabbitdelay-due'], $m->body, $properties, 0, $old['rabbitdelay-clock-offset'] ?? 0);
}

function handle($channel, string $queue, AMQPMessage $m, array $headers): void
{
    [$due, $attempt] = [$headers['rabbitdelay-due'] ?? 0, $headers['rabbitdelay-attempt'] ?? 1];
    echo implode("\t", [$m->get('message_id'), $attempt, $due, now_ms(), $m->body]), "\n";
    if ($m->body === 'reject' || $m->body === 'fail') {
        again($channel, $queue, $m, $headers, $attempt, $m->body === 'reject' ? 'rejected' : 'it failed');
    }
}

[, $url, $queue, $count] = $argv;
$connection = connect($url);
declare_destination($connection, $queue);
$channel = $connection->channel();
$publishing = confirming($connection);
$channel->basic_qos(0, PREFETCH, false);
$held = new SplMinHeap(); // unacknowledged messages, by the time at which each may begin
$channel->basic_consume($queue, '', false, false, false, false, function (AMQPMessage $m) use ($held) {
    [$wait, $back] = hold($m, headers($m), $now = now_ms());
    $held->insert([$now + $wait, $m->getDeliveryTag(), $back, $m]);
});
while ($count > 0) {
    try {
        $channel->wait(null, false, $held->isEmpty() ? 60 : max(1, $held->top()[0] - now_ms()) / 1000);
    } catch (AMQPTimeoutException) { // the next one is due
    }
    while ($count > 0 && !$held->isEmpty() && $held->top()[0] <= now_ms()) {
        [, , $back, $m] = $held->extract();
        $back ? send_back($publishing, $queue, $m, headers($m)) : handle($publishing, $queue, $m, headers($m));
        $m->ack();
        $count -= $back ? 0 : 1;
    }
}
$connection->close(); // held messages return to the queue
