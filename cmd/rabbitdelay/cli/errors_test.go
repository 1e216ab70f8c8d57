package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

func TestErrors(t *testing.T) {
	b := newByHand(t)
	letters := deadLetters("q", 12, "attempts")
	for i, l := range letters {
		if i > 0 {
			l.Headers[amqpx.HeaderError] = fmt.Sprintf("order %d was not found", i)
		}
	}
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", letters...)

	code, stdout, stderr := b.run(t, "errors", "--queue", "q.dead", "--order", "most", "--limit", "1")
	for _, want := range []string{
		"q.dead: 12 of 12 messages in ", "1. order # was not found\n   messages     11\n   reason       attempts\n   destination  q\n   example      q-11\n   error        order 11 was not found\n",
		"1 message is in other groups\n",
	} {
		if code != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, %q\n%s\nwant %s", code, stderr, stdout, want)
		}
	}
	code, stdout, stderr = b.run(t, "errors", "--queue", "q.dead", "--json")
	var got inspect.ErrorGroups
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || stderr != "" || got.Looked != 12 || len(got.Groups) != 2 {
		t.Errorf("--json: exit %d, %q, %v\n%s", code, stderr, err, stdout)
	}
	for args, says := range map[string]string{
		"":                             "give one of --queue and --parked",
		"--queue q.dead --parked":      "give one of --queue and --parked",
		"--queue q.dead --limit 0":     "expected 1 to 1000",
		"--queue q.dead --order worst": "newest",
		"--queue missing":              "NOT_FOUND",
		"--queue delay.bucket.1m":      "is late",
	} {
		if code, _, stderr := b.run(t, append([]string{"errors"}, strings.Fields(args)...)...); code != 1 || !strings.Contains(stderr, says) {
			t.Errorf("%s: exit %d, %q", args, code, stderr)
		}
	}
	for like, sent := range map[string]int{"order # was not found": 11, "order 5 was not found": 11, "card #": 0} {
		code, stdout, _ = b.run(t, "requeue", "--queue", "q.dead", "--error-like", like, "--dry-run")
		if code != 0 || !strings.Contains(stdout, fmt.Sprintf(", %d chosen", sent)) {
			t.Errorf("%s: exit %d\n%s", like, code, stdout)
		}
	}
}
