package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

const clockBound = "a divisor of 1s with the clock layout (below 1s a divisor of 1s, below 1m of 1m, below 1h of 1h)"

const (
	form   = "expected a URL like amqp://user:password@host:5672/vhost (or amqps://), with special characters in user and password percent-encoded"
	noHost = "no host in the URL; is a variable not set? Expected a URL like amqp://user:password@host:5672/vhost"
)

// urlForm returns the part of an error that describes the form of a database's URL.
func urlForm(scheme string, port int) string {
	return fmt.Sprintf("expected a URL such as %s://user:password@host:%d/database, with special characters in user and password percent-encoded", scheme, port)
}

func TestInvalid(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		env        string // NAME=value
		want       []string
	}{
		{"no mapping", "amqp://guest:hunter2@host", "", []string{
			"line 1, column 1: expected a mapping with the keys bindings, broker, database, delay, destinations, exchanges, queues, schedules, serve; got a single value"}},
		{"not YAML", "broker: {\n", "", []string{"line 1: not YAML: did not find expected node content"}},
		{"two documents", "delay: {}\n---\ndelay: {}\n", "", []string{"line 2, column 1: a second document begins here; put everything into one document"}},
		{"unknown section", "delays: {}\n", "", []string{
			`line 1, column 1: delays: unknown key "delays"; expected one of bindings, broker, database, delay, destinations, exchanges, queues, schedules, serve; did you mean delay?`}},
		{"unknown key", "broker:\n  uri: amqp://guest:hunter2@host\n", "", []string{
			`line 2, column 3: broker.uri: unknown key "uri"; expected one of connection_name, declare, dial_timeout, external_auth, heartbeat, held_bytes, management_url, max_body, max_in_flight, max_route_queues, password, password_file, reconnect_max, reconnect_min, send_timeout, tls, url, urls, username; did you mean url?`}},
		{"unknown nested key", "delay:\n  bucket: {lay: x}\n", "", []string{
			`line 2, column 12: delay.bucket.lay: unknown key "lay"; expected one of layout, radices, resolution; did you mean layout?`}},
		{"unknown key of a previous layout", "delay:\n  previous:\n    - {prefix: x}\n", "", []string{
			`line 3, column 8: delay.previous[0].prefix: unknown key "prefix"; expected one of delays, layout, queue_type, queues, radices, resolution, strategy; prefix belongs below delay`}},
		{"dotted key", "delay.prefix: x\n", "", []string{
			`line 1, column 1: delay.prefix: unknown key "delay.prefix"; expected one of bindings, broker, database, delay, destinations, exchanges, queues, schedules, serve; write it as a mapping: delay: {prefix: …}`}},
		{"repeated key", "delay:\n  prefix: a\n  prefix: b\n", "", []string{
			`line 3, column 3: delay.prefix: the key "prefix" already occurs in line 2; remove one of them`}},
		{"merge keys of no mapping", "delay: &d {prefix: a}\nbroker:\n  <<: [*d, &t x]\n", "", []string{
			`line 1, column 12: broker.prefix: unknown key "prefix"; expected one of connection_name, declare, dial_timeout, external_auth, heartbeat, held_bytes, management_url, max_body, max_in_flight, max_route_queues, password, password_file, reconnect_max, reconnect_min, send_timeout, tls, url, urls, username; prefix belongs below delay`,
			"line 3, column 12: broker.<<: expected an alias of a mapping, such as <<: *name, or a list of them; got a single value"}},
		{"key below another", "delay:\n  resolution: 1s\n  radices: [10]\n", "", []string{
			`line 2, column 3: delay.resolution: unknown key "resolution"; expected one of bucket, exact, lead, native, plugin, prefix, previous, queue_type, strategy, topic_permissions, ttl; resolution belongs below delay.bucket or delay.previous[]`,
			`line 3, column 3: delay.radices: unknown key "radices"; expected one of bucket, exact, lead, native, plugin, prefix, previous, queue_type, strategy, topic_permissions, ttl; radices belongs below delay.bucket or delay.previous[]`}},
		{"path as a key", "delay.bucket.layout: hex\n", "", []string{
			`line 1, column 1: delay.bucket.layout: unknown key "delay.bucket.layout"; expected one of bindings, broker, database, delay, destinations, exchanges, queues, schedules, serve; write it as a mapping: delay: {bucket: {layout: …}}`}},
		{"x- below the document", "queues:\n- {name: q, x-max-length: 5}\n", "", []string{
			`line 2, column 13: queues[0].x-max-length: unknown key "x-max-length"; expected one of arguments, dead_letter, delivery_limit, max_length, max_length_bytes, message_ttl, name, overflow, single_active_consumer, type; did you mean max_length?`}},
		{"x- beside arguments", "exchanges:\n- {name: e, type: topic, x-note: 5}\n", "", []string{
			`line 2, column 26: exchanges[0].x-note: unknown key "x-note"; expected one of alternate_exchange, arguments, auto_delete, internal, name, type; an argument of RabbitMQ belongs below arguments of a queue, an exchange or a binding`}},
		{"argument of a queue in a destination", "destinations:\n- {queue: q, x-max-length: 5}\n", "", []string{
			`line 2, column 14: destinations[0].x-max-length: unknown key "x-max-length"; expected one of dead_letter, exchange, lead, name, queue, rate_limit, retry, routing_key; an argument of RabbitMQ belongs below arguments of a queue, an exchange or a binding`}},
		{"section is text", "broker: amqp://guest:hunter2@host\n", "", []string{
			"line 1, column 9: broker: expected a mapping with the keys connection_name, declare, dial_timeout, external_auth, heartbeat, held_bytes, management_url, max_body, max_in_flight, max_route_queues, password, password_file, reconnect_max, reconnect_min, send_timeout, tls, url, urls, username; got a single value"}},
		{"value is a list", "broker:\n  url: [amqp://guest:hunter2@host]\n", "", []string{
			"line 2, column 8: broker.url: expected a single value, got a list"}},
		{"list is a value", "broker:\n  urls: amqp://guest:hunter2@host\n", "", []string{
			`line 2, column 9: broker.urls: expected a list (each item begins with "- "), got a single value`}},
		{"no value", "delay:\n  prefix:\n", "", []string{
			"line 2, column 10: delay.prefix: is empty; give a value, or leave it out for the default"}},
		{"previous is no list", "delay: {previous: {}}\n", "", []string{
			`line 1, column 19: delay.previous: expected a list (each item begins with "- "), got a mapping`}},
		{"unset variable", "delay:\n  prefix: ${RD_TEST_UNSET}\n", "", []string{
			"line 2, column 11: delay.prefix: the environment variable RD_TEST_UNSET is not set; set it, or write ${RD_TEST_UNSET:-value}"}},
		{"section of an empty variable", "delay: ${RD_TEST_EMPTY}\n", "RD_TEST_EMPTY=", []string{
			"line 1, column 8: delay: is empty; give a value, or leave it out for the default"}},
		{"unset variable in the topology", "queues:\n  - name: ${RD_TEST_UNSET}\n", "", []string{
			"line 2, column 11: queues[0].name: the environment variable RD_TEST_UNSET is not set; set it, or write ${RD_TEST_UNSET:-value}"}},
		{"no integer", "broker: {max_in_flight: many}\n", "", []string{`line 1, column 25: broker.max_in_flight: expected an integer, got "many"`}},
		{"no boolean", "broker: {external_auth: 1}\n", "", []string{`line 1, column 25: broker.external_auth: expected true or false, got "1"`}},
		{"no unit", "broker: {heartbeat: 10}\n", "", []string{
			`line 1, column 21: broker.heartbeat: expected a duration such as 1500ms, 60s, 30m, 48h or 7d, got "10"`,
		}},
		{"items", "delay: {ttl: {delays: [60s, x, 1h, y]}}\n", "", []string{
			`line 1, column 23: delay.ttl.delays: item 2: expected a duration such as 1500ms, 60s, 30m, 48h or 7d, got "x"; ` +
				`item 4: expected a duration such as 1500ms, 60s, 30m, 48h or 7d, got "y"`}},

		{"serve", "serve: {listen: here, path_prefix: /a/, proxy: {trusted: [10.0.0.0/40]}, keep_audit: 0s, tls: {cert: c}, title: \"a\\nb\", color: red, trace_url: 'javascript:{id}'}\n", "", []string{
			`serve.tls.key: is not set, but serve.tls.cert is; https needs both`,
			`line 1, column 17: serve.listen: "here"; expected HOST:PORT, such as 127.0.0.1:8086 or :8086`,
			`line 1, column 36: serve.path_prefix: "/a/"; expected a path such as /rabbitdelay`,
			`line 1, column 58: serve.proxy.trusted: "10.0.0.0/40"; expected an address or a network, such as 10.0.0.0/8`,
			`line 1, column 86: serve.keep_audit: 0s; expected 1h to 3650d`,
			`line 1, column 113: serve.title: "a\nb"; expected one line of at most 40 characters`,
			`line 1, column 128: serve.color: "red"; expected a colour of six hexadecimal digits, such as #c62828`,
			`line 1, column 144: serve.trace_url: "javascript:{id}"; expected an address with {id} for the trace's id, such as https://traces.example.org/trace/{id}`,
		}},
		{"proxy login", "serve: {proxy: {user_header: X-User}}\n", "", []string{
			`line 1, column 30: serve.proxy.user_header: any client can send this header; set serve.proxy.trusted to the proxy's own addresses`}},
		{"proxy of everybody", "serve: {proxy: {user_header: Cookie, role_header: 'X Role', trusted: [0.0.0.0/0]}}\n", "", []string{
			`line 1, column 30: serve.proxy.user_header: Cookie; expected a header that only the proxy sets, such as X-Forwarded-User`,
			`line 1, column 51: serve.proxy.role_header: "X Role"; expected the name of a header, such as X-Forwarded-User`,
			`line 1, column 70: serve.proxy.trusted: 0.0.0.0/0 trusts every client; expected the proxy's own addresses`}},
		{"role without a user", "serve: {proxy: {role_header: X-Role}}\n", "", []string{
			`line 1, column 30: serve.proxy.role_header: has no effect without serve.proxy.user_header`}},
		{"schedules", "schedules:\n- {name: a, cron: '0 8 * *', queue: q}\n- {name: a, every: 1h, queue: q}\n- {name: b, every: 10, queue: q, start: soon, priority: 256}\n- {name: c, cron: '@daily', time_zone: Mars/Phobos, queue: q}\n- {name: d, cron: '@daily'}\n- {name: e, cron: '@daily', queue: q, overlap: skip, misfire: all, headers: x}\n", "", []string{
			`line 2, column 19: schedules[0].cron: "0 8 * *": expected 5 fields (minute hour day month weekday), 6 with seconds in front, or one of @hourly, @daily, @weekly, @monthly, @yearly; got 4`,
			`line 3, column 10: schedules[1].name: "a" is also the name of schedules[0]`,
			`line 4, column 20: schedules[2].every: expected a duration such as 1500ms, 60s, 30m, 48h or 7d, got "10"`,
			`line 4, column 41: schedules[2].start: expected a time such as 2026-01-31T08:00:00Z, got "soon"`,
			`line 4, column 57: schedules[2].priority: "256"; expected a number from 0 to 255`,
			`line 5, column 40: schedules[3].time_zone: "Mars/Phobos" is unknown; expected an IANA name such as Europe/Berlin`,
			`line 6, column 3: schedules[4].queue: no destination; give a queue, or an exchange and a routing key`,
			`line 7, column 77: schedules[5].headers: expected a mapping of names to texts, got the text "x"`}},

		{"bounds", "broker: {heartbeat: 500ms, dial_timeout: 1ms, reconnect_min: 2h, reconnect_max: 1ms, send_timeout: 2d, max_in_flight: -1, max_body: 536870913, declare: some}\n", "", []string{
			"line 1, column 21: broker.heartbeat: 500ms; expected 1s to 18h12m15s",
			"line 1, column 42: broker.dial_timeout: 1ms; expected 10ms to 1h",
			"line 1, column 62: broker.reconnect_min: 2h; expected 1ms to 1h",
			"line 1, column 81: broker.reconnect_max: 1ms; expected 2h to 1d",
			"line 1, column 100: broker.send_timeout: 2d; expected 1ms to 1d",
			"line 1, column 119: broker.max_in_flight: -1; expected 1 to 1048576",
			"line 1, column 133: broker.max_body: 536870913; expected 1 to 536870912",
			`line 1, column 153: broker.declare: "some"; expected missing, listed or nothing`}},
		{"strategy", "delay: {strategy: fast}\n", "", []string{`line 1, column 19: delay.strategy: "fast"; expected auto, bucket, ttl, plugin or native`}},
		{"prefix", "delay: {prefix: amq.x}\n", "", []string{
			`line 1, column 17: delay.prefix: "amq.x"; expected UTF-8 text of 1 to 64 bytes without line breaks that does not begin with "amq."`,
		}},
		{"queue type", "delay: {queue_type: stream}\n", "", []string{`line 1, column 21: delay.queue_type: "stream"; expected quorum or classic`}},
		{"layout", "delay: {bucket: {layout: decimal}}\n", "", []string{
			`line 1, column 26: delay.bucket.layout: "decimal"; expected binary, celery, clock, hex or nservicebus, or set radices instead`,
		}},
		{"foreign layout", "delay: {bucket: {layout: celery, radices: [2, 2], resolution: 2s}}\n", "", []string{
			`line 1, column 43: delay.bucket.radices: are set; the layout celery has its own radices`,
			`line 1, column 63: delay.bucket.resolution: 2s; expected 1s, the resolution of the layout celery`,
		}},
		{"foreign layout with auto", "delay: {strategy: auto, bucket: {layout: celery}}\n", "", []string{
			`line 1, column 19: delay.strategy: auto; the layout celery needs strategy: bucket`,
		}},
		{
			"nservicebus on classic queues", "delay: {queue_type: classic, bucket: {layout: nservicebus}}\n", "",
			[]string{`line 1, column 47: delay.bucket.layout: nservicebus; this layout needs queue_type: quorum`},
		},
		{"resolution", "delay: {bucket: {resolution: 30ms}}\n", "", []string{"line 1, column 30: delay.bucket.resolution: 30ms; expected " + clockBound}},
		{"radices", "delay: {bucket: {radices: [1]}}\n", "", []string{"line 1, column 27: delay.bucket.radices: [1]; expected numbers from 2 to 1000"}},
		{"previous strategies", "delay:\n  previous:\n  - {strategy: ttl, layout: hex}\n  - {delays: [1m]}\n  - {strategy: auto, queue_type: stream}\n", "", []string{
			`line 3, column 5: delay.previous[0].delays: "0 delays"; expected 1 to 1000 delays`,
			`line 3, column 29: delay.previous[0].layout: is for strategy: bucket`,
			`line 4, column 14: delay.previous[1].delays: is for strategy: ttl`,
			`line 5, column 16: delay.previous[2].strategy: "auto"; expected bucket, ttl, plugin or native; for auto, list each of its strategies`,
			`line 5, column 34: delay.previous[2].queue_type: "stream"; expected quorum or classic`}},
		{"previous layout", "delay:\n  previous:\n  - {layout: clock}\n  - {layout: clock, resolution: 30ms}\n", "", []string{
			"line 4, column 33: delay.previous[1].resolution: 30ms; expected " + clockBound}},
		{"previous native", "delay:\n  previous:\n  - {strategy: native, queues: 65}\n  - {strategy: native, delays: [1m], queues: 0}\n  - {queues: 2}\n", "", []string{
			`line 3, column 32: delay.previous[0].queues: 65; expected 1 to 64`,
			`line 4, column 32: delay.previous[1].delays: is for strategy: ttl`,
			`line 4, column 46: delay.previous[1].queues: 0; expected 1 or more; omit it for the default`,
			`line 5, column 14: delay.previous[2].queues: is for strategy: native`}},
		{"native", "delay: {native: {queues: 100}}\n", "", []string{"line 1, column 26: delay.native.queues: 100; expected 1 to 64"}},
		{"ttl without delays", "delay: {strategy: ttl}\n", "", []string{"delay.ttl.delays: is empty; list the delays of the ttl strategy, such as [60s, 15m]"}},
		{"ttl twice", "delay: {ttl: {delays: [60s, 1m]}}\n", "", []string{"line 1, column 23: delay.ttl.delays[1]: 1m; expected declared once"}},
		{"plugin range", "delay: {plugin: {min: 2h, max: 1h}}\n", "", []string{"line 1, column 23: delay.plugin.min: 2h; expected at most delay.plugin.max, 1h"}},
		{"plugin bound", "delay: {plugin: {max: 50d}}\n", "", []string{"line 1, column 23: delay.plugin.max: 50d; expected 1ms to 49d17h2m47.295s"}},
		{"plugin fraction", "delay: {plugin: {min: 1500us}}\n", "", []string{"line 1, column 23: delay.plugin.min: 1.5ms; expected whole milliseconds"}},

		{"broker URL", "broker: {url: 'http://guest:hunter2@host'}\n", "", []string{"line 1, column 15: broker.url: " + form}},
		{"broker URL unescaped", "broker: {url: 'amqp://guest:hunter2%@host'}\n", "", []string{"line 1, column 15: broker.url: " + form}},
		{"broker URL without host", "broker: {url: 'amqp://guest:hunter2@:5672/'}\n", "", []string{"line 1, column 15: broker.url: " + noHost}},
		{"broker URL without host and port", "broker: {url: 'amqp://guest:hunter2@/'}\n", "", []string{"line 1, column 15: broker.url: " + noHost}},
		{"opaque broker URL", "broker: {url: 'amqp:guest:hunter2@127.0.0.1:32782'}\n", "", []string{"line 1, column 15: broker.url: " + noHost}},
		{"node without host", "broker: {urls: ['amqp:32782']}\n", "", []string{"line 1, column 16: broker.urls[0]: " + noHost}},
		{"cluster of two schemes", "broker: {url: 'amqp://a', urls: ['amqps://guest:hunter2@b']}\n", "", []string{
			"line 1, column 33: broker.urls[0]: expected the same scheme as the other URLs; the nodes of a cluster must be all amqp:// or all amqps://"}},
		{"management URL", "broker: {management_url: 'guest:hunter2@host:15672'}\n", "", []string{
			"line 1, column 26: broker.management_url: expected a URL such as http://user:password@host:15672"}},
		{"management URL without host", "broker: {management_url: 'http://guest:hunter2@:15672'}\n", "", []string{
			"line 1, column 26: broker.management_url: expected a URL such as http://user:password@host:15672"}},
		{"TLS without amqps", "broker: {url: 'amqp://h', tls: {ca: x}}\n", "", []string{
			`line 1, column 37: broker.tls.ca: "x" has no effect with amqp://; use amqps:// in broker.url, or https:// in broker.management_url`,
		}},
		{"half a client certificate", "broker: {url: 'amqps://x', tls: {key: x}}\n", "", []string{
			"broker.tls.cert: is not set, but broker.tls.key is; a client certificate needs both",
		}},
		{"external without certificate", "broker: {url: 'amqps://x', external_auth: true}\n", "", []string{
			"line 1, column 43: broker.external_auth: true; external authentication needs amqps:// and a client certificate (broker.tls.cert and broker.tls.key)"}},
		{"database", "database: {url: 'oracle://u:hunter2@h/d'}\n", "", []string{"line 1, column 17: database.url: " + errScheme.Error()}},
		{"mysql without database", "database: {url: 'mysql://u:hunter2@h'}\n", "", []string{"line 1, column 17: database.url: " + urlForm("mysql", 3306)}},
		{"postgres port", "database: {url: 'postgres://u:hunter2@h:x/d'}\n", "", []string{"line 1, column 17: database.url: " + urlForm("postgres", 5432)}},
		{"sqlite without file", "database: {url: 'sqlite:'}\n", "", []string{
			"line 1, column 17: database.url: " + "expected a file, such as sqlite:orders.db or sqlite:///var/lib/orders.db",
		}},

		{"by environment", "delay: {prefix: x}\n", "RABBITDELAY_DELAY_STRATEGY=fast", []string{
			`RABBITDELAY_DELAY_STRATEGY: delay.strategy: "fast"; expected auto, bucket, ttl, plugin or native`}},
		{"URL by environment", "", "AMQP_URL=guest:hunter2@host", []string{"AMQP_URL: broker.url: " + form}},
		{"misspelt variable", "", "RABBITDELAY_BROKER_URI=amqp://guest:hunter2@host", []string{
			"RABBITDELAY_BROKER_URI: no setting has this environment variable; `rabbitdelay settings` lists the variables; did you mean RABBITDELAY_BROKER_URL or RABBITDELAY_BROKER_URLS?"}},
		{"topology", "queues:\n  - name: a\n    kind: x\n", "", []string{
			`line 3, column 5: queues[0].kind: unknown key "kind"; expected one of arguments, dead_letter, delivery_limit, max_length, max_length_bytes, message_ttl, name, overflow, single_active_consumer, type`}},
		{"in the order of lines", "queues:\n  - {name: a, kind: b}\ndelay: {strategy: fast}\nbroker: {x: 1}\n", "", []string{
			`line 2, column 15: queues[0].kind: unknown key "kind"; expected one of arguments, dead_letter, delivery_limit, max_length, max_length_bytes, message_ttl, name, overflow, single_active_consumer, type`,
			`line 3, column 19: delay.strategy: "fast"; expected auto, bucket, ttl, plugin or native`,
			`line 4, column 10: broker.x: unknown key "x"; expected one of connection_name, declare, dial_timeout, external_auth, heartbeat, held_bytes, management_url, max_body, max_in_flight, max_route_queues, password, password_file, reconnect_max, reconnect_min, send_timeout, tls, url, urls, username`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if name, value, ok := strings.Cut(c.env, "="); ok {
				t.Setenv(name, value)
			}
			_, err := load([]byte(c.yaml), Source{})
			e, ok := errors.AsType[*Error](err)
			if !ok || !errors.Is(err, ErrConfig) {
				t.Fatalf("load: got %v (%T), want an *Error that wraps ErrConfig", err, err)
			}
			var got []string
			for _, p := range e.Problems {
				got = append(got, p.String())
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("the problems:\ngot:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("load: got %v, want an error without the password", err)
			}
		})
	}
}

func TestErrorLists(t *testing.T) {
	_, err := load([]byte("delay:\n  strategy: fast\n  queue_type: slow\n"), Source{File: "shop.yaml"})
	want := `shop.yaml: 2 problems:
  line 2, column 13: delay.strategy: "fast"; expected auto, bucket, ttl, plugin or native
  line 3, column 15: delay.queue_type: "slow"; expected quorum or classic`
	if errText(err) != want {
		t.Errorf("load: got the error %v, want %v", err, want)
	}
}

// No password is printed with a configuration, whichever format verb is used.
func TestPrintingHidesPasswords(t *testing.T) {
	c, err := load([]byte("broker: {url: 'amqp://u:hunter2@a', urls: ['amqp://u:hunter2@b'], management_url: 'http://u:hunter2@m'}\n"+
		"database: {url: 'mysql://u:hunter2@d/x'}\n"), Source{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		fmt.Sprint(c), fmt.Sprintf("%+v", *c), fmt.Sprintf("%#v", c), fmt.Sprintf("%v %s %q", c.Broker, c.Broker.URL, c.Broker.URLs), string(text),
	} {
		if strings.Contains(s, "hunter2") {
			t.Errorf("the configuration is printed as %s, want it without the password", s)
		}
		if !strings.Contains(s, "u:xxxxx@a") {
			t.Errorf("the configuration is printed as %s, want it with u:xxxxx@a", s)
		}
	}
}
