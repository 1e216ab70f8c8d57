package header

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestAttemptsAreBounded(t *testing.T) {
	var p Properties
	for range 100 {
		own := amqp.Table{}
		p.Record(own, 0)
		RecordFailure(own, "it failed")
		p.Headers = own
	}
	if list := FailedAttempts(p.Headers); len(list) != maxAttemptLog {
		t.Fatalf("FailedAttempts: got %d recorded attempts, want %d", len(list), maxAttemptLog)
	}
}

func TestCutKeepsCharactersWhole(t *testing.T) {
	for _, tc := range []struct {
		in   string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aäb", 2, "a"}, {"ä", 1, ""}, {"", 0, ""}} {
		if got := cut(tc.in, tc.n); got != tc.want {
			t.Errorf("cut(%q, %d) = %q, want %q", tc.in, tc.n, got, tc.want)
		}
	}
}
