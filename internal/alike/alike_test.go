package alike

import (
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "payment provider: 503": "payment provider: #", "timeout": "timeout",
		"order 42 was not found":                              "order # was not found",
		"order-42-expire failed":                              "order-#-expire failed",
		"dial tcp 10.0.0.7:5432: connect: connection refused": "dial tcp #: connect: connection refused",
		"after 1m30s":                                         "after #",
		"after 250ms":                                         "after #",
		"took 1.5s, limit 1s":                                 "took #, limit #",
		"at 2026-11-22T19:30:34.346Z":                         "at #T#Z",
		`no such user: "Ann" (3f2a9c1e-0000-4000-8000-0123456789AB)`: "no such user: … (#)",
		"user 'Bob \\' Ann' is gone":                                 "user … is gone",
		"can't and won't":                                            "can't and won't",
		"it's `x` and «y» and “z”":                                   "it's … and … and …",
		`an "open one`:                                               `an "open one`,
		"commit deadbeef1 in 0xc000123456":                           "commit # in #",
		"customer cus_Nf9vA8kQ and 01ARZ3NDEKTSV4RRFFQ69G5FAV":       "customer cus_# and #",
		"utf8 p99 http2 postgresql14":                                "utf# p# http# postgresql#",
		"1,000,000 rows":                                             "# rows",
		"Größe ٣":                                                    "Größe #",
		"\xff7":                                                      "#",
		" panic: no address\r\n\tat  line 7\n":                       "panic: no address at line #",
	} {
		if got := Text(text); got != want {
			t.Errorf("Text(%q) = %q, want %q", text, got, want)
		}
	}
	if got := Text(strings.Repeat("x ", 5000)); len(got) > Most {
		t.Errorf("Text of a long error: got %d bytes, want at most %d", len(got), Most)
	}
}

// Text leaves a normalised error unchanged, so a filter selects the original and the normalised text. The original
// contains the pieces of the normalised text in order.
func FuzzText(f *testing.F) {
	f.Add(`order 42: "x" at 10.0.0.1:5672, 1m30s, it's '3f2a9c1e'`)
	f.Fuzz(func(t *testing.T, text string) {
		once := Text(text)
		if twice := Text(once); twice != once {
			t.Errorf("Text(%q) = %q, want the unchanged text", once, twice)
		}
		rest := strings.ToValidUTF8(text[:min(len(text), Most)], "")
		for _, piece := range Pieces(once) {
			_, after, found := strings.Cut(rest, piece)
			if !found {
				t.Errorf("Pieces(%q): got %q, want only pieces that %q contains in order", once, piece, text)
			}
			rest = after
		}
	})
}
