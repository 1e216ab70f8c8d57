package page

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
)

// A page that changes many things counts them first. Its form has a digest of what was
// counted beside the fields, and what is sent with other fields is counted again.

// unsaid are the fields of such a form that do not say what shall be done.
var unsaid = []string{service.FormTokenField, "count", "counted", "do", "dry", "zone"}

// typed is what a form says of what shall be done: without fields that are empty, with
// one kind of line break.
func typed(form url.Values) url.Values {
	v := url.Values{}
	for name, values := range form {
		if slices.Contains(unsaid, name) {
			continue
		}
		if text := strings.Join(lines(strings.Join(values, "\n")), "\n"); text != "" {
			v.Set(name, text)
		}
	}
	return v
}

// counted is the digest of what a form says. An instant that does not depend on when
// the form is sent is in it as it was understood: "08:00" is another day tomorrow.
func (r *request) counted(form url.Values, at time.Time) string {
	text := form.Encode() + "\n" + r.prefs.zone.String()
	if s := form.Get("at"); s != "" && s[0] != '+' && s[0] != '-' {
		text += "\n" + exact(at)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// count answers a form whose button asks for that: at an address that says the same,
// if that is not too long.
func (r *request) count(path string, ask handler) (answer, error) {
	form := typed(r.form)
	if path == "requeue" {
		r.form.Set("dry", "1")
		form.Set("dry", "1")
	}
	if to := withQuery(path, form); len(to) <= maxNext {
		return answer{to: to}, nil
	}
	return ask(r)
}

// recounted marks the page on which what was sent stands again.
func recounted(a answer, err error) (answer, error) {
	switch d := a.data.(type) {
	case bulkData:
		d.Again = d.Problem == ""
		a.data = d
	case requeueData:
		d.Again = d.Problem == ""
		a.data = d
	}
	if a.status == 0 {
		a.status = http.StatusConflict
	}
	return a, err
}
