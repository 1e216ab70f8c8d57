package plan

import "testing"

// Brokers use Perl-compatible regular expressions. Of the features that Go's regular expressions lack, matchPattern
// supports lookaheads at the start, which is the usual way to exclude a name.
func TestMatchPattern(t *testing.T) {
	for _, c := range []struct {
		pattern, name     string
		matches, readable bool
	}{
		{"^orders", "orders.expire", true, true},
		{"expire", "orders.expire", true, true},
		{"^expire", "orders.expire", false, true},
		{`^(?!amq\.).*`, "amq.gen-x", false, true},
		{`^(?!amq\.).*`, "delay.bucket.1m", true, true},
		{`^(?!delay\.)(?=.*x)`, "delay.x", false, true},
		{`^(?!delay\.)(?=.*x)`, "orders.x", true, true},
		{`^(?!delay\.)(?=.*x)`, "orders.y", false, true},
		{`^(?!.*\.dead$)(?!delay\.)(?=.*(?:a|d))`, "d.dead", false, true},
		{`^(?!.*\.dead$)(?!delay\.)(?=.*(?:a|d))`, "d", true, true},
		{`^(?!(a|b)\.)c`, "a.c", false, true},
		{`^(?!(a|b)\.)c`, "cd", true, true},
		{`^(?!(a|b)\.)c`, "dc", false, true},
		{`^(?!a`, "a", false, false},
		{`(?!a)b`, "b", false, false},
		{`^(?=a)`, "a", true, true},
		{`^(?<!a)b`, "b", false, false},
	} {
		matches, readable := matchPattern(c.pattern, c.name)
		if matches != c.matches || readable != c.readable {
			t.Errorf("matchPattern(%q, %q) = %t, %t, want %t, %t", c.pattern, c.name, matches, readable, c.matches, c.readable)
		}
	}
}
