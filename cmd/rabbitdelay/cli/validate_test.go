package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/config"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "delays.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestValidate(t *testing.T) {
	good := writeFile(t, "delay: {bucket: {layout: binary}}\ndestinations: [{queue: q}]\n")
	code, stdout, stderr := run(t, "", "validate", "-f", good)
	if want := good + " is valid: strategy bucket; with its delay queues 57 exchanges, 31 queues, 435 bindings; destinations: 1, schedules: 0\n"; code != 0 || stdout != want {
		t.Errorf("%d, %s%s, want %s", code, stdout, stderr, want)
	}
	t.Setenv(config.FileVariable, good)
	code, stdout, _ = run(t, "", "validate", "--json")
	if want := `{"file":"` + good + `","strategy":"bucket","exchanges":57,"queues":31,"bindings":435,"destinations":1,"schedules":0}` + "\n"; code != 0 || stdout != want {
		t.Errorf("%d, %s, want %s", code, stdout, want)
	}
	bad := writeFile(t, "broker: {uri: x}\ndelay: {strategy: fast}\nqueues: [{name: q, message_ttl: 5}]\n")
	code, stdout, stderr = run(t, "", "validate", "-f", bad) // -f before the environment
	if code != 1 || stdout != "" || !strings.Contains(stderr, "3 problems:") || !strings.Contains(stderr, "line 1, column 10: broker.uri") || !strings.Contains(stderr, "line 3, column 33: queues[0].message_ttl") {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
	contradicts := writeFile(t, "exchanges: [{name: delay.deliver, type: fanout}]\n")
	if code, _, stderr = run(t, "", "validate", "-f", contradicts); code != 1 || !strings.Contains(stderr, "delay.deliver") {
		t.Errorf("%d, %s", code, stderr)
	}
	plugin := writeFile(t, "delay: {strategy: plugin}\n")
	if code, _, stderr = run(t, "", "validate", "-f", plugin); code != 0 {
		t.Errorf("with the plugin: %d, %s", code, stderr)
	}
	for _, text := range []string{"", "\n\n", "# broker: {url: x}\n", "---\n", "null\n"} { // perhaps emptied by mistake
		empty := writeFile(t, text)
		want := empty + ": it is empty, or has only comments; expected at least one of the keys bindings, broker, database, delay, destinations, exchanges, queues, schedules, serve, or {} for a file without settings"
		for _, command := range []string{"validate", "apply", "plan"} {
			if code, stdout, stderr := run(t, "", command, "-f", empty); code != 1 || stdout != "" || !strings.Contains(stderr, want) {
				t.Errorf("%s of %q: %d, %s%s", command, text, code, stdout, stderr)
			}
		}
	}
	if code, _, stderr := run(t, "", "validate", "-f", writeFile(t, "{}\n")); code != 0 {
		t.Errorf("{}: %d, %s", code, stderr)
	}
	t.Setenv(config.FileVariable, "")
	if code, _, stderr = run(t, "", "validate"); code != 1 || stderr != "rabbitdelay: no file; give -f, or set RABBITDELAY_FILE\n" {
		t.Errorf("%d, %s", code, stderr)
	}
}

func TestExportAndSchema(t *testing.T) {
	file := writeFile(t, "broker: {url: 'amqp://h/shop'}\ndelay: {bucket: {layout: binary}}\n")
	code, stdout, stderr := run(t, "", "export", "-f", file)
	if code != 0 || !json.Valid([]byte(stdout)) || !strings.Contains(stdout, `"vhost": "shop"`) {
		t.Errorf("%d, %s", code, stderr)
	}
	if code, same, stderr := run(t, "", "export", "-f", file, "--json"); code != 0 || same != stdout {
		t.Errorf("with --json: %d, %s%s", code, same, stderr)
	}
	code, stdout, stderr = run(t, "", "export", "-f", file, "--format", "kubernetes", "--cluster", "rabbit")
	if code != 0 || !strings.HasPrefix(stdout, "apiVersion: rabbitmq.com/v1beta1\n") {
		t.Errorf("%d, %s", code, stderr)
	}
	for args, want := range map[string]string{
		"export --format toml":       `--format: "toml"; expected definitions or kubernetes`,
		"export --format kubernetes": "--format kubernetes needs --cluster, the name of the RabbitmqCluster",
		"export --cluster rabbit":    "--cluster, --cluster-namespace and --namespace are for --format kubernetes",
	} {
		if code, _, stderr := run(t, "", strings.Fields(args)...); code != 1 || stderr != "rabbitdelay: "+want+"\n" {
			t.Errorf("%s: %d, %s", args, code, stderr)
		}
	}
	if code, stdout, stderr := run(t, "", "export", "--format", "kubernetes", "--cluster", "rabbit", "--json"); code != 1 || stdout != "" || !strings.Contains(stderr, "--format kubernetes is YAML; leave --json out") {
		t.Errorf("kubernetes with --json: %d, %s%s", code, stdout, stderr)
	}
	if code, stdout, _ := run(t, "", "schema"); code != 0 || stdout != string(config.Schema()) {
		t.Errorf("schema: %d, %s", code, stdout)
	}
}
