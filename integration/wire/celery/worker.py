"""A Celery worker on quorum queues, with native delayed delivery. Usage: worker.py worker | worker.py send NAME SECONDS;
the broker's URL is in BROKER."""

import os
import sys
import time

from celery import Celery
from celery.signals import worker_ready
from kombu import Exchange, Queue

app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(
    # Celery delays natively only for queues that are bound to exchanges of type topic.
    task_queues=[Queue("celery", Exchange("celery", type="topic"), routing_key="celery", queue_arguments={"x-queue-type": "quorum"})],
    task_default_queue="celery",
    task_default_exchange_type="topic",
    task_default_routing_key="celery",
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    worker_enable_remote_control=False,
    worker_redirect_stdouts=False,
    task_ignore_result=True,
)


@app.task(name="tasks.record")
def record(name):
    print("ran", name, int(time.time() * 1000), sep="\t", flush=True)


@worker_ready.connect
def ready(**_):
    print("ready", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        record.apply_async((sys.argv[2],), countdown=int(sys.argv[3]))
    else:
        app.worker_main(["worker", "--pool=solo", "--loglevel=WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"])
