package cli

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// What keeps the doctor from looking is exit code 2: 1 is for findings.
func TestDoctorBlind(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "amqp://user:hunter2@" + l.Addr().String() + "/"
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"doctor x":                     `unexpected argument "x"; see rabbitdelay doctor --help`,
		"doctor --fast":                "unknown flag: --fast; see rabbitdelay doctor --help",
		"doctor --role admin":          `--role: "admin"; expected producer, consumer or bootstrapper`,
		"doctor --fail-on error":       `--fail-on: "error"; expected warning or critical`,
		"doctor --peek many":           `invalid argument "many" for "--peek" flag`,
		"doctor -f /none.yaml":         "/none.yaml: cannot be read",
		"doctor --url " + nobody:       "connection refused",
		"doctor --url http://hunter2/": "expected a URL like amqp://",
	} {
		for _, more := range [][]string{nil, {"--json"}} {
			code, stdout, stderr := run(t, "", append(strings.Fields(args), more...)...)
			if more != nil {
				var e struct{ Error string }
				if err := json.Unmarshal([]byte(stderr), &e); err != nil {
					t.Errorf("%s: %v: %s", args, err, stderr)
				}
				stderr = e.Error
			}
			if code != 2 || stdout != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "hunter2@") {
				t.Errorf("%s %v: exit %d, output %q, errors %q; want 2 and %q", args, more, code, stdout, stderr, want)
			}
		}
	}
}

// Without critical findings --fail-on critical is content with warnings.
func TestDoctorFailOn(t *testing.T) {
	report := func(severities ...doctor.Severity) (r doctor.Report) {
		for _, s := range severities {
			r.Findings = append(r.Findings, doctor.Finding{Severity: s})
		}
		return r
	}
	for _, x := range []struct {
		failOn string
		report doctor.Report
		want   bool
	}{
		{"warning", report(), false}, {"critical", report(), false},
		{"warning", report(doctor.SeverityWarning), true}, {"critical", report(doctor.SeverityWarning), false},
		{"critical", report(doctor.SeverityWarning, doctor.SeverityCritical), true},
	} {
		if d := (&doctorRun{failOn: x.failOn}); d.fails(x.report) != x.want {
			t.Errorf("--fail-on %s: %v", x.failOn, x.report.Findings)
		}
	}
}

func TestDoctorRoles(t *testing.T) {
	for _, c := range []struct {
		names   []string
		declare amqpx.Declaration
		want    []doctor.Role
	}{
		{nil, amqpx.DeclareMissing, []doctor.Role{doctor.RoleProducer, doctor.RoleConsumer, doctor.RoleBootstrapper}},
		{nil, amqpx.DeclareNothing, []doctor.Role{doctor.RoleProducer, doctor.RoleConsumer}},
		{[]string{"bootstrapper"}, amqpx.DeclareNothing, []doctor.Role{doctor.RoleBootstrapper}},
	} {
		if got, err := parseRoles(c.names, c.declare); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v, %s: got %v, %v", c.names, c.declare, got, err)
		}
	}
}

func TestDoctorPluginUse(t *testing.T) {
	for _, c := range []struct {
		delay config.Delay
		want  doctor.PluginUse
	}{
		{config.Delay{Strategy: config.StrategyBucket, Plugin: config.Plugin{Max: 1}}, doctor.PluginUnused},
		{config.Delay{Strategy: config.StrategyAuto}, doctor.PluginUnused},
		{config.Delay{Strategy: config.StrategyAuto, Plugin: config.Plugin{Min: 1}}, doctor.PluginOptional},
		{config.Delay{Strategy: config.StrategyAuto, Plugin: config.Plugin{Max: 1}}, doctor.PluginOptional},
		{config.Delay{Strategy: config.StrategyPlugin}, doctor.PluginRequired},
	} {
		if got := pluginUse(&config.Config{Delay: c.delay}); got != c.want {
			t.Errorf("%+v: got %v", c.delay, got)
		}
	}
}
