<?php
// Computes where to publish for a delay, as in docs/wire.md: layout clock in steps of 10 ms, quorum, prefix delay.

const RADICES = [100, 60, 60, 24, 32, 12]; // lowest position first
const STEP = 10; // ms
const UNITS = ['d' => 86400000, 'h' => 3600000, 'm' => 60000, 's' => 1000, 'ms' => 1];
const DELIVER = 'delay.deliver';
const BINDING = 'clock.*.*.*.*.*.*.';
const MAX_HEAD = 24; // bytes before the key, with the largest digits
const RESERVED = '/^delay\.(bucket|ttl|plugin|native|canary|deliver|parked|lock|declared)(\.|$)/';

// Returns the destination's part of a routing key.
function destination_key(string $queue): string
{
    $escape = fn($w) => ['*' => '%2A', '#' => '%23'][$w] ?? str_replace('%', '%25', $w);
    return implode('.', array_map($escape, explode('.', $queue)));
}

function duration(int $ms): string
{
    $text = '';
    foreach (UNITS as $unit => $size) {
        if ($ms >= $size) {
            $text .= intdiv($ms, $size) . $unit;
            $ms %= $size;
        }
    }
    return $text;
}

// Returns exchange and routing key for a target queue and a delay in ms. Throws DomainException if they are refused.
function route(string $queue, int $delay): array
{
    $key = destination_key($queue);
    if ($delay < 0 || strlen($key) + MAX_HEAD > 255 || preg_match(RESERVED, $queue)) {
        throw new DomainException("$queue in $delay ms");
    }
    $n = intdiv($delay + STEP - 1, STEP);
    [$digits, $exchange, $worth] = [[], DELIVER, STEP];
    foreach (RADICES as $radix) {
        if ($n % $radix) {
            $exchange = 'delay.bucket.' . duration($n % $radix * $worth);
        }
        array_unshift($digits, $n % $radix);
        [$n, $worth] = [intdiv($n, $radix), $worth * $radix];
    }
    if ($n > 0) {
        throw new DomainException("$delay ms is too long");
    }
    return [$exchange, 'clock.' . implode('.', $digits) . '.' . $key];
}

// Returns the lead of a message in ms. It is at least one step shorter than the delay, so that the message goes through a
// delay queue, whose x-death says when it left. A message with a shorter delay than two steps goes straight to its queue.
function lead_of(int $delay, int $lead): int
{
    return match (true) {
        $lead < $delay => $lead,
        $delay >= 2 * STEP => $delay - STEP,
        default => $delay,
    };
}
