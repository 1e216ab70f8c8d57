<?php
// Prepares a queue for its first use as a destination.

require 'PhpAmqpLib/autoload.php';
require __DIR__ . '/delay.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Wire\AMQPTable;

const QUORUM = ['x-queue-type' => 'quorum', 'x-delivery-limit' => 1000000000];

function connect(string $url): AMQPStreamConnection
{
    $u = parse_url($url);
    $vhost = rawurldecode(substr($u['path'] ?? '/', 1)) ?: '/';
    return new AMQPStreamConnection($u['host'], $u['port'] ?? 5672, rawurldecode($u['user']), rawurldecode($u['pass']), $vhost);
}

// Declares a missing queue. The check for it closes the channel if the queue is missing, so it uses a separate channel.
function declare_missing(AMQPStreamConnection $connection, string $queue, array $arguments): void
{
    $channel = $connection->channel();
    try {
        $channel->queue_declare($queue, true);
    } catch (AMQPProtocolChannelException $e) {
        if ($e->getCode() !== 404) {
            throw $e;
        }
        $channel = $connection->channel();
        $channel->queue_declare($queue, false, true, false, false, false, new AMQPTable($arguments));
    }
    $channel->close();
}

// Declares everything that must exist before the first message to a queue.
function declare_destination(AMQPStreamConnection $connection, string $queue): void
{
    declare_missing($connection, "$queue.dead", QUORUM);
    declare_missing($connection, $queue, QUORUM + [
        'x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => "$queue.dead",
        'x-dead-letter-strategy' => 'at-least-once', 'x-overflow' => 'reject-publish',
    ]);
    $channel = $connection->channel();
    $channel->queue_bind($queue, DELIVER, BINDING . destination_key($queue));
    $channel->close();
}
