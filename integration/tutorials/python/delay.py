"""Publishes delayed messages, as docs/wire.md describes for layout clock in steps of 10 ms with quorum queues."""

import time

# The digits of a delay, the lowest first: how many there are, and what a digit of 1 is worth.
DIGITS = [(100, 10, "ms"), (60, 1, "s"), (60, 1, "m"), (24, 1, "h"), (32, 1, "d"), (12, 32, "d")]


def route(queue, delay_ms):
    """Returns the exchange and the routing key for a delay."""
    steps = -(-delay_ms // 10)  # rounded up, so that no message is early
    digits, exchange = [], "delay.deliver"
    for count, worth, unit in DIGITS:
        steps, digit = divmod(steps, count)
        digits.insert(0, str(digit))
        if digit:
            exchange = f"delay.bucket.{digit * worth}{unit}"  # the highest digit that is not 0 wins
    if steps:
        raise ValueError(f"{delay_ms} ms is longer than 384 days")
    return exchange, f"clock.{'.'.join(digits)}.{queue}"


def publish(channel, queue, delay_ms, body, properties):
    """Returns when the broker has confirmed the message. Raises UnroutableError or NackError if it has not."""
    exchange, routing_key = route(queue, delay_ms)
    now_ms = time.time_ns() // 1_000_000
    properties.delivery_mode = 2  # persistent
    properties.timestamp = now_ms // 1000
    properties.headers = {**(properties.headers or {}), "rabbitdelay-due": now_ms + delay_ms}
    channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)
