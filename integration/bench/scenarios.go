package bench

import (
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// scenarios lists all scenarios in the order in which they run.
var scenarios = []scenario{
	{name: "publish", about: "confirmed publishing, compared with the raw client", groups: publishing},
	{name: "consume", about: "bare, idempotent and task handlers, compared with the raw client", groups: consuming},
	{name: "telemetry", about: "Send and a bare handler with and without OpenTelemetry", groups: observing},
	{name: "schedule", about: "writing tasks with and without unique keys, relaying them compared with SendBatch, and their lateness\nduring destination failures, a flood at a rate limit and a stream of unique keys", groups: scheduling},
	{name: "bulk", about: "rescheduling many tasks in bulk, and the relay's lateness during this", groups: moving},
	{name: "console", about: "page load times with many tasks, and the load of 100 browsers", prepare: openSite, groups: browsing},
	{name: "latency", about: "lateness at a steady rate, compared with polling and the plugin", groups: waiting},
	{name: "sustain", about: "the highest rate with a p99 lateness under 1 s, for each layout and the plugin", groups: sustaining},
	{name: "native", about: "lateness at rising rates with the native strategy and the buckets, on a\nbroker that delays messages until a given time (RabbitMQ 4.4)", groups: rivalling},
	{name: "cost", about: "the broker's processor time per message and hop, by layout", groups: costing},
	{name: "declare", about: "the time to declare a layout, and the memory that it uses", groups: declaring},
	{name: "pending", about: "memory, disk and publish rate while messages pile up", groups: piling},
}

// Scenarios returns the names of all scenarios in the order in which they run.
func Scenarios() []string {
	names := make([]string, len(scenarios))
	for i, s := range scenarios {
		names[i] = s.name
	}
	return names
}

// Help describes each scenario in one or two lines.
func Help() string {
	var b strings.Builder
	for _, s := range scenarios {
		fmt.Fprintf(&b, "  %-9s %s\n", s.name, strings.ReplaceAll(s.about, "\n", "\n            "))
	}
	return b.String()
}

// Delays of cases. With anyDelay, which uses one of 50 queues, no message becomes due during a repeat. With soon, some
// messages are due while others are still being sent.
var (
	noDelay      = span{}.at
	halfAnHour   = span{30 * time.Minute, 30 * time.Minute}.at // the most common delay, which needs one hop
	anyDelay     = span{10 * time.Minute, time.Hour - time.Millisecond}.at
	soon         = span{2 * time.Second, 6 * time.Second}
	wholeSeconds = func(i int) time.Duration { return time.Duration(2+i%5) * time.Second }
)

// perType returns one group for each queue type.
func perType(o Options, f func(t topology.QueueType) group) []group {
	groups := make([]group, len(o.QueueTypes))
	for i, t := range o.QueueTypes {
		groups[i] = f(t)
		groups[i].title, groups[i].repeats = string(t)+" queues", o.Repeats
	}
	return groups
}

func publishing(o Options) []group {
	const (
		raw     = "raw client, one goroutine, 1024 in flight"
		rawMany = "raw client, 64 goroutines"
		raw50   = "raw client, 64 goroutines, 50 queues"
		// These baselines use amqpx's routes. They show which part of the difference to the raw client is caused by the
		// broker.
		rawBatch = raw + ", as SendBatch routes 10-60 min"
		rawSend  = rawMany + ", as Send routes 10-60 min"
		batchOne = "SendBatch, one goroutine, 30 min"
		batchAny = "SendBatch, one goroutine, 10-60 min"
		sendOne  = "Send, 64 goroutines, 30 min"
		sendAny  = "Send, 64 goroutines, 10-60 min"
	)
	return perType(o, func(t topology.QueueType) group {
		n, c, coarse := o.Messages, clock(t), bucket(tenths(dlx.LayoutClock, t))
		return group{
			cases: []kase{
				{name: raw, baseline: true, on: c, work: rawPipelined(n, plainQueues(1))},
				{name: batchOne, on: c, work: sendBatch(n, halfAnHour)},
				{name: batchAny, on: c, work: sendBatch(n, anyDelay)},
				{name: rawBatch, baseline: true, on: c, work: rawPipelined(n, sameRoutes(anyDelay))},
				{name: batchAny + atTenths, baseline: true, on: coarse, work: sendBatch(n, anyDelay)},
				{name: rawMany, baseline: true, on: c, work: rawShared(n, plainQueues(1))},
				{name: sendOne, on: c, work: send(n, halfAnHour)},
				{name: sendAny, on: c, work: send(n, anyDelay)},
				{name: rawSend, baseline: true, on: c, work: rawShared(n, sameRoutes(anyDelay))},
				{name: sendAny + atTenths, baseline: true, on: coarse, work: send(n, anyDelay)},
				{name: raw50, baseline: true, on: c, work: rawShared(n, plainQueues(50))},
			},
			claims: []claim{
				atLeast(batchOne, metricRate, raw, 0.90), atMost(batchOne, metricAllocations, raw, 2),
				atLeast(batchAny, metricRate, raw, 0.90), atMost(batchAny, metricAllocations, raw, 2),
				atLeast(sendOne, metricRate, rawMany, 0.90), atMost(sendOne, metricAllocations, rawMany, 2),
				atLeast(sendAny, metricRate, rawMany, 0.90), atMost(sendAny, metricAllocations, rawMany, 2),
				atLeast(sendAny, metricRate, raw50, 0.90),
				atLeast(batchAny, metricRate, rawBatch, 0.90), atLeast(sendAny, metricRate, rawSend, 0.90),
				atLeast(batchAny, metricRate, batchAny+atTenths, 0.90), atLeast(sendAny, metricRate, sendAny+atTenths, 0.90),
			},
		}
	})
}

func consuming(o Options) []group {
	const raw, plain = "raw client", "bare handler"
	const effects, tasks = "idempotent handler in groups, no effect", "task handler in groups, no effect"
	return perType(o, func(t topology.QueueType) group {
		c, n := clock(t), o.Messages
		fewer := max(n/2, 500) // for cases that use transactions
		return group{
			cases: []kase{
				{name: raw, baseline: true, on: c, work: rawConsume(n)},
				{name: plain, on: c, work: consume(n, false, bare)},
				{name: effects, on: c, needs: postgres, work: consume(fewer, false, idempotently)},
				{name: tasks, on: c, needs: postgres, work: consume(fewer, true, asTasks)},
			},
			claims: []claim{atLeast(plain, metricRate, raw, 0.90), atLeast(effects, metricRate, plain, 0.5), atLeast(tasks, metricRate, plain, 0.4)},
		}
	})
}

func observing(o Options) []group {
	const sending, handling, without, some, every = "Send, 64 goroutines, ", "bare handler, ", "without telemetry", "one trace in 100", "every trace"
	return perType(o, func(t topology.QueueType) (g group) {
		clients := map[string]*client{without: clock(t), some: clock(t).observed(0.01), every: clock(t).observed(1)}
		for _, way := range []string{without, some, every} {
			c := clients[way]
			g.cases = append(g.cases,
				kase{name: sending + way, baseline: way == without, on: c, work: send(o.Messages, halfAnHour)},
				kase{name: handling + way, baseline: way == without, on: c, work: consume(o.Messages, false, bare)})
			if way == without {
				continue
			}
			g.claims = append(g.claims, atLeast(sending+way, metricRate, sending+without, 0.95), atLeast(handling+way, metricRate, handling+without, 0.95))
		}
		return g
	})
}

func scheduling(o Options) []group {
	n, c := o.Messages, clock(o.QueueTypes[0])
	overdue := fmt.Sprintf("beside %d overdue tasks for each of a full, an exclusive and a missing destination", backlog)
	spaced := fmt.Sprintf("beside a flood of %d at a rate limit of %d/s", flooded, rateLimit)
	pushing := fmt.Sprintf("ScheduleUnique, %d keys, each pushes back the pending task", uniqueKeys)
	debounced := fmt.Sprintf("beside %d tasks/s of %d unique keys that push each other back", o.Rate, uniqueKeys)
	// Tasks are due within a second. With later due times, it would not be visible if the relay were late.
	f := flow{rate: float64(o.Rate), delays: span{0, time.Second}, warm: 5 * time.Second, measure: 30 * time.Second}
	if o.Quick {
		f.warm, f.measure = 2*time.Second, 5*time.Second
	}
	return []group{
		{
			title: "PostgreSQL", repeats: o.Repeats,
			cases: []kase{
				{name: "ScheduleBatch, 500 rows a statement", on: c, needs: postgres, work: scheduleBatch(n)},
				{name: "relay", on: c, needs: postgres, work: relay(n)},
				{name: "SendBatch", baseline: true, on: c, needs: postgres, work: sendBatch(n, anyDelay)},
			},
			claims: []claim{atLeast("relay", metricRate, "SendBatch", 0.5)},
		},
		{
			title: fmt.Sprintf("one task a transaction, %d writers", writers), repeats: o.Repeats,
			cases: []kase{
				{name: "Schedule", baseline: true, on: c, needs: postgres, work: scheduleEach(n/10, plainly)},
				{name: "ScheduleUnique, new keys", on: c, needs: postgres, work: scheduleEach(n/10, fresh)},
				{name: pushing, on: c, needs: postgres, work: scheduleEach(n/10, pushBack)},
			},
			claims: []claim{atLeast(pushing, metricRate, "Schedule", 0.5)},
		},
		{
			title: fmt.Sprintf("%d tasks/s for 10 queues, due within a second", o.Rate), repeats: o.Repeats,
			cases: []kase{
				{name: "alone", baseline: true, on: c, needs: postgres, work: steady(f, byRelay(10, alone))},
				{name: overdue, on: c, needs: postgres, work: steady(f, byRelay(10, trouble))},
				{name: spaced, on: c, needs: postgres, work: steady(f, byRelay(10, flood))},
				{name: debounced, on: c, needs: postgres, work: steady(f, byRelay(10, debounce(o.Rate)))},
			},
			claims: []claim{atMost(spaced, metricP50, "alone", 1.5), atMost(debounced, metricP50, "alone", 1.5), atMost(overdue, metricP50, "alone", 1.5), atMost(overdue, metricP99, "alone", 1.5)},
		},
	}
}

func moving(o Options) []group {
	f := flow{rate: float64(o.Rate), delays: span{0, time.Second}, warm: 2 * time.Second, measure: 20 * time.Second}
	if o.Quick {
		f.measure = 2 * time.Second
	}
	c := clock(o.QueueTypes[0])
	return []group{{
		title: fmt.Sprintf("%d tasks/s, due within a second", o.Rate), repeats: 1,
		cases: []kase{
			{name: "alone", baseline: true, on: c, needs: postgres, work: steady(f, byRelay(1, alone))},
			{name: "beside the move", on: c, needs: postgres, work: steady(f, byRelay(1, move(o.Pending)))},
		},
		claims: []claim{atMost("beside the move", metricP99, "alone", 1.5)},
	}}
}

func browsing(o Options) []group {
	loads, long := 200, time.Minute
	if o.Quick {
		loads, long = 20, 10*time.Second
	}
	pages := number(float64(o.Pending)) + " pending tasks"
	return []group{
		{title: pages, repeats: 1, cases: []kase{
			{name: "Now", work: load(loads, "")},
			{name: "Now, a day", work: load(loads, "?from=%2B1h&to=%2B25h")},
			{name: "Tasks", work: load(loads, "tasks")},
			{name: "Tasks of a queue", work: load(loads, "tasks?queue=seldom")},
			{name: "Tasks by a prefix of ids", work: load(loads, "tasks?prefix=task-0000012")},
			{name: "Tasks due within an hour", work: load(loads, "tasks?status=pending&from=%2B24h&to=%2B25h")},
			{name: "Tasks, far down", work: load(loads, "tasks?queue=often&status=pending&after={middle}/task-")},
			{name: "one task", work: load(loads, "task?id=task-000000012")},
		}},
		{title: fmt.Sprintf("%d browsers, %s", watchers, pages), repeats: 1, cases: []kase{{name: "the first page, live", work: watch(long)}}},
	}
}

func waiting(o Options) []group {
	// Measure for a minute, because about once a minute a quorum broker moves its log into the segments of the queues,
	// and messages are later than usual for two to three seconds.
	f := flow{rate: float64(o.Rate), delays: span{5 * time.Second, 35 * time.Second}, warm: 35 * time.Second, measure: time.Minute}
	if o.Quick {
		f.delays, f.warm, f.measure = span{time.Second, 3 * time.Second}, 3*time.Second, 2*time.Second
	}
	const table, set = "PostgreSQL polled every second", "Redis polled every second"
	limits := map[topology.QueueType]float64{topology.Quorum: 30, topology.Classic: 15} // ms
	g := group{title: fmt.Sprintf("%d/s, %s", o.Rate, f.delays), repeats: min(o.Repeats, 2)}
	for _, t := range o.QueueTypes {
		name := "bucket, " + string(t) + " queues"
		g.cases = append(g.cases,
			kase{name: name, on: clock(t), work: steady(f, byClient)},
			kase{name: name + atTenths, baseline: true, on: bucket(tenths(dlx.LayoutClock, t)), work: steady(f, byClient)},
			kase{name: name + exactly, on: exact(t), work: steady(f, byClient)})
		g.claims = append(g.claims,
			atMost(name, metricP99, table, 1.0/50), atMost(name, metricP99, set, 1.0/50),
			atMost(name, metricP99, "", limits[t]), atMost(name, metricP99, name+atTenths, 0.5), atMost(name+exactly, metricP99, "", 3))
	}
	g.cases = append(g.cases,
		kase{name: table, baseline: true, needs: postgres, work: steady(f, byTable)},
		kase{name: set, baseline: true, needs: redisServer, work: steady(f, bySet)})
	return []group{g, besidePlugin(g.title, g.repeats, func() work { return steady(f, byClient) })}
}

const byBucket, byPlugin = "bucket, classic queues", "plugin"

// besidePlugin returns a group that compares rabbitdelay with the plugin on classic queues.
func besidePlugin(title string, repeats int, w func() work, claims ...claim) group {
	return group{
		title: title + string(plugged), on: plugged, repeats: repeats, claims: claims,
		cases: []kase{{name: byBucket, on: clock(topology.Classic), work: w()}, {name: byPlugin, baseline: true, on: pluggable(), work: w()}},
	}
}

// underASecond is the maximum p99 lateness in a search, in milliseconds.
const underASecond = 1000

// highest searches for the highest rate with a p99 lateness below the given number of milliseconds.
func highest(o Options, most float64) work {
	if o.Quick {
		return climb(most, flow{delays: span{500 * time.Millisecond, time.Second}, warm: time.Second, measure: time.Second})
	}
	return climb(most, flow{delays: soon, warm: 6 * time.Second, measure: 6 * time.Second})
}

func sustaining(o Options) []group {
	const fine, coarse, binary, exactly = "clock layout", "clock layout" + atTenths, "binary layout" + atTenths, "clock layout" + exactly + ", under 10 ms"
	t := o.QueueTypes[0]
	return []group{
		{
			title: string(t) + " queues", repeats: climbs,
			cases: []kase{
				{name: fine, on: clock(t), work: highest(o, underASecond)},
				{name: exactly, on: exact(t), work: highest(o, 10)},
				{name: coarse, baseline: true, on: bucket(tenths(dlx.LayoutClock, t)), work: highest(o, underASecond)},
				{name: binary, baseline: true, on: bucket(tenths(dlx.LayoutBinary, t)), work: highest(o, underASecond)},
			},
			claims: []claim{atLeast(fine, metricRate, coarse, 0.5), atLeast(coarse, metricRate, binary, 5), atLeast(exactly, metricRate, fine, 1.4)},
		},
		besidePlugin("classic queues", climbs, func() work { return highest(o, underASecond) }, atLeast(byBucket, metricRate, byPlugin, 1)),
	}
}

func rivalling(o Options) []group {
	const one, fine, coarse = "native, 1 queue", "bucket", "bucket" + atTenths
	ours := fmt.Sprintf("native, %d queues", dlx.DefaultNativeQueues)
	rivals := func(title string, repeats int, w func() work, claims ...claim) group {
		return group{title: title, on: delaying, repeats: repeats, claims: claims, cases: []kase{
			{name: ours, on: natively(dlx.DefaultNativeQueues), work: w()},
			{name: one, baseline: true, on: natively(1), work: w()},
			{name: fine, baseline: true, on: clock(topology.Quorum), work: w()},
			{name: coarse, baseline: true, on: bucket(tenths(dlx.LayoutClock, topology.Quorum)), work: w()},
		}}
	}
	f := flow{delays: soon, warm: 8 * time.Second, measure: 15 * time.Second}
	rates := [][2]float64{{1_000, 15}, {4_000, 15}, {8_000, 25}, {12_000, 110}} // rate per second, and the target for the p99 in ms
	if o.Quick {
		f = flow{delays: span{time.Second, 3 * time.Second}, warm: 3 * time.Second, measure: 2 * time.Second}
		rates = [][2]float64{{float64(o.Rate), 15}}
	}
	var groups []group
	for _, at := range rates {
		f.rate = at[0]
		groups = append(groups, rivals(fmt.Sprintf("%.0f/s, %s", f.rate, f.delays), min(o.Repeats, 2), func() work { return steady(f, byClient) },
			atMost(ours, metricP99, "", at[1]), atMost(ours, metricP99, fine, 1)))
	}
	return append(groups, rivals("highest rate, quorum queues", climbs, func() work { return highest(o, underASecond) },
		atLeast(ours, metricRate, one, 1), atLeast(ours, metricRate, fine, 1), atLeast(ours, metricRate, coarse, 1)))
}

func costing(o Options) []group {
	return perType(o, func(t topology.QueueType) group {
		fine, checked := dlx.BucketConfig{QueueType: t}, tenths(dlx.LayoutClock, t)
		checked.TopicPermissions = true
		direct := new(float64)
		way := func(name string, cfg dlx.BucketConfig, delay delayFor) kase {
			return kase{name: name, on: countingHops(bucket(cfg)), work: processorTime(o.Messages, delay, direct)}
		}
		return group{cases: []kase{
			way("no delay", fine, noDelay),
			way("clock layout, whole seconds", fine, wholeSeconds),
			way("clock layout", fine, soon.at),
			way("clock layout"+atTenths, tenths(dlx.LayoutClock, t), soon.at),
			{name: "clock layout" + exactly, on: countingHops(exact(t)), work: processorTime(o.Messages, soon.at, direct)},
			way("clock layout"+atTenths+", topic permissions", checked, soon.at),
			way("hex layout"+atTenths, tenths(dlx.LayoutHex, t), soon.at),
			way("binary layout"+atTenths, tenths(dlx.LayoutBinary, t), soon.at),
		}}
	})
}

func declaring(o Options) []group {
	return perType(o, func(t topology.QueueType) group {
		return group{cases: []kase{
			{name: "clock layout", work: declareLayout(clock(t))},
			{name: "clock layout" + atTenths, work: declareLayout(bucket(tenths(dlx.LayoutClock, t)))},
			{name: "hex layout" + atTenths, work: declareLayout(bucket(tenths(dlx.LayoutHex, t)))},
			{name: "binary layout, 1 s", work: declareLayout(bucket(dlx.BucketConfig{QueueType: t, Layout: dlx.LayoutBinary}))},
		}}
	})
}

func piling(o Options) []group {
	t, few := o.QueueTypes[0], max(o.Pending/10, 1000) // the plugin needs about 3 kB of memory for each message
	ours := "bucket, " + string(t) + " queues"
	return []group{
		{
			title: fmt.Sprintf("%d waiting", o.Pending), repeats: 1,
			cases:  []kase{{name: ours, on: clock(t), work: pile(o.Pending)}},
			claims: []claim{atMost(ours, metricMemory, "", 100), atLeast(ours, metricLastTenth, "", 0.9)},
		},
		besidePlugin(fmt.Sprintf("%d waiting", few), 1, func() work { return pile(few) }),
	}
}
