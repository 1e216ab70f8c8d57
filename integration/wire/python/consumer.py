"""Consumes delayed messages, none before it is due. Usage: consumer.py URL QUEUE COUNT. The body decides the outcome of a
message: "fail" fails on each of two attempts, "reject" is rejected immediately, any other body succeeds."""

import datetime
import heapq
import secrets
import sys
import time

import pika

import producer

OURS = ("x-death", "x-first-death-", "x-last-death-", "x-delay", "x-delivery-count", "x-acquired-count", "x-opt-", "CC", "BCC",
        "rabbitdelay-lead", "rabbitdelay-absolute", "rabbitdelay-clock-offset", "rabbitdelay-returned",
        "rabbitdelay-expired", "rabbitdelay-deliveries")
BROKERS = OURS[:9]  # headers that the broker writes, or by which it routes
MAX_ATTEMPTS = 2
BACKOFF_MS = 300
PREFETCH = 200  # messages received during a lead, and messages being handled
ALLOWED_MS = 2000  # the allowed difference between clocks


def monotonic_ms():
    return int(time.monotonic() * 1000)


class BrokerClock:
    """Knows which time the broker's clock has reached, in ms, from the messages that have expired."""

    def __init__(self):
        self.ahead = None  # the least by which the broker's clock is ahead of the monotonic clock

    def saw(self, expired):
        ahead = expired - monotonic_ms()
        self.ahead = ahead if self.ahead is None else max(self.ahead, ahead)

    def left(self, rest, expired):
        """Returns the rest of a wait that began when the broker released the message, a time in whole seconds."""
        if expired is None or self.ahead is None:
            return rest
        return max(0, min(rest, rest - (monotonic_ms() + self.ahead - expired - 1000)))


CLOCK = BrokerClock()


def expiry(headers):
    """Returns when the message left its last delay queue, by the broker's clock in ms, or None if it left none."""
    if "rabbitdelay-deliveries" in headers:
        return headers.get("rabbitdelay-expired")
    death = (headers.get("x-death") or [{}])[0]
    if death.get("reason") != "expired":
        return None
    return int(death["time"].replace(tzinfo=datetime.timezone.utc).timestamp() * 1000)


def ask_time(channel):
    """Asks the broker for its time: a message expires immediately in one queue, and arrives in another one."""
    names = ["delay.canary." + secrets.token_hex(13) for _ in range(2)]
    for name, arguments in zip(names, ({}, {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": names[0]})):
        channel.queue_declare(name, exclusive=True, arguments={"x-queue-type": "classic", **arguments})
    channel.basic_publish("", names[1], b"")
    for _, properties, _ in channel.consume(names[0], auto_ack=True, inactivity_timeout=5):
        if properties is not None:
            CLOCK.saw(expiry(properties.headers))
        break
    channel.cancel()
    for name in names:
        channel.queue_delete(name)


def signed(value):
    """Corrects negative 64-bit integers, which pika up to 1.2 reads as unsigned. Users' headers may contain them."""
    if isinstance(value, dict):
        return {k: signed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [signed(v) for v in value]
    if isinstance(value, int) and value >= 1 << 63:
        return int(value) - (1 << 64)
    return value


def hold(headers, properties, now):
    """Returns how long a message waits here, in ms, and whether it is then sent back for the rest of its delay."""
    expired = expiry(headers)
    if expired is not None:
        CLOCK.saw(expired)
    lead = headers.get("rabbitdelay-lead", 0)
    due, sent = headers.get("rabbitdelay-due", 0) - headers.get("rabbitdelay-clock-offset", 0), (properties.timestamp or 0) * 1000
    early, left = due - now, CLOCK.left(max(0, min(lead, due - sent)), expired)
    if early < left - ALLOWED_MS:
        return left, False  # a clock may be wrong
    if early <= lead + ALLOWED_MS:
        return max(0, early), False
    if not headers.get("rabbitdelay-absolute") and sent - now > ALLOWED_MS:
        return left, False  # the publisher's clock is ahead, or this one is behind; a delay is the same by both
    if headers.get("rabbitdelay-returned", 0) >= 5:
        return min(early, 60_000), early > 60_000
    return 0, True


def again(channel, queue, properties, body, attempt, error):
    """Publishes the next attempt, or the dead letter. The received message is acknowledged after the confirm."""
    dead = error == "rejected" or attempt >= MAX_ATTEMPTS
    headers = {k: v for k, v in (properties.headers or {}).items() if not k.startswith(OURS)}
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers["rabbitdelay-error"] = error
    headers["rabbitdelay-attempts"] = (headers.get("rabbitdelay-attempts") or [])[-31:] + [f"{now} {error}"]
    headers["rabbitdelay-attempt"] = attempt if dead else attempt + 1
    properties.headers = headers
    if not dead:
        producer.publish(channel, queue, producer.now_ms() + BACKOFF_MS, body, properties)
        return
    headers["rabbitdelay-reason"] = "rejected" if error == "rejected" else "attempts"
    headers["rabbitdelay-queue"] = headers["rabbitdelay-destination"] = queue
    channel.basic_publish("", queue + ".dead", body, properties, mandatory=True)


def send_back(channel, queue, properties, body):
    """Sends a message again with its id and due time, without counting an attempt."""
    old = properties.headers
    properties.headers = {k: v for k, v in old.items() if not k.startswith(OURS)}
    properties.headers.update({"rabbitdelay-absolute": True, "rabbitdelay-returned": old.get("rabbitdelay-returned", 0) + 1})
    producer.publish(channel, queue, old["rabbitdelay-due"], body, properties, offset=old.get("rabbitdelay-clock-offset", 0))


def renew(channel, queue, properties, body):
    """Replaces a returned message that would be held with a copy, because each return counts towards the queue's limit."""
    expired = expiry(properties.headers)
    properties.headers = {k: v for k, v in properties.headers.items() if not k.startswith(BROKERS)}
    properties.headers.setdefault("rabbitdelay-deliveries", 0)
    if expired is not None:
        properties.headers["rabbitdelay-expired"] = expired
    channel.basic_publish("", queue, body, properties, mandatory=True)


def handle(channel, queue, properties, body):
    headers = properties.headers or {}
    attempt = headers.get("rabbitdelay-attempt", 1)
    print(properties.message_id, attempt, headers.get("rabbitdelay-due", 0), producer.now_ms(), body.decode(), sep="\t", flush=True)
    if body in (b"reject", b"fail"):
        again(channel, queue, properties, body, attempt, "rejected" if body == b"reject" else "it failed")


def main():
    url, queue, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    connection = pika.BlockingConnection(pika.URLParameters(url))
    producer.declare(connection, queue)
    channel = connection.channel()
    channel.confirm_delivery()
    ask_time(channel)
    channel.basic_qos(prefetch_count=PREFETCH)
    held = []  # unacknowledged messages, by the time at which each may begin

    def receive(_channel, method, properties, body):
        now = producer.now_ms()
        properties.headers = signed(properties.headers or {})
        headers = properties.headers
        wait, back = hold(headers, properties, now)
        if wait > 0 and method.redelivered and headers.get("x-delivery-count", 0) > 0:
            renew(channel, queue, properties, body)
            channel.basic_ack(method.delivery_tag)
            return
        heapq.heappush(held, (now + wait, method.delivery_tag, back, properties, body))

    channel.basic_consume(queue, receive)
    while count > 0:
        connection.process_data_events(max(0, held[0][0] - time.time() * 1000) / 1000 if held else 60)
        while held and held[0][0] <= producer.now_ms() and count > 0:
            _, tag, back, properties, body = heapq.heappop(held)
            (send_back if back else handle)(channel, queue, properties, body)
            channel.basic_ack(tag)
            count -= not back
    connection.close()  # held messages return to the queue


if __name__ == "__main__":
    main()
