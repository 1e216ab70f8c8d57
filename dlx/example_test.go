package dlx_test

import (
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func ExampleBucket_Route() {
	bucket, err := dlx.NewBucket(dlx.BucketConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	dest := topology.Destination{Queue: "orders.expire"}
	for _, delay := range []time.Duration{0, 30 * time.Minute, 90 * time.Second, 1234567 * time.Millisecond} {
		r, err := bucket.Route(dest, delay, 0)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s %s: %v in %d hops\n", r.Exchange, r.RoutingKey, r.Delay, r.Hops)
	}
	// A tolerance can reduce the number of hops.
	r, _ := bucket.Route(dest, 1234567*time.Millisecond, time.Minute)
	fmt.Printf("%s %s: %v in %d hops\n", r.Exchange, r.RoutingKey, r.Delay, r.Hops)
	// Output:
	// delay.deliver clock.0.0.0.0.0.0.orders.expire: 0s in 0 hops
	// delay.bucket.30m clock.0.0.0.30.0.0.orders.expire: 30m0s in 1 hops
	// delay.bucket.1m clock.0.0.0.1.30.0.orders.expire: 1m30s in 2 hops
	// delay.bucket.20m clock.0.0.0.20.34.57.orders.expire: 20m34.57s in 3 hops
	// delay.bucket.21m clock.0.0.0.21.0.0.orders.expire: 21m0s in 1 hops
}

// Prints the number of objects that each layout declares, including the delivery exchange and the parked queue, and its
// longest delay.
func ExampleBucket_Topology() {
	for _, c := range []dlx.BucketConfig{
		{Layout: dlx.LayoutClock},
		{Layout: dlx.LayoutClock, Resolution: 100 * time.Millisecond},
		{Layout: dlx.LayoutClock, Resolution: time.Second},
		{Layout: dlx.LayoutHex},
		{Layout: dlx.LayoutHex, Resolution: 10 * time.Millisecond},
		{Layout: dlx.LayoutBinary},
		{Radices: []int{60, 60, 24}, Resolution: time.Second},
	} {
		bucket, err := dlx.NewBucket(c)
		if err != nil {
			fmt.Println(err)
			return
		}
		name := c.Layout
		if name == "" {
			name = fmt.Sprint(c.Radices)
		}
		t := bucket.Topology()
		fmt.Printf("%-10s %5v: %3d queues, %3d bindings, %2d exchanges, up to %v\n",
			name, bucket.Resolution(), len(t.Queues), len(t.Bindings), len(t.Exchanges), bucket.MaxDelay())
	}
	// Output:
	// clock       10ms: 283 queues, 1273 bindings, 289 exchanges, up to 9215h59m59.99s
	// clock      100ms: 193 queues, 733 bindings, 199 exchanges, up to 9215h59m59.9s
	// clock         1s: 184 queues, 678 bindings, 189 exchanges, up to 9215h59m59s
	// hex        100ms: 107 queues, 534 bindings, 115 exchanges, up to 14913h4m51.1s
	// hex         10ms: 117 queues, 544 bindings, 125 exchanges, up to 8947h50m54.71s
	// binary        1s:  29 queues, 434 bindings, 57 exchanges, up to 74565h24m15s
	// [60 60 24]    1s: 142 queues, 321 bindings, 145 exchanges, up to 23h59m59s
}

// Each delay is one hop, through one of four queues. The client writes the time at which the delay ends into the
// header.
func ExampleNative_Route() {
	native, err := dlx.NewNative(dlx.NativeConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	dest := topology.Destination{Queue: "orders.expire"}
	for _, delay := range []time.Duration{0, 30 * time.Minute, 1234567 * time.Microsecond, topology.MaxTTL, topology.MaxTTL + 1} {
		r, err := native.Route(dest, delay, 0)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("%s %s: %v in %d hops, by %q\n", r.Exchange, r.RoutingKey, r.Delay, r.Hops, r.InstantHeader)
	}
	// Output:
	// delay.deliver native.0.orders.expire: 0s in 0 hops, by ""
	// delay.native.3 native.3.orders.expire: 30m0s in 1 hops, by "x-opt-delivery-time"
	// delay.native.2 native.2.orders.expire: 1.235s in 1 hops, by "x-opt-delivery-time"
	// delay.native.4 native.4.orders.expire: 87600h0m0s in 1 hops, by "x-opt-delivery-time"
	// native strategy: delay 3650d1ns exceeds ten years; it accepts 0s to 3650d; keep the message as a task (package schedule) until it is due sooner
}

// Sends a message to an NServiceBus endpoint through NServiceBus's own delay queues.
func ExampleLevels() {
	levels, err := dlx.NewLevels(dlx.LevelsConfig{Layout: dlx.LayoutNServiceBus})
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := levels.Route(topology.Destination{Queue: "Sales"}, 1500*time.Millisecond, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Exchange, r.RoutingKey, r.Delay, r.Headers)
	// Output:
	// nsb.v2.delay-level-01 0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.Sales 2s map[NServiceBus.Transport.RabbitMQ.DelayInSeconds:2]
}
