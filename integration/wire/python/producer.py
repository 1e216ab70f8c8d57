"""Sends delayed messages. Usage: producer.py route, with lines of a queue, a delay in ms and perhaps a lead on standard
input, or producer.py URL QUEUE, with lines of an id, a delay in ms, a body and perhaps a lead in ms."""

import sys
import time

import pika

import delay

QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000}


def declare_missing(connection, queue, arguments):
    """Leaves an existing queue as it is. A channel of its own, which a missing queue closes."""
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as e:
        if e.reply_code != 404:
            raise
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.close()


def declare(connection, queue):
    """What has to be there before the first message to a queue."""
    dead = queue + ".dead"
    declare_missing(connection, dead, QUORUM)
    declare_missing(connection, queue, dict(QUORUM, **{
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
        "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
    }))
    channel = connection.channel()
    channel.queue_bind(queue, delay.DELIVER, delay.BINDING + delay.key(queue))
    channel.close()


def now_ms():
    return time.time_ns() // 1_000_000


def publish(channel, queue, due, body, properties, lead=0, offset=0):
    """Delivers at an instant in ms, up to lead ms before it to a consumer that holds it; offset is by how much the clock of
    that instant is ahead. Returns when the broker has the message. It raises UnroutableError for one that came back,
    NackError for one that was refused."""
    now = now_ms()
    wait = max(0, due - offset - now)
    if lead:
        lead = delay.lead_of(wait, lead)
    exchange, routing_key = delay.route(queue, wait - lead)
    properties.delivery_mode = 2
    properties.timestamp = (now + min(offset, 0)) // 1000  # by that clock if it is behind
    added = {"rabbitdelay-due": due, "rabbitdelay-lead": lead, "rabbitdelay-clock-offset": max(offset, 0)}
    properties.headers = dict(properties.headers or {}, **{k: v for k, v in added.items() if v})
    channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)


def main():
    if sys.argv[1] == "route":
        for line in sys.stdin:
            queue, ms, *lead = line.rstrip("\n").split("\t")
            lead = [delay.lead_of(int(ms), int(x)) for x in lead]
            try:
                print(*delay.route(queue, int(ms) - sum(lead)), *lead, sep="\t")
            except delay.Refused:
                print("refused")
        return
    url, queue = sys.argv[1:]
    connection = pika.BlockingConnection(pika.URLParameters(url))
    declare(connection, queue)
    channel = connection.channel()
    channel.confirm_delivery()
    for line in sys.stdin:
        name, ms, body, *lead = line.rstrip("\n").split("\t")
        properties = pika.BasicProperties(message_id=name, content_type="text/plain")
        publish(channel, queue, now_ms() + int(ms), body.encode(), properties, *map(int, lead))
        print("confirmed", name, sep="\t", flush=True)
    connection.close()


if __name__ == "__main__":
    main()
