package shown

import (
	"testing"
	"time"
)

// Line quotes text from other programs if it could control the terminal or break a table.
func TestLine(t *testing.T) {
	for s, want := range map[string]string{
		"order-42": "order-42", "заказ 7": "заказ 7", "a\tb": `"a\tb"`, "\x1b[31m": `"\x1b[31m"`, "a\nb": `"a\nb"`, "\xff": `"\xff"`, "": "",
		"a\u202eb": `"a\u202eb"`,
	} {
		if got := Line(s); got != want {
			t.Errorf("Line(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestShorten(t *testing.T) {
	for s, want := range map[string]string{"": "", "заказ": "заказ", "заказ 7": "зака…"} {
		if got := Shorten(s, 5); got != want {
			t.Errorf("Shorten(%q, 5) = %q, want %q", s, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	for s, want := range map[string]string{
		"no route\n\nno broker\n":               "no route; no broker",
		"failed to connect:\n\thost a: refused": "failed to connect: host a: refused",
	} {
		if got := OneLine(s); got != want {
			t.Errorf("OneLine(%q) = %q, want %q", s, got, want)
		}
	}
}

func TestNumber(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -999: "-999", -1000: "-1,000"} {
		if got := Number(n); got != want {
			t.Errorf("Number(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 queues", 1: "1 queue", 2: "2 queues", 2000: "2,000 queues"} {
		if got := Count(n, "queue", "queues"); got != want {
			t.Errorf("Count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestFromNow(t *testing.T) {
	now := time.Now()
	for d, want := range map[time.Duration]string{
		0: "now", 400 * time.Millisecond: "now", -400 * time.Millisecond: "now", time.Second: "in 1s", -time.Second: "1s ago",
		59*time.Second + 600*time.Millisecond: "in 1m", 90 * time.Second: "in 1m30s",
		90*time.Minute + time.Second: "in 1h30m", -49*time.Hour - time.Minute: "2d1h ago",
		7*24*time.Hour - time.Millisecond: "in 7d", 3650*24*time.Hour + time.Hour: "in 3650d",
	} {
		if got := FromNow(now.Add(d), now); got != want {
			t.Errorf("FromNow for %v: got %q, want %q", d, got, want)
		}
	}
	last := time.UnixMilli(253402300799999) // the latest possible due time is further away than a Duration can express
	if got := FromNow(last, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)); got != "in 2912442d" {
		t.Errorf(`FromNow for the end of 9999: got %q, want "in 2912442d"`, got)
	}
}

func TestInstant(t *testing.T) {
	berlin := time.FixedZone("", 3600)
	if got := Instant(time.Date(2026, 1, 31, 8, 0, 0, 1_999_999, berlin)); got != "2026-01-31T07:00:00.001Z" {
		t.Errorf(`Instant: got %q, want "2026-01-31T07:00:00.001Z"`, got)
	}
}
