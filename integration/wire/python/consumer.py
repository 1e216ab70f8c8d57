"""Consumes delayed messages. Usage: consumer.py URL QUEUE COUNT. Bodies say what becomes of a message: "fail" fails
on each of two attempts, "reject" is given up at once, any other succeeds."""

import datetime
import sys
import time

import pika

import producer

OURS = ("x-death", "x-first-death-", "x-last-death-", "x-delay", "x-delivery-count", "x-acquired-count", "x-opt-", "CC", "BCC")
MAX_ATTEMPTS = 2
BACKOFF_MS = 300


def again(channel, queue, properties, body, attempt, error):
    """The next attempt, or the dead letter. The received message is acknowledged after it is confirmed."""
    dead = error == "rejected" or attempt >= MAX_ATTEMPTS
    headers = {k: v for k, v in (properties.headers or {}).items() if not k.startswith(OURS)}
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers["rabbitdelay-error"] = error
    headers["rabbitdelay-attempts"] = (headers.get("rabbitdelay-attempts") or [])[-31:] + [f"{now} {error}"]
    headers["rabbitdelay-attempt"] = attempt if dead else attempt + 1
    properties.headers = headers
    if not dead:
        producer.publish(channel, queue, BACKOFF_MS, body, properties)
        return
    headers["rabbitdelay-reason"] = "rejected" if error == "rejected" else "attempts"
    headers["rabbitdelay-queue"] = headers["rabbitdelay-destination"] = queue
    channel.basic_publish("", queue + ".dead", body, properties, mandatory=True)


def main():
    url, queue, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    connection = pika.BlockingConnection(pika.URLParameters(url))
    producer.declare(connection, queue)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=10)
    for method, properties, body in channel.consume(queue):
        headers = properties.headers or {}
        due, attempt = headers.get("rabbitdelay-due", 0), headers.get("rabbitdelay-attempt", 1)
        early = due - time.time() * 1000
        if early > 0:  # the broker's clock and this one may differ by milliseconds
            time.sleep(min(early, 20) / 1000)
        print(properties.message_id, attempt, due, int(time.time() * 1000), body.decode(), sep="\t", flush=True)
        if body == b"reject":
            again(channel, queue, properties, body, attempt, "rejected")
        elif body == b"fail":
            again(channel, queue, properties, body, attempt, "it failed")
        channel.basic_ack(method.delivery_tag)
        count -= 1
        if count == 0:
            break
    channel.cancel()
    connection.close()


if __name__ == "__main__":
    main()
