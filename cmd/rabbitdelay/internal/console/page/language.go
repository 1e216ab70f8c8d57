package page

import (
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// language is a language of the pages. Templates and Go code contain the English texts, by which the other texts are
// looked up. The nil language is English.
//
// Texts of other components stay in English, because they also appear in logs, where users search for them: errors, the
// findings of the doctor, and details and results in the audit.
type language struct {
	tag   string            // the lang attribute of a page
	texts map[string]string // by the English text; nil for English
	date  string            // the format of an exact date on an axis
	day   string            // the same without the year

	once      sync.Once
	templates map[string]*template.Template
}

var (
	english = &language{tag: "en", day: "2 Jan", date: "2 Jan 2006"}
	chinese = &language{tag: "zh-CN", texts: chineseTexts, day: "1月2日", date: "2006年1月2日"}
)

// text returns a text in the language, formatted with args if there are any. Text that is not in the catalogue stays in
// English.
func (l *language) text(text string, args ...any) string {
	if l != nil {
		if translated, ok := l.texts[text]; ok {
			text = translated
		}
	}
	if len(args) == 0 {
		return text
	}
	return fmt.Sprintf(text, args...)
}

// plural returns the text for n things. The first placeholder of both texts is the number. A text without placeholders,
// such as "once,", is returned unchanged. The catalogue is searched by the second text, because Chinese has no plural.
func (l *language) plural(n int64, one, many string, args ...any) string {
	text := many
	if _, translated := l.catalogue()[many]; n == 1 && !translated {
		text = one
	}
	if !strings.Contains(text, "%") {
		return l.text(text)
	}
	return l.text(text, append([]any{shown.Number(n)}, args...)...)
}

// translates reports whether the language is not English.
func (l *language) translates() bool { return l.catalogue() != nil }

func (l *language) catalogue() map[string]string {
	if l == nil {
		return nil
	}
	return l.texts
}

// dates returns the language whose date formats apply.
func (l *language) dates() *language {
	if l == nil {
		return english
	}
	return l
}

// known formats n. If unknown is true, n is only a lower bound, and 0 means that nothing is known.
func (l *language) known(n any, unknown bool) string {
	switch n := toInt(n); {
	case !unknown:
		return shown.Number(n)
	case n == 0:
		return l.text("unknown")
	default:
		return l.text("at least %s", shown.Number(n))
	}
}

// orUnknown formats a number, which is nil if it is unknown.
func (l *language) orUnknown(n *int64) string {
	if n == nil {
		return l.text("unknown")
	}
	return shown.Number(*n)
}

// fromNow describes approximately how far a time is from now.
func (l *language) fromNow(at, now time.Time) string {
	d := at.Sub(now).Round(time.Second)
	switch {
	case d == 0:
		return l.text("now")
	case d < 0:
		return l.text("%s ago", shown.Roughly(-d))
	}
	return l.text("in %s", shown.Roughly(d))
}

// listed joins names. If there are more than three, it counts those after the third.
func (l *language) listed(names []string) string {
	const show = 3
	if len(names) > show {
		return l.text("%s and %s more", strings.Join(names[:show], l.text(", ")), shown.Number(len(names)-show))
	}
	return strings.Join(names, l.text(", "))
}

// languageCookie is the name of the cookie for the language that a user has chosen instead of the browser's.
const languageCookie = "rabbitdelay_language"

// languageOf returns the language that the user has chosen, or else the one that the browser prefers.
func languageOf(r *http.Request) *language {
	if c, err := r.Cookie(languageCookie); err == nil {
		if l := languageFor(c.Value); l != nil {
			return l
		}
	}
	best, most := english, 0.0
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Language"), ","), ",") {
		tag, quality, weighted := strings.Cut(part, ";")
		weight := 1.0
		if weighted {
			var err error
			if weight, err = strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(quality), "q="), 64); err != nil {
				continue
			}
		}
		if l := languageFor(strings.TrimSpace(tag)); l != nil && weight > most {
			best, most = l, weight
		}
	}
	return best
}

// languageFor returns the language for a tag such as zh-CN, or nil if the pages are not available in that language.
func languageFor(tag string) *language {
	primary, _, _ := strings.Cut(strings.ToLower(tag), "-")
	switch primary {
	case "en":
		return english
	case "zh":
		return chinese
	}
	return nil
}

// scriptTexts are the texts that console.js shows. The layout passes them in an attribute.
var scriptTexts = []string{
	"now", "in %s", "%s ago", "live", "paused", "no connection", "no connection, trying again", "Pause", "Resume", "Light", "Dark",
}

// foreignTexts lists texts that pages look up by a variable, so that the test of the catalogue cannot find them in a
// call of text, plural or say: states, areas, roles, actions of the audit, reasons why something is missing, and
// notices and questions.
var foreignTexts = []string{
	"active", "ended", "invalid", "stopped", "interrupted", "critical", "warning", "problem", "good", "JSON", "binary",
	"broker", "database", "dead-letters", "relays", "management", "objects", "messages", "permissions", "arguments", "bindings", "policies", "nodes", "alarms", "plugin",
	"management API", "AMQP", "viewer", "operator", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun",
	"task schedule", "task cancel", "task run", "task revive", "task reschedule", "bulk cancel", "bulk delete", "bulk run", "bulk revive", "bulk reschedule", "bulk reschedule by",
	"recurring put", "recurring pause", "recurring resume", "recurring run", "recurring delete", "destination pause", "destination resume", "destination rate limit",
	"requeue", "discard", "retire", "destroy", "plugin drain", "job stop", "job continue", "login", "refused",
	"This console is not connected to a broker.", "The broker could not be read.", "There is no task database, or it does not answer.",
	"name or password is wrong", "too many attempts; wait a minute",
	"Your role is viewer. Only operators can make changes.", "The form does not belong to this session. Load its page again.", "Forbidden",
	"The recurring task was saved.", "The recurring task was deleted.",
	"Invalid input", "The database does not answer", "Something went wrong",
	"Go back and correct it. Nothing was changed.", "The audit shows whether anything was changed.",
	"Dead letters and layouts need only the broker and still work. Messages that were sent before are still delivered. When the database is back, the audit shows whether anything was changed.",
	"The task was scheduled.", "Set the rate limit", "Set the rate limit of this destination", "Pause this destination?", "Resume this destination?",
	"The limit applies to all relays together and takes effect immediately. Tasks above the limit wait in the table. A relay that starts keeps this limit unless the limit in its file has changed.",
	"Its tasks stay in the table until it is resumed, and tasks that are already on the broker are recalled. Handlers that have started finish their tasks.",
	"Tasks that became due during the pause are sent. Tasks that become due later do not wait for them.",
	"recorded by %s", "recorded by %s, without the effect", "no error is recorded",
	"which relays run on this database is unknown", "no relay runs on this database",
}

// forScript returns the texts of console.js, keyed by the English texts.
func (l *language) forScript() map[string]string {
	texts := make(map[string]string, len(scriptTexts))
	for _, text := range scriptTexts {
		texts[text] = l.text(text)
	}
	return texts
}
