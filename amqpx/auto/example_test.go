package auto_test

import (
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/auto"
	"github.com/rabbitdelay/rabbitdelay/dlx"
)

// Declared delays use their own queues, and all other delays use the buckets.
func ExampleNew() {
	bucket, err := dlx.NewBucket(dlx.BucketConfig{})
	if err != nil {
		log.Fatal(err)
	}
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute, 48 * time.Hour}})
	if err != nil {
		log.Fatal(err)
	}
	strategy, err := auto.New(auto.Config{Bucket: bucket, TTL: ttl})
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range []time.Duration{time.Minute, 61 * time.Second} {
		s, reason := strategy.Choose(d)
		fmt.Printf("%s: %s\n", s.Name(), reason)
	}
	// Output:
	// ttl: 1m is declared as a ttl
	// bucket: 1m1s is neither declared as a ttl nor in the plugin's range
}
