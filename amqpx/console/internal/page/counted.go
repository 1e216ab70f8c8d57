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

// A page that changes many things counts them first. Its form has a digest of what was counted;
// if it is sent with other fields, it is counted again.

// unsaid are the fields of such a form that do not matter for what is done.
var unsaid = []string{service.FormTokenField, "count", "counted", "do", "dry", "zone"}

// typed returns the fields that matter, without empty ones and with one kind of line break.
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

// counted returns the digest of a form. An absolute time is in it as it was understood, because
// "08:00" is another day tomorrow.
func (r *request) counted(form url.Values, at time.Time) string {
	text := form.Encode() + "\n" + r.prefs.zone.String()
	if s := form.Get("at"); s != "" && s[0] != '+' && s[0] != '-' {
		text += "\n" + exact(at)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// count answers a form whose button counts, by an address that says the same if that is not too
// long.
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

// recounted marks the page that shows a form again.
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
