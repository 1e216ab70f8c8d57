"""Computes where to publish for a delay, as in docs/wire.md: layout clock in steps of 10 ms, quorum, prefix delay."""

RADICES = [100, 60, 60, 24, 32, 12]  # lowest position first
STEP = 10  # ms
UNITS = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)]
RESERVED = {"bucket", "ttl", "plugin", "native", "canary", "deliver", "parked", "route", "lock", "declared"}
DELIVER = "delay.deliver"
BINDING = "clock." + "*." * len(RADICES)
MAX_HEAD = len("clock.") + sum(len(str(r - 1)) + 1 for r in RADICES)


class Refused(Exception):
    pass


def key(queue):
    """Returns the destination's part of a routing key."""
    words = [{"*": "%2A", "#": "%23"}.get(w, w.replace("%", "%25")) for w in queue.split(".")]
    return ".".join(words)


def duration(ms):
    text = ""
    for unit, size in UNITS:
        if ms >= size:
            text += f"{ms // size}{unit}"
            ms %= size
    return text


def route(queue, delay_ms):
    """Returns exchange and routing key for a target queue and a delay in ms."""
    if queue.startswith("delay.") and queue.split(".")[1] in RESERVED - {"route"}:
        raise Refused(f"{queue} belongs to the delays")
    if len(key(queue).encode()) + MAX_HEAD > 255:
        raise Refused(f"{queue} is too long")
    n = -(-delay_ms // STEP)
    digits, exchange, worth = [], DELIVER, STEP
    for radix in RADICES:
        if n % radix:
            exchange = "delay.bucket." + duration(n % radix * worth)
        digits.insert(0, str(n % radix))
        n, worth = n // radix, worth * radix
    if delay_ms < 0 or n:
        raise Refused(f"{delay_ms} ms is out of range")
    return exchange, f"clock.{'.'.join(digits)}.{key(queue)}"


def lead_of(delay_ms, lead):
    """Returns the lead of a message in ms. It is at least one step shorter than the delay, so that the message goes through
    a delay queue, whose x-death says when it left. A message with a shorter delay than two steps goes straight to its queue."""
    if lead < delay_ms:
        return lead
    return delay_ms - STEP if delay_ms >= 2 * STEP else delay_ms
