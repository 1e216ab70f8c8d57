package naming

import (
	"strings"
	"testing"
)

func TestDidYouMean(t *testing.T) {
	known := []string{"orders.expire", "orders.remind", "mail", "RABBITDELAY_BROKER_URL", "--queue", "--quiet", "consume"}
	for word, want := range map[string]string{
		"orders.expier":         "orders.expire",
		"order.expire":          "orders.expire",
		"orders":                "orders.expire orders.remind",
		"mial":                  "mail",
		"RABBITDELAY_BROKR_URL": "RABBITDELAY_BROKER_URL",
		"--queu":                "--queue --quiet",
		"consum":                "consume",
		"invoices":              "",
		"mail":                  "",
		"x":                     "",
		"":                      "",
	} {
		if got := strings.Join(meant(word, known), " "); got != want {
			t.Errorf("meant(%q) = %q, want %q", word, got, want)
		}
	}
	if got, want := DidYouMean("orders", known), "; did you mean orders.expire or orders.remind?"; got != want {
		t.Errorf(`DidYouMean("orders"): got %q, want %q`, got, want)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"ab", "ba", 1}, {"kitten", "sitting", 3}, {"größe", "grösse", 2}} {
		if got := distance(c.a, c.b); got != c.want || distance(c.b, c.a) != c.want {
			t.Errorf("distance(%q, %q) = %d and reversed %d, want %d", c.a, c.b, got, distance(c.b, c.a), c.want)
		}
	}
}
