"""Sends the text messages that are due, until Ctrl-C."""

import datetime

import pika

import delay

MAX_ATTEMPTS = 5

# Headers of the message as it was received, which a new message must not have.
LEAVE_OUT = ("x-death", "x-first-death-", "x-last-death-", "x-delay", "x-delivery-count", "x-acquired-count", "x-opt-",
             "CC", "BCC", "rabbitdelay-lead", "rabbitdelay-absolute", "rabbitdelay-clock-offset",
             "rabbitdelay-returned", "rabbitdelay-expired", "rabbitdelay-deliveries")


def text(phone, attempt):
    """Pretends to send a text message, which does not work the first time."""
    if attempt == 1:
        raise RuntimeError("the provider does not answer")
    print(f"attempt {attempt}: sent to {phone}")


def receive(channel, method, properties, body):
    attempt = (properties.headers or {}).get("rabbitdelay-attempt", 1)
    try:
        text(body.decode(), attempt)
    except Exception as error:
        print(f"attempt {attempt}: {error}")
        again(channel, properties, body, attempt, str(error))
    channel.basic_ack(method.delivery_tag)  # only now: its effect, its retry or its dead letter is safe


def again(channel, properties, body, attempt, error):
    """Publishes the next attempt, or the dead letter after the last one."""
    old = properties.headers or {}
    headers = {name: value for name, value in old.items() if not name.startswith(LEAVE_OUT)}
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers["rabbitdelay-error"] = error
    headers["rabbitdelay-attempts"] = headers.get("rabbitdelay-attempts", [])[-31:] + [f"{now} {error}"]
    headers["rabbitdelay-attempt"] = min(attempt + 1, MAX_ATTEMPTS)
    properties.headers = headers
    if attempt < MAX_ATTEMPTS:
        delay.publish(channel, "texts", 1000 * 2 ** (attempt - 1), body, properties)  # after 1, 2, 4, 8 s
        return
    headers.update({"rabbitdelay-reason": "attempts", "rabbitdelay-queue": "texts", "rabbitdelay-destination": "texts"})
    channel.basic_publish("", "texts.dead", body, properties, mandatory=True)


connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/"))
channel = connection.channel()
channel.confirm_delivery()
channel.basic_qos(prefetch_count=20)
channel.basic_consume("texts", receive)
try:
    channel.start_consuming()
except KeyboardInterrupt:
    connection.close()
