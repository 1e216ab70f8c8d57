package page

import (
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

var (
	postForm = regexp.MustCompile(`(?s)<form method="post" action="(bulk|requeue|discard)".*?</form>`)
	field    = regexp.MustCompile(`(?s)<(input|textarea)\b([^>]*)>(?:([^<]*)</textarea>)?`)
	nameOf   = regexp.MustCompile(`\bname="([^"]*)"`)
	valueOf  = regexp.MustCompile(`\bvalue="([^"]*)"`)
)

// pressed returns the form data that a browser sends when a user fills in fields on a page and presses the button that
// makes the change.
func pressed(t *testing.T, page string, written map[string]string) url.Values {
	t.Helper()
	form := postForm.FindString(page)
	if form == "" {
		t.Fatalf("got the page\n%s\nwant it to contain a form that makes a change", page)
	}
	v, written := url.Values{}, maps.Clone(written)
	for _, m := range field.FindAllStringSubmatch(form, -1) {
		name := nameOf.FindStringSubmatch(m[2])
		if name == nil || strings.Contains(m[2], `type="checkbox"`) && !strings.Contains(m[2], "checked") {
			continue
		}
		value := html.UnescapeString(m[3])
		if x := valueOf.FindStringSubmatch(m[2]); x != nil {
			value = html.UnescapeString(x[1])
		}
		if w, ok := written[name[1]]; ok && !strings.Contains(m[2], `type="hidden"`) {
			value = w
			delete(written, name[1]) // use the value for the first field of that name
		}
		v.Add(name[1], value)
	}
	return v
}

// If the submitted fields differ from those of the last count, the page counts again, and only the next press of the
// button makes the change.
func TestOnlyCountedChangesAreMade(t *testing.T) {
	for name, x := range map[string]struct {
		page, written, call string
	}{
		"when to revive": {"bulk?action=revive", "at=%2B720h&spread=10h", "bulk revive 24 failed at 2026-12-22T12:00:00Z over 10h0m0s"},
		"an exact time": {
			"bulk?action=reschedule&queue=mail&at=%2B1h", "at=2027-01-01+08:00+UTC",
			"bulk reschedule 50 mail pending at 2027-01-01T08:00:00Z over 0s",
		},
		"by how much":      {"bulk?action=reschedule-by&queue=mail&by=1h", "by=-1h", "bulk reschedule-by 50 mail pending by -1h0m0s over 0s"},
		"a spread is gone": {"bulk?action=run&queue=mail&spread=1h", "spread=", "bulk run 50 mail pending now over 0s"},
		"how many":         {"requeue?queue=mail.dead&dry=1", "limit=1&rate=2", "requeue mail.dead 10 [] rate 2 to"},
		"which":            {"requeue?queue=mail.dead&reason=retries&dry=1", "reason=a%0D%0Ab&to-queue=other", "requeue mail.dead 10 [a b] rate 0 to other"},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(service.RoleOperator)
			path, _, _ := strings.Cut(x.page, "?")
			values, _ := url.ParseQuery(x.written)
			written := map[string]string{}
			for k, v := range values {
				written[k] = v[0]
			}
			page := c.get(x.page).Body.String()
			again := c.post(path, pressed(t, page, written))
			if again.Code != http.StatusConflict || len(c.calls) > 0 || !strings.Contains(again.Body.String(), "Nothing has been changed yet") {
				t.Fatalf("got %d, calls %q\n%s\nwant 409, no calls and a body with \"Nothing has been changed yet\"",
					again.Code, c.calls, again.Body)
			}
			if w := c.post(path, pressed(t, again.Body.String(), nil)); w.Code != http.StatusSeeOther || len(c.calls) != 1 || c.calls[0] != x.call {
				t.Errorf("got status %d and calls %q, want 303 and %q\n%s", w.Code, c.calls, x.call, w.Body)
			}
		})
	}
}

// If an absolute field such as "tomorrow 08:00" means a different time when the form is submitted than when it was
// counted, the page counts again. It does not for times relative to now, such as "+1h".
func TestCountedInstants(t *testing.T) {
	for at, again := range map[string]bool{"08:00 UTC": true, "tomorrow 08:00 UTC": true, "2027-01-01T08:00:00Z": false, "+1h": false, "": false} {
		c := open(service.RoleOperator)
		page := c.get(link("bulk", "action", "revive", "at", at)).Body.String()
		c.now = c.now.Add(21 * time.Hour)
		if w := c.post("bulk", pressed(t, page, nil)); (w.Code == http.StatusConflict) != again || (len(c.calls) == 0) != again {
			t.Errorf("%q: got %d and calls %q, want a second confirmation: %t", at, w.Code, c.calls, again)
		}
	}
}

// The button that counts redirects to an address with the form's fields, but without its token.
func TestCountButton(t *testing.T) {
	c := open(service.RoleOperator)
	for page, want := range map[string]string{
		"bulk?action=reschedule&queue=mail&at=%2B1h": "bulk?action=reschedule&at=%2B2h&queue=mail&status=pending",
		"requeue?queue=mail.dead":                    "requeue?dry=1&limit=3&queue=mail.dead",
		"discard?queue=mail.dead":                    "discard?dry=1&limit=3&queue=mail.dead",
	} {
		path, _, _ := strings.Cut(page, "?")
		form := pressed(t, c.get(page).Body.String(), map[string]string{"at": "+2h", "limit": "3"})
		form.Set("do", "count")
		if w := c.post(path, form); w.Code != http.StatusSeeOther || w.Header().Get("Location") != want || len(c.calls) > 0 {
			t.Errorf("%s: got %d, Location %q and calls %q, want 303, %q and none", page, w.Code, w.Header().Get("Location"), c.calls, want)
		}
	}
}

// A time without a zone is in the zone of the form, even if the user has chosen another zone on another page since.
func TestFormsKeepTheirZone(t *testing.T) {
	c := open(service.RoleOperator)
	page := c.get(link("bulk", "action", "reschedule", "queue", "mail", "at", "2027-01-01 08:00")).Body.String()
	form := pressed(t, page, nil)
	r := httptestPost("bulk", form)
	r.AddCookie(&http.Cookie{Name: zoneCookie, Value: "Asia%2FTokyo"})
	if w := c.do(r); w.Code != http.StatusSeeOther || len(c.calls) != 1 || !strings.Contains(c.calls[0], "at 2027-01-01T08:00:00Z") {
		t.Errorf(`got %d, calls %q, want 303 and one call with "at 2027-01-01T08:00:00Z"`, w.Code, c.calls)
	}
}
