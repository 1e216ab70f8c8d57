package layout

import "testing"

// The top of a status stays visible, whatever the size of the window.
func TestOnScreen(t *testing.T) {
	text := "one\ntwo is long\nthree\nfour\n"
	for size, want := range map[[2]int]string{
		{80, 10}: text,
		{80, 5}:  text,
		{80, 4}:  "one\ntwo is long\n... 2 more lines; a taller window shows them\n",
		{5, 10}:  "one\ntwo …\nthree\nfour\n",
	} {
		if got := onScreen(text, size[0], size[1]); got != want {
			t.Errorf("%v: %q, want %q", size, got, want)
		}
	}
}
