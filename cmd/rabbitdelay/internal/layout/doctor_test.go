package layout

import (
	"slices"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
)

// With --fail-on critical, only critical findings make the doctor fail.
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
			t.Errorf("--fail-on %s with the findings %v: fails = %t, want %t", x.failOn, x.report.Findings, !x.want, x.want)
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
			t.Errorf("parseRoles(%v, %s) = %v (error %v), want %v", c.names, c.declare, got, err, c.want)
		}
	}
}
