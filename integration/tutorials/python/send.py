"""Sends a text message later: send.py SECONDS PHONE"""

import sys

import pika

import delay

seconds, phone = int(sys.argv[1]), sys.argv[2]
connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/"))
channel = connection.channel()
channel.confirm_delivery()
properties = pika.BasicProperties(message_id="text-" + phone, content_type="text/plain")
delay.publish(channel, "texts", seconds * 1000, phone.encode(), properties)
print("sent", properties.message_id)
connection.close()
