"""Sends delayed messages. Usage: producer.py route, with lines of a queue, a delay in ms and perhaps a lead on standard
input, or producer.py URL QUEUE, with lines of an id, a delay in ms, a body and perhaps a lead in ms."""

import sys
import time

import pika

import delay

QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000}


def declare_missing(connection, queue, arguments):
    """Declares a missing queue. The check for it closes the channel if the queue is missing, so it uses a separate channel."""
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
    """Declares everything that must exist before the first message to a queue."""
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
    """Delivers at the given time in ms, or up to lead ms earlier to a consumer that holds the message. offset is the number
    of ms by which the clock of the due time is ahead. Returns when the broker has confirmed the message. Raises
    UnroutableError if the message was returned, and NackError if it was refused."""
    now = now_ms()
    wait = max(0, due - offset - now)
    if lead:
        lead = delay.lead_of(wait, lead)
    exchange, routing_key = delay.route(queue, wait - lead)
    properties.delivery_mode = 2
    properties.timestamp = (now + min(offset, 0)) // 1000  # by the clock of the due time, if that is behind
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
