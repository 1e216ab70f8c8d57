package shown

import "testing"

// A trace link is always an HTTP or HTTPS URL, and the trace ID is escaped in it.
func TestTraceLink(t *testing.T) {
	for pattern, ok := range map[string]bool{
		"": true, "https://traces.example.org/trace/{id}": true, "http://10.0.0.1:16686/?q={id}&x=1": true,
		"https://traces.example.org/": false, "javascript:alert({id})": false, "JavaScript://x/%0aalert({id})": false,
		"//traces.example.org/{id}": false, "/trace/{id}": false,
		"data:text/html,{id}": false, "https://user:secret@traces.example.org/{id}": false, "https:///{id}": false, "https://a b/{id}": false,
	} {
		if err := CheckTraceLink(pattern); (err == nil) != ok {
			t.Errorf("CheckTraceLink(%q): got %v, want an error: %t", pattern, err, !ok)
		}
	}
	if got := TraceLink("https://t.example.org/{id}?x={id}", `a/../"b&c`); got != "https://t.example.org/a%2F..%2F%22b%26c?x=a%2F..%2F%22b%26c" {
		t.Errorf(`TraceLink: got %q, want "https://t.example.org/a%%2F..%%2F%%22b%%26c?x=a%%2F..%%2F%%22b%%26c"`, got)
	}
}

func TestColorsAndTitles(t *testing.T) {
	for color, ok := range map[string]bool{
		"":         true,
		"#c62828":  true,
		"#C62828":  true,
		"red":      false,
		"#c62":     false,
		"#c6282g":  false,
		"c62828":   false,
		`#c62828"`: false,
		"#c628281": false,
	} {
		if err := CheckColor(color); (err == nil) != ok {
			t.Errorf("CheckColor(%q): got %v, want an error: %t", color, err, !ok)
		}
	}
	for title, ok := range map[string]bool{
		"":               true,
		"shop (staging)": true,
		"Größe":          true,
		" shop":          false,
		"a\nb":           false,
		"a\u202eb":       false,
		"0123456789012345678901234567890123456789x": false,
	} {
		if err := CheckTitle(title); (err == nil) != ok {
			t.Errorf("CheckTitle(%q): got %v, want an error: %t", title, err, !ok)
		}
	}
}
