package cli

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
)

// What keeps the doctor from looking is exit code 2, and wrong usage 1, as with other commands.
func TestDoctorBlind(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "amqp://user:hunter2@" + l.Addr().String() + "/"
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	usage := []string{"doctor x", "doctor --fast", "doctor --role admin", "doctor --skip rain", "doctor --fail-on error", "doctor --peek many"}
	for args, want := range map[string]string{
		"doctor x":                     `unexpected argument "x"; see rabbitdelay doctor --help`,
		"doctor --fast":                "unknown flag: --fast; see rabbitdelay doctor --help",
		"doctor --role admin":          `--role: "admin"; expected producer, consumer or bootstrapper`,
		"doctor --skip rain":           `--skip: "rain"; expected management, `,
		"doctor --fail-on error":       `--fail-on: "error"; expected warning or critical`,
		"doctor --peek many":           `invalid argument "many" for "--peek" flag`,
		"doctor -f /none.yaml":         "/none.yaml: cannot be read",
		"doctor --url " + nobody:       "connection refused",
		"doctor --url http://hunter2/": "expected a URL like amqp://",
	} {
		wanted := 2
		if slices.Contains(usage, args) {
			wanted = 1
		}
		for _, more := range [][]string{nil, {"--json"}} {
			code, stdout, stderr := run(t, "", append(strings.Fields(args), more...)...)
			if more != nil {
				var e struct{ Error string }
				if err := json.Unmarshal([]byte(stderr), &e); err != nil {
					t.Errorf("%s: %v: %s", args, err, stderr)
				}
				stderr = e.Error
			}
			if code != wanted || stdout != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "hunter2@") {
				t.Errorf("%s %v: exit %d, output %q, errors %q; want %d and %q", args, more, code, stdout, stderr, wanted, want)
			}
		}
	}
}
