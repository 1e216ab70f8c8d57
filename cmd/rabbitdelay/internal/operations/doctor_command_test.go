package operations_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The doctor has no findings for two configurations with the same prefix, whether or not their queues are empty.
func TestDoctorOfTwoConfigurations(t *testing.T) {
	t.Parallel()
	suite.OnNewest(t, func(t *testing.T, v *suite.Vhost) {
		one := suite.CommandOn(t, v, "delay: {bucket: {radices: [3, 3]}}\ndestinations: [{queue: orders.expire}]\n")
		two := suite.CommandOn(t, v, "delay: {strategy: ttl, ttl: {delays: [1h]}}\ndestinations: [{queue: payments.expire}]\n")
		for _, cmd := range []func(...string) suite.Ran{one, two} {
			if r := cmd("apply"); r.Code != 0 {
				t.Fatalf("apply: got %v, want exit code 0", r)
			}
		}
		for round := range 2 {
			for name, cmd := range map[string]func(...string) suite.Ran{"one": one, "two": two} {
				if r := cmd("doctor"); r.Code != 0 {
					t.Errorf("round %d, %s: got %s, want exit code 0", round, name, r)
				}
			}
			if r := two("send", "--queue", "payments.expire", "--delay", "1h"); r.Code != 0 {
				t.Fatalf("send --queue payments.expire --delay 1h: got %v, want exit code 0", r)
			}
			suite.Eventually(t, "the management API counts the message", func() bool {
				found, err := v.Mgmt.Inspect(t.Context(), topology.Topology{})
				return err == nil && found.Queues["delay.ttl.1h"].Messages > 0
			})
		}
		// This file lacks a delay that was declared earlier.
		without := suite.CommandOn(t, v, "delay: {strategy: ttl, ttl: {delays: [2h]}}\ndestinations: [{queue: payments.expire}]\n")
		if r := without("apply"); r.Code != 0 {
			t.Fatalf("apply: got %v, want exit code 0", r)
		}
		if r := without("doctor"); r.Code != 0 || !strings.Contains(r.Stdout, "arrive, because") {
			t.Errorf(`doctor: got %v, want exit code 0 and "arrive, because" in the output`, r)
		}
	})
}

// If areas could not be checked, the first line of the report says so, and the report does not say that nothing is
// wrong.
func TestDoctorCommandWithoutManagement(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		const yaml = "delay: {bucket: {radices: [2]}}\ndestinations: [{queue: orders.expire}]\n"
		cmd := suite.CommandOn(t, v, yaml)
		if r := cmd("apply"); r.Code != 0 {
			t.Fatalf("apply: got %v, want exit code 0", r)
		}
		if r := cmd("doctor"); r.Code != 0 {
			t.Errorf("with the management API: got %s, want exit code 0", r)
		}
		cmd = suite.CommandWith(t, v, yaml, "http://127.0.0.1:1")
		r := cmd("doctor")
		if r.Code != 2 || !strings.HasPrefix(r.Stdout, "NOT EVERYTHING WAS CHECKED: management") || strings.Contains(r.Stdout, "nothing is wrong") {
			t.Errorf("without the management API: got %s, want exit code 2 and Stdout beginning with \"NOT EVERYTHING WAS CHECKED: management\"", r)
		}
		for _, less := range [][]string{{"--amqp-only"}, {"--skip", "management,bindings,policies,nodes,arguments,feature-flags"}} {
			if r := cmd(append([]string{"doctor"}, less...)...); r.Code != 0 || !strings.Contains(r.Stdout, "nothing is wrong") {
				t.Errorf(`%v: got %s, want exit code 0 and Stdout with "nothing is wrong"`, less, r)
			}
		}
		if r := cmd("plan"); r.Code != 2 || !strings.HasPrefix(r.Stdout, "INCOMPLETE: ") {
			t.Errorf(`plan: got %s, want exit code 2 and Stdout beginning with "INCOMPLETE: "`, r)
		}
		if r := cmd("doctor", "--skip", "weather"); r.Code != 1 || !strings.Contains(r.Stderr, `--skip: "weather"; expected management,`) {
			t.Errorf(`doctor --skip weather: got %v, want exit code 1 and "--skip: \"weather\", want management," in the errors`, r)
		}
	})
}

// If the management API belongs to another broker, commands report that and do not use it.
func TestManagementOfAnotherBroker(t *testing.T) {
	t.Parallel()
	versions, err := broker.Versions(t.Context())
	if err != nil || len(versions) < 2 {
		t.Skipf("skipped: it needs two RabbitMQ versions; available: %v", versions)
	}
	here := suite.NewVhost(t, broker.Shared(t, broker.Options{Version: versions[0], Management: true}))
	there := broker.Shared(t, broker.Options{Version: versions[1], Management: true})
	cmd := suite.CommandWith(t, here, "delay: {bucket: {radices: [2]}}\n", there.ManagementURL())
	own, _ := here.Conn.Properties["cluster_name"].(string)
	for command, code := range map[string]int{"plan": 1, "apply": 1, "doctor": 2, "destroy --yes": 1} {
		r := cmd(strings.Fields(command)...)
		if r.Code != code || !strings.Contains(r.Stderr, "belongs to") || !strings.Contains(r.Stderr, fmt.Sprintf("%q", own)) || strings.Contains(r.Stderr, "guest") {
			t.Errorf(`%s: got %s, want Code = %v, Stderr with "belongs to", Stderr with %q and no "guest" in it`,
				command, r, code, fmt.Sprintf("%q", own))
		}
	}
	if left := here.Objects(t); len(left) != 0 {
		t.Errorf("apply created %v, want no objects", left)
	}
}

// The doctor's suggested fix for a queue that differs from the configuration deletes no message.
func TestDoctorReplacesAQueue(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		const queue = "delay.bucket.r3x3.300ms"
		file := "delay: {bucket: {radices: [3, 3]}}\ndestinations: [{queue: orders.expire}]\n"
		cmd := suite.CommandOn(t, v, file)
		if r := cmd("apply"); r.Code != 0 {
			t.Fatalf("apply: got %v, want exit code 0", r)
		}
		want := smallLayout(t, []int{3, 3}, 100*time.Millisecond, toQueue)
		q, _ := want.Queue(queue)
		args := q.Table()
		delete(args, argument.DeadLetterStrategy)
		args[argument.MessageTTL] = int64(3_600_000) // so that the message stays
		(&clinic{Vhost: v}).redeclare(t, queue, args)
		r := cmd("doctor")
		if r.Code != 1 || !strings.Contains(r.Stdout, "destroy -f") || !strings.Contains(r.Stdout, "--layout "+queue+" && rabbitdelay apply") {
			t.Fatalf("doctor: got %v, want exit code 1, and destroy -f and --layout %s && rabbitdelay apply in the output", r, queue)
		}
		suite.Publish(t, v, queue, 1)
		if r := cmd("destroy", "--yes", "--layout", queue); r.Code != 1 || !strings.Contains(r.Stderr, queue+" 1") {
			t.Errorf("destroying a queue with a message: got %s, want exit code 1 and Stderr with %q", r, queue+" 1")
		}
		ch := v.Channel(t)
		if _, ok, err := ch.Get(queue, true); err != nil || !ok {
			t.Fatalf("basic.get after a refused destroy: got a message: %t, error %v, want the message to be kept", ok, err)
		}
		for _, args := range [][]string{{"destroy", "--yes", "--layout", queue}, {"apply"}} {
			if r := cmd(args...); r.Code != 0 {
				t.Fatalf("%v: got %v, want exit code 0", args, r)
			}
		}
		if r := cmd("doctor"); r.Code != 0 {
			t.Errorf("doctor: got %v, want exit code 0", r)
		}
	})
}

// The doctor reports dead letters, and tasks that no relay sends.
func TestDoctorFindsMessagesForOperators(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		db := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
		cmd := suite.CommandOn(t, v, "delay: {bucket: {radices: [2]}}\ndestinations: [{queue: orders.expire}]\ndatabase: {url: '"+db+"'}\n")
		if r := cmd("apply"); r.Code != 0 {
			t.Fatalf("apply: got %v, want exit code 0", r)
		}
		if r := cmd("doctor"); r.Code != 2 || !strings.HasPrefix(r.Stdout, "NOT EVERYTHING WAS CHECKED: database\n") {
			t.Errorf("before the database exists: got %s, want exit code 2 and Stdout beginning with %q", r, "NOT EVERYTHING WAS CHECKED: database\n")
		}
		if r := cmd("migrate"); r.Code != 0 {
			t.Fatalf("migrate: got %v, want exit code 0", r)
		}
		if r := cmd("doctor"); r.Code != 0 {
			t.Errorf("with an empty table: got %s, want exit code 0", r)
		}
		sqlDB, _, err := config.OpenDB(config.URL(db))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sqlDB.Close() }()
		due := time.Now().Add(-time.Hour).UnixMilli()
		if _, err := sqlDB.ExecContext(t.Context(),
			"INSERT INTO rabbitdelay_tasks (id, queue, due_at, body) VALUES ('1', 'orders.expire', ?, 'x'), ('2', 'orders.expire', ?, 'x')",
			due, due+1); err != nil {
			t.Fatal(err)
		}
		ch := v.Channel(t)
		if err := ch.PublishWithContext(t.Context(), "", "orders.expire.dead", false, false, amqp.Publishing{DeliveryMode: amqp.Persistent}); err != nil {
			t.Fatal(err)
		}
		suite.Eventually(t, "the doctor reports the dead letter and the overdue tasks", func() bool {
			r := cmd("doctor")
			return r.Code == 1 && strings.Contains(r.Stdout, "Dead letters are waiting: 1 in orders.expire.dead.") &&
				strings.Contains(r.Stdout, "2 tasks are overdue and not yet sent to the broker, the oldest for 1h")
		})
	})
}
