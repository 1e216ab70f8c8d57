package amqpx_test

import (
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Declared delays use their own queues, and all other delays use the buckets.
func ExampleNewAuto() {
	bucket, err := dlx.NewBucket(dlx.BucketConfig{})
	if err != nil {
		log.Fatal(err)
	}
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute, 48 * time.Hour}})
	if err != nil {
		log.Fatal(err)
	}
	strategy, err := amqpx.NewAuto(amqpx.AutoConfig{Bucket: bucket, TTL: ttl})
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range []time.Duration{time.Minute, 61 * time.Second} {
		route, err := strategy.Route(topology.Destination{Queue: "orders.expire"}, d, 0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", d, route.Queue)
	}
	// Output:
	// 1m0s: delay.ttl.1m
	// 1m1s: delay.bucket.1m
}
