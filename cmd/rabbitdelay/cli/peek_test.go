package cli

import (
	"encoding/json"
	"math"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Whatever a program put into its headers can be shown.
func TestPeekShowsWhatJSONDoesNotHave(t *testing.T) {
	b := newByHand(t)
	b.fillWith(t, "q", amqp.Publishing{MessageId: "1", Headers: amqp.Table{
		"nan": math.NaN(), "deep": amqp.Table{"list": []any{math.Inf(1), int64(1)}},
	}})
	code, stdout, stderr := b.run(t, "peek", "--queue", "q", "--json")
	var got struct {
		Headers struct {
			NaN  string
			Deep struct{ List []any }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || stderr != "" || got.Headers.NaN != "NaN" || len(got.Headers.Deep.List) != 2 || got.Headers.Deep.List[0] != "+Inf" {
		t.Errorf("exit %d, %v, %s\n%s", code, err, stderr, stdout)
	}
}
